package human

// Advise returns err with the command that helps. A caller finds the command with
// errors.As and interface{ Next() string }.
func Advise(err error, next string) error { return advice{err, next} }

type advice struct {
	error
	next string
}

func (a advice) Unwrap() error { return a.error }

// Next is the command that helps.
func (a advice) Next() string { return a.next }
