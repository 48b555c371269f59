package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// fleet is the time and CPU time of a number of parallel runs.
type fleet struct {
	wall   time.Duration // from the first request to the end of the last run
	acked  time.Duration // until the last report was acknowledged; 0: unknown
	waits  []time.Duration
	events int64              // of all histories
	cpu    map[string]float64 // seconds, by process
}

// spent is the CPU time of all processes in seconds.
func (f fleet) spent() (sum float64) {
	for _, v := range f.cpu {
		sum += v
	}
	return sum
}

// benchFleets compares growing numbers of agents, up to the largest one that plain Temporal completes.
func (s *Site) benchFleets(ctx context.Context, t *testing.T) {
	t.Helper()
	for _, n := range []int{200, 500, 1000} {
		if !s.benchFleet(ctx, t, n, 3) {
			return
		}
	}
}

// benchFleet lets n agents carry out k empty actions each at the same time, and compares that with
// the same histories on plain Temporal. It reports whether plain Temporal completes them.
//
// Before the clock starts, all runs are planned and armed; n machines wait to be switched on. The
// clock runs from the first fetch of a boot script until the last run has succeeded, over n TLS
// handshakes and claims, and k+1 assignments and reports each (the last is the reboot). Agents,
// server, Temporal and this test share the machine's cores.
//
// On plain Temporal, a workflow makes the same history without content: the same signals, one after
// another in response to its local activities, and as many activities, local activities, timers and
// upserts of search attributes. Its clock starts when all workflows wait for their first signal.
func (s *Site) benchFleet(ctx context.Context, t *testing.T, n, k int) bool {
	t.Helper()
	ours, model := s.benchRuns(ctx, t, n, k)
	bare, err := s.benchBare(ctx, t, n, model)
	if err != nil {
		t.Logf("bare Temporal does not complete %d runs: %v", n, err)
		return false
	}
	show := func(what string, f fleet) {
		p50, p99 := percentiles(f.waits)
		t.Logf(
			"%-34s %7.2f s wall, %.1f workflows/s; report → next mean %.0f ms, p50 %.0f ms, p99 %.0f ms; %d signals and %.1f events each; CPU s: %s",
			what,
			f.wall.Seconds(),
			float64(n)/f.wall.Seconds(),
			mean(f.waits),
			p50,
			p99,
			model.signals(),
			float64(f.events)/float64(n),
			seconds(f.cpu),
		)
	}
	show(fmt.Sprintf("%d agents, %d empty actions each", n, k), ours)
	t.Logf("%-34s %7.2f s", "  last report acknowledged after", ours.acked.Seconds())
	show("bare Temporal, the same histories", bare)
	median := func(f fleet) float64 { p50, _ := percentiles(f.waits); return p50 }
	t.Logf("%-34s %7.2f (goal: at most 1.5)", "ratio of the walls", ours.wall.Seconds()/bare.wall.Seconds())
	t.Logf("%-34s %7.2f (goal: at most 1.3)", "ratio of the CPU times", ours.spent()/bare.spent())
	t.Logf("%-34s %7.2f (goal: at most 3)", "ratio of report → next, p50", median(ours)/median(bare))
	require.InEpsilon(t, ours.events, bare.events, 0.1, "the histories are not the same: the walls cannot be compared")
	return true
}

