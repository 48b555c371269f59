package bmc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// perMinute is how many sessions one BMC is asked for, in one go and then
	// per minute. A power cycle that is watched takes some thirty.
	perMinute = 120
	// maxRefused is how often credentials may be refused in a row before they
	// are rested for restRefused: many BMCs lock a user after five.
	maxRefused  = 3
	restRefused = 30 * time.Second
)

// A target is the state of one BMC, by address. Only the operation that has sent to
// token reads and writes the rest.
type target struct {
	token chan struct{}

	sessions float64 // that may be opened now
	counted  time.Time
	refused  int // in a row, of these credentials
	since    time.Time
	who      [sha256.Size]byte
}

// credentials identifies a user with a password, without keeping them.
func credentials(b inventory.BMC, password inventory.Secret) [sha256.Size]byte {
	return sha256.Sum256([]byte(b.User + "\x00" + password.Reveal()))
}

// admit waits until another session may be opened. Credentials that were
// refused too often are inventory.ErrRefused at once: trying them again would
// lock the user out (security S29).
func (d *Driver) admit(ctx context.Context, t *target, who [sha256.Size]byte) error {
	now := d.cfg.now()
	if t.who != who {
		t.who, t.refused = who, 0
	}
	if rested := now.Sub(t.since); t.refused >= maxRefused && rested < restRefused {
		return fmt.Errorf("the BMC refused these credentials %d times, they are not tried again for %s: correct them: %w",
			t.refused, (restRefused - rested).Round(time.Second), inventory.ErrRefused)
	}
	rate := float64(d.cfg.PerMinute)
	if t.counted.IsZero() {
		t.sessions = rate
	}
	t.sessions = min(rate, t.sessions+now.Sub(t.counted).Minutes()*rate)
	t.counted = now
	t.sessions--
	if t.sessions >= 0 {
		return nil
	}
	return d.cfg.sleep(ctx, time.Duration(-t.sessions/rate*float64(time.Minute)))
}

// settle counts refused sessions.
func (d *Driver) settle(t *target, err error) {
	if errors.Is(err, inventory.ErrRefused) {
		t.refused++
		t.since = d.cfg.now()
		return
	}
	if err == nil {
		t.refused = 0
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
