package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// OperationStore holds the records of operations: workflows about more than one machine, such as Genesis, Migrate and
// Recover.
type OperationStore interface {
	Operation(ctx context.Context, run string) (inventory.Operation, error)
	Operations(ctx context.Context, f inventory.OperationFilter) ([]inventory.Operation, error)
	PutOperation(ctx context.Context, o inventory.Operation) error
}

type operations struct {
	store     OperationStore
	runs      *engine.Runs
	admission *admission
	changed   *engine.Notifier
	log       *slog.Logger
	now       func() time.Time
}

func (o *operations) routes() []httpapi.Route {
	const one = "/v1/operations/:run"

	return []httpapi.Route{
		{Method: "GET", Path: "/v1/operations", Needs: inventory.RoleRead, Handler: httpapi.Get(o.list)},
		{Method: "GET", Path: one, Needs: inventory.RoleRead, Handler: httpapi.Get(o.get)},
		{Method: "POST", Path: one + "/decide", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, o.decide)},
		{
			Method:  "POST",
			Path:    one + "/cancel",
			Needs:   inventory.RoleOperate,
			Handler: httpapi.Handle(http.StatusAccepted, httpapi.NoBody, o.cancel),
		},
		{Method: "POST", Path: one + "/pause", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, o.pause)},
		{Method: "POST", Path: one + "/resume", Needs: inventory.RoleOperate, Handler: httpapi.Handle(http.StatusOK, httpapi.NoBody, o.resume)},
	}
}

// exclusive maps a type of operation to another type that must not run at the same time, because both types can move
// the active server to another host.
var exclusive = map[string]string{
	inventory.TypeGenesis: inventory.TypeMigrate,
	inventory.TypeMigrate: inventory.TypeGenesis,
}

// start starts an operation. If an operation of the same type, or of the type that exclusive gives for it, is already
// open, the error is a conflict that names the open operation. The name of the open operation matters only for
// ProvisionTogether: operations of this type with different names may be open at the same time.
func (o *operations) start(ctx context.Context, w engine.Start, name string) (apitypes.Started, error) {
	if _, err := o.runs.Client(); err != nil {
		return apitypes.Started{}, err
	}
	beside := []inventory.OperationFilter{{Type: w.Type}}
	if w.Type == inventory.TypeTogether {
		beside[0].ID = w.ID
	}
	if kind := exclusive[w.Type]; kind != "" {
		beside = append(beside, inventory.OperationFilter{Type: kind})
	}
	for _, f := range beside {
		if err := o.refuseBeside(ctx, f); err != nil {
			return apitypes.Started{}, err
		}
	}
	// This check comes last, because it refuses all new runs during a migration: a second migration should instead get
	// the error that names the first one.
	if err := o.admission.check(ctx); err != nil {
		return apitypes.Started{}, err
	}
	run, input, err := o.runs.Execute(ctx, w)
	var busy *engine.BusyError
	if errors.As(err, &busy) {
		return apitypes.Started{}, operationIsBusy(busy.ID, busy.Run)
	}
	if err != nil {
		return apitypes.Started{}, err
	}

	// Record the operation now, because the worker may be busy or unavailable and so records it later.
	now := o.now()
	err = o.store.PutOperation(context.WithoutCancel(ctx), inventory.Operation{
		Run: run, ID: w.ID, Type: w.Type, Name: name, State: inventory.StatePreparing, Step: inventory.PhasePlan,
		Message: "waiting for a worker", Steps: []inventory.OperationStep{}, Input: input, Started: now, Updated: now, By: httpapi.Actor(ctx),
	})
	if err != nil {
		o.log.Warn("recording an operation that has begun", "operation", w.ID, "error", err)
	}
	o.changed.Notify()
	o.log.Info("started", "operation", w.ID, "run", run, "by", httpapi.Actor(ctx))

	return apitypes.Started{Workflow: w.ID, Run: run}, nil
}

// refuseBeside returns a conflict if one of the operations that f selects is open.
func (o *operations) refuseBeside(ctx context.Context, f inventory.OperationFilter) error {
	f.Open, f.Limit = true, 1
	open, err := o.store.Operations(ctx, f)
	if err == nil && len(open) > 0 {
		err = operationIsBusy(open[0].ID, open[0].Run)
	}
	return err
}

func operationIsBusy(id, run string) error {
	return hint(fmt.Errorf("%s is already running as run %s: %w", id, run, inventory.ErrConflict), "ingot operation get "+id)
}

// find returns an operation. name is either the run of the operation, or a workflow id, which means the newest
// operation with this id. In a path, a workflow id has a dot in place of the slash: "genesis.lab".
func (o *operations) find(ctx context.Context, name string) (inventory.Operation, error) {
	kind, rest, dotted := strings.Cut(name, ".")
	if !dotted {
		return o.store.Operation(ctx, name)
	}
	id := kind + "/" + rest
	found, err := o.store.Operations(ctx, inventory.OperationFilter{ID: id, Limit: 1})
	if err != nil {
		return inventory.Operation{}, err
	}
	if len(found) == 0 {
		return inventory.Operation{}, fmt.Errorf("operation %q: %w", id, inventory.ErrNotFound)
	}
	return found[0], nil
}

