package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/inventory"
)

// operations holds the activities by which an operation follows the workflows that it starts.
type operations struct{ *shared }

// OutcomeRequest asks for the outcome of a run or an operation.
type OutcomeRequest struct {
	Run string `json:"run"`
	// Asking: return also when the run waits for the operator.
	Asking bool `json:"asking,omitempty"`
	// Known is the question that the caller already knows, as text. With it, the activity returns only when the
	// question has changed or is answered, or the record is final.
	Known string `json:"known,omitempty"`
}

// hasOutcome reports whether the record of an open run already shows what q asks for.
func (q OutcomeRequest) hasOutcome(asks bool, message string) bool {
	return q.Asking && (asks && message != q.Known || !asks && q.Known != "")
}

// Outcome is the state of a run or an operation according to its record.
type Outcome struct {
	Run     string `json:"run"`
	State   string `json:"state"`
	Phase   string `json:"phase"` // for an operation: the current step
	Message string `json:"message,omitempty"`
	// Asks: the run or operation waits for the operator.
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

// outcomeEvery is how often a record is read. A read costs a millisecond, which is cheaper than a Temporal event
// for each change of the record.
const outcomeEvery = time.Second

// answerEvery is outcomeEvery for runs that wait for the operator, because there may be thousands of them.
const answerEvery = 5 * time.Second

// noRecord is how long a run may take to write its first record. It is an error then, because this worker also
// runs the workflow.
const noRecord = 5 * time.Minute

// AwaitRun returns when the record of the run is final, or earlier if q asks for that. It heartbeats, so that it
// is started again if its worker dies. Operations read outcomes from the inventory, because a parent that was
// reset misses the completion of its child.
func (a *operations) AwaitRun(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "run", a.runOutcome)
}

// An outcomeReader returns the state of a run or an operation from its record.
type outcomeReader = func(ctx context.Context, run string) (Outcome, error)

// outcome reads a record by look until it shows what q asks for. kind names the kind of record in errors.
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

// AwaitOperation is AwaitRun for an operation.
func (a *operations) AwaitOperation(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "operation", a.operationOutcome)
}

// RunNow returns the present state of a run.
func (a *operations) RunNow(ctx context.Context, run string) (Outcome, error) {
	return outcomeNow(ctx, run, a.runOutcome)
}

// OperationNow returns the present state of an operation.
func (a *operations) OperationNow(ctx context.Context, run string) (Outcome, error) {
	return outcomeNow(ctx, run, a.operationOutcome)
}

func outcomeNow(ctx context.Context, run string, look outcomeReader) (Outcome, error) {
	o, err := look(ctx, run)
	if errors.Is(err, inventory.ErrNotFound) {
		return Outcome{Run: run, Message: "the run has recorded nothing"}, nil
	}
	return o, err
}

// OpenOperation returns the run id of the open operation with this workflow id.
func (a *operations) OpenOperation(ctx context.Context, id string) (string, error) {
	list, err := a.Operations.Operations(ctx, inventory.OperationFilter{ID: id, Open: true, Limit: 1})
	if err == nil && len(list) == 0 {
		// The operation ended after Temporal had refused to start another one.
		err = fmt.Errorf("operation %q ended before this run could follow it; choose retry to start it again: %w", id, inventory.ErrConflict)
	}
	if err != nil {
		return "", err
	}
	return list[0].Run, nil
}
