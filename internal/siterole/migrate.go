package siterole

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	// requestEvery is how often the inventory is checked for a requested hand-over.
	requestEvery = 500 * time.Millisecond
	// activitiesWithin is how long a hand-over waits for running activities to end.
	activitiesWithin = time.Minute
)

// Mover prepares the move of the site to another host, while this host still answers machines.
type Mover struct {
	cfg     config.Config
	version string // version of this program
	log     *slog.Logger
	file    *File
	peers   *Peers
	site    func() Instance // returns nil if this host is not the active server
}

// CheckTarget returns nil if the target can take over, and otherwise an error with every reason. It changes nothing on either server.
func (m *Mover) CheckTarget(ctx context.Context, target string) error {
	if _, err := m.requireInstance(); err != nil {
		return err
	}

	c, err := m.pairedClient(ctx, target)
	if err != nil {
		return err
	}

	r, err := c.Check(ctx)
	if err != nil {
		return explainStranger(err)
	}

	problems, err := m.problemsOf(r)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s cannot take over: %s: %w", target, strings.Join(problems, "; "), inventory.ErrConflict)
	}

	return nil
}

// problemsOf returns the problems in a target's report, and the differences between the target and this server that
// prevent a hand-over.
func (m *Mover) problemsOf(r Report) (problems []string, err error) {
	add := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if r.Program != m.version {
		add("the target has version %s, but this server has version %s", r.Program, m.version)
	}
	if here := m.cfg.Temporal.Address; r.Temporal != here {
		add("the target keeps runs in %s, but this site keeps them in %s (temporal.address)",
			cmp.Or(r.Temporal, "an embedded Temporal"), cmp.Or(here, "an embedded one"))
	}
	if m.cfg.Notify.URL != "" && !r.Notify {
		add("the target has no notify.url, but this server has one: operators would get no more notices, " +
			"and waiting notices would never be sent (set notify.url on the target, or remove it from this server)")
	}

	size, err := backup.DatabaseSize(m.cfg)
	if err != nil {
		return nil, err
	}

	// The target needs room to unpack and verify the databases.
	if need := 2*size + m.cfg.MinFree<<20; r.Role == Standby && r.Free < need {
		add("the target has %s of free space, but needs %s", human.Size(r.Free), human.Size(need))
	}

	return append(problems, r.Problems...), nil
}

func (m *Mover) requireInstance() (Instance, error) {
	if s := m.site(); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("this server is %s and does not run the site: %w", m.file.Site().Role, inventory.ErrConflict)
}

func (m *Mover) pairedClient(ctx context.Context, target string) (*Client, error) {
	p, err := m.peers.paired(ctx, target)
	if err != nil {
		return nil, err
	}
	return m.peers.client(p)
}

// SyncImages sends the image files that the target does not have, and returns how many it has sent.
func (m *Mover) SyncImages(ctx context.Context, target string, progress func(text string)) (sent int, err error) {
	s, err := m.requireInstance()
	if err != nil {
		return 0, err
	}

	c, err := m.pairedClient(ctx, target)
	if err != nil {
		return 0, err
	}

	images, err := m.imagesToMove(ctx, s.Store())
	if err != nil {
		return 0, err
	}

	return imageSender{c, m.cfg.ImageDir(), progress}.sendMissing(ctx, images)
}

// HandOverState returns the state of a hand-over (see inventory.HandOverPending) and, if the hand-over has failed, the reason.
func (m *Mover) HandOverState(_ context.Context, id string) (state, why string, err error) {
	x := m.file.Site()
	switch {
	case x.Activated == id:
		return inventory.HandOverMoved, "", nil
	case x.HandOver != nil && x.HandOver.ID == id && x.HandOver.State == Failed:
		return inventory.HandOverFailed, x.HandOver.Why, nil
	}
	return inventory.HandOverPending, "", nil
}