type listOperations struct {
	httpapi.Page
	Type  string `query:"type"`
	State string `query:"state"`
	Open  bool   `query:"open"`
}

func (o *operations) list(ctx context.Context, q listOperations) (httpapi.List[inventory.Operation], error) {
	page, err := pageOfRuns(q.Page)
	if err != nil {
		return httpapi.List[inventory.Operation]{}, err
	}
	state, err := parseState(q.State)
	if err != nil {
		return httpapi.List[inventory.Operation]{}, err
	}
	limit := clampLimit(q.Limit)
	found, err := o.store.Operations(ctx, inventory.OperationFilter{
		Type: q.Type, State: state, Open: q.Open, RunPage: page, Limit: limit + 1,
	})
	return httpapi.Cut(found, limit, func(o inventory.Operation) string { return runCursor(o.Started, o.Run) }), err
}

func (o *operations) get(ctx context.Context, q byRun) (inventory.Operation, error) {
	return o.find(ctx, q.Run)
}

func (o *operations) decide(ctx context.Context, q decideRun) (decided, error) {
	found, err := o.find(ctx, q.Run)
	if err == nil && inventory.Final(found.State) {
		err = fmt.Errorf("%s has already ended as %s: %w", found.ID, found.State, inventory.ErrConflict)
	}
	d := q.Decision
	if err == nil {
		err = checkRole(ctx, found)
	}
	if err == nil {
		err = checkDecision(d, "GET /v1/operations/"+found.Run,
			contract.Retry, contract.Undo, contract.Skip, contract.Continue, contract.Abort)
	}
	if err == nil {
		err = o.passDecision(ctx, found, d, "ingot operation get "+found.Run)
	}
	if err != nil {
		return decided{}, err
	}

	return decided{d.Question, d.Choice}, nil
}

// passDecision sends a decision of the current operator to an operation. show is the command that shows the operation;
// error messages contain it.
func (o *operations) passDecision(ctx context.Context, found inventory.Operation, d contract.Decision, show string) error {
	d.By = httpapi.Actor(ctx)
	if err := o.runs.DecideOperation(ctx, found, d, show); err != nil {
		return err
	}
	o.log.Info("decided", "operation", found.ID, "question", d.Question, "choice", d.Choice, "by", d.By)

	return nil
}

func (o *operations) cancel(ctx context.Context, q byRun) (apitypes.Started, error) {
	found, err := o.find(ctx, q.Run)
	if err == nil {
		err = checkRole(ctx, found)
	}
	if err != nil {
		return apitypes.Started{}, err
	}
	return o.end(ctx, found)
}

// checkRole refuses a caller who may not decide about an operation. Genesis and Migrate can hand the server over, with
// its keys, so they need the role that starts them.
func checkRole(ctx context.Context, found inventory.Operation) error {
	if found.Type == inventory.TypeRecover || found.Type == inventory.TypeTogether {
		return nil
	}
	return requireRole(ctx, inventory.RoleAdmin)
}

func (o *operations) pause(ctx context.Context, q byRun) (apitypes.Started, error) {
	return o.setPaused(ctx, q.Run, true)
}

func (o *operations) resume(ctx context.Context, q byRun) (apitypes.Started, error) {
	return o.setPaused(ctx, q.Run, false)
}

// setPaused pauses an operation that installs many machines, or lets it go on.
func (o *operations) setPaused(ctx context.Context, name string, paused bool) (apitypes.Started, error) {
	found, err := o.find(ctx, name)
	if err != nil {
		return apitypes.Started{}, err
	}
	show := "ingot operation get " + found.Run
	switch {
	case found.Type != inventory.TypeRecover:
		err = inventory.Invalid("", show, "%s cannot be paused: only the installation of many machines can", found.ID)
	case inventory.Final(found.State):
		err = hint(fmt.Errorf("%q ended as %s: %w", found.ID, found.State, inventory.ErrConflict), show)
	default:
		err = o.runs.SetOperationPaused(ctx, found, contract.PauseOrder{Paused: paused, By: httpapi.Actor(ctx)}, show)
	}
	if err != nil {
		return apitypes.Started{}, err
	}
	o.log.Info("a pause was set", "operation", found.ID, "paused", paused, "by", httpapi.Actor(ctx))

	return apitypes.Started{Workflow: found.ID, Run: found.Run}, nil
}

// end requests the cancellation of an operation. If the operation is already cancelled, end does nothing. If it has
// ended in another way, the error is inventory.ErrConflict.
func (o *operations) end(ctx context.Context, found inventory.Operation) (apitypes.Started, error) {
	started := apitypes.Started{Workflow: found.ID, Run: found.Run}
	switch {
	case found.State == inventory.StateCancelled:
		return started, nil
	case inventory.Final(found.State):
		return apitypes.Started{}, hint(fmt.Errorf("%q ended as %s: %w", found.ID, found.State, inventory.ErrConflict),
			"ingot operation get "+found.Run)
	}
	if err := o.runs.CancelOperation(ctx, found); err != nil {
		return apitypes.Started{}, fmt.Errorf("cancelling %q: %w", found.ID, err)
	}
	o.log.Info("cancelled", "operation", found.ID, "by", httpapi.Actor(ctx))

	return started, nil
}
