package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

var (
	pageMachines = flag.Int("rows", 5000, "how many machines TestBenchPage shows")
	pageServer   = flag.String("server", "../bin/ingot", "the program that TestBenchPage measures")
)

// The durations of TestBenchPage's measurements, and the time limit for a first row.
const (
	pageMeasured = 20 * time.Second
	pagePatience = 60 * time.Second
)

// TestBenchPage measures the page with many machines in a headless browser, with "ingot serve" on
// loopback and DHCP off, and the load of a viewer on the server. It asserts nothing about time.
func TestBenchPage(t *testing.T) {
	if !*bench {
		t.Skip("measures: make bench-page")
	}
	s := newBareServer(t, *pageServer)
	fillInventory(t, s.database, *pageMachines)
	s.start(t)

	t.Logf("%d machines", *pageMachines)
	t.Logf("GET /v1/machines: %v; GET /v1/status: %v", s.timed(t, "/v1/machines"), s.timed(t, "/v1/status"))
	for _, viewers := range []int{0, 1, 8} {
		stop := s.view(t, viewers)
		time.Sleep(2 * time.Second) // the initial data is not measured
		idle := s.cpuOver(t, pageMeasured, 0)
		busy := s.cpuOver(t, pageMeasured, 20)
		stop()
		t.Logf("server, %d viewers: %.1f %% of a core without changes, %.1f %% at 20 changes/s", viewers, idle, busy)
	}

	tab := browser(t.Context(), t)
	require.NoError(t, chromedp.Run(tab, performance.Enable(), chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`window.longest = 0
			const look = () => {
				if (document.querySelector("[data-machine]")) window.firstRow = performance.now();
				else requestAnimationFrame(look)
			}
			requestAnimationFrame(look)
			let before = 0
			const frame = (now) => {
				if (before) window.longest = Math.max(window.longest, now - before);
				before = now; requestAnimationFrame(frame)
			}
			requestAnimationFrame(frame)`).Do(ctx)
		return err
	})))
	for _, what := range []string{"first load", "second load"} {
		first := s.firstRow(tab, t)
		if first < 0 {
			t.Logf("page, %s: no row in %v", what, pagePatience)
			return
		}
		t.Logf("page, %s: first row after %.0f ms", what, first)
	}
	time.Sleep(3 * time.Second)
	const rate = 60
	before := metrics(tab, t)
	require.NoError(t, chromedp.Run(tab, chromedp.Evaluate(`window.longest = 0`, nil)))
	changes := s.change(t, pageMeasured, rate)
	after := metrics(tab, t)
	var longest float64
	require.NoError(t, chromedp.Run(tab, chromedp.Evaluate(`window.longest`, &longest)))
	of := func(name string) float64 { return (after[name] - before[name]) * 1000 / float64(changes) }
	t.Logf(
		"page, %d changes in %v: script %.2f ms, layout and style %.2f ms, all work %.2f ms for each; longest frame %.0f ms; heap %.0f MB",
		changes, pageMeasured, of("ScriptDuration"), of("LayoutDuration")+of("RecalcStyleDuration"), of("TaskDuration"),
		longest, after["JSHeapUsedSize"]/1e6)
}

// bareServer is "ingot serve" on loopback without DHCP and Temporal.
type bareServer struct {
	program, dir, database, address, token string
	cmd                                    *exec.Cmd
}

func newBareServer(t *testing.T, program string) *bareServer {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &bareServer{program: program, dir: dir, address: l.Addr().String(), database: filepath.Join(dir, "state/ingot/ingot.db")}
	require.NoError(t, l.Close())
	init := exec.CommandContext(t.Context(), program, "init", "--yes")
	init.Env = s.env()
	out, err := init.CombinedOutput()
	require.NoError(t, err, "%s", out)
	config := fmt.Sprintf("listen: %s\nmin_free_mib: 64\ntemporal:\n  address: 127.0.0.1:1\n", s.address)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etc/ingot/ingot.yaml"), []byte(config), 0o600))
	token, err := os.ReadFile(filepath.Join(dir, "etc/ingot/token"))
	require.NoError(t, err)
	s.token = strings.TrimSpace(string(token))
	require.NoError(t, os.MkdirAll(filepath.Dir(s.database), 0o700))
	return s
}

