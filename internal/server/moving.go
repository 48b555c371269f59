package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/inventory"
)

// lookEvery is how often the inventory is asked for the wish to move.
const lookEvery = 500 * time.Millisecond

// effectsFor is how long a hand-over waits for activities under way. Nobody
// begins new ones: no machine's run is open.
const effectsFor = time.Minute

// awaitHandOver returns a *moveNow when the site is to be handed over, nothing
// stands in the way, and the workers have stopped. Machines are answered until
// then: what a worker still waits for may take seconds.
func (s *server) awaitHandOver(ctx context.Context, stopWorkers func()) error {
	for pause(ctx, lookEvery) {
		row, err := s.store.LastHandOver(ctx)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("looking for a hand-over", "error", err)
			}
			continue
		}
		if state, _, _ := s.HandOverState(ctx, row.ID); state != inventory.HandOverPending {
			continue
		}
		err = s.mayHandOver(ctx, row)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			stopWorkers()
			return &moveNow{row}
		default:
			s.log.Error("the site is not handed over", "handover", row.ID, "error", err)
			if err := s.failHandOver(row, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// mayHandOver looks once more at what the workflow has looked at, and waits for
// what is under way.
func (s *server) mayHandOver(ctx context.Context, row inventory.HandOver) error {
	if err := (mover{s.host}).CheckTarget(ctx, row.Target); err != nil {
		return err
	}
	if err := s.store.KeyCheck(ctx); err != nil {
		return err
	}
	if err := s.roomForBackup(s.cfg.DataDir); err != nil {
		return err // found before this server falls silent
	}
	// It may have been withdrawn meanwhile, and the intake opened again.
	if state, _, err := s.HandOverState(ctx, row.ID); err != nil || state != inventory.HandOverPending {
		return fmt.Errorf("hand-over %s was withdrawn: %w", row.ID, errors.Join(err, inventory.ErrConflict))
	}
	if err := s.store.CloseIntake(ctx, "this site moves to "+row.Target); err != nil {
		return err
	}
	open, err := s.do.OpenRuns(ctx)
	if err == nil && len(open) > 0 && !row.Force {
		err = fmt.Errorf("runs are open: %s: %w", strings.Join(open, ", "), inventory.ErrConflict)
	}
	if err != nil {
		return err
	}
	// Images that came since the workflow had them copied.
	if _, err := s.SyncImages(ctx, row.Target, func(string) {}); err != nil {
		return err
	}
	for deadline := time.Now().Add(effectsFor); ; {
		busy := s.temporal.effects.UnderWay()
		if len(busy) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("activities are under way and do not end: %s: %w", strings.Join(busy, ", "), inventory.ErrConflict)
		}
		if !pause(ctx, lookEvery/5) {
			return ctx.Err()
		}
	}
}

// failHandOver remembers that a hand-over was never begun, and never will be.
func (s *server) failHandOver(row inventory.HandOver, why error) error {
	_, err := s.host.file.Change(func(x *site.Site) error {
		if x.Role != site.Active {
			return fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
		}
		x.HandOver = &site.HandOver{ID: row.ID, Peer: row.Target, Epoch: row.SiteEpoch - 1, State: site.Failed, Why: why.Error(), Since: time.Now().UTC()}
		return nil
	})
	return err
}

// reKey replaces the keys that came with the site: another host has known them.
func (s *server) reKey(ctx context.Context) error {
	if !s.host.file.Site().ReKey {
		return nil
	}
	n, err := s.rotateKeys(ctx)
	if err != nil {
		s.log.Error("the keys that came with the site are not replaced yet: run ingot secret rotate", "error", err)
		return nil
	}
	_, err = s.host.file.Change(func(x *site.Site) error { x.ReKey = false; return nil })
	if err == nil {
		s.log.Info("the keys that came with the site are replaced", "secrets", n)
	}
	return err
}

// errAlone is a server that has no peers.
var errAlone = fmt.Errorf("this server has no peers: %w", inventory.ErrUnsupported)

// SiteStatus and what follows is this server among its peers.
func (s *server) SiteStatus(ctx context.Context) (api.SiteStatus, error) {
	if s.host == nil {
		return api.SiteStatus{Role: site.Active, Peers: []api.Peer{}}, nil
	}
	return s.host.SiteStatus(ctx)
}

// AddPeer is that of the host.
func (s *server) AddPeer(ctx context.Context, p api.NewPeer) (api.Peer, error) {
	if s.host == nil {
		return api.Peer{}, errAlone
	}
	return s.host.AddPeer(ctx, p)
}

// RemovePeer is that of the host.
func (s *server) RemovePeer(ctx context.Context, name string) error {
	if s.host == nil {
		return errAlone
	}
	return s.host.RemovePeer(ctx, name)
}

