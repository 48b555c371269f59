package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows"
)

// closesLate closes a run when its end is awaited.
type closesLate struct {
	client.Client
	temporal *fakesite.Temporal
}

func (c closesLate) GetWorkflow(ctx context.Context, id, run string) client.WorkflowRun {
	c.temporal.End(run, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, workflows.Outcome{State: inventory.StateFailed})
	return c.Client.GetWorkflow(ctx, id, run)
}

// TestStartWaitsForARunThatHasRecordedItsEnd: a run records its end, and Temporal closes it a moment later. Who starts the next
// one when the record says so must not be told that the first one is running.
func TestStartWaitsForARunThatHasRecordedItsEnd(t *testing.T) {
	s := newSite(t)
	connect := s.config.Temporal
	s.config.Temporal = func() (client.Client, bool) {
		tc, ok := connect()
		return closesLate{tc, s.Temporal}, ok
	}
	s.Engine = New(s.config)
	s.AddMachine("m1", fakesite.MAC)
	s.Arm("m1", "r1")
	start := Start{ID: workflows.MachineID("m1"), Type: inventory.TypeProvision, Machine: "m1"}

	_, err := s.Runs.Start(t.Context(), start)
	require.Equal(t, &BusyError{start.ID, "r1"}, err, "it goes on")

	record, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	record.State, record.Phase, record.Ended = inventory.StateFailed, inventory.PhaseFailed, s.Clock.Now()
	record.Seq++
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), record))
	run, err := s.Runs.Start(t.Context(), start)
	require.NoError(t, err)
	require.NotEqual(t, "r1", run)
}
