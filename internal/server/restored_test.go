package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// lists is a cluster that answers with one list of open runs after another; the last one stays.
type lists struct {
	client.Client
	answers [][]*workflowpb.WorkflowExecutionInfo
}

func (l *lists) ListWorkflow(
	context.Context, *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	out := &workflowservice.ListWorkflowExecutionsResponse{Executions: l.answers[0]}
	if len(l.answers) > 1 {
		l.answers = l.answers[1:]
	}
	return out, nil
}

func openRun(id, run, parent string) *workflowpb.WorkflowExecutionInfo {
	e := &workflowpb.WorkflowExecutionInfo{Execution: &commonpb.WorkflowExecution{WorkflowId: id, RunId: run}, FirstRunId: run}
	if parent != "" {
		e.ParentExecution = &commonpb.WorkflowExecution{RunId: parent}
	}
	return e
}

// TestHoldOpen: a restored server holds what the cluster lists, also late; afterwards only what comes from a held run.
func TestHoldOpen(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	_, err = store.Restores.Restored(t.Context(), inventory.Restore{Backup: "b1", Taken: time.Now(), AwaitsCluster: true})
	require.NoError(t, err)

	runs := func(r *restored) (out []string) {
		for _, h := range r.held() {
			out = append(out, h.Run)
		}
		return out
	}
	first, late := openRun("machine/m1", "run-1", ""), openRun("recover/all", "run-2", "")
	synctest.Test(t, func(t *testing.T) {
		r, err := newRestored(t.Context(), store, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		all := [][]*workflowpb.WorkflowExecutionInfo{{first}, {first, late}}
		require.NoError(t, r.holdOpen(t.Context(), &lists{answers: all}))
		require.Equal(t, []string{"run-1", "run-2"}, runs(r))
		require.False(t, r.get().AwaitsCluster)

		child, own := openRun("machine/m2", "run-3", "run-2"), openRun("machine/m3", "run-4", "")
		require.NoError(t, r.holdOpen(t.Context(), &lists{answers: [][]*workflowpb.WorkflowExecutionInfo{{first, late, child, own}}}))
		require.Equal(t, []string{"run-1", "run-3", "run-2"}, runs(r))
	})
}
