package bmc

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// Outcomes of operations.
const (
	OutcomeOK          = "ok"
	OutcomeUnreachable = "unreachable"
	OutcomeRefused     = "refused" // the BMC refused the credentials
	OutcomeUnsupported = "unsupported"
	OutcomeInvalid     = "invalid" // the request is invalid
	OutcomeFenced      = "fenced"  // the run no longer owns the machine
	OutcomeCancelled   = "cancelled"
	OutcomeFailed      = "failed" // any other reason
)

// observe notes the start of an operation, and returns a function that reports the operation to Config.Observe. Call
// this function when the operation has ended; *err must then be the error of the operation.
func (d *Driver) observe(ctx context.Context, b inventory.BMC, what string, err *error) (ended func()) {
	if d.cfg.Observe == nil {
		return func() {}
	}
	began := time.Now()
	return func() {
		name := what
		if strings.HasPrefix(what, "boot device") {
			name = "boot device" // without the device, so that there are only a few names
		}
		driver := b.Driver
		if _, known := providers[driver]; !known && !b.Wakes() {
			driver = "unknown"
		}
		d.cfg.Observe(ctx, Operation{
			Driver: driver, Name: name, Outcome: outcome(*err), Machine: b.Machine, Address: b.Host, Took: time.Since(began),
		})
	}
}

func outcome(err error) string {
	var fenced fenceError
	switch {
	case err == nil:
		return OutcomeOK
	case errors.As(err, &fenced):
		return OutcomeFenced
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return OutcomeCancelled
	case errors.Is(err, inventory.ErrRefused):
		return OutcomeRefused
	case errors.Is(err, inventory.ErrUnreachable):
		return OutcomeUnreachable
	case errors.Is(err, inventory.ErrUnsupported):
		return OutcomeUnsupported
	case errors.Is(err, inventory.ErrInvalid):
		return OutcomeInvalid
	}
	return OutcomeFailed
}