func (s *Site) benchRuns(ctx context.Context, t *testing.T, n, k int) (fleet, model) {
	t.Helper()
	tmpl := fmt.Sprintf("fleet-%d", n)
	s.template(ctx, t, tmpl, noops(tmpl, k))
	var machines []*Simulated
	var docs []map[string]any
	for i := n; i < 2*n; i++ { // a fleet of twice the size or more gets new machines
		name, mac := fmt.Sprintf("fleet-%d", i), fmt.Sprintf("52:54:02:00:%02x:%02x", i>>8, i&0xff)
		docs = append(docs, map[string]any{"name": name, "interfaces": []any{map[string]any{
			"mac": mac, "address": fmt.Sprintf("10.11.%d.%d", i/200, 1+i%200), "netmask": "255.255.0.0",
		}}})
		machines = append(machines, s.Simulate(name, mac))
	}
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": docs}, nil))
	asked := time.Now()
	runs := make([]string, n)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i, m := range machines {
		g.Go(func() (err error) {
			runs[i], err = s.Provision(gctx, workflows.ProvisionInput{Machine: m.Name, Template: tmpl})
			return err
		})
	}
	require.NoError(t, g.Wait())
	s.list(ctx, t, "?open=true", func(ws []inventory.Workflow) bool {
		armed := 0
		for _, w := range ws {
			if w.Phase == inventory.PhasePower && strings.HasPrefix(w.Machine, "fleet-") {
				armed++
			}
		}
		return armed == n
	})
	require.Eventually(t, func() bool { // the record of the phase is written before the window opens
		var views struct{ Items []api.MachineView }
		if err := s.REST(ctx, http.MethodGet, "/v1/machines", nil, &views); err != nil {
			return false
		}
		armed := 0
		for _, v := range views.Items {
			if strings.HasPrefix(v.Name, "fleet-") && v.Netboot.AllowPXE {
				armed++
			}
		}
		return armed == n
	}, time.Minute, 100*time.Millisecond)

	t.Logf("%-34s %7.2f s", fmt.Sprintf("%d runs planned and armed", n), time.Since(asked).Seconds())

	out := fleet{cpu: map[string]float64{}}
	spent := s.cpu(t)
	repaired := s.repaired(ctx, t)
	began := time.Now()
	var mu sync.Mutex
	g, gctx = errgroup.WithContext(ctx)
	for _, m := range machines {
		g.Go(func() error {
			if _, err := m.Boot(gctx); err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
			waits, err := m.workThrough(gctx, k+1)
			if err != nil {
				return fmt.Errorf("%s: %w", m.Name, err)
			}
			acked := time.Now()
			mu.Lock()
			defer mu.Unlock()
			out.waits = append(out.waits, waits...)
			out.acked = max(out.acked, acked.Sub(began))
			return nil
		})
	}
	require.NoError(t, g.Wait())
	s.list(ctx, t, "?open=true", func(ws []inventory.Workflow) bool { return len(ws) == 0 })
	out.wall = time.Since(began)
	out.since(s.cpu(t), spent)

	// No run failed at any time, however long it had to wait.
	require.Equal(t, repaired, s.repaired(ctx, t), "the reconcile loop has meddled with runs that were right")

	// Nothing was lost: there is one boot and one attempt of each action.
	c, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal, Logger: silent()})
	require.NoError(t, err)
	defer c.Close()
	for i, m := range machines {
		var w inventory.Workflow
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows/"+runs[i], nil, &w))
		require.Equal(t, inventory.StateSuccess, w.State, "%s: %s", m.Name, w.Message)
		for _, a := range w.Actions {
			require.Equal(t, 1, a.Attempt, m.Name)
		}
		d, err := c.DescribeWorkflowExecution(ctx, workflows.MachineID(m.Name), runs[i])
		require.NoError(t, err)
		out.events += d.WorkflowExecutionInfo.HistoryLength
	}
	return out, modelOf(ctx, t, c, workflows.MachineID(machines[n/2].Name), runs[n/2])
}

// mean returns a mean in milliseconds. Of two fair shares of the same processors the means are comparable; the percentiles
// also show how evenly the waiting is spread.
func mean(all []time.Duration) float64 {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return float64(sum) / float64(max(len(all), 1)) / float64(time.Millisecond)
}

// noops is a template of k actions that do nothing.
func noops(name string, k int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: \"0.1\"\nname: %s\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n", name)
	for i := range k {
		fmt.Fprintf(&b, "  - {name: a%d, image: noop, timeout: 600}\n", i)
	}
	return b.String()
}

// workThrough reports success of n assignments. It returns the times from each report to the next assignment.
func (m *Simulated) workThrough(ctx context.Context, n int) (waits []time.Duration, err error) {
	var reported time.Time
	for i := 0; i < n; {
		a, err := m.Next(ctx)
		if err != nil {
			return nil, err
		}
		if a == nil {
			continue
		}
		if i > 0 {
			waits = append(waits, time.Since(reported))
		}
		i++
		reported = time.Now()
		if err := m.Done(ctx, a); err != nil {
			return nil, err
		}
	}
	return waits, nil
}

