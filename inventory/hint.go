package inventory

import "errors"

var (
	// ErrUnavailable means that a request cannot be answered now, but may be sent again later.
	ErrUnavailable = errors.New("not available now")
	// ErrMoving means that new runs are refused while the site moves to another host.
	ErrMoving = errors.New("the site is moving to another host")
)

// A Hint is an error with the command that solves it.
type Hint struct {
	Err  error
	Next string
}

// Error returns the text of the error without the command.
func (h Hint) Error() string { return h.Err.Error() }

// Unwrap returns h.Err.
func (h Hint) Unwrap() error { return h.Err }

// Invalid returns one Problem as an error.
func Invalid(field, remedy, format string, args ...any) error {
	var p Problems
	p.Add(field, remedy, format, args...)

	return p
}
