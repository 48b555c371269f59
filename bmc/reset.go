package bmc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// ResetBMC restarts the BMC itself, which leaves the machine's power alone. It
// returns when the BMC has gone and answers again, or has gone on answering
// for so long that it restarts without a gap. One that knows no such command
// is inventory.ErrUnsupported. fence is as in Set.
func (d *Driver) ResetBMC(ctx context.Context, b inventory.BMC, password inventory.Secret,
	fence func(context.Context) error,
) error {
	return d.with(ctx, b, password, "resetting the BMC", func(s *session) error {
		if !b.Capabilities().ResetsBMC {
			return fmt.Errorf("the driver %s cannot restart the controller: %w", b.Driver, inventory.ErrUnsupported)
		}
		s.fence = fence
		return s.resetBMC(ctx)
	})
}

func (s *session) resetBMC(ctx context.Context) error {
	if _, err := s.state(ctx); err != nil {
		return err // what does not answer before cannot be seen to answer again
	}

	wrote := s.write(ctx, func() (bool, error) { return s.client.ResetBMC(ctx, "cold") })
	if wrote != nil && final(wrote) {
		return wrote
	}

	began, gone := time.Now(), false
	tick := time.NewTicker(s.d.cfg.Step)
	defer tick.Stop()

	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}

		_, err := s.state(ctx)
		switch took := time.Since(began); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && gone:
			return nil
		case err == nil && took >= s.d.cfg.Settle:
			return wrote // the answer to the write can get lost, but then the BMC goes
		case err != nil && took >= s.d.cfg.Back:
			return errors.Join(fmt.Errorf("it does not answer %s after its reset: %w", s.d.cfg.Back, inventory.ErrUnreachable),
				err)
		case err != nil:
			gone = true // also when it refuses: it may have no users yet
		}
	}
}