// WithdrawHandOver prevents a hand-over that has not begun. It does nothing if the hand-over has already ended, and returns
// inventory.ErrConflict if the hand-over is under way.
func (m *Mover) WithdrawHandOver(ctx context.Context, id string) error {
	if state, _, err := m.HandOverState(ctx, id); err != nil || state != inventory.HandOverPending {
		return err
	}

	s, err := m.requireInstance()
	if err != nil {
		return err
	}

	row, err := s.Store().LastHandOver(ctx)
	if errors.Is(err, inventory.ErrNotFound) || err == nil && row.ID != id {
		// The request may not be in the inventory yet. Record it as failed now, so that it is ignored when it appears.
		row, err = inventory.HandOver{ID: id, SiteEpoch: 1}, nil
	}
	if err != nil {
		return err
	}

	return m.failHandOver(row, errors.New("withdrawn"))
}

// failHandOver records as failed a hand-over that has not begun, and so prevents it.
func (m *Mover) failHandOver(row inventory.HandOver, why error) error {
	_, err := m.file.Change(func(x *Site) error {
		if err := x.require(Active); err != nil {
			return err
		}
		x.HandOver = &HandOver{
			ID: row.ID, Peer: row.Target, Epoch: row.SiteEpoch - 1, State: Failed, Why: why.Error(), Since: time.Now().UTC(),
		}
		return nil
	})
	return err
}

// HandOverRequest is the error of AwaitHandOver that ends the services of the active server for a hand-over.
type HandOverRequest struct{ row inventory.HandOver }

func (r *HandOverRequest) Error() string { return "the site is handed over to " + r.row.Target }

// AwaitHandOver waits until a requested hand-over has passed its checks, calls stopWorkers and returns a *HandOverRequest.
// Until then machines are answered, because running activities may need up to activitiesWithin to end.
func (m *Mover) AwaitHandOver(ctx context.Context, s Instance, stopWorkers func()) error {
	for clock.Sleep(ctx, requestEvery) == nil {
		row, err := s.Store().LastHandOver(ctx)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			if ctx.Err() == nil {
				m.log.Warn("looking for a requested hand-over", "error", err)
			}
			continue
		}
		if state, _, _ := m.HandOverState(ctx, row.ID); state != inventory.HandOverPending {
			continue
		}

		err = m.checkHandOver(ctx, s, row)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			stopWorkers()
			return &HandOverRequest{row}
		default:
			m.log.Error("the site was not handed over", "handover", row.ID, "error", err)
			if err := m.failHandOver(row, err); err != nil {
				return err
			}
		}
	}

	return nil
}

// checkHandOver closes the intake, repeats the checks of the workflow, sends images that are still missing, and waits for
// running activities. It returns nil if the hand-over can begin.
func (m *Mover) checkHandOver(ctx context.Context, s Instance, row inventory.HandOver) error {
	if err := m.CheckTarget(ctx, row.Target); err != nil {
		return err
	}
	if err := s.Store().KeyCheck(ctx); err != nil {
		return err
	}
	if err := backup.RequireRoom(m.cfg); err != nil {
		return err // This is checked here, because machines are still answered.
	}

	// During the checks, the hand-over may have been withdrawn and the intake opened again.
	if state, _, err := m.HandOverState(ctx, row.ID); err != nil || state != inventory.HandOverPending {
		return fmt.Errorf("hand-over %s was withdrawn: %w", row.ID, errors.Join(err, inventory.ErrConflict))
	}
	if err := s.Store().CloseIntake(ctx, "this site is moving to "+row.Target); err != nil {
		return err
	}

	open, err := s.OpenRuns(ctx)
	if err == nil && len(open) > 0 && !row.Force {
		err = fmt.Errorf("runs are open: %s: %w", strings.Join(open, ", "), inventory.ErrConflict)
	}
	if err != nil {
		return err
	}

	// Send images that were added after the workflow copied them.
	if _, err := m.SyncImages(ctx, row.Target, func(string) {}); err != nil {
		return err
	}

	return waitForActivities(ctx, s)
}

func waitForActivities(ctx context.Context, s Instance) error {
	for deadline := time.Now().Add(activitiesWithin); ; {
		busy := s.BusyActivities()
		if len(busy) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("activities are still running after %s: %s: %w", activitiesWithin, strings.Join(busy, ", "),
				inventory.ErrConflict)
		}
		if clock.Sleep(ctx, requestEvery/5) != nil {
			return ctx.Err()
		}
	}
}
