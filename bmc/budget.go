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
	// perMinute is the default limit of sessions with one BMC: the burst, and the
	// rate per minute. A power cycle with its reads takes about thirty.
	perMinute = 120
	// After maxRefused refusals in a row, credentials are not used for restRefused:
	// many BMCs lock a user after five.
	maxRefused  = 3
	restRefused = 30 * time.Second
)

// target is the state of one BMC. Only the operation that holds token may read or
// write the other fields.
type target struct {
	token chan struct{}

	sessions float64   // that may be opened now
	counted  time.Time // when sessions was last updated
	refused  int       // refusals of who in a row
	since    time.Time // the last refusal
	who      [sha256.Size]byte
	left     leftovers
	clear    time.Time // when AMT has last answered only without TLS
}

// credentials returns a hash of the user and the password.
func credentials(b inventory.BMC, password inventory.Secret) [sha256.Size]byte {
	return sha256.Sum256([]byte(b.User + "\x00" + password.Reveal()))
}

// admit waits until another session may be opened. For credentials that were refused
// too often it returns inventory.ErrRefused at once: another try could lock the user
// out (security S29).
func (d *Driver) admit(ctx context.Context, t *target, who [sha256.Size]byte) error {
	now := d.cfg.now()
	if t.who != who {
		t.who, t.refused, t.left.sessionsOnly = who, 0, false
	}
	if rested := now.Sub(t.since); t.refused >= maxRefused && rested < restRefused {
		return fmt.Errorf("the BMC refused these credentials %d times; they are not tried again for %s; correct them: %w",
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

// settle counts refusals in a row; a success resets the count.
func (d *Driver) settle(t *target, err error) {
	if errors.Is(err, inventory.ErrRefused) && !errors.Is(err, errUntrusted) {
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
