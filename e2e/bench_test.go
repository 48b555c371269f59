package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

var bench = flag.Bool("bench", false, "measure the figures of docs/performance.md (see make bench)")

// fleetOnly skips the slow benchmarks whose results rarely change.
var fleetOnly = flag.Bool("fleet", false, "of the figures, only those of many machines at once")

// TestBench measures the server and writes its figures into docs/performance.md. It asserts nothing about time, but it checks
// that compared runs are equal where it says so; see benchFleet.
func TestBench(t *testing.T) {
	if !*bench {
		t.Skip("measures: make bench")
	}
	ctx := needLabFor(t, 35*time.Minute)
	var f figures
	for _, program := range []string{"ingot", "ingot-client", "worker-agent"} {
		f.add(t, "`"+program+"`", "%.1f MB", float64(size("../bin/"+program))/1e6)
	}
	k, i := size("../bin/agentos/vmlinuz"), size("../bin/agentos/initramfs")
	f.add(t, "kernel + initramfs of the agent's system", "%.1f MB (goal: at most 35)", float64(k+i)/1e6)

	began := time.Now()
	s := measured(ctx, t)
	first := time.Since(began) // with keys, schemas and the lab
	s.Stop()
	began = time.Now()
	require.NoError(t, s.Start(ctx))
	f.add(t, "start until Temporal is ready, first / again", "%.2f s / %.2f s", first.Seconds(), time.Since(began).Seconds())
	f.add(t, "file system of the databases", "%s", filesystem(t, s.dir))
	processes := s.processes(t)
	for _, name := range slices.Sorted(maps.Keys(processes)) {
		anon, rss := memory(t, processes[name])
		f.add(t, name+", idle", "%.0f MB anonymous, %.0f MB resident (with the mapped program)", anon, rss)
	}
	anon, rss := s.benchAgent(ctx, t)
	f.add(t, "the agent, waiting in an action", "%.0f MB anonymous, %.0f MB resident", anon, rss)

	sizes := []int{1, 50}
	if *fleetOnly {
		sizes = nil
	}
	for _, n := range sizes {
		overhead, ours := s.benchActions(ctx, t, n, 10)
		bare, least := s.benchSignals(ctx, t, n, 10)
		o50, o99 := percentiles(overhead)
		b50, b99 := percentiles(bare)
		f.add(t, fmt.Sprintf("report → next assignment received, agents at once: %d", n),
			"p50 %.1f ms, p99 %.1f ms; a bare signal round trip: p50 %.1f ms, p99 %.1f ms", o50, o99, b50, b99)
		t.Logf("%2d of each:  events of a run           with everything around %.1f, of ten bare signals %.1f", n, ours, least)
	}
	s.benchNetboot(ctx, t, &f, false)
	s.benchNetboot(ctx, t, &f, true)
	s.benchFleets(ctx, t, &f)
	if !*fleetOnly {
		f.write(t)
	}
}

// benchActions lets n simulated agents carry out k no-op actions each. It returns the time that
// each waited from its report to its next assignment, and the number of events in a run's history.
func (s *Site) benchActions(ctx context.Context, t *testing.T, n, k int) (waits []time.Duration, events float64) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "version: \"0.1\"\nname: bench-%d\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n", n)
	for i := range k + 1 {
		fmt.Fprintf(&b, "  - {name: a%d, image: noop, timeout: 600}\n", i)
	}
	s.template(ctx, t, fmt.Sprintf("bench-%d", n), b.String())
	var machines []*Simulated
	var docs []map[string]any
	for i := range n {
		name, mac := fmt.Sprintf("sim-%d-%d", n, i), fmt.Sprintf("52:54:01:%02x:00:%02x", n, i)
		docs = append(docs, map[string]any{"name": name, "interfaces": []any{map[string]any{
			"mac": mac, "address": fmt.Sprintf("10.10.%d.%d", 100+n, 1+i), "netmask": "255.255.255.0",
		}}})
		machines = append(machines, s.Simulate(name, mac))
	}
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": docs}, nil))

	var mu sync.Mutex
	var all []time.Duration
	g, gctx := errgroup.WithContext(ctx)
	for _, m := range machines {
		g.Go(func() error {
			ctx := gctx
			run, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name, Template: fmt.Sprintf("bench-%d", n)})
			if err != nil {
				return err
			}
			if _, err := s.Follow(ctx, m.Name, func(w inventory.Workflow) bool { return w.Phase == inventory.PhasePower }); err != nil {
				return err
			}
			if err := s.REST(ctx, http.MethodPost, "/v1/workflows/"+run+"/powered-on", nil, nil); err != nil {
				return err
			}
			if _, err := m.armed(ctx); err != nil {
				return err
			}
			if _, err := m.Boot(ctx); err != nil {
				return err
			}
			var waits []time.Duration
			var began time.Time // of the previous report
			for i := 0; i <= k+1; {
				a, err := m.Next(ctx)
				if err != nil {
					return err
				}
				if a == nil {
					continue
				}
				if i > 0 && i <= k { // the first one waits for the boot, the last one leaves
					waits = append(waits, time.Since(began))
				}
				i++
				began = time.Now()
				if err := m.Done(ctx, a); err != nil {
					return err
				}
			}
			mu.Lock()
			all = append(all, waits...)
			mu.Unlock()
			_, err = s.Follow(ctx, m.Name, func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
			return err
		})
	}
	require.NoError(t, g.Wait())
	c, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal, Logger: silent()})
	require.NoError(t, err)
	defer c.Close()
	for _, m := range machines {
		d, err := c.DescribeWorkflowExecution(ctx, workflows.MachineID(m.Name), "")
		require.NoError(t, err)
		events += float64(d.WorkflowExecutionInfo.HistoryLength) / float64(n)
	}
	return all, events
}

