package workflows_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/workflows"
)

// TestReplay replays histories of real runs, one for each type and ending. The code must make the
// same decisions: otherwise a new release could not continue the runs of an old one (security S13).
// TestRecordHistories records the histories.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	require.NoError(t, err)
	missing := endings()
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".json")
		r, known := missing[name]
		delete(missing, name)
		t.Run(name, func(t *testing.T) {
			require.True(t, known, "a recording of this name is unknown")
			h := readHistory(t, f)
			started := h.Events[0].GetWorkflowExecutionStartedEventAttributes()
			require.Equal(t, r.typ, started.GetWorkflowType().GetName())
			require.Equal(t, r.closes, h.Events[len(h.Events)-1].EventType)
			require.NoError(t, replayer(t).ReplayWorkflowHistoryWithOptions(nil, h, worker.ReplayWorkflowHistoryOptions{
				OriginalExecution: execution(t, h),
			}))
		})
	}
	require.Empty(t, missing, "endings without a history: record them")
}

func readHistory(t *testing.T, file string) *history.History {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	h, err := client.HistoryFromJSON(bytes.NewReader(b), client.HistoryJSONOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, h.Events)
	return h
}

// TestReplayRefusesOtherHistory: a replay that accepts every history would prove nothing. A history
// without its first activity must be refused.
func TestReplayRefusesOtherHistory(t *testing.T) {
	h := readHistory(t, filepath.Join("testdata", "histories", "provision-success.json"))
	changed := false
	for _, e := range h.Events {
		if a := e.GetActivityTaskScheduledEventAttributes(); a != nil && !changed {
			a.ActivityType.Name, changed = "Another", true
		}
	}
	require.True(t, changed)
	require.ErrorContains(t, replayer(t).ReplayWorkflowHistoryWithOptions(nil, h, worker.ReplayWorkflowHistoryOptions{
		OriginalExecution: execution(t, h),
	}), "Another")
}

func replayer(t *testing.T) worker.WorkflowReplayer {
	t.Helper()
	r := worker.NewWorkflowReplayer()
	workflows.Register(r)
	return r
}

// execution returns the workflow id of the history; workflows check their id.
func execution(t *testing.T, h *history.History) workflow.Execution {
	t.Helper()
	first := h.Events[0]
	require.Equal(t, enums.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, first.EventType)
	a := first.GetWorkflowExecutionStartedEventAttributes()
	return workflow.Execution{ID: a.GetWorkflowId(), RunID: a.GetOriginalExecutionRunId()}
}
