package workflows

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/activities"
)

// Hung is the time after which a test counts as hung.
const Hung = 5 * time.Minute

// NewEnvironment returns a test environment that does not depend on the load of the machine:
// by default the SDK reports workflow code that was not scheduled for a second as a
// deadlock.
func NewEnvironment(suite *testsuite.WorkflowTestSuite, interceptors ...interceptor.WorkerInterceptor) *testsuite.TestWorkflowEnvironment {
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(Hung)
	Intercept(env, interceptors...)
	return env
}

// Intercept replaces the environment's interceptors; Errors stays the innermost.
func Intercept(env *testsuite.TestWorkflowEnvironment, interceptors ...interceptor.WorkerInterceptor) {
	interceptors = append(interceptors, &activities.Errors{})
	env.SetWorkerOptions(worker.Options{Interceptors: interceptors, DeadlockDetectionTimeout: Hung})
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
