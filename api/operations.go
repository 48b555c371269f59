package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gin-gonic/gin"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

type operationStore interface {
	Operation(ctx context.Context, run string) (inventory.Operation, error)
	Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error)
	PutOperation(ctx context.Context, o inventory.Operation) error
}

// startOperation starts a workflow that is about more than one machine. While
// one of the same type is open, whatever its name, the answer names that one. A
// Genesis and a migration exclude each other: each moves the server.
func (s *Server) startOperation(ctx context.Context, kind, id, name string, input any) (Started, error) {
	tc, err := s.temporal()
	if err != nil {
		return Started{}, err
	}
	kinds := []string{kind}
	switch kind {
	case workflows.GenesisType:
		kinds = append(kinds, workflows.MigrateType)
	case workflows.MigrateType:
		kinds = append(kinds, workflows.GenesisType)
	}
	for _, k := range kinds {
		open, err := s.cfg.Store.Operations(ctx, inventory.OperationFilter{Type: k, Open: true, Limit: 1})
		if err != nil {
			return Started{}, err
		}
		if len(open) > 0 {
			return Started{}, busyOperation(open[0].ID, open[0].Run)
		}
	}
	// After that: whoever asks for a second migration is told of the first, which
	// is why the intake is closed.
	if err := s.room(ctx); err != nil {
		return Started{}, err
	}
	raw, err := json.Marshal(input)
	if err != nil {
		return Started{}, fmt.Errorf("encoding the input of %q: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*asked)
	defer cancel()
	run, err := tc.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: id, TaskQueue: workflows.TaskQueue,
		// Both are needed, or the SDK hands back the open run as if it were new.
		WorkflowIDConflictPolicy:                 enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		WorkflowIDReusePolicy:                    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
	}, kind, input)
	var busy *serviceerror.WorkflowExecutionAlreadyStarted
	if errors.As(err, &busy) {
		return Started{}, busyOperation(id, busy.RunId)
	}
	if err != nil {
		return Started{}, fmt.Errorf("starting %q: %w", id, err)
	}
	// Its own first record may be a while: the worker may be busy, or away.
	now := s.cfg.Now()
	o := inventory.Operation{
		Run: run.GetRunID(), ID: id, Type: kind, Name: name, State: inventory.StatePreparing, Step: inventory.PhasePlan,
		Message: "waiting for a worker", Steps: []inventory.OperationStep{}, Input: raw, Started: now, Updated: now,
	}
	if err := s.cfg.Store.PutOperation(ctx, o); err != nil {
		s.cfg.Log.Warn("recording an operation that has begun", "operation", id, "error", err)
	}
	s.agents.changed.notify()
	return Started{Workflow: id, Run: run.GetRunID()}, nil
}

func busyOperation(id, run string) error {
	return hint{fmt.Errorf("%s is running as run %s: %w", id, run, inventory.ErrConflict), "ingot operation get " + id}
}

// operation finds the operation that a path names: its run, or "genesis.lab" for
// the newest of that workflow id.
func (s *Server) operation(ctx context.Context, name string) (inventory.Operation, error) {
	kind, rest, dotted := strings.Cut(name, ".")
	if !dotted {
		return s.cfg.Store.Operation(ctx, name)
	}
	id := kind + "/" + rest
	list, err := s.cfg.Store.Operations(ctx, inventory.OperationFilter{ID: id, Limit: 1})
	if err != nil {
		return inventory.Operation{}, err
	}
	if len(list) == 0 {
		return inventory.Operation{}, fmt.Errorf("operation %q: %w", id, inventory.ErrNotFound)
	}
	return list[0], nil
}

func (s *Server) listOperations(c *gin.Context) {
	f := inventory.OperationFilter{Type: c.Query("type")}
	var err error
	var list []inventory.Operation
	if f.Open, f.Limit, err = openAndLimit(c); err == nil {
		list, err = s.cfg.Store.Operations(c.Request.Context(), f)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, items(list))
}

func (s *Server) getOperation(c *gin.Context) {
	o, err := s.operation(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, o)
}