func (s *bareServer) env() []string {
	return append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(s.dir, "etc"), "XDG_STATE_HOME="+filepath.Join(s.dir, "state"))
}

// start starts the server and waits until it answers. The server ends with the test.
func (s *bareServer) start(t *testing.T) {
	t.Helper()
	log, err := os.Create(filepath.Join(s.dir, "ingot.log"))
	require.NoError(t, err)
	s.cmd = exec.CommandContext(t.Context(), s.program, "serve")
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = s.env(), log, log
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(os.Interrupt) }
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // it was killed
		_ = log.Close()
	})
	for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if res, err := http.Get("http://" + s.address + "/healthz"); err == nil {
			_ = res.Body.Close()
			return
		}
		if time.Since(begun) > time.Minute {
			text, _ := os.ReadFile(log.Name()) // only for the message
			t.Fatalf("ingot serve does not answer:\n%s", text)
		}
	}
}

func (s *bareServer) ask(ctx context.Context, t *testing.T, method, path, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.address+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+s.token)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.Less(t, res.StatusCode, 300, "%s %s", method, path)
	return res
}

// timed returns the time and the size of the best of five answers.
func (s *bareServer) timed(t *testing.T, path string) string {
	t.Helper()
	best, size := time.Hour, int64(0)
	for range 5 {
		begun := time.Now()
		res := s.ask(t.Context(), t, http.MethodGet, path, "")
		n, err := io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		_ = res.Body.Close()
		best, size = min(best, time.Since(begun)), n
	}
	return fmt.Sprintf("%v, %d bytes", best.Round(100*time.Microsecond), size)
}

// view opens event streams and reads them. The returned function closes them.
func (s *bareServer) view(t *testing.T, viewers int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	for range viewers {
		res := s.ask(ctx, t, http.MethodGet, "/v1/events/stream", "")
		go func() {
			_, _ = io.Copy(io.Discard, res.Body) // until it is cancelled
			_ = res.Body.Close()
		}()
	}
	return cancel
}

// change opens and closes netboot of machines in turn, with a number of changes per second, and
// returns the number of changes.
func (s *bareServer) change(t *testing.T, d time.Duration, rate int) int {
	t.Helper()
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	n := 0
	for begun := time.Now(); time.Since(begun) < d; n++ {
		<-tick.C
		name, open := machineName(n/2%50), n%2 == 0
		res := s.ask(t.Context(), t, http.MethodPost, "/v1/machines/"+name+"/netboot", fmt.Sprintf(`{"arm":%t}`, open))
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	return n
}

// cpuOver returns the server's share of a core, in percent, over d with a number of changes per
// second.
func (s *bareServer) cpuOver(t *testing.T, d time.Duration, rate int) float64 {
	t.Helper()
	begun, before := time.Now(), s.cpu(t)
	if rate > 0 {
		s.change(t, d, rate)
	} else {
		time.Sleep(d)
	}
	return float64(s.cpu(t)-before) / float64(time.Since(begun)) * 100
}

// cpu returns the server's processor time.
func (s *bareServer) cpu(t *testing.T) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	require.NoError(t, err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return time.Duration(user+system) * 10 * time.Millisecond // a clock tick, on Linux
}

// firstRow opens the page and returns the time until it shows a machine, in ms; negative if it does
// not.
func (s *bareServer) firstRow(tab context.Context, t *testing.T) float64 {
	t.Helper()
	res := s.ask(t.Context(), t, http.MethodPost, "/v1/login-links", "")
	var link struct{ URL string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&link))
	_ = res.Body.Close()
	within, cancel := context.WithTimeout(tab, pagePatience)
	defer cancel()
	var first float64
	err := chromedp.Run(
		within,
		chromedp.Navigate(link.URL),
		chromedp.Poll(`window.firstRow`, &first, chromedp.WithPollingTimeout(pagePatience)),
	)
	if err != nil {
		return -1
	}
	return first
}

