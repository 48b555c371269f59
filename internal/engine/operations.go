package engine

import (
	"context"
	"fmt"
	"slices"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// judgeOperation writes the final state of an operation whose workflow was ended from outside. It reads the record again
// after Temporal's answer: an operation that ends by itself writes its final record before Temporal closes the workflow.
func (r *Reconciler) judgeOperation(ctx context.Context, tc client.Client, o inventory.Operation) error {
	e, err := describe(ctx, tc, o.ID, executionOf(o))
	if err == nil && e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		// The workflow has continued as new, and the record does not name the new execution yet. Unless that execution was
		// reset or terminated, it will record itself.
		e, err = describe(ctx, tc, o.ID, "")
		if e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
			return err
		}
	}
	if err != nil || !r.hasEnded(o.Run, e) {
		return err
	}
	before := executionOf(o)
	o, err = r.stores.Operations.Operation(ctx, o.Run)
	if err != nil || inventory.Final(o.State) || executionOf(o) != before {
		return err
	}

	now := r.now()
	o.State, o.Step, o.Message = inventory.StateFailed, inventory.PhaseFailed, "ended from outside: "+e.String()
	if e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED {
		o.State, o.Step, o.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	}
	o.Question, o.Next, o.Ended, o.Updated = nil, "", now, now
	if o.Type == inventory.TypeTogether && o.State == inventory.StateFailed {
		o.Next = contract.RetryTogether(o.ID)
	}
	if err := r.stores.Operations.PutOperation(ctx, o); err != nil {
		return fmt.Errorf("repairing the record of operation %q: %w", o.ID, err)
	}
	r.log.Warn("repaired the record of an operation that had already ended", "operation", o.ID, "run", o.Run, "as", e.String())
	r.repairs.count(func(c *apitypes.Repairs) { c.RecordsRepaired++ })

	return nil
}

// reopenIntake accepts new runs again if no migration is open. A migration makes the server refuse new runs, and cannot undo this
// if it is ended from outside. reopenIntake reads the operations last, because a migration is recorded before it closes the intake.
func (r *Reconciler) reopenIntake(ctx context.Context) error {
	why, err := r.stores.Intake.Intake(ctx)
	if err != nil || why == "" {
		return err
	}
	open, err := r.stores.Operations.Operations(ctx, inventory.OperationFilter{Open: true, Limit: MaxOpen})
	migrates := func(o inventory.Operation) bool { return o.Type == inventory.TypeMigrate }
	if err != nil || slices.ContainsFunc(open, migrates) {
		return err
	}

	if err := r.stores.Intake.OpenIntake(ctx); err != nil {
		return fmt.Errorf("accepting new runs again: %w", err)
	}
	r.log.Warn("new runs are accepted again, because no migration is open", "reason", why)
	r.repairs.count(func(c *apitypes.Repairs) { c.RecordsRepaired++ })

	return nil
}
