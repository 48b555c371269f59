package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/server"
	handover "github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/workflows"
)

// replay replays the histories of this site's runs, including open ones, and fails the test if the
// workflows of this build decide differently: then the server could not have been restarted,
// whatever else the test has shown. With INGOT_HISTORIES set, it also saves the histories in that
// folder; those in workflows/testdata were recorded this way.
//
// A site whose server was stopped cannot be asked, and a site that has moved has no runs any more.
func (s *Site) replay(t *testing.T) {
	t.Helper()
	if role := s.is().Role; !s.serves() || role != handover.Active {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	opts := s.temporalOptions(t)
	c, err := client.NewLazyClient(opts)
	require.NoError(t, err)
	defer c.Close()
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		DataConverter: opts.DataConverter, FailureConverter: opts.FailureConverter,
		DisableDeadlockDetection: true, // the processors are busy
	})
	require.NoError(t, err)
	workflows.Register(r)
	var events int
	var slowest time.Duration
	began, runs := time.Now(), s.runs(ctx, t, c)
	for _, run := range runs {
		h := historyOf(ctx, t, c, run.ID, run.RunID)
		first := h.Events[0].GetWorkflowExecutionStartedEventAttributes()
		if dir := os.Getenv("INGOT_HISTORIES"); dir != "" {
			s.leave(ctx, t, dir, first.GetWorkflowType().GetName(), run)
		}
		if len(h.Events) < 3 {
			continue // no worker has processed it
		}
		one := time.Now()
		err := r.ReplayWorkflowHistoryWithOptions(silent(), h, worker.ReplayWorkflowHistoryOptions{
			OriginalExecution: workflow.Execution{ID: run.ID, RunID: first.GetOriginalExecutionRunId()},
		})
		if err != nil {
			t.Errorf("the %s %s (run %s) does not replay: %v", first.GetWorkflowType().GetName(), run.ID, run.RunID, err)
		}
		events, slowest = events+len(h.Events), max(slowest, time.Since(one))
	}
	t.Logf("replayed %d runs with %d events in %.2f s; the slowest took %d ms", len(runs), events,
		time.Since(began).Seconds(), slowest.Milliseconds())
}

// temporalOptions returns how the site's Temporal is reached.
func (s *Site) temporalOptions(t *testing.T) (opts client.Options) {
	t.Helper()
	if len(s.temporalEnv) > 0 {
		cfg, err := config.Load(filepath.Join(s.dir, "etc/ingot/ingot.yaml"), true)
		require.NoError(t, err)
		opts, err = server.ClusterOptions(cfg.Temporal)
		require.NoError(t, err)
	}
	opts.HostPort, opts.Logger = s.Temporal, silent()
	return opts
}

// runs returns all of Ingot's workflows in Temporal, open and closed.
func (s *Site) runs(ctx context.Context, t *testing.T, c client.Client) (runs []workflow.Execution) {
	t.Helper()
	req := &workflowservice.ListWorkflowExecutionsRequest{Query: fmt.Sprintf("TaskQueue = '%s'", workflows.TaskQueue), PageSize: 1000}
	for {
		page, err := c.ListWorkflow(ctx, req)
		if err != nil && ctx.Err() == nil { // the server may have been killed just now
			pause(ctx, t, time.Second)
			continue
		}
		require.NoError(t, err, "asking the Temporal of %s what has run", s.dir)
		for _, e := range page.Executions {
			runs = append(runs, workflow.Execution{ID: e.Execution.WorkflowId, RunID: e.Execution.RunId})
		}
		if req.NextPageToken = page.NextPageToken; len(req.NextPageToken) == 0 {
			return runs
		}
	}
}

func historyOf(ctx context.Context, t *testing.T, c client.Client, id, run string) *historypb.History {
	t.Helper()
	h := &historypb.History{}
	for it := c.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		e, err := it.Next()
		require.NoError(t, err)
		h.Events = append(h.Events, e)
	}
	require.NotEmpty(t, h.Events)
	return h
}

// leave saves a history in the format of the unmodified temporal command.
func (s *Site) leave(ctx context.Context, t *testing.T, dir, typ string, run workflow.Execution) {
	t.Helper()
	out, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", run.ID, "--run-id", run.RunID, "-o", "json")
	require.NoError(t, err)
	_, name, _ := strings.Cut(run.ID, "/")
	name = fmt.Sprintf("%s-%s-%s-%s.json", t.Name(), typ, name, run.RunID[len(run.RunID)-6:]) // run ids begin with the time
	require.NoError(t, os.WriteFile(filepath.Join(dir, strings.NewReplacer("/", "-", " ", "-").Replace(name)), []byte(out), 0o644))
}
