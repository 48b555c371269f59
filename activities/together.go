package activities

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// TogetherRequest asks which machines carry out a template together. The fields are the same as in
// contract.TogetherInput.
type TogetherRequest struct {
	ID          string            `json:"id"` // workflow id of the operation
	HardwareMap map[string]string `json:"hardwareMap"`
	Resume      string            `json:"resume,omitempty"`
}

// A TogetherMachine is a machine of an operation ProvisionTogether.
type TogetherMachine struct {
	Machine string `json:"machine"`
	// Done is the run with which an earlier operation has installed the machine; "" = the machine has still to do something.
	Done string `json:"done,omitempty"`
	// Resume is the run whose plan is carried out again from its failed step; "" = the machine needs a new plan.
	Resume string `json:"resume,omitempty"`
}

// TogetherMachines returns the machines that the hardware map names, sorted by name, with what an earlier operation has done on
// them.
func (a *operations) TogetherMachines(ctx context.Context, q TogetherRequest) ([]TogetherMachine, error) {
	all, err := a.Machines.Machines(ctx)
	if err != nil {
		return nil, err
	}
	named, err := inventory.MachinesOfMap(all, q.HardwareMap)
	if err != nil {
		return nil, err
	}
	var out []TogetherMachine
	for _, m := range named {
		out = append(out, TogetherMachine{Machine: m.Name})
	}
	if q.Resume != "" {
		err = a.resumeTogether(ctx, q, out)
	}
	return out, err
}

// resumeTogether adds to machines what the operation q.Resume has done.
func (a *operations) resumeTogether(ctx context.Context, q TogetherRequest, machines []TogetherMachine) error {
	o, err := a.Operations.Operation(ctx, q.Resume)
	switch {
	case err != nil:
		return fmt.Errorf("operation %q: %w", q.Resume, err)
	case o.ID != q.ID:
		return fmt.Errorf("operation %q is %s, not %s: %w", q.Resume, o.ID, q.ID, inventory.ErrInvalid)
	case !inventory.Final(o.State):
		return fmt.Errorf("operation %q has not ended: %w", q.Resume, inventory.ErrConflict)
	}

	for n := range machines {
		m := &machines[n]
		i := slices.IndexFunc(o.Steps, func(s inventory.OperationStep) bool { return s.Machine == m.Machine && s.Run != "" })
		if i < 0 {
			continue
		}
		run := o.Steps[i].Run
		w, err := a.Workflows.Workflow(ctx, run)
		if err != nil {
			return fmt.Errorf("run %q of machine %q: %w", run, m.Machine, err)
		}
		later, err := a.Workflows.Successor(ctx, run)
		if err != nil {
			return err
		}
		switch {
		case later != "":
			return fmt.Errorf("run %q has installed or wiped machine %q since: start the operation from the start: %w", later, m.Machine,
				inventory.ErrConflict)
		case w.State == inventory.StateSuccess:
			m.Done = run
		case w.Digest != "": // it has a plan
			m.Resume = run
		}
	}
	return nil
}

// TogetherRun is a machine's run in an operation ProvisionTogether.
type TogetherRun struct {
	Machine string `json:"machine"`
	Run     string `json:"run"`
}

// AwaitPlanned returns when each run has stored its plan, or has ended without one. Then the error has the type Conflict, and names all
// runs that have ended.
func (a *operations) AwaitPlanned(ctx context.Context, runs []TogetherRun) error {
	return a.look(ctx, func() (bool, error) {
		planned := 0
		var ended []error
		for _, r := range runs {
			w, err := a.Workflows.Workflow(ctx, r.Run)
			switch {
			case err != nil && !errors.Is(err, inventory.ErrNotFound):
				return false, err
			case w.Epoch > 0 || w.Phase == inventory.PhaseArm:
				planned++
			case err == nil && inventory.Final(w.State):
				ended = append(ended, fmt.Errorf("machine %q: %s: %w", r.Machine, w.Message, inventory.ErrConflict))
			}
		}
		if planned+len(ended) < len(runs) {
			return false, nil
		}
		return true, errors.Join(ended...)
	})
}

