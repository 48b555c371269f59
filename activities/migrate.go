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

// Mover is the server's own state machine, which moves the site: Temporal
// cannot run what stops it.
type Mover interface {
	// CheckTarget refuses a target that could not take over.
	CheckTarget(ctx context.Context, target string) error
	// SyncImages sends the image files that the target lacks.
	SyncImages(ctx context.Context, target string, progress func(text string)) (sent int, err error)
	// HandOverState returns what became of a hand-over; see inventory.HandOver….
	HandOverState(ctx context.Context, id string) (state, why string, err error)
	// WithdrawHandOver makes sure that one that was not begun never is.
	WithdrawHandOver(ctx context.Context, id string) error
}

// Moving is what the store keeps of a migration.
type Moving interface {
	CloseIntake(ctx context.Context, why string) error
	OpenIntake(ctx context.Context) error
	RequestHandOver(ctx context.Context, h inventory.HandOver) error
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
}

// typeNoPeers is the error of a server that cannot move.
const typeNoPeers = "NoPeers"

func (a *Activities) mover() (Mover, error) {
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

// CheckTarget refuses a target of another version, with too little room, with
// its ports taken, or that owns a site epoch; and a second migration, or one
// outside of a Genesis, while that runs.
func (a *Activities) CheckTarget(ctx context.Context, q MigrateRequest) error {
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

// labOf returns for which lab file a migration moves the server: that of the
// Genesis whose step it is, if it is one.
func labOf(o inventory.Operation) (string, error) {
	var in struct {
		Genesis string `json:"genesis"`
	}
	if err := json.Unmarshal(o.Input, &in); err != nil {
		return "", fmt.Errorf("reading the input of %s: %w: %w", o.ID, err, inventory.ErrInvalid)
	}
	return in.Genesis, nil
}

// RelaySwitchRequest is about the source's or the target's line in the relay of
// the lab.
type RelaySwitchRequest struct {
	Genesis string `json:"genesis"` // name of the lab file
	Target  string `json:"target"`  // of the migration
	Source  bool   `json:"source,omitempty"`
	Listed  bool   `json:"listed,omitempty"`
}

// RelaySwitch lists the target in the lab's relay, or removes the line of
// either. It reports whether there is a relay at all.
func (a *Activities) RelaySwitch(ctx context.Context, q RelaySwitchRequest) (bool, error) {
	lab, _, err := a.lab(ctx, q.Genesis)
	if err != nil {
		return false, err
	}

	if lab.Router == nil || lab.Migrate == nil {
		return false, nil
	}

	if q.Target != lab.Migrate.Target {
		// A migration back, for one: the lines of the lab file would be the wrong way round.
		return false, fmt.Errorf("lab %q moves to %q and not to %q: leave the lab out, and change the router's relay "+
			"by hand: %w", q.Genesis, lab.Migrate.Target, q.Target, inventory.ErrInvalid)
	}

	server := lab.Migrate.Address
	if q.Source {
		server = lab.Seed.Address
	}
	return true, a.relayTo(ctx, RelayRequest{Genesis: q.Genesis, Server: server}, q.Listed)
}

// SyncImages sends the files of the images to the target, by digest, each from
// where it broke off. It returns how many it sent.
func (a *Activities) SyncImages(ctx context.Context, q MigrateRequest) (int, error) {
	m, err := a.mover()
	if err != nil {
		return 0, err
	}
	defer heartbeat(ctx)()
	return m.SyncImages(ctx, q.Target, func(text string) { activity.RecordHeartbeat(ctx, text) })
}

// CloseIntake has new runs refused.
func (a *Activities) CloseIntake(ctx context.Context, q MigrateRequest) error {
	return a.Moving.CloseIntake(ctx, fmt.Sprintf("%s moves this site to %s", q.ID, q.Target))
}

// OpenIntake takes new runs again.
func (a *Activities) OpenIntake(ctx context.Context) error { return a.Moving.OpenIntake(ctx) }

// maxNamed is how many runs an error names.
const maxNamed = 10

// AwaitDrained waits until no run of a machine is open, for as long as its
// context lets it; its heartbeats name the runs of the last look.
func (a *Activities) AwaitDrained(ctx context.Context) error {
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

// OpenRuns names the runs of machines that are open, the first of them.
func (a *Activities) OpenRuns(ctx context.Context) ([]string, error) {
	return a.openRuns(ctx)
}

func (a *Activities) openRuns(ctx context.Context) ([]string, error) {
	ws, err := a.Moving.Workflows(ctx, inventory.WorkflowFilter{Open: true, Limit: 1000})
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

// RequestHandOver stores the request to move this site; the server does the rest.
func (a *Activities) RequestHandOver(ctx context.Context, h inventory.HandOver) error {
	return a.Moving.RequestHandOver(ctx, h)
}

// WithdrawHandOver withdraws the request, as long as nothing was begun.
func (a *Activities) WithdrawHandOver(ctx context.Context, id string) error {
	m, err := a.mover()
	if err != nil {
		return err
	}
	return m.WithdrawHandOver(ctx, id)
}

// HandedOver is what became of a hand-over.
type HandedOver struct {
	Moved bool   `json:"moved"`
	Why   string `json:"why,omitempty"` // it did not
}

// AwaitHandOver waits until this server knows what became of a hand-over. It
// only reads what this server is, so it may be cut off at any moment and started
// again, here or where the site has moved to.
func (a *Activities) AwaitHandOver(ctx context.Context, id string) (HandedOver, error) {
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

// VerifyMoved looks at the site where it has come to: its keys open, machines
// can be booted, and which BMCs answer. It returns what is to be looked at.
func (a *Activities) VerifyMoved(ctx context.Context) ([]string, error) {
	defer heartbeat(ctx)()
	if err := a.Grants.KeyCheck(ctx); err != nil {
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
