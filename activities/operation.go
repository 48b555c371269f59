package activities

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/activity"

	"github.com/ingotmetal/ingot/inventory"
)

// operations holds the activities with which an operation follows the runs and operations that it has started.
type operations struct{ *shared }

// OutcomeRequest asks for the outcome of a run or an operation.
type OutcomeRequest struct {
	Run string `json:"run"`
	// Asking means that the activity also returns when the run waits for the operator.
	Asking bool `json:"asking,omitempty"`
	// Known is the text of the question that the caller knows already. If Known is set, the activity returns only
	// when the question has changed, the question is answered, or the record is final.
	Known string `json:"known,omitempty"`
}

// hasOutcome reports whether the record of an open run already shows what q waits for.
func (q OutcomeRequest) hasOutcome(asks bool, message string) bool {
	return q.Asking && (asks && message != q.Known || !asks && q.Known != "")
}

// Outcome is the state of a run or an operation, as its record shows it.
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

// outcomeEvery is how often a record is read. A read takes a millisecond, which costs less than a Temporal event
// for each change of the record.
const outcomeEvery = time.Second

// answerEvery takes the place of outcomeEvery for runs that wait for the operator, because there may be thousands
// of them.
const answerEvery = 5 * time.Second

// noRecord is how long a run may take to write its first record. A longer time is an error, because the run's
// workflow is executed by this same worker.
const noRecord = 5 * time.Minute

// AwaitRun returns when the record of the run is final, or earlier if q asks for that. It sends heartbeats, so that
// Temporal starts it again if its worker dies. Operations read the outcomes of their runs from the inventory,
// because a parent workflow that was reset does not learn when its child completes.
func (a *operations) AwaitRun(ctx context.Context, q OutcomeRequest) (Outcome, error) {
	return a.outcome(ctx, q, "run", a.runOutcome)
}

// An outcomeReader returns the state of a run or an operation from its record.
type outcomeReader = func(ctx context.Context, run string) (Outcome, error)

// outcome reads a record, by the function look, until the record shows what q asks for. kind names the kind of
// record in errors.
func (a *operations) outcome(ctx context.Context, q OutcomeRequest, kind string, look outcomeReader) (o Outcome, err error) {
	began := time.Now()
	every := outcomeEvery
	if q.Known != "" {
		every = answerEvery
	}
	err = a.look(ctx, every, func() (bool, error) {
		o, err = look(ctx, q.Run)
		switch {
		case err == nil:
			return inventory.Final(o.State) || q.hasOutcome(o.Asks, o.Message), nil
		case !errors.Is(err, inventory.ErrNotFound):
			return false, err
		case time.Since(began) > noRecord:
			return false, nothingRecorded(kind, q.Run)
		}
		return false, nil
	})
	if err != nil {
		return Outcome{}, err
	}
	return o, nil
}

func nothingRecorded(kind, run string) error {
	return fmt.Errorf("reading the record of %s %q: nothing was recorded: %w", kind, run, inventory.ErrNotFound)
}

// look calls done at once and then at this interval, until it returns true or an error. It sends heartbeats.
func (a *operations) look(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(a.lookEvery(every))
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

// AwaitOperation does for an operation what AwaitRun does for a run.
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
		// Temporal refused to start another operation, because this one was open. It has ended since.
		err = fmt.Errorf("operation %q ended before this run could follow it; choose retry to start it again: %w", id, inventory.ErrConflict)
	}
	if err != nil {
		return "", err
	}
	return list[0].Run, nil
}