// repaired counts the repairs of runs and agents by the reconcile loop.
func (s *Site) repaired(ctx context.Context, t *testing.T) engine.Counts {
	t.Helper()
	var st api.Status
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/status", nil, &st))
	c := st.Reconcile
	c.ClockSteps = 0 // does not count
	return c
}

// silent disables the log output of Temporal's client.
func silent() log.Logger { return log.NewStructuredLogger(slog.New(slog.DiscardHandler)) }

// list lists workflows repeatedly until the result is as wanted.
func (s *Site) list(ctx context.Context, t *testing.T, query string, want func([]inventory.Workflow) bool) {
	t.Helper()
	for {
		var ws struct{ Items []inventory.Workflow }
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows"+query+"&limit=1000", nil, &ws))
		if want(ws.Items) {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
	}
}

// model is the ordered contents of a history.
type model []string

const (
	doSignal   = "signal"
	doReport   = "report" // also a signal
	doActivity = "activity"
	doLocal    = "local"
	doTimer    = "timer"
	doCancel   = "cancel"
	doUpsert   = "upsert"
)

func (m model) signals() (n int) {
	for _, what := range m {
		if what == doSignal || what == doReport {
			n++
		}
	}
	return n
}

func modelOf(ctx context.Context, t *testing.T, c client.Client, id, run string) (m model) {
	t.Helper()
	kinds := map[enumspb.EventType]string{
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:              doSignal,
		enumspb.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:                  doActivity,
		enumspb.EVENT_TYPE_MARKER_RECORDED:                          doLocal,
		enumspb.EVENT_TYPE_TIMER_STARTED:                            doTimer,
		enumspb.EVENT_TYPE_TIMER_CANCELED:                           doCancel,
		enumspb.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:        doUpsert,
		enumspb.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED:             "",
		enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:      "",
		enumspb.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "",
	}
	for it := c.GetWorkflowHistory(ctx, id, run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT); it.HasNext(); {
		e, err := it.Next()
		require.NoError(t, err)
		what, ok := kinds[e.EventType]
		require.True(t, !ok || what != "", "the bare workflow cannot do %s", e.EventType)
		if a, ok := e.Attributes.(*historypb.HistoryEvent_WorkflowExecutionSignaledEventAttributes); ok &&
			a.WorkflowExecutionSignaledEventAttributes.SignalName == workflows.SignalActionCompleted {
			what = doReport
		}
		if what != "" {
			m = append(m, what)
		}
	}
	return m
}

// benchBare runs n workflows with the model's history. It returns an error if one of them fails.
func (s *Site) benchBare(ctx context.Context, t *testing.T, n int, m model) (fleet, error) {
	t.Helper()
	c, err := client.DialContext(ctx, client.Options{
		HostPort: s.Temporal, Logger: silent(), ConnectionOptions: client.ConnectionOptions{GrpcCompression: &client.GrpcCompressionNone{}},
	})
	require.NoError(t, err)
	defer c.Close()
	queue := fmt.Sprintf("bare-%d", n)
	w := worker.New(c, queue, worker.Options{ // as in ingot serve
		MaxConcurrentWorkflowTaskPollers: 8, MaxConcurrentActivityTaskPollers: 8, StickyScheduleToStartTimeout: 10 * time.Second,
	})
	// told[i][j] is closed when run i is ready for its signal j.
	told := make([][]func(), n)
	wait := make([][]chan struct{}, n)
	for i := range n {
		for range m.signals() + 1 {
			ch := make(chan struct{})
			wait[i], told[i] = append(wait[i], ch), append(told[i], sync.OnceFunc(func() { close(ch) }))
		}
	}
	// The last local activity before a signal releases the signal. A signal without a local
	// activity before it is sent together with the previous one.
	tells, kinds, last, next := make([]int, len(m)), []string{}, -1, 0
	for j, what := range m {
		tells[j] = -1
		switch what {
		case doLocal:
			last = j
		case doSignal, doReport:
			if last >= 0 {
				tells[last] = next
			} else {
				for i := range n {
					told[i][next]()
				}
			}
			kinds, last = append(kinds, what), -1
			next++
		}
	}
	nothing := func(context.Context) error { return nil }
	tell := func(_ context.Context, i, j int) error { //nolint:unparam // a local activity must return an error
		if j >= 0 {
			told[i][j]()
		}
		return nil
	}
	attr := temporal.NewSearchAttributeKeyKeyword(workflows.AttrPhase)
	bare := func(ctx workflow.Context, i int) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
		cancel := func() {}
		for j, what := range m {
			var err error
			switch what {
			case doSignal, doReport:
				workflow.GetSignalChannel(ctx, "signal").Receive(ctx, nil)
			case doActivity:
				err = workflow.ExecuteActivity(ctx, "nothing").Get(ctx, nil)
			case doLocal:
				err = workflow.ExecuteLocalActivity(ctx, tell, i, tells[j]).Get(ctx, nil)
			case doTimer:
				var timed workflow.Context
				timed, cancel = workflow.WithCancel(ctx)
				workflow.NewTimer(timed, time.Hour)
			case doCancel:
				cancel()
			case doUpsert:
				err = workflow.UpsertTypedSearchAttributes(ctx, attr.ValueSet(strconv.Itoa(j)))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	w.RegisterWorkflowWithOptions(bare, workflow.RegisterOptions{Name: "bare"})
	w.RegisterActivityWithOptions(nothing, activity.RegisterOptions{Name: "nothing"})
	require.NoError(t, w.Start())
	defer w.Stop()

	runs := make([]client.WorkflowRun, n)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range n {
		g.Go(func() (err error) {
			runs[i], err = c.ExecuteWorkflow(gctx, client.StartWorkflowOptions{ID: fmt.Sprintf("bare-%d-%d", n, i), TaskQueue: queue}, "bare", i)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fleet{}, err
	}
	for i := range n {
		select {
		case <-wait[i][0]:
		case <-ctx.Done():
			return fleet{}, ctx.Err()
		}
	}

	out := fleet{cpu: map[string]float64{}}
	spent := s.cpu(t)
	began := time.Now()
	var mu sync.Mutex
	g, gctx = errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			var waits []time.Duration
			for j, what := range kinds {
				select {
				case <-wait[i][j]:
				case <-gctx.Done():
					return gctx.Err()
				}
				sent := time.Now()
				if err := c.SignalWorkflow(gctx, runs[i].GetID(), runs[i].GetRunID(), "signal", nil); err != nil {
					return err
				}
				if what == doReport && j+1 < len(kinds) {
					select {
					case <-wait[i][j+1]:
					case <-gctx.Done():
						return gctx.Err()
					}
					waits = append(waits, time.Since(sent))
				}
			}
			mu.Lock()
			out.waits = append(out.waits, waits...)
			mu.Unlock()
			return runs[i].Get(gctx, nil)
		})
	}
	if err := g.Wait(); err != nil {
		return fleet{}, err
	}
	out.wall = time.Since(began)
	out.since(s.cpu(t), spent)
	for _, r := range runs {
		d, err := c.DescribeWorkflowExecution(ctx, r.GetID(), r.GetRunID())
		require.NoError(t, err)
		out.events += d.WorkflowExecutionInfo.HistoryLength
	}
	return out, nil
}

// cpu returns the processor time of the processes in seconds.
func (s *Site) cpu(t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for name, pid := range s.processes(t) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		for _, v := range f[11:13] { // utime, stime
			ticks, err := strconv.ParseFloat(v, 64)
			require.NoError(t, err)
			out[name] += ticks / 100
		}
	}
	var ru syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &ru))
	out["agents and this test"] = time.Duration(ru.Utime.Nano() + ru.Stime.Nano()).Seconds()
	return out
}

func (f *fleet) since(now, before map[string]float64) {
	for name, v := range now {
		f.cpu[name] = v - before[name]
	}
}

func seconds(cpu map[string]float64) string {
	var out []string
	for name, v := range cpu {
		out = append(out, fmt.Sprintf("%s %.1f", name, v))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
