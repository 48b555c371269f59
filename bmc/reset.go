package bmc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// ResetBMC restarts the BMC itself, without changing the machine's power. It returns nil once the BMC answers again
// after it was unreachable, or after Config.Settle if the BMC answered all the time and its last reset time, if
// reported, has changed. It returns inventory.ErrUnsupported if the driver or the BMC does not support the command.
// fence is as in Set.
func (d *Driver) ResetBMC(ctx context.Context, b inventory.BMC, password inventory.Secret,
	fence func(context.Context) error,
) error {
	return d.with(ctx, b, password, "resetting the BMC", func(s *session) error {
		r, ok := s.provider.(resetter)
		if !ok {
			return fmt.Errorf("the driver %s cannot restart the BMC: %w", b.Driver, inventory.ErrUnsupported)
		}
		s.fence = fence
		return s.resetBMC(ctx, r)
	})
}

func (s *session) resetBMC(ctx context.Context, r resetter) error {
	if _, err := s.state(ctx); err != nil {
		return err // without an answer before the reset, one after it proves nothing
	}
	last, err := s.lastReset(ctx)
	if err != nil {
		return err
	}

	wrote := s.write(ctx, func() error { return r.resetBMC(ctx) })
	if wrote != nil && final(wrote) {
		return wrote
	}

	for began, gone := time.Now(), false; ; {
		if err := clock.Sleep(ctx, s.d.cfg.Step); err != nil {
			return err
		}

		_, err = s.state(ctx)
		switch took := time.Since(began); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && gone:
			return nil
		case err == nil && took >= s.d.cfg.Settle:
			return errors.Join(wrote, s.wasReset(ctx, last)) // it answered all the time, so an error of the write was not just a lost answer
		case err != nil && took >= s.d.cfg.Back:
			return errors.Join(fmt.Errorf("the BMC does not answer %s after its reset: %w", s.d.cfg.Back, inventory.ErrUnreachable),
				err)
		case err != nil:
			gone = true // also after a refused log-in: a BMC that is starting may not have loaded its users yet
		}
	}
}

// lastReset returns the BMC's own text for the time of its last reset, or "" if it is not known.
func (s *session) lastReset(ctx context.Context) (string, error) {
	if w, ok := s.provider.(resetWitness); ok {
		return w.lastReset(ctx)
	}
	return "", nil
}

// wasReset returns an error if the BMC still reports before, the last reset before the command.
func (s *session) wasReset(ctx context.Context, before string) error {
	now, err := s.lastReset(ctx)
	if err == nil && before != "" && now == before {
		err = fmt.Errorf("the BMC reports that its last reset was at %s, before the command: %w", clip(now),
			inventory.ErrUnreachable)
	}
	return err
}
