package activities

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// retirements holds the activities of Decommission.
type retirements struct{ *shared }

// DecommissionRequest asks for the plan of a Decommission.
type DecommissionRequest struct {
	Run     string `json:"run"`
	Machine string `json:"machine"`
	Wipe    string `json:"wipe,omitempty"` // one of action.WipeModes; default quick
}

// Timeouts of the actions of a Decommission, in seconds. Overwriting a large disk that has no erase command of its
// own takes more than a day.
const (
	wipeTimeout      action.Seconds = 72 * 3600
	metadataTimeout  action.Seconds = 3600
	bootEntryTimeout action.Seconds = 300
	offTimeout       action.Seconds = 120
)

// PlanDecommission creates and stores the plan of a Decommission: wipe all disks, delete the boot entries whose
// disk is gone and, if the machine has no BMC, switch the machine off.
func (a *retirements) PlanDecommission(ctx context.Context, q DecommissionRequest) (Planned, error) {
	p, err := a.planDecommission(ctx, q)
	if err != nil {
		return Planned{}, fmt.Errorf("planning the decommissioning of %q: %w", q.Machine, err)
	}
	return p, nil
}

func (a *retirements) planDecommission(ctx context.Context, q DecommissionRequest) (Planned, error) {
	m, err := a.Machines.Machine(ctx, q.Machine)
	if err != nil {
		return Planned{}, err
	}

	if err := checkAddress(m); err != nil {
		return Planned{}, err
	}

	if err := a.Site.bootable(); err != nil {
		return Planned{}, err
	}

	wipe := wipeAction(cmp.Or(q.Wipe, "quick"))
	wipe.Environment[action.AllDisksVariable] = "true"
	if err := action.Check(action.Wipe, wipe.Environment); err != nil {
		return Planned{}, fmt.Errorf("%w: %w", err, inventory.ErrInvalid)
	}

	plan := inventory.Plan{Run: q.Run, Actions: []action.Action{wipe, {
		Name: "boot-entries", Image: action.EFIBoot, Timeout: bootEntryTimeout, Environment: map[string]string{"DELETE_STALE": "true"},
	}}}
	out := Planned{Run: q.Run, Manual: m.BMC.Manual(), Evidence: EvidenceWeak}
	if out.Manual {
		plan.Actions = append(plan.Actions, action.Action{Name: "power-off", Image: action.PowerOff, Timeout: offTimeout})
	}

	if plan.Digest, err = digest(plan.Actions); err != nil {
		return Planned{}, err
	}

	out.Digest = plan.Digest
	for _, x := range plan.Actions {
		out.Actions = append(out.Actions, PlannedAction{
			Name: x.Name, Image: x.Image, Timeout: x.Timeout,
			Leaving: action.Leaves(x.Image),
		})
	}
	return out, a.Plans.PutPlan(ctx, plan)
}

// wipeAction returns the action that wipes disks, which workflows add to a plan.
func wipeAction(mode string) action.Action {
	x := action.Action{
		Name: "wipe", Image: action.Wipe, Timeout: wipeTimeout,
		Environment: map[string]string{action.WipeModeVariable: mode},
	}
	if mode == action.WipeModes[0] {
		x.Timeout = metadataTimeout
	}
	return x
}

// RetireRequest asks to take a machine out of service.
type RetireRequest struct {
	Owner inventory.Owner `json:"owner"`
	// Doubts lists what could not be verified. If it is not empty, the machine is quarantined.
	Doubts []string `json:"doubts,omitempty"`
	Notes  []string `json:"notes,omitempty"`
	// KeepAddress means that the machine keeps its reserved addresses.
	KeepAddress bool `json:"keepAddress,omitempty"`
}

// Retire purges the secrets of a decommissioned machine and returns the machine's new standing. A disk that Ingot
// wrote may be missing because it was removed, so Retire only adds a note about such a disk.
func (a *retirements) Retire(ctx context.Context, q RetireRequest) (inventory.Standing, error) {
	if err := a.fence(ctx, q.Owner); err != nil {
		return inventory.Standing{}, err
	}

	m, err := a.Machines.Machine(ctx, q.Owner.Machine)
	if err != nil {
		return inventory.Standing{}, err
	}

	if m.Standing != nil && m.Standing.Run == q.Owner.Run {
		return *m.Standing, nil // an earlier attempt has retired the machine
	}

	notes := q.Notes
	for _, id := range m.ProtectedDisks {
		notes = append(notes, "disk not wiped, because it is protected: "+strings.Join(id.Keys(), " "))
	}

	missing, err := a.findMissingDisks(ctx, q.Owner)
	if err != nil {
		return inventory.Standing{}, err
	}

	st := inventory.Standing{State: inventory.StandingAvailable, Run: q.Owner.Run, Since: a.Now()}
	if len(q.Doubts) > 0 {
		st.State = inventory.StandingQuarantined
	}

	st.Reason = plaintext.Clip(strings.Join(slices.Concat(q.Doubts, notes, missing), "; "), maxAgentText)
	// A quarantined machine keeps its address, so that it can be booted again for the missing steps.
	keep := q.KeepAddress || st.State == inventory.StandingQuarantined
	return st, a.Machines.Retire(ctx, q.Owner, st, keep)
}

// findMissingDisks returns the disks that Ingot has written but that the run's agent did not find.
func (a *retirements) findMissingDisks(ctx context.Context, o inventory.Owner) ([]string, error) {
	agent, err := a.Agents.Agent(ctx, o)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil, nil // no agent ran, which is already one of the doubts
	}

	if err != nil {
		return nil, err
	}

	written, err := a.Disks.DisksWritten(ctx, o.Machine)
	if err != nil {
		return nil, err
	}

	for _, d := range agent.Facts.Disks {
		for _, id := range d.ID().Keys() {
			delete(written, id)
		}
	}

	var out []string
	for id := range written {
		out = append(out, "disk not found, although Ingot has written to it: "+id)
	}

	slices.Sort(out)
	return out, nil
}
