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
// it writes nothing.
//
// Wake-on-LAN cannot read the state: Set then returns once the packets are sent, and only later network requests of
// the machine show that it has started.
//
// fence, if not nil, is called immediately before each write, while no other operation of this Driver on the same BMC
// can run. If it returns an error, Set does not write, and returns that error.
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

// normalize converts the text of a provider, such as "Chassis Power is on", "On" or "PoweringOff", to a power state.
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

// turn sends the power command and waits until a read shows the state want. If two reads already show this state, it
// sends nothing.
func (s *session) turn(ctx context.Context, power, want string, within time.Duration) error {
	// Do not write if the state cannot be read: the machine may already be off, and a soft shutdown would then be
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

	// The answer to a write can be lost (UDP). Therefore only the power state counts.
	if err := s.await(ctx, want, within); err != nil {
		return errors.Join(wrote, err)
	}
	return nil
}

// reset restarts a machine that is on. Because the power state is on before and after, only the BMC's answer proves
// the reset.
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

// await reads the power state until it is want, for up to the time within. It also retries if the BMC is unreachable.
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