func (s *Server) decideOperation(c *gin.Context) {
	var d workflows.Decision
	if err := body(c, &d, false); err != nil {
		s.fail(c, err)
		return
	}
	o, err := s.operation(c.Request.Context(), c.Param("run"))
	if err == nil && inventory.Final(o.State) {
		err = fmt.Errorf("%s is over: %s: %w", o.ID, o.State, inventory.ErrConflict)
	}
	if err == nil {
		err = decision(d, "GET /v1/operations/"+o.Run, workflows.Retry, workflows.Undo, workflows.Skip, workflows.Continue, workflows.Abort)
	}
	tc, e := s.temporal()
	if err == nil {
		err = e
	}
	if err == nil {
		d.By = by(c)
		err = s.tell(c.Request.Context(), tc, o.ID, execution(o), d, "ingot operation get "+o.Run)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.cfg.Log.Info("decided", "operation", o.ID, "question", d.Question, "choice", d.Choice, "by", d.By)
	c.JSON(http.StatusOK, gin.H{"question": d.Question, "choice": d.Choice})
}

func (s *Server) cancelOperation(c *gin.Context) {
	o, err := s.operation(c.Request.Context(), c.Param("run"))
	if err != nil {
		s.fail(c, err)
		return
	}
	s.endOperation(c, o)
}

// endOperation asks an operation to end. It may be asked again.
func (s *Server) endOperation(c *gin.Context, o inventory.Operation) {
	done := Started{Workflow: o.ID, Run: o.Run}
	if inventory.Final(o.State) {
		c.JSON(http.StatusAccepted, done)
		return
	}
	tc, err := s.temporal()
	if err == nil {
		err = cancelExecution(c.Request.Context(), tc, o)
	}
	if err != nil {
		s.fail(c, fmt.Errorf("cancelling %q: %w", o.ID, err))
		return
	}
	s.cfg.Log.Info("cancelled", "operation", o.ID, "by", by(c))
	c.JSON(http.StatusAccepted, done)
}

// cancelExecution asks the execution in which an operation is now to end.
func cancelExecution(ctx context.Context, tc client.Client, o inventory.Operation) error {
	if err := cancel(ctx, tc, o.ID, execution(o)); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, asked)
	defer stop()
	d, err := tc.DescribeWorkflowExecution(ctx, o.ID, execution(o))
	var gone *serviceerror.NotFound
	if errors.As(err, &gone) {
		return nil
	}
	if err == nil && d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		// It ended before the request came, and the next execution has not been recorded yet.
		return cancel(ctx, tc, o.ID, "")
	}
	return err
}

// execution returns the execution in which an operation is now. A recovery goes on
// in another one when its history is full; its record keeps the run of the first.
func execution(o inventory.Operation) string { return cmp.Or(o.Execution, o.Run) }

// judgeOperation gives the record of an operation whose workflow is over a
// final state. It reads the record again first: an operation writes its last
// one before Temporal closes it.
func (r *Reconciler) judgeOperation(ctx context.Context, tc client.Client, o inventory.Operation) error {
	e, err := r.look(ctx, tc, o.ID, execution(o))
	if err == nil && e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
		// The next execution has not recorded anything yet; unless it was reset or
		// terminated, it will.
		if e, err = r.look(ctx, tc, o.ID, ""); e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW {
			return err
		}
	}
	if err != nil || !r.over(o.Run, e) {
		return err
	}
	was := execution(o)
	if o, err = r.Store.Operation(ctx, o.Run); err != nil || inventory.Final(o.State) || execution(o) != was {
		return err
	}
	now := r.Now()
	o.State, o.Step, o.Message = inventory.StateFailed, inventory.PhaseFailed, "ended from outside: "+e.String()
	if e.status == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED {
		o.State, o.Step, o.Message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	}
	o.Question, o.Next, o.Ended, o.Updated = nil, "", now, now
	if err := r.Store.PutOperation(ctx, o); err != nil {
		return fmt.Errorf("repairing the record of %q: %w", o.ID, err)
	}
	r.Log.Warn("repaired the record of an operation that is over", "operation", o.ID, "run", o.Run, "as", e.String())
	r.count(func(c *Counts) { c.RecordsRepaired++ })
	return nil
}

// reopen has new runs taken again after a migration that was ended from outside:
// its own undo never ran. The operations are read second, because a migration
// is recorded before it closes the intake.
func (r *Reconciler) reopen(ctx context.Context) error {
	why, err := r.Store.Intake(ctx)
	if err != nil || why == "" {
		return err
	}
	open, err := r.Store.Operations(ctx, inventory.OperationFilter{Open: true, Limit: maxOpen})
	if err != nil || slices.ContainsFunc(open, func(o inventory.Operation) bool { return o.Type == workflows.MigrateType }) {
		return err
	}
	if err := r.Store.OpenIntake(ctx); err != nil {
		return fmt.Errorf("taking new runs again: %w", err)
	}
	r.Log.Warn("new runs are taken again: no migration is open", "reason", why)
	r.count(func(c *Counts) { c.RecordsRepaired++ })
	return nil
}
