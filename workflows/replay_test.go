package workflows_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/workflows"
)

// TestReplay replays histories that runs left on a real Temporal server: this
// code must take the same decisions, or a new release could not continue what
// an old one began.
// The corpus is recorded with: temporal workflow show --workflow-id … --run-id … -o json
func TestReplay(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "there is no history to replay")
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".json"), func(t *testing.T) {
			b, err := os.ReadFile(f)
			require.NoError(t, err)
			h, err := client.HistoryFromJSON(bytes.NewReader(b), client.HistoryJSONOptions{})
			require.NoError(t, err)
			require.NotEmpty(t, h.Events)
			require.NoError(t, replayer(t).ReplayWorkflowHistoryWithOptions(nil, h, worker.ReplayWorkflowHistoryOptions{
				OriginalExecution: execution(t, h),
			}))
		})
	}
}

// TestReplayTellsAnotherHistory: a replay that accepted any history would prove
// nothing. One without its first activity belongs to other code.
func TestReplayTellsAnotherHistory(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "there is no history to replay")
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	h, err := client.HistoryFromJSON(bytes.NewReader(b), client.HistoryJSONOptions{})
	require.NoError(t, err)
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

// execution is under which id the history was made; workflows check theirs.
func execution(t *testing.T, h *history.History) workflow.Execution {
	t.Helper()
	first := h.Events[0]
	require.Equal(t, enums.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED, first.EventType)
	a := first.GetWorkflowExecutionStartedEventAttributes()
	return workflow.Execution{ID: a.GetWorkflowId(), RunID: a.GetOriginalExecutionRunId()}
}

// TestReplayKnowsTheRules: the corpus holds, for each type of workflow, a
// history of a run under the rules that new runs are started under. Whoever
// writes new rules records some.
func TestReplayKnowsTheRules(t *testing.T) {
	recorded := map[string]workflow.Version{} // the highest of each type
	files, err := filepath.Glob(filepath.Join("testdata", "histories", "*.json"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		h, err := client.HistoryFromJSON(bytes.NewReader(b), client.HistoryJSONOptions{})
		require.NoError(t, err)
		name := h.Events[0].GetWorkflowExecutionStartedEventAttributes().GetWorkflowType().GetName()
		for _, e := range h.Events {
			var change string
			var version workflow.Version
			m := e.GetMarkerRecordedEventAttributes()
			if m.GetMarkerName() != "Version" {
				continue
			}
			require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(m.Details["change-id"], &change))
			require.NoError(t, converter.GetDefaultDataConverter().FromPayloads(m.Details["version"], &version))
			if change == "rules" {
				recorded[name] = max(recorded[name], version)
			}
		}
	}
	workflows.Register(registered(func(w any, name string) {
		now, has := rulesOf(w)
		require.True(t, has, "%s has no rules, or this test cannot start it", name)
		assert.Equal(t, now, recorded[name], `no %s in testdata/histories was run under the rules %d: record some with
	make build && INGOT_HISTORIES=DIR go test -v -run '^(TestBetweenRuns|TestCancelAndTerminate|TestDecommission|TestRecover|TestMigrate|TestGenesis)$' ./e2e -args -lab
and add a choice of them here, as rules%d-….json`, name, now, now)
	}))
	require.NotEmpty(t, recorded)
}

// registered is a registry that calls a function.
type registered func(w any, name string)

func (f registered) RegisterWorkflowWithOptions(w any, o workflow.RegisterOptions) { f(w, o.Name) }

// rulesOf starts a registered workflow, with an input that fits its id, to be told the highest rules that it knows.
func rulesOf(w any) (now workflow.Version, has bool) {
	name := map[string]string{"name": "x"}
	for id, in := range map[string]map[string]string{
		workflows.MachineID("x"): {"machine": "x"}, workflows.BMCJobID("x", "x"): {"machine": "x", "job": "x"},
		workflows.RecoverID("x"): name, workflows.MigrateID("x"): name, workflows.GenesisID("x"): name,
	} {
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(log.NewStructuredLogger(slog.New(slog.DiscardHandler)))
		env := workflows.NewEnvironment(&suite)
		env.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: id})
		for v := range workflow.Version(100) {
			env.OnGetVersion("rules", workflow.DefaultVersion, v).Return(func(string, workflow.Version, workflow.Version) workflow.Version {
				now, has = v, true
				panic("that is all")
			})
		}
		raw, err := converter.GetDefaultDataConverter().ToPayload(in)
		if err != nil {
			panic(err)
		}
		env.ExecuteWorkflow(w, converter.NewRawValue(raw), converter.RawValue{}) // fails: there are no activities
	}
	return now, has
}