func metrics(tab context.Context, t *testing.T) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	require.NoError(t, chromedp.Run(tab, chromedp.ActionFunc(func(ctx context.Context) error {
		ms, err := performance.GetMetrics().Do(ctx)
		for _, m := range ms {
			out[m.Name] = m.Value
		}
		return err
	})))
	return out
}

func machineName(n int) string { return fmt.Sprintf("node-%d", n) }

// fillInventory stores machines as on a site in use: most are installed, some are being installed,
// wait or have failed.
func fillInventory(t *testing.T, database string, machines int) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), database, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	now := time.Now()
	ms := make([]inventory.Machine, machines)
	for n := range ms {
		hi, lo := byte(n>>8), byte(n)
		ms[n] = inventory.Machine{
			Name:   machineName(n),
			Labels: map[string]string{"rack": fmt.Sprintf("r%02d", n/40), "room": "a"},
			Interfaces: []inventory.Interface{
				{
					MAC:      fmt.Sprintf("02:00:00:00:%02x:%02x", hi, lo),
					Address:  netip.AddrFrom4([4]byte{10, 20, hi, lo}),
					Netmask:  "255.255.0.0",
					Hostname: machineName(n),
					UEFI:     true,
				},
			},
			BMC:   &inventory.BMC{Driver: inventory.DriverIPMI, Host: fmt.Sprintf("10.30.%d.%d", hi, lo), User: "admin"},
			Image: "debian-12",
		}
	}
	require.NoError(t, store.Machines.PutMachines(t.Context(), ms, false, "bench"))
	for n, m := range ms {
		require.NoError(t, store.Workflows.PutWorkflow(t.Context(), sampleRun(n, m.Name, now)))
	}
}

// sampleRun returns the record of a run; the first fifty are installed, so that they can be armed
// by hand.
func sampleRun(n int, machine string, now time.Time) inventory.Workflow {
	w := inventory.Workflow{
		Run:      fmt.Sprintf("00000000-0000-4000-8000-%012d", n),
		ID:       "machine/" + machine,
		Type:     "Provision",
		Machine:  machine,
		Template: "image",
		Image:    "debian-12",
		Epoch:    1,
		State:    inventory.StateSuccess,
		Phase:    inventory.PhaseDone,
		Evidence: "phone-home",
		Disk:     &action.Disk{Path: "/dev/nvme0n1", Serial: fmt.Sprintf("S%08d", n), Model: "Example 960", Size: 960e9},
		Started: now.Add(
			-time.Duration(n+10) * time.Minute,
		),
		Updated: now.Add(-time.Duration(n) * time.Minute),
		Ended:   now.Add(-time.Duration(n) * time.Minute),
	}
	for _, name := range []string{"stream-image", "grow-partition", "write-seed", "reboot"} {
		w.Actions = append(w.Actions,
			inventory.ActionRecord{Name: name, Image: name, State: action.Success, Attempt: 1, StartedAt: w.Started, Seconds: 12, Timeout: 600})
	}
	if n < 50 {
		return w
	}
	switch n % 25 {
	case 7:
		w.State, w.Phase, w.Ended = inventory.StateRunning, "action", time.Time{}
		w.Actions[1].State, w.Actions[2].State, w.Actions[3].State = action.Running, action.Pending, action.Pending
		w.Actions[1].Done, w.Actions[1].Total = 4e8, 9e8
	case 11:
		w.State, w.Phase, w.Message = inventory.StateFailed, "failed", "action 2 of 4, grow-partition: the disk has no partition table"
		w.Actions[1].State = action.Failed
	case 19:
		w.State, w.Phase, w.Ended, w.Message = inventory.StateRunning, inventory.PhaseWaiting, time.Time{}, "no answer from the BMC"
		for i := range w.Actions {
			w.Actions[i] = inventory.ActionRecord{Name: w.Actions[i].Name, Image: w.Actions[i].Name, State: action.Pending, Timeout: 600}
		}
		w.Disk = nil
		w.Question = &inventory.Question{
			ID:      "1.power.1",
			Text:    "The BMC does not answer. Switch the machine on by hand, or try again.",
			Choices: []string{"retry", "abort"},
			Since:   now.Add(-time.Minute),
		}
	}
	return w
}
