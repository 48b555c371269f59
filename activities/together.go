package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// TogetherRequest asks which machines carry out a template together. The fields are the same as in
// contract.TogetherInput.
type TogetherRequest struct {
	ID          string            `json:"id"`             // workflow id of the operation
	Since       time.Time         `json:"since,omitzero"` // when the operation began
	Template    string            `json:"template"`
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

// resumeTogether adds to machines what the operation q.Resume, and those that it has resumed, have done.
func (a *operations) resumeTogether(ctx context.Context, q TogetherRequest, machines []TogetherMachine) error {
	runs, err := a.runsTogether(ctx, q)
	if err != nil {
		return err
	}
	for n := range machines {
		m := &machines[n]
		if runs[m.Machine] == "" {
			continue // no operation has started a run for it
		}
		w, err := a.newestTogether(ctx, q, *m, runs[m.Machine])
		switch {
		case err != nil:
			return err
		case w.State == inventory.StateSuccess:
			m.Done = w.Run
		case w.Digest != "": // it has a plan
			m.Resume = w.Run
		}
	}
	return nil
}

// runsTogether returns, by machine, the last run that the operation q.Resume has started. For a machine for which it has started none, it
// returns the run of the operation that q.Resume has resumed.
func (a *operations) runsTogether(ctx context.Context, q TogetherRequest) (map[string]string, error) {
	runs, seen := map[string]string{}, map[string]bool{}
	for next := q.Resume; next != "" && !seen[next]; {
		seen[next] = true
		o, err := a.Operations.Operation(ctx, next)
		switch {
		case err != nil:
			return nil, fmt.Errorf("operation %q: %w", next, err)
		case o.ID != q.ID:
			return nil, fmt.Errorf("operation %q is %s, not %s: %w", next, o.ID, q.ID, inventory.ErrInvalid)
		case !inventory.Final(o.State):
			return nil, fmt.Errorf("operation %q has not ended: %w", next, inventory.ErrConflict)
		}
		for _, s := range o.Steps {
			if runs[s.Machine] == "" {
				runs[s.Machine] = s.Run
			}
		}
		in, err := readResumption(o.Run, o.Input)
		if err != nil {
			return nil, err
		}
		if in.Template != q.Template || !maps.Equal(in.HardwareMap, q.HardwareMap) {
			return nil, fmt.Errorf("operation %q has another template or hardware map: start the operation from the start: %w", next,
				inventory.ErrInvalid)
		}
		next = in.Resume
	}
	return runs, nil
}

// newestTogether returns the run that holds what was done on the machine: the given run, the run that it has resumed if it ended before it
// was planned, or the run that this operation has started since. The last is possible if a Temporal client has reset the operation. If
// another run has installed or wiped the machine since, or the run is still open, the error is inventory.ErrConflict.
func (a *operations) newestTogether(ctx context.Context, q TogetherRequest, m TogetherMachine, run string) (inventory.Workflow, error) {
	w, err := a.Workflows.Workflow(ctx, run)
	for err == nil && inventory.Final(w.State) && w.State != inventory.StateSuccess && w.Digest == "" {
		earlier, bad := readResumption(w.Run, w.Input)
		if bad != nil || earlier.Resume == "" {
			err = bad
			break
		}
		w, err = a.Workflows.Workflow(ctx, earlier.Resume)
	}
	if err != nil {
		return w, fmt.Errorf("run %q of machine %q: %w", run, m.Machine, err)
	}

	later, err := a.Workflows.Successor(ctx, w.Run)
	if err != nil {
		return w, err
	}
	if later != "" {
		newer, err := a.Workflows.Workflow(ctx, later)
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			return w, err
		}
		if mine, _ := startedBy(newer, q.ID); mine && !newer.Started.Before(q.Since) {
			return newer, nil
		}
		return w, fmt.Errorf("run %q has installed or wiped machine %q since: start the operation from the start: %w", later, m.Machine,
			inventory.ErrConflict)
	}
	if !inventory.Final(w.State) {
		return w, fmt.Errorf("run %q of machine %q is still open: wait until it has ended, or cancel it (ingot workflow cancel %s): %w",
			w.Run, m.Machine, m.Machine, inventory.ErrConflict)
	}
	return w, nil
}

// resumption is the part of the input of an operation, or of its run of a machine, that says what it resumes.
type resumption struct {
	Template    string            `json:"template"`
	HardwareMap map[string]string `json:"hardwareMap"`
	Resume      string            `json:"resume"`
}

func readResumption(run string, input json.RawMessage) (in resumption, err error) {
	if err := json.Unmarshal(input, &in); err != nil {
		return in, fmt.Errorf("reading the input of run %q: %w: %w", run, err, inventory.ErrInvalid)
	}
	return in, nil
}

