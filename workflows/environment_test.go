package workflows

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

// Hung is the time after which a test counts as hung.
const Hung = 5 * time.Minute

// Environment is a test environment that does not depend on the load of the machine. By
// default, the SDK reports workflow code that was not scheduled for a second as a deadlock,
// and activities that a workflow has abandoned run along with the test that looks at their effects.
type Environment struct {
	*testsuite.TestWorkflowEnvironment
	attempts attempts
}

// NewEnvironment returns a test environment for one workflow.
func NewEnvironment(suite *testsuite.WorkflowTestSuite, interceptors ...interceptor.WorkerInterceptor) *Environment {
	env := &Environment{TestWorkflowEnvironment: suite.NewTestWorkflowEnvironment()}
	env.attempts.ctx, env.attempts.cancel = context.WithCancel(context.Background())
	env.SetTestTimeout(Hung)
	env.Intercept(interceptors...)
	return env
}

// Intercept replaces the environment's interceptors.
func (e *Environment) Intercept(interceptors ...interceptor.WorkerInterceptor) {
	interceptors = append([]interceptor.WorkerInterceptor{&e.attempts}, interceptors...)
	interceptors = append(interceptors, &activities.Errors{})
	e.SetWorkerOptions(worker.Options{Interceptors: interceptors, DeadlockDetectionTimeout: Hung})
}

// ExecuteWorkflow runs a workflow to its end, then cancels the attempts of activities that are
// left and waits for them.
func (e *Environment) ExecuteWorkflow(workflow any, args ...any) {
	e.TestWorkflowEnvironment.ExecuteWorkflow(workflow, args...)
	e.attempts.mu.Lock()
	e.attempts.cancel()
	e.attempts.mu.Unlock()
	e.attempts.open.Wait()
}

// attempts counts the attempts of activities that are open. Activities that are mocked are not
// among them.
type attempts struct {
	interceptor.WorkerInterceptorBase
	ctx    context.Context
	cancel context.CancelFunc

	mu   sync.Mutex // so that no attempt begins after the cancellation
	open sync.WaitGroup
}

func (a *attempts) InterceptActivity(
	_ context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return &attempt{interceptor.ActivityInboundInterceptorBase{Next: next}, a}
}

type attempt struct {
	interceptor.ActivityInboundInterceptorBase
	all *attempts
}

func (a *attempt) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	a.all.mu.Lock()
	err := a.all.ctx.Err()
	if err == nil {
		a.all.open.Add(1)
	}
	a.all.mu.Unlock()
	if err != nil {
		return nil, err
	}
	defer a.all.open.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.all.ctx, cancel)()
	return a.Next.ExecuteActivity(ctx, in)
}

func TestAbandonedActivityEndsWithTheWorkflow(t *testing.T) {
	var suite testsuite.WorkflowTestSuite
	env := NewEnvironment(&suite)
	began, looks := make(chan struct{}), 0
	env.RegisterActivityWithOptions(func(ctx context.Context) error {
		close(began)
		<-ctx.Done()
		looks++
		return ctx.Err()
	}, activity.RegisterOptions{Name: "look"})
	env.RegisterActivityWithOptions(func() error { <-began; return nil }, activity.RegisterOptions{Name: "await"})
	env.ExecuteWorkflow(func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Hour})
		workflow.ExecuteActivity(ctx, "look")
		return workflow.ExecuteActivity(ctx, "await").Get(ctx, nil)
	})
	require.NoError(t, env.GetWorkflowError())
	require.Equal(t, 1, looks)
}

func TestBusyMachineIsNotADeadlock(t *testing.T) {
	var suite testsuite.WorkflowTestSuite
	env := NewEnvironment(&suite)
	env.ExecuteWorkflow(func(workflow.Context) error {
		for began := time.Now(); time.Since(began) < 1500*time.Millisecond; { //workflowcheck:ignore
		}
		return nil
	})
	require.NoError(t, env.GetWorkflowError())
}
