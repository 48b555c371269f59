package activities

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/inventory"
)

// runRecords holds the activities that write the records of runs and operations.
type runRecords struct{ *shared }

// Record writes the record of a run, together with the run's input. Workflows call it whenever the record changes,
// mostly as a local activity.
func (a *runRecords) Record(ctx context.Context, w inventory.Workflow, input any) error {
	var err error
	if w.Input, err = json.Marshal(input); err != nil {
		return fmt.Errorf("recording the input of run %q: %w", w.Run, err)
	}
	w.By = inventory.StartedBy(w.Input)
	if a.TraceOf != nil {
		w.Trace = a.TraceOf(ctx)
	}
	return a.Workflows.PutWorkflow(ctx, w)
}

// RecordOperation writes the record of an operation, together with the operation's input. Workflows call it
// whenever the record changes, mostly as a local activity.
func (a *runRecords) RecordOperation(ctx context.Context, o inventory.Operation, input any) error {
	var err error
	if o.Input, err = json.Marshal(input); err != nil {
		return fmt.Errorf("recording the input of operation %q: %w", o.ID, err)
	}
	o.By = inventory.StartedBy(o.Input)
	return a.Operations.PutOperation(ctx, o)
}
