package activities

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/inventory"
)

// TestHeldRunsHaveNoEffects calls every activity for a held run and for another run.
func TestHeldRunsHaveNoEffects(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	const run = "default-test-run-id" // as the test environment calls it
	typ := reflect.TypeFor[*Activities]()
	var names []string
	for i := range typ.NumMethod() {
		if m := typ.Method(i); m.Type.NumIn() > 1 && m.Type.In(1) == reflect.TypeFor[context.Context]() {
			names = append(names, m.Name)
		}
	}
	if len(names) < 15 {
		t.Fatalf("the activities are %v", names)
	}
	taken := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, held := range []bool{true, false} {
		r := inventory.Restore{Taken: taken, Held: []inventory.HeldRun{{Run: "another"}}}
		if held {
			r.Held = append(r.Held, inventory.HeldRun{Run: run})
		}
		for _, name := range names {
			env := suite.NewTestActivityEnvironment()
			env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{NewHold(r)}})
			did := false
			var seen string
			env.RegisterActivityWithOptions(func(ctx context.Context) error {
				did, seen = true, activity.GetInfo(ctx).WorkflowExecution.RunID
				return nil
			}, activity.RegisterOptions{Name: name})
			_, err := env.ExecuteActivity(name)
			if want := !held || name == "Record" || name == "RecordOperation" || name == "End"; did != want {
				t.Errorf("%s of a run that is held: %v; it was carried out: %v (run %q)", name, held, did, seen)
			}
			var app *temporal.ApplicationError
			if !did &&
				(!errors.As(err, &app) || app.Type() != TypeHeld || !app.NonRetryable() || !strings.Contains(app.Message(), "2026-03-01 12:00:00")) {
				t.Errorf("%s answers %v", name, err)
			}
		}
	}
}

// TestRunsOfHeldRunsAreHeld: a held run starts a child, or has continued as new, before one of its activities was refused.
func TestRunsOfHeldRunsAreHeld(t *testing.T) {
	t.Parallel()
	var suite testsuite.WorkflowTestSuite
	const run = "default-test-run-id"
	for name, held := range map[string]string{"parent": run, "earlier execution": "earlier", "none": "another"} {
		env := suite.NewTestWorkflowEnvironment()
		hold := NewHold(inventory.Restore{Held: []inventory.HeldRun{{Run: held}}})
		env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{hold}})
		if name == "earlier execution" {
			env.SetContinuedExecutionRunID(held)
		}
		env.RegisterActivityWithOptions(func(context.Context) error { return nil }, activity.RegisterOptions{Name: "Power"})
		child := func(ctx workflow.Context) error {
			ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{ScheduleToCloseTimeout: time.Minute})
			return workflow.ExecuteLocalActivity(ctx, "Power").Get(ctx, nil)
		}
		env.RegisterWorkflowWithOptions(child, workflow.RegisterOptions{Name: "child"})
		parent := func(ctx workflow.Context) error { return workflow.ExecuteChildWorkflow(ctx, "child").Get(ctx, nil) }
		if name == "earlier execution" {
			parent = child
		}
		env.ExecuteWorkflow(parent)
		var app *temporal.ApplicationError
		err := env.GetWorkflowError()
		if refused := errors.As(err, &app) && app.Type() == TypeHeld; refused != (name != "none") || !refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
