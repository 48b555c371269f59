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
	// After maxRefused refusals in a row, Ingot does not send the refused credentials for the time restRefused. Each
	// further refusal multiplies this time by restFactor, up to maxRest. Many BMCs lock a user after five refusals
	// within minutes.
	maxRefused  = 3
	restRefused = 5 * time.Minute
	restFactor  = 4
	maxRest     = 24 * time.Hour
	// maxCredentials limits how many refused credentials are stored. It has room for both credentials of an unfinished
	// password change, and for a few earlier ones.
	maxCredentials = 4
)

// credentials returns a keyed digest (HMAC) of user and password.
func (d *Driver) credentials(b inventory.BMC, password inventory.Secret) string {
	m := hmac.New(sha256.New, d.cfg.DigestKey)
	_, _ = m.Write([]byte(b.User + "\x00" + password.Reveal())) // a hash never returns an error
	return hex.EncodeToString(m.Sum(nil))
}

// rest returns for how long Ingot does not send refused credentials after count refusals in a row.
func rest(count int) time.Duration {
	out := time.Duration(0)
	for n := maxRefused; n <= count && out < maxRest; n++ {
		out = max(restRefused, restFactor*out)
	}
	return min(out, maxRest)
}

// admit waits until the rate limit permits another session. who is the digest of the credentials. If these were refused
// too often, admit returns inventory.ErrResting at once, because another attempt could lock the user (security S29).
// Other credentials may still be tried. A successful log-in permits all credentials again.
func (d *Driver) admit(ctx context.Context, t *target, machine, who string) error {
	now := d.cfg.now()
	if err := d.loadRefusals(ctx, t); err != nil {
		return err
	}
	if t.who != who {
		t.who, t.left.sessionsOnly = who, false
	}
	r := t.refusals
	// Ignore a refusal that seems to be in the future: the clock was set back, which must not lengthen the rest.
	if ended := r.Last.Add(rest(r.Count)); slices.Contains(r.Credentials, who) && !now.Before(r.Last) && now.Before(ended) {
		name := cmp.Or(machine, "NAME")
		return fmt.Errorf("the BMC has refused the log-in %d times in a row; Ingot does not send these credentials again for %s, "+
			"so that the BMC does not lock the user: correct the credentials (ingot machine push --replace), or correct the BMC "+
			"and run \"ingot bmc check %s --retry\": %w",
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

// loadRefusals reads the refusals of t from the store. It reads them only once, because no other process writes them.
func (d *Driver) loadRefusals(ctx context.Context, t *target) (err error) {
	if t.loaded || d.cfg.Refusals == nil {
		return nil
	}
	if t.refusals, err = d.cfg.Refusals.BMCRefusals(ctx, t.address); err == nil {
		t.loaded = true
	}
	return err
}

// putRefusals replaces the refusals of t, in memory and in the store.
func (d *Driver) putRefusals(ctx context.Context, t *target, r inventory.BMCRefusals) {
	t.refusals = r
	if d.cfg.Refusals == nil {
		return
	}
	if err := d.cfg.Refusals.PutBMCRefusals(context.WithoutCancel(ctx), t.address, r); err != nil {
		d.cfg.Log.Warn("storing how often a BMC has refused a log-in", "address", t.address, "error", err)
	}
}

// settle records the result of a log-in. It counts a refusal (err is inventory.ErrRefused), and resets the count if err
// is nil.
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

// AllowRetry permits one more log-in with each of the refused credentials, after an operator has requested it. (An
// unfinished password change has two credentials.) The count of refusals stays, so credentials that are refused once
// more are then not sent for the next, longer time.
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