// TogetherRun is a machine's run in an operation ProvisionTogether.
type TogetherRun struct {
	Machine string `json:"machine"`
	Run     string `json:"run"`
}

// AwaitPlanned returns when each run has stored its plan, or has ended without one. Then the error has the type Conflict, and names all
// runs that have ended.
func (a *operations) AwaitPlanned(ctx context.Context, runs []TogetherRun) error {
	began := time.Now()
	return a.look(ctx, outcomeEvery, func() (bool, error) {
		planned := 0
		var ended []error
		for _, r := range runs {
			w, err := a.Workflows.Workflow(ctx, r.Run)
			switch {
			case err != nil && !errors.Is(err, inventory.ErrNotFound):
				return false, err
			case w.Epoch > 0 || w.Phase == inventory.PhaseArm:
				planned++
			case err != nil && time.Since(began) > noRecord: // it was ended from outside before its first task
				ended = append(ended, nothingRecorded("run", r.Run))
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

// GrantRequest is the request of a run whose grant an operation takes.
type GrantRequest struct {
	Owner  inventory.Owner `json:"owner"` // without an epoch
	Parent string          `json:"parent"`
}

// AwaitGrant returns when the run has the grant of its machine. If the operation ends before, or has taken the grants and the run has lost
// its own since, the error has the type Conflict.
func (a *operations) AwaitGrant(ctx context.Context, q GrantRequest) error {
	var alone absence
	return a.look(ctx, outcomeEvery, func() (bool, error) {
		o, err := a.openParent(ctx, q.Parent, q.Owner, &alone) // read it first: it ends after it has taken the grants
		if errors.Is(err, inventory.ErrNotFound) {
			return false, nil
		}
		g, failed := a.Grants.Grant(ctx, q.Owner.Machine)
		if failed != nil {
			return false, failed
		}
		switch {
		case g.Run == q.Owner.Run:
			return true, nil
		case err == nil && o.Step == inventory.PhaseAction:
			err = fmt.Errorf("%s had taken machine %q for the run, and the run has lost it since: %w", q.Parent, q.Owner.Machine,
				inventory.ErrConflict)
		}
		return false, err
	})
}

// TurnRequest is the request of a run that waits for a task of another machine.
type TurnRequest struct {
	Owner  inventory.Owner `json:"owner"` // the run that waits
	Parent string          `json:"parent"`
	Turn   inventory.Turn  `json:"turn"`
}

// AwaitTurn returns when the other machine has done its task: all its actions have succeeded, and if it is the last task of that
// machine, the installed system is up. If the other machine's run ends in another way, or the operation ends, the error has the type
// Conflict. If the run that waits loses its machine, the error has the type Fenced: the server does not signal the loss to a run while an
// activity of it is open.
func (a *operations) AwaitTurn(ctx context.Context, q TurnRequest) error {
	var alone absence
	return a.look(ctx, outcomeEvery, func() (bool, error) {
		if err := a.fence(ctx, q.Owner); err != nil {
			return false, err
		}
		o, err := a.openParent(ctx, q.Parent, q.Owner, &alone)
		if errors.Is(err, inventory.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		i := slices.IndexFunc(o.Steps, func(s inventory.OperationStep) bool { return s.Machine == q.Turn.Machine })
		if i < 0 && len(o.Steps) > 0 {
			return false, fmt.Errorf("task %q was not begun: machine %q, whose task %q comes before it, is not one of the machines of %s: %w",
				q.Turn.Task, q.Turn.Machine, q.Turn.After, q.Parent, inventory.ErrConflict)
		}
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

// openParent returns the record of the open operation with this workflow id that has started the run of its child. If there is none for
// the time noParent, the error is inventory.ErrConflict, before that it is inventory.ErrNotFound.
func (a *operations) openParent(ctx context.Context, id string, child inventory.Owner, gone *absence) (inventory.Operation, error) {
	open, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: id, Open: true, Limit: 1})
	if err != nil {
		return inventory.Operation{}, err
	}
	if len(open) > 0 && isParent(open[0], child) {
		gone.since = time.Time{}
		return open[0], nil
	}
	if gone.since.IsZero() {
		gone.since = time.Now()
	}
	if time.Since(gone.since) < a.lookEvery(noParent) {
		return inventory.Operation{}, inventory.ErrNotFound
	}
	return inventory.Operation{}, fmt.Errorf("%s has ended, or did not start this run: %w", id, inventory.ErrConflict)
}

// isParent reports whether the operation o may have started the run of child. Another operation of the same name has not. One that was
// reset has not recorded its machines, or not found its runs yet.
func isParent(o inventory.Operation, child inventory.Owner) bool {
	i := slices.IndexFunc(o.Steps, func(s inventory.OperationStep) bool { return s.Machine == child.Machine })
	return len(o.Steps) == 0 || i >= 0 && (o.Steps[i].Run == "" || o.Steps[i].Run == child.Run)
}
