package human

// WithKind returns err so that errors.Is also matches kind. The text of err does not change.
func WithKind(err, kind error) error { return kindError{err, kind} }

type kindError struct{ err, kind error }

func (k kindError) Error() string   { return k.err.Error() }
func (k kindError) Unwrap() []error { return []error{k.err, k.kind} }
