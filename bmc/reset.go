package bmc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// ResetBMC restarts the BMC itself, and does not change the machine's power. It
// returns when the BMC was unreachable and answers again, or has answered for all of
// Config.Settle. It returns inventory.ErrUnsupported if the BMC does not know the
// command. fence is as in Set.
func (d *Driver) ResetBMC(ctx context.Context, b inventory.BMC, password inventory.Secret,
	fence func(context.Context) error,
) error {
	return d.with(ctx, b, password, "resetting the BMC", func(s *session) error {
		r, ok := s.provider.(resetter)
		if !ok {
			return fmt.Errorf("the driver %s cannot restart the controller: %w", b.Driver, inventory.ErrUnsupported)
		}
		s.fence = fence
		return s.resetBMC(ctx, r)
	})
}

func (s *session) resetBMC(ctx context.Context, r resetter) error {
	if _, err := s.state(ctx); err != nil {
		return err // without an answer before the reset, an answer after it proves nothing
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
			return errors.Join(wrote, s.wasReset(ctx, last)) // it never went away, so the answer was not just lost
		case err != nil && took >= s.d.cfg.Back:
			return errors.Join(fmt.Errorf("no answer %s after its reset: %w", s.d.cfg.Back, inventory.ErrUnreachable),
				err)
		case err != nil:
			gone = true // also on a refused log-in: a BMC that is starting may not know its users yet
		}
	}
}

// lastReset returns when the BMC was last reset, or "" if that is unknown.
func (s *session) lastReset(ctx context.Context) (string, error) {
	if w, ok := s.provider.(resetWitness); ok {
		return w.lastReset(ctx)
	}
	return "", nil
}

// wasReset returns an error if the BMC still reports the reset before as its last one.
func (s *session) wasReset(ctx context.Context, before string) error {
	now, err := s.lastReset(ctx)
	if err == nil && before != "" && now == before {
		err = fmt.Errorf("the BMC reports that its last reset was at %s, before the command: %w", clip(now),
			inventory.ErrUnreachable)
	}
	return err
}
