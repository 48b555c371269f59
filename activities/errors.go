package activities

import (
	"errors"
	"fmt"

	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// Types of the activity errors that workflows distinguish.
const (
	TypeFenced      = "Fenced"
	TypeInvalid     = "Invalid"
	TypeConflict    = "Conflict"
	TypeNotFound    = "NotFound"
	TypeSealed      = "Sealed"
	TypeRefused     = "Refused"
	TypeUnsupported = "Unsupported"
	TypeUnreachable = "Unreachable"
	// TypeClock: the clock of this server is behind the server's newest event.
	TypeClock = "Clock"
	// TypeClaimed: the agent of a boot has reported, although that boot was given up.
	TypeClaimed = "Claimed"
)

// fail converts an error of the inventory to an error of Temporal. Only fail decides which errors are retried. The
// interceptor Errors calls fail for the error of every activity.
func fail(err error) error {
	if err == nil {
		return nil
	}

	for _, m := range []struct {
		is  error
		typ string
	}{
		{inventory.ErrFenced, TypeFenced},
		{inventory.ErrInvalid, TypeInvalid},
		{inventory.ErrConflict, TypeConflict},
		{inventory.ErrNotFound, TypeNotFound},
		{inventory.ErrSealed, TypeSealed},
		{inventory.ErrRefused, TypeRefused},
		{inventory.ErrUnsupported, TypeUnsupported},
		{inventory.ErrClaimed, TypeClaimed},
	} {
		if errors.Is(err, m.is) {
			return temporal.NewNonRetryableApplicationError(err.Error(), m.typ, nil)
		}
	}

	if errors.Is(err, inventory.ErrUnreachable) {
		return temporal.NewApplicationError(err.Error(), TypeUnreachable)
	}
	return err
}

var errOff = fmt.Errorf("this server answers no machines, because no interface is configured: run ingot init, "+
	"then start the server again: %w", inventory.ErrInvalid)
