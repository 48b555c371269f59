package bmc

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// After maxRefused refusals in a row, a BMC rests from these credentials for restRefused, and after each further
	// one restFactor times as long, up to maxRest: many BMCs lock a user after five refusals within minutes.
	maxRefused  = 3
	restRefused = 5 * time.Minute
	restFactor  = 4
	maxRest     = 24 * time.Hour
	// maxCredentials is how many refused credentials are remembered: the present ones, those that a change of the
	// password left, and those before.
	maxCredentials = 4
)

// credentials returns a keyed digest of the user and the password.
func (d *Driver) credentials(b inventory.BMC, password inventory.Secret) string {
	m := hmac.New(sha256.New, d.cfg.DigestKey)
	_, _ = m.Write([]byte(b.User + "\x00" + password.Reveal())) // a hash never returns an error
	return hex.EncodeToString(m.Sum(nil))
}

// rest returns how long credentials are not used after count refusals in a row.
func rest(count int) time.Duration {
	out := time.Duration(0)
	for n := maxRefused; n <= count && out < maxRest; n++ {
		out = max(restRefused, restFactor*out)
	}
	return min(out, maxRest)
}

// admit waits until another session may be opened. For credentials that were refused
// too often it returns inventory.ErrResting at once: another try could lock the user
// out (security S29). Other credentials are sent once, and a log-in that succeeds ends the rest of all.
func (d *Driver) admit(ctx context.Context, t *target, machine, who string) error {
	now := d.cfg.now()
	if err := d.loadRefusals(ctx, t); err != nil {
		return err
	}
	if t.who != who {
		t.who, t.left.sessionsOnly = who, false
	}
	r := t.refusals
	// A clock that was set back must not make a rest longer.
	if ended := r.Last.Add(rest(r.Count)); slices.Contains(r.Credentials, who) && !now.Before(r.Last) && now.Before(ended) {
		name := cmp.Or(machine, "NAME")
		return fmt.Errorf("the BMC has refused the log-in %d times in a row; these credentials are not sent again for %s, so that it does not "+
			"lock the user: correct them (ingot machine push --replace), or correct the BMC and run \"ingot bmc check %s --retry\": %w",
			r.Count, ended.Sub(now).Round(time.Second), name, inventory.ErrResting)
	}
	rate := float64(d.cfg.PerMinute)
	if t.counted.IsZero() {
		t.sessions = rate
	}
	t.sessions = min(rate, t.sessions+max(0, now.Sub(t.counted).Minutes())*rate)
	t.counted = now
	t.sessions--
	if t.sessions >= 0 {
		return nil
	}
	return d.cfg.sleep(ctx, time.Duration(-t.sessions/rate*float64(time.Minute)))
}

// loadRefusals reads the refusals of t from the store, once in a process: only this one writes them.
func (d *Driver) loadRefusals(ctx context.Context, t *target) (err error) {
	if t.loaded || d.cfg.Refusals == nil {
		return nil
	}
	if t.refusals, err = d.cfg.Refusals.BMCRefusals(ctx, t.address); err == nil {
		t.loaded = true
	}
	return err
}

// putRefusals replaces the refusals of t, here and in the store.
func (d *Driver) putRefusals(ctx context.Context, t *target, r inventory.BMCRefusals) {
	t.refusals = r
	if d.cfg.Refusals == nil {
		return
	}
	if err := d.cfg.Refusals.PutBMCRefusals(context.WithoutCancel(ctx), t.address, r); err != nil {
		d.cfg.Log.Warn("remembering how often a BMC has refused a log-in", "address", t.address, "error", err)
	}
}

// settle counts refusals in a row; a success resets the count.
func (d *Driver) settle(ctx context.Context, t *target, err error) {
	r := t.refusals
	switch {
	case errors.Is(err, inventory.ErrRefused) && !errors.Is(err, errUntrusted):
		of := append(slices.DeleteFunc(slices.Clone(r.Credentials), func(who string) bool { return who == t.who }), t.who)
		of = of[max(0, len(of)-maxCredentials):]
		d.putRefusals(ctx, t, inventory.BMCRefusals{Count: r.Count + 1, Last: d.cfg.now(), Credentials: of})
	case err == nil && r.Count > 0:
		d.putRefusals(ctx, t, inventory.BMCRefusals{})
	}
}

// AllowRetry lets an operator order one log-in with each of the refused credentials: an unfinished change of the password
// has two. The count stays, so what is refused again rests at once.
func (d *Driver) AllowRetry(ctx context.Context, b inventory.BMC) error {
	if err := check(b); err != nil {
		return err
	}
	_, t, err := d.acquire(ctx, b)
	if err != nil {
		return err
	}
	defer func() { <-t.token }()
	if err := d.loadRefusals(ctx, t); err != nil || t.refusals.Count == 0 {
		return err
	}
	r := t.refusals
	r.Credentials = nil
	d.putRefusals(ctx, t, r)
	return nil
}
