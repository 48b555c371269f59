package bmc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// State reads the power state: On, Off, Transitional or Unknown.
func (d *Driver) State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error) {
	state := Unknown
	err := d.with(ctx, b, password, "reading power state", func(s *session) (err error) {
		state, err = s.state(ctx)
		return err
	})
	return state, err
}

// Set changes the power: on, off, soft (the system shuts down), cycle (off, then on) or reset (only of a machine that
// is on). It returns nil once a read shows the new state. If two reads show that the machine already has this state,
// Set writes nothing.
//
// With wake-on-LAN, the state cannot be read. Set then returns once it has sent the packets, and only later network
// requests of the machine show that the machine has started.
//
// Before each write, Set calls fence, unless fence is nil. No other operation of this Driver can use the BMC between
// the fence and the write. If fence returns an error, Set does not write, and returns that error.
func (d *Driver) Set(ctx context.Context, b inventory.BMC, password inventory.Secret, power string,
	fence func(context.Context) error,
) error {
	if !slices.Contains([]string{"on", "off", "soft", "cycle", "reset"}, power) {
		return fmt.Errorf("invalid power %q; must be on, off, soft, cycle or reset: %w", power, inventory.ErrInvalid)
	}
	if b.Wakes() {
		return d.wake(ctx, b, power, fence)
	}
	return d.with(ctx, b, password, "power "+power, func(s *session) error {
		if (power == "soft" || power == "reset") && !b.Capabilities().Soft {
			return fmt.Errorf("the driver %s supports only on and off: %w", b.Driver, inventory.ErrUnsupported)
		}
		s.fence = fence
		switch power {
		case "cycle":
			return s.cycle(ctx)
		case "reset":
			if b.Capabilities().ResetByCycle {
				return s.cycle(ctx)
			}
			return s.reset(ctx)
		case "soft":
			return s.turn(ctx, "soft", Off, d.cfg.Soft)
		}

		return s.turn(ctx, power, power, d.cfg.Hard)
	})
}

func (s *session) cycle(ctx context.Context) error {
	if err := s.turn(ctx, "off", Off, s.d.cfg.Hard); err != nil {
		return err
	}
	return s.turn(ctx, "on", On, s.d.cfg.Hard)
}

func (s *session) state(ctx context.Context) (string, error) {
	text, err := s.provider.readPower(ctx)
	if err != nil {
		return Unknown, err
	}
	return normalize(text), nil
}

// normalize converts what a provider reads, such as "Chassis Power is on", "On" or "PoweringOff", to a power state.
func normalize(text string) string {
	text = strings.ToLower(strings.TrimSpace(text))
	text = strings.TrimSpace(strings.TrimPrefix(text, "chassis power is"))
	switch text {
	case "on":
		return On
	case "off":
		return Off
	case "poweringon", "poweringoff", "paused", "sleeping":
		return Transitional
	}
	return Unknown
}

// turn sends the power command and waits until a read shows the power state want. If the machine already has this state
// in two reads, turn sends nothing.
func (s *session) turn(ctx context.Context, power, want string, within time.Duration) error {
	// Return an error if the state cannot be read. The machine may already be off, and a soft shutdown would then be
	// reported as done.
	now, err := s.state(ctx)
	if err == nil && now == want {
		now, err = s.state(ctx) // read twice: after a single wrong answer, turn would report success without having written anything
	}
	if err != nil {
		return err
	}
	if now == want {
		return nil
	}
	wrote := s.write(ctx, func() error { return s.provider.setPower(ctx, power) })
	if wrote != nil && final(wrote) {
		return wrote
	}

	// Do not return the error of the write yet, because only the answer may be lost (UDP). The power state decides.
	if err := s.await(ctx, want, within); err != nil {
		return errors.Join(wrote, err)
	}
	return nil
}

// reset restarts a machine that is on. The machine is on before and after the reset, so only the BMC's answer to the
// command proves the reset.
func (s *session) reset(ctx context.Context) error {
	now, err := s.state(ctx)
	if err != nil {
		return err
	}
	if now != On {
		return fmt.Errorf("power is %s; only a machine that is on can be reset (use: on): %w", now,
			inventory.ErrUnsupported)
	}
	if err := s.write(ctx, func() error { return s.provider.setPower(ctx, "reset") }); err != nil {
		return err
	}
	return s.await(ctx, On, s.d.cfg.Hard)
}

// await reads the power state until it equals want. It gives up when the time within has passed. While the BMC is
// unreachable, it goes on trying.
func (s *session) await(ctx context.Context, want string, within time.Duration) error {
	for began := time.Now(); ; {
		now, err := s.state(ctx)
		switch {
		case err == nil && now == want:
			return nil
		case err != nil && !errors.Is(err, inventory.ErrUnreachable):
			return err
		case time.Since(began) >= within:
			if err != nil {
				return err
			}
			return fmt.Errorf("power is %s instead of %s after %s: %w", now, want, within, inventory.ErrUnreachable)
		}

		if err := clock.Sleep(ctx, s.d.cfg.Step); err != nil {
			return err
		}
	}
}
