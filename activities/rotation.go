package activities

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Rotation changes passwords of BMCs. At every moment the password that the BMC accepts is stored: before the BMC gets a new one,
// it is stored as the candidate, next to the present one, and it takes the present one's place only after a separate log-in has
// proven it. A rotation that was interrupted is resolved by the next use of the password, which tries the candidate first.
type Rotation struct {
	Store RotationStore
	BMC   PasswordBMC
}

// RotationStore holds the passwords. See package inventory/sqlite.
type RotationStore interface {
	BMCPassword(ctx context.Context, machine string) (inventory.Secret, error)
	BMCCandidate(ctx context.Context, machine string) (candidate inventory.Secret, run string, err error)
	PutBMCCandidate(ctx context.Context, o inventory.Owner, candidate inventory.Secret) error
	CommitBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret) error
	DropBMCCandidate(ctx context.Context, machine string, candidate inventory.Secret, by string) error
}

// PasswordBMC proves and changes passwords. An operation waits until earlier ones on the same BMC have ended.
type PasswordBMC interface {
	State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error)
	SetPassword(ctx context.Context, b inventory.BMC, password, next inventory.Secret, fence func(context.Context) error) error
}

// Password returns the password of m's BMC. If a rotation is unfinished, it logs in to learn which of the two it is.
func (r *Rotation) Password(ctx context.Context, m inventory.Machine) (inventory.Secret, error) {
	candidate, _, err := r.Store.BMCCandidate(ctx, m.Name)
	if err != nil || candidate.IsZero() {
		if err != nil {
			return inventory.Secret{}, err
		}
		return r.Store.BMCPassword(ctx, m.Name)
	}
	accepted, err := r.accepts(ctx, m, candidate)
	resting := errors.Is(err, inventory.ErrResting)
	if err != nil && !resting {
		return inventory.Secret{}, err
	}
	if accepted {
		return candidate, r.Store.CommitBMCCandidate(ctx, m.Name, candidate)
	}

	old, err := r.Store.BMCPassword(ctx, m.Name)
	if err != nil {
		return inventory.Secret{}, err
	}
	proven, errOld := r.accepts(ctx, m, old)
	switch {
	case errOld != nil:
		return inventory.Secret{}, errOld
	case proven && resting: // the rest has ended by that, so the next use judges the candidate
		return old, nil
	case !proven:
		return inventory.Secret{}, fmt.Errorf("an unfinished change of the password left two, and the BMC of %q refuses both: "+
			"set the password at the BMC and enter it (ingot machine push --replace): %w", m.Name, inventory.ErrRefused)
	}
	// The store keeps the candidate while the run that wants to set it holds the machine.
	if err := r.Store.DropBMCCandidate(ctx, m.Name, candidate, ""); err != nil && !errors.Is(err, inventory.ErrConflict) {
		return inventory.Secret{}, err
	}
	return old, nil
}

// accepts reports whether the BMC accepts the password, in a session of its own. A password that rests is not judged.
func (r *Rotation) accepts(ctx context.Context, m inventory.Machine, password inventory.Secret) (bool, error) {
	_, err := r.BMC.State(ctx, m.Controller(), password)
	if errors.Is(err, inventory.ErrRefused) && !errors.Is(err, inventory.ErrResting) {
		return false, nil
	}
	return err == nil, err
}

// Rotate gives m's BMC a new password, under the grant of o. It may be repeated after a crash at any point.
func (r *Rotation) Rotate(ctx context.Context, m inventory.Machine, o inventory.Owner, fence Fence) error {
	next, run, err := r.Store.BMCCandidate(ctx, m.Name)
	if err != nil {
		return err
	}
	old, err := r.Password(ctx, m)
	if err != nil {
		return err
	}
	resumed := !next.IsZero()
	if resumed && old.Reveal() == next.Reveal() {
		if run == o.Run {
			return nil // an earlier attempt of this run has set it
		}
		resumed = false
	}
	if !resumed {
		next = newPassword()
	}

	if err := r.Store.PutBMCCandidate(ctx, o, next); err != nil {
		return err
	}
	// A fenced run must not set a password that is no longer stored, so the candidate is read again right before the write. Only
	// an operation that logs in after this one can drop it, and only after the grant has ended.
	still := func(ctx context.Context) error {
		if err := fence(ctx); err != nil {
			return err
		}
		stored, _, err := r.Store.BMCCandidate(ctx, m.Name)
		if err == nil && stored.Reveal() != next.Reveal() {
			err = fmt.Errorf("the candidate for the BMC password of %q was replaced: %w", m.Name, inventory.ErrFenced)
		}
		return err
	}
	wrote := r.BMC.SetPassword(ctx, m.Controller(), old, next, still)

	accepted, err := r.accepts(ctx, m, next)
	switch {
	case err != nil:
		return errors.Join(wrote, err)
	case accepted:
		return r.Store.CommitBMCCandidate(ctx, m.Name, next)
	case errors.Is(wrote, inventory.ErrUnsupported) || errors.Is(wrote, inventory.ErrRefused):
		// The BMC has refused to change it. After any other error, the change may still come into force.
		return errors.Join(wrote, r.Store.DropBMCCandidate(ctx, m.Name, next, o.Run))
	}
	return errors.Join(wrote, fmt.Errorf("the BMC of %q does not accept its new password; both stay stored until one is proven: %w",
		m.Name, inventory.ErrUnreachable))
}

// Characters of a generated password: BMCs differ in which others they accept. Many want one of each of these kinds.
const (
	lowerCase = "abcdefghijkmnopqrstuvwxyz"
	upperCase = "ABCDEFGHJKLMNPQRSTUVWXYZ"
	digits    = "23456789"
	// passwordLength is what IPMI 1.5 and the most limited Redfish services accept: 94 bits.
	passwordLength = 16
)

// newPassword returns a random password.
func newPassword() inventory.Secret {
	all := lowerCase + upperCase + digits
	for {
		var b strings.Builder
		for range passwordLength {
			n, err := rand.Int(rand.Reader, big.NewInt(int64(len(all))))
			if err != nil {
				panic(err) // crypto/rand never fails
			}
			b.WriteByte(all[n.Int64()])
		}
		if p := b.String(); strings.ContainsAny(p, lowerCase) && strings.ContainsAny(p, upperCase) && strings.ContainsAny(p, digits) {
			return inventory.NewSecret(p)
		}
	}
}