// Decide is that of the host.
func (s *server) Decide(ctx context.Context, word, peer string) error {
	if s.host == nil {
		return errAlone
	}
	return s.host.Decide(ctx, word, peer)
}

// Known is that of the host.
func (s *server) Known(ctx context.Context, name string) (bool, error) {
	if s.host == nil {
		return false, errAlone
	}
	return s.host.Known(ctx, name)
}

// Standby is that of the host.
func (s *server) Standby(ctx context.Context, name, address string) (inventory.Secret, error) {
	if s.host == nil {
		return inventory.Secret{}, errAlone
	}
	return s.host.Standby(ctx, name, address)
}

// Moved is that of the host.
func (s *server) Moved(ctx context.Context, run string) (bool, error) {
	if s.host == nil {
		return false, nil
	}
	return s.host.Moved(ctx, run)
}

// Forget is that of the host.
func (s *server) Forget(ctx context.Context, name string) error {
	if s.host == nil {
		return errAlone
	}
	return s.host.Forget(ctx, name)
}

// CheckTarget is that of the mover.
func (s *server) CheckTarget(ctx context.Context, target string) error {
	if s.host == nil {
		return errAlone
	}
	return mover{s.host}.CheckTarget(ctx, target)
}

// SyncImages is that of the mover.
func (s *server) SyncImages(ctx context.Context, target string, progress func(string)) (int, error) {
	if s.host == nil {
		return 0, errAlone
	}
	return mover{s.host}.SyncImages(ctx, target, progress)
}

// HandOverState is that of the mover.
func (s *server) HandOverState(ctx context.Context, id string) (state, why string, err error) {
	if s.host == nil {
		return "", "", errAlone
	}
	return mover{s.host}.HandOverState(ctx, id)
}

// WithdrawHandOver makes sure that a hand-over that was not begun never is.
func (s *server) WithdrawHandOver(ctx context.Context, id string) error {
	if s.host == nil {
		return errAlone
	}
	if state, _, err := s.HandOverState(ctx, id); err != nil || state != inventory.HandOverPending {
		return err
	}
	row, err := s.store.LastHandOver(ctx)
	if errors.Is(err, inventory.ErrNotFound) || err == nil && row.ID != id {
		// The wish is on its way, perhaps: when it comes, it is answered already.
		row, err = inventory.HandOver{ID: id, SiteEpoch: 1}, nil
	}
	if err != nil {
		return err
	}
	return s.failHandOver(row, errors.New("withdrawn"))
}

// Limits of verifySite.
const (
	verifyAtOnce = 8
	verifyFor    = 30 * time.Second // each BMC
	clientFor    = 20 * time.Second
	verifyNamed  = 10
)

// verifySite looks at the site where it has come to: is a client answered, by
// this server alone, and do the BMCs answer here? It returns what was seen and
// what a person should see to; an error is what machines would run into.
func (s *server) verifySite(ctx context.Context, check func(context.Context, inventory.Machine) (string, error)) ([]string, error) {
	seen := []string{"no interface is configured here: machines are answered by nobody"}
	if s.boot != nil {
		var err error
		if seen, err = asClient(ctx, s.boot.CheckClient); err != nil {
			return nil, err
		}
	}
	notes, err := s.verifyBMCs(ctx, check)
	return append(seen, notes...), err
}

// asClient asks as a client for as long as what is missing may still come up, and
// then has a person look: that machines are not answered mends itself no more.
func asClient(ctx context.Context, check func(context.Context) ([]string, error)) ([]string, error) {
	for began := time.Now(); ; {
		seen, err := check(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return seen, err
		case errors.Is(err, inventory.ErrConflict) || errors.Is(err, inventory.ErrInvalid):
			return nil, err
		case time.Since(began) > clientFor:
			return nil, fmt.Errorf("%w: %w", err, inventory.ErrConflict)
		}
		if !pause(ctx, lookEvery) {
			return nil, ctx.Err()
		}
	}
}

func (s *server) verifyBMCs(ctx context.Context, check func(context.Context, inventory.Machine) (string, error)) ([]string, error) {
	ms, err := s.store.Machines(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var notes []string
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(verifyAtOnce)
	for _, m := range ms {
		if m.BMC.Manual() {
			continue
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, verifyFor)
			defer cancel()
			if _, err := check(ctx, m); err != nil {
				mu.Lock()
				defer mu.Unlock()
				notes = append(notes, fmt.Sprintf("the BMC of %s does not answer here: %v", m.Name, err))
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	slices.Sort(notes)
	if more := len(notes) - verifyNamed; more > 0 {
		notes = append(notes[:verifyNamed], fmt.Sprintf("and %d more", more))
	}
	return notes, nil
}
