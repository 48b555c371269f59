package human

// WithKind returns an error that has the text of err. For errors.Is, the error is both err and kind.
func WithKind(err, kind error) error { return kindError{err, kind} }

type kindError struct{ err, kind error }

func (k kindError) Error() string   { return k.err.Error() }
func (k kindError) Unwrap() []error { return []error{k.err, k.kind} }
