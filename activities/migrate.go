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

// moves holds the activities that move the active role to another server.
type moves struct{ *shared }

// typeNoPeers is the error type of a server that has no peers and so cannot move.
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
	ID     string `json:"id"`     // workflow id of the migration
}

// CheckTarget returns an error if the target runs another version, has too little space, has no free ports, or
// already owns a site epoch. It also returns an error if another migration is open, or if a Genesis is open and has
// not started this migration.
func (a *moves) CheckTarget(ctx context.Context, q MigrateRequest) error {
	m, err := a.mover()
	if err != nil {
		return err
	}

	lab := "" // lab file of this migration
	for _, typ := range []string{inventory.TypeMigrate, inventory.TypeGenesis} {
		open, err := a.Operations.Operations(ctx, inventory.OperationFilter{Type: typ, Open: true})
		if err != nil {
			return err
		}
		for _, o := range open {
			if o.ID == q.ID {
				lab, err = labOf(o)
			} else if typ == inventory.TypeMigrate || o.Name != lab {
				err = fmt.Errorf("operation %s is already running as run %s: %w", o.ID, o.Run, inventory.ErrConflict)
			}
			if err != nil {
				return err
			}
		}
	}
	return m.CheckTarget(ctx, q.Target)
}

// labOf returns the name of the lab file in the input of a migration, or "" if the input has none.
func labOf(o inventory.Operation) (string, error) {
	var in struct {
		Genesis string `json:"genesis"`
	}
	if err := json.Unmarshal(o.Input, &in); err != nil {
		return "", fmt.Errorf("reading the input of %s: %w: %w", o.ID, err, inventory.ErrInvalid)
	}
	return in.Genesis, nil
}

// RelaySwitchRequest asks to add a server to the DHCP relay of the lab's router (Listed), or to remove it. The
// server is the migration's target or, with Source, the server that the lab file calls the seed.
type RelaySwitchRequest struct {
	Genesis string `json:"genesis"` // name of the lab file
	Target  string `json:"target"`  // name of the target of the migration
	Source  bool   `json:"source,omitempty"`
	Listed  bool   `json:"listed,omitempty"`
}

// RelaySwitch adds the server to the lab's DHCP relay, or removes it. It returns false if the lab has no router or
// no migration.
func (a *routers) RelaySwitch(ctx context.Context, q RelaySwitchRequest) (bool, error) {
	lab, _, err := a.lab(ctx, q.Genesis)
	if err != nil {
		return false, err
	}

	if lab.Router == nil || lab.Migrate == nil {
		return false, nil
	}

	if q.Target != lab.Migrate.Target {
		// For example, if the server migrates back, the source and the target in the lab file would be the wrong
		// way round.
		return false, fmt.Errorf("the lab file of %q names the migration target %q, not %q: start the migration without the lab, "+
			"and change the router's DHCP relay "+
			"by hand: %w", q.Genesis, lab.Migrate.Target, q.Target, inventory.ErrInvalid)
	}

	server := lab.Migrate.Address
	if q.Source {
		server = lab.Seed.Address
	}
	return true, a.relayTo(ctx, RelayRequest{Genesis: q.Genesis, Server: server}, q.Listed)
}

// SyncImages sends the image files that the target lacks, and resumes interrupted transfers. Digests show which
// files the target lacks. SyncImages returns how many files it sent.
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

// maxNamed is the maximum number of machines that a list of open runs names.
const maxNamed = 10

// AwaitDrained waits until no machine has an open run, or until ctx ends. Each heartbeat names machines with open
// runs.
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

// OpenRuns returns the names of machines with open runs. After maxNamed names, the last element tells how many more
// there are.
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

// RequestHandOver stores the request to hand over to another server; the server process carries it out.
func (a *moves) RequestHandOver(ctx context.Context, h inventory.HandOver) error {
	return a.HandOvers.RequestHandOver(ctx, h)
}

// WithdrawHandOver withdraws the request for a hand-over that has not begun.
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
	Why   string `json:"why,omitempty"` // why it did not move
}

// AwaitHandOver waits until this server knows the result of a hand-over. It only reads the server's state. So it
// may be interrupted at any time and started again, either on this server or on the target.
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

// VerifyMoved checks this server after it has become the active one: whether it can decrypt the secrets with its
// keys, whether machines can be booted, and which BMCs answer. It returns notes for the operator.
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