// look calls done every second until it returns true or an error.
func (a *operations) look(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(a.lookEvery(outcomeEvery))
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		activity.RecordHeartbeat(ctx)
		if err := pause(ctx, tick.C); err != nil {
			return err
		}
	}
}

// GrantRequest is the request of a run whose grant an operation takes.
type GrantRequest struct {
	Owner  inventory.Owner `json:"owner"` // without an epoch
	Parent string          `json:"parent"`
}

// AwaitGrant returns when the run has the grant of its machine. If the operation ends before, the error has the type Conflict.
func (a *operations) AwaitGrant(ctx context.Context, q GrantRequest) error {
	var alone absence
	return a.look(ctx, func() (bool, error) {
		_, err := a.openParent(ctx, q.Parent, &alone) // read it first: it ends after it has taken the grants
		if errors.Is(err, inventory.ErrNotFound) {
			return false, nil
		}
		g, failed := a.Grants.Grant(ctx, q.Owner.Machine)
		if failed != nil {
			return false, failed
		}
		if g.Run == q.Owner.Run {
			return true, nil
		}
		return false, err
	})
}

// TurnRequest is the request of a run that waits for a task of another machine.
type TurnRequest struct {
	Parent string         `json:"parent"`
	Turn   inventory.Turn `json:"turn"`
}

// AwaitTurn returns when the other machine has done its task: all its actions have succeeded, and if it is the last task of that
// machine, the installed system is up. If the other machine's run ends in another way, or the operation ends, the error has the type
// Conflict.
func (a *operations) AwaitTurn(ctx context.Context, q TurnRequest) error {
	var alone absence
	return a.look(ctx, func() (bool, error) {
		o, err := a.openParent(ctx, q.Parent, &alone)
		if errors.Is(err, inventory.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(o.Steps, func(s inventory.OperationStep) bool { return s.Machine == q.Turn.Machine })
		if i < 0 || o.Steps[i].Run == "" {
			return false, nil // the operation was reset and has not found its runs yet
		}
		w, err := a.Workflows.Workflow(ctx, o.Steps[i].Run)
		switch {
		case err != nil:
			return false, err
		case taskDone(w, q.Turn.After):
			return true, nil
		case inventory.Final(w.State):
			return false, fmt.Errorf("task %q was not begun: machine %q ended as %s before its task %q was done: %s: %w",
				q.Turn.Task, q.Turn.Machine, w.State, q.Turn.After, w.Message, inventory.ErrConflict)
		}
		return false, nil
	})
}

// taskDone reports whether the run has done the task.
func taskDone(w inventory.Workflow, task string) bool {
	if w.State == inventory.StateSuccess {
		return true
	}
	later := false
	for _, x := range w.Actions {
		if x.Task == task && x.State != action.Success {
			return false
		}
		later = x.Task != task // tasks do not repeat, so this holds in the end if the last action is of another task
	}
	return later
}

// absence measures how long something was missing without a break.
type absence struct{ since time.Time }

// noParent is how long the record of an operation may be missing, or final, before its runs take the operation for ended. An operation
// that a Temporal client has reset gets a new record, with the same id.
const noParent = 30 * time.Second

// openParent returns the record of the open operation with this workflow id. If there is none for the time noParent, the error is
// inventory.ErrConflict, before that it is inventory.ErrNotFound.
func (a *operations) openParent(ctx context.Context, id string, gone *absence) (inventory.Operation, error) {
	open, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: id, Open: true, Limit: 1})
	if err != nil {
		return inventory.Operation{}, err
	}
	if len(open) > 0 {
		gone.since = time.Time{}
		return open[0], nil
	}
	if gone.since.IsZero() {
		gone.since = time.Now()
	}
	if time.Since(gone.since) < a.lookEvery(noParent) {
		return inventory.Operation{}, inventory.ErrNotFound
	}
	return inventory.Operation{}, fmt.Errorf("%s has ended: %w", id, inventory.ErrConflict)
}
