package api

import (
	"fmt"
	"net/http"
	"testing"

	enumspb "go.temporal.io/api/enums/v1"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

// A job whose start got no answer may switch the machine. Its name is in the error, and the same order under that name finds
// the job: before its record exists, while it goes on and after its end.
func TestBMCJobIsStartedOncePerName(t *testing.T) {
	const cycle, other = `"tasks":[{"powerAction":"cycle"}]`, `"tasks":[{"powerAction":"off"}]`
	for route, order := range map[string]func(job, tasks string) string{
		"/v1/bmc/jobs": func(job, tasks string) string { return fmt.Sprintf(`{"machine":"m1","job":%q,%s}`, job, tasks) },
		"/v1/machines/m1/power": func(job, tasks string) string {
			return fmt.Sprintf(`{"job":%q,"action":%q}`, job, map[string]string{cycle: "cycle", other: "off"}[tasks])
		},
		"/v1/workflows": func(job, tasks string) string {
			return fmt.Sprintf(`{"type":"BMCJob","input":{"machine":"m1","job":%q,%s}}`, job, tasks)
		},
	} {
		t.Run(route, func(t *testing.T) {
			s := newSite(t)
			s.AddMachine("m1", mac)
			s.Temporal.Late = true
			a := decode[answer](t, s.do(http.MethodPost, route, order("night", cycle)), http.StatusServiceUnavailable)
			require.Contains(t, a.Error, `job "night" of machine "m1"`)
			require.Contains(t, a.Error, "the run may have started")
			require.Contains(t, a.Next, "ingot bmc job get m1 night")

			s.Temporal.Late = false
			again := func(what string) {
				t.Helper()
				st := decode[apitypes.Started](t, s.do(http.MethodPost, route, order("night", cycle)), http.StatusAccepted)
				require.Equal(t, apitypes.Started{Workflow: "bmc/m1/night", Run: "run-1", Job: "night", Existing: true}, st, what)
				a := decode[answer](t, s.do(http.MethodPost, route, order("night", other)), http.StatusConflict)
				require.Contains(t, a.Error, "other tasks", what)
			}
			again("no record, running")
			require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
				Run: "run-1", Type: inventory.TypeBMCJob, Machine: "m1", State: inventory.StateRunning, Phase: "x",
			}))
			again("its run is recorded, running")
			require.NoError(t, s.Store.BMCJobs.PutBMCJob(t.Context(), inventory.BMCJob{
				Name: "night", Machine: "m1", Run: "run-1", State: inventory.StateSuccess,
				Tasks: []inventory.BMCTask{{Power: "cycle", State: inventory.StateSuccess, Message: "on", Seconds: 3}},
			}))
			s.Temporal.Down = true // the record is enough
			again("recorded")
			s.Temporal.Down = false
			require.Len(t, s.Temporal.Runs, 1)

			st := decode[apitypes.Started](t, s.do(http.MethodPost, route, order("morning", cycle)), http.StatusAccepted)
			require.False(t, st.Existing)
			require.Len(t, s.Temporal.Runs, 2)
		})
	}
}

// A job that ended before its first task is not the one that is ordered now, and there is nothing to show of it.
func TestBMCJobThatNeverBeganBlocksItsName(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	order := `{"machine":"m1","job":"night","tasks":[{"powerAction":"cycle"}]}`
	decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/bmc/jobs", order), http.StatusAccepted)
	s.Temporal.End("run-1", enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, nil)
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
		Run: "run-1", Type: inventory.TypeBMCJob, Machine: "m1", State: inventory.StateFailed, Phase: "x", Message: "run r1 holds it",
	}))
	a := decode[answer](t, s.do(http.MethodPost, "/v1/bmc/jobs", order), http.StatusConflict)
	require.Contains(t, a.Error, "ended as FAILED before its first task: run r1 holds it: give the new job another name")
}

// The start of an installation that got no answer says so, too.
func TestStartWithoutAnswerMayHaveBegun(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Temporal.Late = true
	a := decode[answer](t, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil), http.StatusServiceUnavailable)
	require.Contains(t, a.Error, "the run may have started")
	require.Contains(t, a.Next, "ingot workflow list --open")
}
