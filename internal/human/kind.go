package human

// WithKind returns err, which errors.Is also finds to be kind. The text stays that
// of err.
func WithKind(err, kind error) error { return kindError{err, kind} }

type kindError struct{ err, kind error }

func (k kindError) Error() string   { return k.err.Error() }
func (k kindError) Unwrap() []error { return []error{k.err, k.kind} }
