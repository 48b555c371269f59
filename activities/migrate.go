package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/inventory"
)

// moves move this site to another server.
type moves struct{ *shared }

// typeNoPeers is the error of a server that cannot move.
const typeNoPeers = "NoPeers"

func (a *moves) mover() (Mover, error) {
	if a.Mover == nil {
		return nil, temporal.NewNonRetryableApplicationError("this server has no peers", typeNoPeers, nil)
	}
	return a.Mover, nil
}

// MigrateRequest names the target of a migration, and its workflow.
type MigrateRequest struct {
	Target string `json:"target"` // name of the peer
	ID     string `json:"id"`     // of the migration's workflow
}

// CheckTarget refuses a target of another version, with too little space, with its ports in
// use, or that owns a site epoch. It also refuses a second migration, and a migration
// outside of a Genesis while that runs.
func (a *moves) CheckTarget(ctx context.Context, q MigrateRequest) error {
	m, err := a.mover()
	if err != nil {
		return err
	}

	lab := "" // of the migration
	for _, typ := range []string{inventory.TypeMigrate, inventory.TypeGenesis} {
		open, err := a.Operations.Operations(ctx, inventory.OperationFilter{Type: typ, Open: true})
		if err != nil {
			return err
		}
		for _, o := range open {
			if o.ID == q.ID {
				lab, err = labOf(o)
			} else if typ == inventory.TypeMigrate || o.Name != lab {
				err = fmt.Errorf("%s is running as run %s: %w", o.ID, o.Run, inventory.ErrConflict)
			}
			if err != nil {
				return err
			}
		}
	}
	return m.CheckTarget(ctx, q.Target)
}

// labOf returns the lab file of the Genesis to which a migration belongs, or "".
func labOf(o inventory.Operation) (string, error) {
	var in struct {
		Genesis string `json:"genesis"`
	}
	if err := json.Unmarshal(o.Input, &in); err != nil {
		return "", fmt.Errorf("reading the input of %s: %w: %w", o.ID, err, inventory.ErrInvalid)
	}
	return in.Genesis, nil
}

// RelaySwitchRequest is about the source's or the target's entry in the relay of the lab.
type RelaySwitchRequest struct {
	Genesis string `json:"genesis"` // name of the lab file
	Target  string `json:"target"`  // of the migration
	Source  bool   `json:"source,omitempty"`
	Listed  bool   `json:"listed,omitempty"`
}

// RelaySwitch adds the target to the lab's relay, or removes the entry of source or target.
// It reports whether there is a relay.
func (a *routers) RelaySwitch(ctx context.Context, q RelaySwitchRequest) (bool, error) {
	lab, _, err := a.lab(ctx, q.Genesis)
	if err != nil {
		return false, err
	}

	if lab.Router == nil || lab.Migrate == nil {
		return false, nil
	}

	if q.Target != lab.Migrate.Target {
		// In a migration back, for example, the entries of the lab file would be swapped.
		return false, fmt.Errorf("lab %q moves to %q and not to %q: leave the lab out, and change the router's relay "+
			"by hand: %w", q.Genesis, lab.Migrate.Target, q.Target, inventory.ErrInvalid)
	}

	server := lab.Migrate.Address
	if q.Source {
		server = lab.Seed.Address
	}
	return true, a.relayTo(ctx, RelayRequest{Genesis: q.Genesis, Server: server}, q.Listed)
}

// SyncImages sends the image files to the target, by digest, and resumes interrupted
// transfers. It returns how many it sent.
func (a *moves) SyncImages(ctx context.Context, q MigrateRequest) (int, error) {
	m, err := a.mover()
	if err != nil {
		return 0, err
	}
	defer heartbeat(ctx)()
	return m.SyncImages(ctx, q.Target, func(text string) { activity.RecordHeartbeat(ctx, text) })
}

// CloseIntake makes the server refuse new runs.
func (a *moves) CloseIntake(ctx context.Context, q MigrateRequest) error {
	return a.HandOvers.CloseIntake(ctx, fmt.Sprintf("%s moves this site to %s", q.ID, q.Target))
}

// OpenIntake makes the server accept new runs again.
func (a *moves) OpenIntake(ctx context.Context) error { return a.HandOvers.OpenIntake(ctx) }

// maxNamed is how many runs an error names.
const maxNamed = 10

// AwaitDrained waits until no machine has an open run, or until its context ends. Its
// heartbeats name the open runs.
func (a *moves) AwaitDrained(ctx context.Context) error {
	tick := time.NewTicker(a.lookEvery(outcomeEvery))
	defer tick.Stop()
	for {
		open, err := a.openRuns(ctx)
		if err != nil {
			return err
		}
		if len(open) == 0 {
			return nil
		}
		activity.RecordHeartbeat(ctx, strings.Join(open, ", "))
		if err := pause(ctx, tick.C); err != nil {
			return err
		}
	}
}

// OpenRuns returns the names of the machines' open runs, up to maxNamed.
func (a *moves) OpenRuns(ctx context.Context) ([]string, error) {
	return a.openRuns(ctx)
}

func (a *moves) openRuns(ctx context.Context) ([]string, error) {
	ws, err := a.Workflows.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: 1000})
	if err != nil {
		return nil, err
	}

	var out []string
	for _, w := range ws {
		if len(out) < maxNamed {
			out = append(out, w.Machine)
		}
	}

	if more := len(ws) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out, nil
}

// RequestHandOver stores the request to move this site; the server process carries it out.
func (a *moves) RequestHandOver(ctx context.Context, h inventory.HandOver) error {
	return a.HandOvers.RequestHandOver(ctx, h)
}

// WithdrawHandOver withdraws the request if the hand-over has not begun.
func (a *moves) WithdrawHandOver(ctx context.Context, id string) error {
	m, err := a.mover()
	if err != nil {
		return err
	}
	return m.WithdrawHandOver(ctx, id)
}

// HandedOver is the result of a hand-over.
type HandedOver struct {
	Moved bool   `json:"moved"`
	Why   string `json:"why,omitempty"` // why it did not
}

// AwaitHandOver waits until this server knows the result of a hand-over. It only reads the
// server's state, so it may be interrupted at any time and started again, here or where the
// site has moved.
func (a *moves) AwaitHandOver(ctx context.Context, id string) (HandedOver, error) {
	m, err := a.mover()
	if err != nil {
		return HandedOver{}, err
	}

	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		state, why, err := m.HandOverState(ctx, id)
		switch {
		case err != nil:
			return HandedOver{}, err
		case state != inventory.HandOverPending:
			return HandedOver{Moved: state == inventory.HandOverMoved, Why: why}, nil
		}
		if n%10 == 0 {
			activity.RecordHeartbeat(ctx)
		}
		if err := pause(ctx, tick.C); err != nil {
			return HandedOver{}, err
		}
	}
}

// VerifyMoved checks the site after the move: whether its keys open, whether machines can be
// booted, and which BMCs answer. It returns what the operator should check.
func (a *moves) VerifyMoved(ctx context.Context) ([]string, error) {
	defer heartbeat(ctx)()
	if err := a.Keys.KeyCheck(ctx); err != nil {
		return nil, err
	}
	if err := a.Site.bootable(); err != nil && !errors.Is(err, errOff) {
		return nil, err
	}
	if a.VerifySite == nil {
		return nil, nil
	}
	return a.VerifySite(ctx)
}
