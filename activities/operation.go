package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/inventory"
)

// operations watch the runs and the operations that an operation starts.
type operations struct{ *shared }

// OutcomeRequest asks for the outcome of a machine's run.
type OutcomeRequest struct {
	Run string `json:"run"`
	// Asking makes a run that waits for the operator count as an outcome.
	Asking bool `json:"asking,omitempty"`
	// Known is the message of the waiting run that the caller already has. Only another
	// message, or that the run continues, is an outcome then.
	Known string `json:"known,omitempty"`
}

// hasOutcome reports whether a run that is still open has an outcome to report.
func (q OutcomeRequest) hasOutcome(asks bool, message string) bool {
	return q.Asking && (asks && message != q.Known || !asks && q.Known != "")
}

// Outcome is the state of a machine's run according to its record.
type Outcome struct {
	Run     string `json:"run"`
	State   string `json:"state"`
	Phase   string `json:"phase"` // waiting-for-operator is an outcome only on request
	Message string `json:"message,omitempty"`
	// Asks reports whether the run waits for the operator.
	Asks bool `json:"asks,omitempty"`
}

func (a *operations) runOutcome(ctx context.Context, run string) (Outcome, error) {
	w, err := a.Workflows.Workflow(ctx, run)
	return Outcome{
		Run: w.Run, State: w.State, Phase: w.Phase, Message: w.Message,
		Asks: !inventory.Final(w.State) && w.AwaitsOperator(),
	}, err
}

func (a *operations) operationOutcome(ctx context.Context, run string) (Outcome, error) {
	o, err := a.Operations.Operation(ctx, run)
	return Outcome{Run: o.Run, State: o.State, Phase: o.Step, Message: o.Message, Asks: o.Question != nil}, err
}

// outcomeEvery is how often a record is read. A read costs a millisecond; an event for each
// phase change would cost Temporal more.
const outcomeEvery = time.Second

// answerEvery is outcomeEvery for runs that wait for an operator: there may be thousands.
const answerEvery = 5 * time.Second

// noRecord is how long a run may take to write its first record. The worker that runs this
// activity would also have run the workflow.
const noRecord = 5 * time.Minute

// AwaitRun returns when the record of the machine's run is final. It heartbeats, and starts
// again if its worker dies. Parents read outcomes from the inventory, because a reset parent
// misses the completion of its child.
func (a *operations) AwaitRun(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "run", a.runOutcome)
}

// An outcomeReader reads the state of a run from its record.
type outcomeReader = func(ctx context.Context, run string) (Outcome, error)

// outcome polls a record until it has what q asks for. kind names the kind of record for
// messages.
func (a *operations) outcome(ctx context.Context, q OutcomeRequest, kind string, look outcomeReader) (Outcome, error) {
	began := time.Now()
	every := outcomeEvery
	if q.Known != "" {
		every = answerEvery
	}

	tick := time.NewTicker(a.lookEvery(every))
	defer tick.Stop()
	for {
		o, err := look(ctx, q.Run)
		switch {
		case err == nil:
			if inventory.Final(o.State) || q.hasOutcome(o.Asks, o.Message) {
				return o, nil
			}
		case !errors.Is(err, inventory.ErrNotFound):
			return Outcome{}, err
		case time.Since(began) > noRecord:
			return Outcome{}, fmt.Errorf("%s %q has recorded nothing: %w", kind, q.Run, inventory.ErrNotFound)
		}
		activity.RecordHeartbeat(ctx)
		if err := pause(ctx, tick.C); err != nil {
			return Outcome{}, err
		}
	}
}

// AwaitOperation returns when the record of the operation is final, as AwaitRun does for a
// run.
func (a *operations) AwaitOperation(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "operation", a.operationOutcome)
}

// RunNow returns the state of a machine's run.
func (a *operations) RunNow(ctx context.Context, run string) (Outcome, error) {
	return outcomeNow(ctx, run, a.runOutcome)
}

// OperationNow returns the state of an operation.
func (a *operations) OperationNow(ctx context.Context, run string) (Outcome, error) {
	return outcomeNow(ctx, run, a.operationOutcome)
}

func outcomeNow(ctx context.Context, run string, look outcomeReader) (Outcome, error) {
	o, err := look(ctx, run)
	if errors.Is(err, inventory.ErrNotFound) {
		return Outcome{Run: run, Message: "it has recorded nothing"}, nil
	}
	return o, err
}

// OpenOperation returns the run of the open operation with this workflow id.
func (a *operations) OpenOperation(ctx context.Context, id string) (string, error) {
	list, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: id, Open: true, Limit: 1})
	if err == nil && len(list) == 0 {
		// The operation has just ended and Temporal has not closed it yet.
		err = fmt.Errorf("operation %q ended before it could be followed; retry starts it again: %w", id, inventory.ErrConflict)
	}
	if err != nil {
		return "", err
	}
	return list[0].Run, nil
}
