package bmc

import (
	"errors"
	"fmt"
	"net"
	"strings"

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
