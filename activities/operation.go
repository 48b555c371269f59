package activities

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/inventory"
)

// Operations is where an operation writes down what happened.
type Operations interface {
	PutOperation(ctx context.Context, o inventory.Operation) error
	Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error)
	LatestWorkflow(ctx context.Context, machine string) (inventory.Workflow, error)
	Workflows(ctx context.Context, f inventory.WorkflowFilter) ([]inventory.Workflow, error)
	Machines(ctx context.Context) ([]inventory.Machine, error)
}

// RecordOperation writes the record of an operation with its input, as Record
// does for a run: a local activity, whenever the record changes.
func (a *Activities) RecordOperation(ctx context.Context, o inventory.Operation, input any) error {
	var err error
	if o.Input, err = json.Marshal(input); err != nil {
		return fmt.Errorf("recording the input of operation %q: %w", o.ID, err)
	}
	return fail(a.Operations.PutOperation(ctx, o))
}

// OutcomeRequest asks how a machine's run has ended.
type OutcomeRequest struct {
	Run string `json:"run"`
	// Asking makes a run that waits for a person count as an outcome.
	Asking bool `json:"asking,omitempty"`
	// Known is what the run waits for as the caller knows already: that is no
	// outcome, but something else that it waits for is, and that it goes on.
	Known string `json:"known,omitempty"`
}

// tells whether a run that is not over has come to something to tell.
func (q OutcomeRequest) tells(asks bool, message string) bool {
	return q.Asking && (asks && message != q.Known || !asks && q.Known != "")
}

// Outcome is how a machine's run stands, as its record tells.
type Outcome struct {
	Run     string `json:"run"`
	State   string `json:"state"`
	Phase   string `json:"phase"` // waiting-for-person is an outcome only where it was asked for
	Message string `json:"message,omitempty"`
	// Asks tells whether nothing goes on before a person has done something.
	Asks bool `json:"asks,omitempty"`
}

func outcomeOf(w inventory.Workflow) Outcome {
	return Outcome{Run: w.Run, State: w.State, Phase: w.Phase, Message: w.Message, Asks: !inventory.Final(w.State) && w.AwaitsPerson()}
}

// outcomeEvery is how often a record is looked at. Reading it costs a
// millisecond; an event for each change of phase would cost Temporal more.
const outcomeEvery = time.Second

// answerEvery is the same for a run that waits for an operator: there may be thousands.
const answerEvery = 5 * time.Second

// noRecord is how long a run may take to write its first record. The worker
// that runs this activity would have run the workflow, too.
const noRecord = 5 * time.Minute

// AwaitRun returns when the machine's run is over by its record. It heartbeats,
// and begins anew wherever its worker dies: parents read outcomes from the
// inventory, because the completion of a child is lost with a reset parent.
func (a *Activities) AwaitRun(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "run", func() (Outcome, error) {
		w, err := a.Records.Workflow(ctx, q.Run)
		return outcomeOf(w), err
	})
}

// outcome looks at a record until it has what q asks for. kind is what the
// record is of.
func (a *Activities) outcome(ctx context.Context, q OutcomeRequest, kind string, look func() (Outcome, error)) (Outcome, error) {
	began := time.Now()
	every := outcomeEvery
	if q.Known != "" {
		every = answerEvery
	}
	tick := time.NewTicker(a.lookEvery(every))
	defer tick.Stop()
	for {
		o, err := look()
		switch {
		case err == nil:
			if inventory.Final(o.State) || q.tells(o.Asks, o.Message) {
				return o, nil
			}
		case !errors.Is(err, inventory.ErrNotFound):
			return Outcome{}, fail(err)
		case time.Since(began) > noRecord:
			return Outcome{}, fail(fmt.Errorf("%s %q has recorded nothing: %w", kind, q.Run, inventory.ErrNotFound))
		}
		activity.RecordHeartbeat(ctx)
		select {
		case <-tick.C:
		case <-activity.GetWorkerStopChannel(ctx):
			return Outcome{}, errWorkerStops
		case <-ctx.Done():
			return Outcome{}, ctx.Err()
		}
	}
}

// OwnRun is the open run of a machine, if there is one.
type OwnRun struct {
	Run string `json:"run,omitempty"` // "": none is open
	// Mine tells whether the asking operation started it.
	Mine bool `json:"mine,omitempty"`
}

// OpenRunRequest asks for the open run of a machine.
type OpenRunRequest struct {
	Machine string `json:"machine"`
	Parent  string `json:"parent"` // workflow id of who asks
	// TakeBack is for an operation that undoes what it has installed: its latest
	// installation of the machine counts as none from then on.
	TakeBack bool `json:"takeBack,omitempty"`
}

// OpenRun tells which run has a machine now, and whether the parent started it.
func (a *Activities) OpenRun(ctx context.Context, q OpenRunRequest) (OwnRun, error) {
	if q.TakeBack {
		if err := a.takeBack(ctx, q); err != nil {
			return OwnRun{}, fail(err)
		}
	}
	w, err := a.Operations.LatestWorkflow(ctx, q.Machine)
	if errors.Is(err, inventory.ErrNotFound) || err == nil && inventory.Final(w.State) {
		return OwnRun{}, nil
	}
	if err != nil {
		return OwnRun{}, fail(err)
	}
	mine, err := startedBy(w, q.Parent)
	return OwnRun{Run: w.Run, Mine: mine}, fail(err)
}

// takeBack remembers which installation is no more, for whoever resumes. One that
// somebody else has made since stays one.
func (a *Activities) takeBack(ctx context.Context, q OpenRunRequest) error {
	last, err := a.latestInstallation(ctx, q.Machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if mine, err := startedBy(last, q.Parent); err != nil || !mine {
		return err
	}
	return a.Labs.PutFact(ctx, q.Parent, factTakenBack+q.Machine, inventory.NewSecret(last.Run))
}

// startedBy tells whether the operation with this workflow id started the run.
func startedBy(w inventory.Workflow, parent string) (bool, error) {
	var in struct {
		Parent string `json:"parent"`
	}
	if err := json.Unmarshal(w.Input, &in); err != nil {
		return false, fmt.Errorf("reading the input of run %q: %w: %w", w.Run, err, inventory.ErrInvalid)
	}
	return in.Parent != "" && in.Parent == parent, nil
}
