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
	OutcomeRefused     = "refused" // the credentials
	OutcomeUnsupported = "unsupported"
	OutcomeInvalid     = "invalid" // what was asked for
	OutcomeFenced      = "fenced"  // the run does not own the machine any more
	OutcomeCancelled   = "cancelled"
	OutcomeFailed      = "failed" // for another reason
)

// observe returns a function that reports the operation when it has ended with *err.
func (d *Driver) observe(ctx context.Context, b inventory.BMC, what string, err *error) (ended func()) {
	if d.cfg.Observe == nil {
		return func() {}
	}
	began := time.Now()
	return func() {
		name := what
		if strings.HasPrefix(what, "boot device") {
			name = "boot device" // without its name, to have few values
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
