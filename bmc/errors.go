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

// silentError means that a BMC gave no answer. It is an inventory.ErrUnreachable.
type silentError struct {
	how   string // what was tried, and what the network reported
	cause error  // what ipmitool or the network reported, for the debug log
}

// Error is the second half of a sentence about the BMC; see [describeFailure].
func (e silentError) Error() string   { return "does not answer (" + e.how + ")" }
func (e silentError) Unwrap() []error { return []error{inventory.ErrUnreachable, e.cause} }

// blindError means that the provider cannot read what boots next.
type blindError struct{ why string }

func (e blindError) Error() string { return e.why }
func (e blindError) Unwrap() error { return inventory.ErrUnsupported }

// fenceError is an error of the fence, as opposed to one of the BMC.
type fenceError struct{ error }

func (e fenceError) Unwrap() error { return e.error }

// errUnconfirmed means that a BMC accepted a command, and its answer does not say that it carried it out.
var errUnconfirmed = errors.New("the BMC did not confirm the command")

// final reports whether a write's error ends the operation. After any other error,
// the write may have had an effect, and a read finds out.
func final(err error) bool {
	var fenced fenceError
	return errors.As(err, &fenced) || errors.Is(err, inventory.ErrRefused) || isUnsupported(err) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

func isUnsupported(err error) bool { return errors.Is(err, inventory.ErrUnsupported) }

// requestLost returns the error of a request over HTTP that got no whole answer: a silentError if nothing came back, otherwise
// an inventory.ErrUnreachable.
func requestLost(protocol string, err error) error {
	err = bare(err)
	var dial *net.OpError
	var late net.Error
	if errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &late) && late.Timeout() {
		return silentError{protocol + ": " + err.Error(), err}
	}
	return fmt.Errorf("%w: %w", inventory.ErrUnreachable, err)
}

// describeFailure returns the error of an operation on a BMC for the operator. name is the name of the BMC.
func describeFailure(what, name string, err error) error {
	var s silentError
	if errors.As(err, &s) && strings.HasPrefix(err.Error(), s.Error()) {
		return fmt.Errorf("%s: %s %w", what, name, err)
	}
	return fmt.Errorf("%s: %s: %w", what, name, err)
}

// bare returns the cause of an HTTP client's error, without method and URL. Its text is clipped, because
// net/http repeats the header that it could not read.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return clippedError{err}
}

type clippedError struct{ error }

func (e clippedError) Error() string { return clip(e.error.Error()) }
func (e clippedError) Unwrap() error { return e.error }

// clip shortens what a BMC or a program wrote, and replaces control characters by spaces.
func clip(s string) string {
	return plaintext.Clip(plaintext.Line(s, len(s)), 400)
}
