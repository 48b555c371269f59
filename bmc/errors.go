package bmc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// silentError means that a BMC did not answer. It wraps inventory.ErrUnreachable.
type silentError struct {
	how   string // what was tried, and what happened
	cause error  // the error of ipmitool or of the network, for the debug log
}

// Error returns a text that continues a sentence which begins with the BMC's name; see [describeFailure].
func (e silentError) Error() string   { return "does not answer (" + e.how + ")" }
func (e silentError) Unwrap() []error { return []error{inventory.ErrUnreachable, e.cause} }

// blindError means that the provider cannot read the next boot device. It wraps inventory.ErrUnsupported.
type blindError struct{ why string }

func (e blindError) Error() string { return e.why }
func (e blindError) Unwrap() error { return inventory.ErrUnsupported }

// fenceError marks an error that comes from the fence and not from the BMC.
type fenceError struct{ error }

func (e fenceError) Unwrap() error { return e.error }

// errUnconfirmed means that a BMC accepted a command, but its answer does not confirm that the command was executed.
var errUnconfirmed = errors.New("the BMC did not confirm the command")

// final reports whether err, the error of a write, ends the operation. After any other error, the write may still have
// had an effect, so the caller must read the state.
func final(err error) bool {
	var fenced fenceError
	return errors.As(err, &fenced) || errors.Is(err, inventory.ErrRefused) || isUnsupported(err) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func isUnsupported(err error) bool { return errors.Is(err, inventory.ErrUnsupported) }

// requestLost returns the error for an HTTP request that got no complete answer. It returns a silentError if the
// connection failed or timed out, otherwise inventory.ErrUnreachable.
func requestLost(protocol string, err error) error {
	err = bare(err)
	var dial *net.OpError
	var late net.Error
	if errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &late) && late.Timeout() {
		return silentError{protocol + ": " + err.Error(), err}
	}
	return fmt.Errorf("%w: %w", inventory.ErrUnreachable, err)
}

// describeFailure returns err as a sentence for the operator. The sentence begins with the operation that failed (what)
// and the name of the BMC.
func describeFailure(what, name string, err error) error {
	var s silentError
	if errors.As(err, &s) && strings.HasPrefix(err.Error(), s.Error()) {
		return fmt.Errorf("%s: %s %w", what, name, err)
	}
	return fmt.Errorf("%s: %s: %w", what, name, err)
}

// bare returns err without the method and URL that an HTTP client adds. The text is clipped, because net/http repeats
// any header that it could not parse.
func bare(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return clippedError{err}
}

type clippedError struct{ error }

func (e clippedError) Error() string { return clip(e.error.Error()) }
func (e clippedError) Unwrap() error { return e.error }

// clip shortens text from a BMC or a program to 400 characters, and replaces control characters by spaces.
func clip(s string) string {
	return plaintext.Clip(plaintext.Line(s, len(s)), 400)
}
