package human

// Advise returns err together with next, a command that helps the operator. A caller finds the command with errors.As and the interface{
// Next() string }.
func Advise(err error, next string) error { return advice{err, next} }

type advice struct {
	error
	next string
}

func (a advice) Unwrap() error { return a.error }

// Next returns the command that helps.
func (a advice) Next() string { return a.next }