// benchAgent runs the real agent as an ordinary process with a file as its disk, and returns its
// memory use during an action.
func (s *Site) benchAgent(ctx context.Context, t *testing.T) (anon, rss float64) {
	t.Helper()
	m := s.Simulate("agent", "52:54:01:ff:00:01")
	s.template(ctx, t, "waits", "version: \"0.1\"\nname: waits\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n"+
		"  - {name: wait, image: noop, timeout: 600, environment: {SLEEP: \"500\"}}\n")
	doc := map[string]any{
		"name":       m.Name,
		"interfaces": []any{map[string]any{"mac": m.MAC, "address": "10.10.99.1", "netmask": "255.255.255.0"}},
	}
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil))
	_, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name, Template: "waits"})
	require.NoError(t, err)
	args, err := m.armed(ctx)
	require.NoError(t, err)
	disk := filepath.Join(s.dir, "agent.raw")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, 1<<30))
	agent := s.Command(ctx, lab.Server, filepath.Join(s.root, "bin/worker-agent"), append(agentFlags(args),
		"-machine", m.Name, "-mac", m.MAC, "-disk", "/dev/vda="+disk+",serial=A")...)
	require.NoError(t, agent.Start())
	_, err = s.Follow(ctx, m.Name, func(w inventory.Workflow) bool {
		return len(w.Actions) > 0 && w.Actions[0].State == action.Running && w.Actions[0].Attempt == 1
	})
	require.NoError(t, err)
	anon, rss = memory(t, agent.Pid())
	s.must(ctx, t, "workflow", "cancel", m.Name)
	s.ended(ctx, t, m.Name, inventory.StateCancelled)
	agent.Kill()
	return anon, rss
}

// armed requests the script until the run has armed the machine.
func (m *Simulated) armed(ctx context.Context) (map[string]string, error) {
	for {
		args, err := m.Arguments(ctx)
		if err == nil {
			return args, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// benchSignals measures the minimum for Temporal: a signal to a workflow and a local activity in
// response, on the same server. It does less than a run, whose history has more events; benchFleet
// compares equal histories.
func (s *Site) benchSignals(ctx context.Context, t *testing.T, n, k int) (waits []time.Duration, events float64) {
	t.Helper()
	c, err := client.DialContext(ctx, client.Options{HostPort: s.Temporal, Logger: silent()})
	require.NoError(t, err)
	defer c.Close()
	queue := fmt.Sprintf("bench-%d", n)
	w := worker.New(c, queue, worker.Options{})
	answers := make([]chan struct{}, n)
	for i := range answers {
		answers[i] = make(chan struct{}, 1)
	}
	//nolint:unparam // a local activity must return an error
	answer := func(_ context.Context, i int) error { answers[i] <- struct{}{}; return nil }
	echo := func(ctx workflow.Context, i, k int) error {
		ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: time.Minute})
		for range k {
			workflow.GetSignalChannel(ctx, "ping").Receive(ctx, nil)
			if err := workflow.ExecuteLocalActivity(ctx, answer, i).Get(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	}
	w.RegisterWorkflowWithOptions(echo, workflow.RegisterOptions{Name: "echo"})
	require.NoError(t, w.Start())
	defer w.Stop()
	var mu sync.Mutex
	var all []time.Duration
	g, gctx := errgroup.WithContext(ctx)
	for i := range n {
		g.Go(func() error {
			ctx := gctx
			run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: fmt.Sprintf("echo-%d-%d", n, i), TaskQueue: queue}, "echo", i, k)
			if err != nil {
				return err
			}
			for range k {
				began := time.Now()
				if err := c.SignalWorkflow(ctx, run.GetID(), run.GetRunID(), "ping", nil); err != nil {
					return err
				}
				<-answers[i]
				mu.Lock()
				all = append(all, time.Since(began))
				mu.Unlock()
			}
			return run.Get(ctx, nil)
		})
	}
	require.NoError(t, g.Wait())
	for i := range n {
		d, err := c.DescribeWorkflowExecution(ctx, fmt.Sprintf("echo-%d-%d", n, i), "")
		require.NoError(t, err)
		events += float64(d.WorkflowExecutionInfo.HistoryLength) / float64(n)
	}
	return all, events
}

func percentiles(d []time.Duration) (p50, p99 float64) {
	slices.Sort(d)
	at := func(p float64) float64 { return float64(d[int(p*float64(len(d)-1))].Microseconds()) / 1000 }
	return at(.5), at(.99)
}

// processes returns the server and its Temporal child.
func (s *Site) processes(t *testing.T) map[string]int {
	t.Helper()
	out := map[string]int{"ingot serve": s.Pid()}
	dirs, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, f := range dirs {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // ended in the meantime
		}
		fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(s.Pid()) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			require.NoError(t, err)
			out["its Temporal child"] = pid
		}
	}
	return out
}

var kB = regexp.MustCompile(`(?m)^(RssAnon|VmRSS):\s+(\d+) kB`)

func memory(t *testing.T, pid int) (anon, rss float64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for _, m := range kB.FindAllStringSubmatch(string(b), -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		if m[1] == "RssAnon" {
			anon = v / 1024
		} else {
			rss = v / 1024
		}
	}
	return anon, rss
}

func filesystem(t *testing.T, dir string) string {
	t.Helper()
	var st syscall.Statfs_t
	require.NoError(t, syscall.Statfs(dir, &st))
	names := map[int64]string{
		0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0x01021994: "tmpfs", 0x794c7630: "overlay",
	}
	if name, ok := names[int64(st.Type)]; ok {
		return name
	}
	return fmt.Sprintf("0x%x", st.Type)
}
