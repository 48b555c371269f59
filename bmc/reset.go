package bmc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// ResetBMC restarts the BMC itself, without changing the machine's power. It returns nil in two cases: once the BMC
// answers again after it was unreachable; or, if the BMC answered all the time, after Config.Settle, unless the BMC
// still reports the same time of its last reset. It returns inventory.ErrUnsupported if the driver or the BMC does not
// support the command. fence has the same meaning as for Set.
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
		return err // if the BMC does not answer before the reset, an answer after the reset proves nothing
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
			return errors.Join(wrote, s.wasReset(ctx, last)) // no answer was lost, so an error of the write is real
		case err != nil && took >= s.d.cfg.Back:
			return errors.Join(fmt.Errorf("the BMC does not answer %s after its reset: %w", s.d.cfg.Back, inventory.ErrUnreachable),
				err)
		case err != nil:
			gone = true // also if the BMC refused the log-in: while it starts, it may not have loaded its users yet
		}
	}
}

// lastReset returns the time of the BMC's last reset as the BMC writes it, or "" if this time is not known.
func (s *session) lastReset(ctx context.Context) (string, error) {
	if w, ok := s.provider.(resetWitness); ok {
		return w.lastReset(ctx)
	}
	return "", nil
}

// wasReset returns an error if the BMC still reports the same last reset as before the command.
func (s *session) wasReset(ctx context.Context, before string) error {
	now, err := s.lastReset(ctx)
	if err == nil && before != "" && now == before {
		err = fmt.Errorf("the BMC reports that its last reset was at %s, before the command: %w", clip(now),
			inventory.ErrUnreachable)
	}
	return err
}
