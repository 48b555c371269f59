package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math"
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
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// fleet is the time and CPU time of a number of parallel runs.
type fleet struct {
	wall   time.Duration // from the first request to the end of the last run
	acked  time.Duration // until the last report was acknowledged; 0: unknown
	waits  []time.Duration
	events int                // of all histories
	polled int                // workflow tasks that a worker had to ask for
	cpu    map[string]float64 // seconds, by process
}

// spent is the CPU time of all processes in seconds.
func (f fleet) spent() (sum float64) {
	for _, v := range f.cpu {
		sum += v
	}
	return sum
}

// emptyActions is how many actions each agent carries out before the reboot.
const emptyActions = 3

// like reports whether the histories of both have about as many events, and as many tasks that were polled for.
func (f fleet) like(g fleet) bool {
	near := func(a, b int) bool { return math.Abs(float64(a-b)) <= .1*float64(b) }
	return near(f.events, g.events) && near(f.polled, g.polled)
}

// benchFleets compares growing numbers of agents, up to the largest one that plain Temporal completes. The host's speed varies
// from one minute to the next, so it compares each number several times and shows the medians.
func (s *Site) benchFleets(ctx context.Context, t *testing.T, f *figures) {
	t.Helper()
	first := 0
	for _, n := range []int{200, 1000} {
		var walls, cpus, waits []float64
		for range 3 {
			ours, bare, err := s.benchFleet(ctx, t, first, n)
			require.NoError(t, ctx.Err(), "this test's own time has ended")
			if err != nil {
				t.Logf("bare Temporal does not complete %d runs; ratios so far: walls %.2f, CPU times %.2f: %v", n, walls, cpus, err)
				return
			}
			first += n
			if !ours.like(bare) {
				t.Logf("  not compared: one of them repeated more tasks than the other; walls %.2f, CPU times %.2f",
					ours.wall.Seconds()/bare.wall.Seconds(), ours.spent()/bare.spent())
				continue
			}
			o50, _ := percentiles(ours.waits)
			b50, _ := percentiles(bare.waits)
			walls = append(walls, ours.wall.Seconds()/bare.wall.Seconds())
			cpus = append(cpus, ours.spent()/bare.spent())
			waits = append(waits, o50/b50)
		}
		require.GreaterOrEqual(t, len(walls), 2, "the histories are not the same")
		add := func(what string, ratios []float64, goal float64) {
			slices.Sort(ratios)
			f.add(t, fmt.Sprintf("%d agents at once, ratio of %s", n, what),
				"%.2f; all: %.2f (goal: at most %.1f)", ratios[len(ratios)/2], ratios, goal)
		}
		add("the time to the last success", walls, 1.5)
		add("processor time", cpus, 1.3)
		add("p50 of report → next assignment", waits, 3)
	}
}

// benchFleet lets n agents, which are numbered from first, carry out emptyActions each at the same time, and compares that with
// the same histories on plain Temporal. It returns an error if plain Temporal does not complete them.
//
// Before the clock starts, all runs are planned and armed; n machines wait to be switched on. The
// clock runs from the first fetch of a boot script until the last run has succeeded, over n TLS
// handshakes and claims, and emptyActions+1 assignments and reports each (the last is the reboot). Agents,
// server, Temporal and this test share the machine's cores.
//
// On plain Temporal, a workflow makes the same history without content: the same signals, one after
// another in response to its local activities, and as many activities, local activities, timers and
// upserts of search attributes. An agent signals when the workflow task has ended that assigned its
// action; a signal during a task would be cheaper. The clock starts when all workflows wait for their
// first signal.
func (s *Site) benchFleet(ctx context.Context, t *testing.T, first, n int) (ours, bare fleet, err error) {
	t.Helper()
	ours, model := s.benchRuns(ctx, t, first, n)
	bare, err = s.benchBare(ctx, t, fmt.Sprintf("bare-%d", first), n, model)
	if err != nil {
		return ours, bare, err
	}
	show := func(what string, f fleet) {
		p50, p99 := percentiles(f.waits)
		t.Logf(
			"%-34s %7.2f s wall, %.1f workflows/s; report → next mean %.0f ms, p50 %.0f ms, p99 %.0f ms; "+
				"%d signals, %.1f polled tasks and %.1f events each; CPU s: %s",
			what,
			f.wall.Seconds(),
			float64(n)/f.wall.Seconds(),
			mean(f.waits),
			p50,
			p99,
			model.signals(),
			float64(f.polled)/float64(n),
			float64(f.events)/float64(n),
			seconds(f.cpu),
		)
	}
	show(fmt.Sprintf("%d agents, %d empty actions each", n, emptyActions), ours)
	t.Logf("%-34s %7.2f s", "  last report acknowledged after", ours.acked.Seconds())
	show("bare Temporal, the same histories", bare)
	return ours, bare, nil
}

func (s *Site) benchRuns(ctx context.Context, t *testing.T, first, n int) (fleet, model) {
	t.Helper()
	tmpl := fmt.Sprintf("fleet-%d", first)
	s.template(ctx, t, tmpl, noops(tmpl, emptyActions))
	var machines []*Simulated
	var docs []map[string]any
	for i := first; i < first+n; i++ {
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
			runs[i], err = s.Provision(gctx, contract.ProvisionInput{Machine: m.Name, Template: tmpl})
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
		var views struct{ Items []apitypes.MachineView }
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
			waits, err := m.workThrough(gctx, emptyActions+1)
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
		out.count(ctx, t, c, workflows.MachineID(m.Name), runs[i])
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
func (s *Site) repaired(ctx context.Context, t *testing.T) apitypes.Repairs {
	t.Helper()
	var st apitypes.Status
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
