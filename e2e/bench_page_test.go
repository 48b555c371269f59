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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var (
	pageMachines = flag.Int("rows", pageRows, "how many machines TestBenchPage shows")
	pageServer   = flag.String("server", "../bin/ingot", "the program that TestBenchPage measures")
	pageBefore   = flag.String("before", "", "an older program with the same schema of the database, measured in turn with -server")
)

// The durations of TestBenchPage's measurements, the time limit for a first row, and how many times each of two programs is measured.
const (
	pageRows     = 5000
	pageMeasured = 10 * time.Second
	pagePatience = 60 * time.Second
	pagePairs    = 3
)

// TestBenchPage measures the page with many machines in a headless browser, with "ingot serve" on loopback and DHCP off, and
// the load of a viewer on the server. With the usual number of machines it writes its figures into docs/performance.md. It asserts
// nothing about time.
func TestBenchPage(t *testing.T) {
	if !*bench {
		t.Skip("measures: make bench-page")
	}
	var f figures
	files, err := filepath.Glob("../web/dist/assets/*.js")
	require.NoError(t, err)
	for _, file := range files {
		f.add(t, filepath.Ext(file)+", kB", "%.0f", float64(size(file))/1e3)
	}

	pairs, costs := 1, map[string][]float64{}
	if *pageBefore != "" {
		pairs = pagePairs
	}
	var names []string
	for range pairs {
		ratios := map[string]float64{}
		if *pageBefore != "" {
			for _, c := range measurePage(t, *pageBefore, false) {
				ratios[c.what] = c.value
			}
		}
		names = nil
		for _, c := range measurePage(t, *pageServer, true) {
			names = append(names, c.what)
			costs[c.what] = append(costs[c.what], c.value)
			if before := ratios[c.what]; before > 0 {
				costs["ratio "+c.what] = append(costs["ratio "+c.what], c.value/before)
			}
		}
	}
	for _, name := range names {
		value := fmt.Sprintf("%.2f", median(costs[name]))
		if r := costs["ratio "+name]; len(r) > 0 {
			value += fmt.Sprintf(" (%.2f, %.2f–%.2f)", median(r), slices.Min(r), slices.Max(r))
		}
		if slices.Contains(pageTable, name) {
			f.add(t, name, "%s", value)
		} else {
			t.Logf("%-50s %s", name, value)
		}
	}
	if *pageMachines == pageRows {
		f.write(t)
	}
}

// pageTable lists the figures that docs/performance.md has; the others are only logged.
var pageTable = []string{
	"`GET /v1/machines`, ms", "8 viewers, 20 changes/s: server, %", "first row, ms", "a change: script, ms", "a change: all work, ms",
	"longest frame, ms", "100 images, ms", "statistics, ms",
}

// median sorts values and returns the middle one.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// pageCost is a figure of the page; what names its unit.
type pageCost struct {
	what  string
	value float64
}

// measurePage measures the page of a program: its views as well if it has them.
func measurePage(t *testing.T, program string, views bool) (out []pageCost) {
	t.Helper()
	measured := t.Run(filepath.Base(filepath.Dir(filepath.Dir(program))), func(t *testing.T) {
		add := func(value float64, what string, args ...any) {
			out = append(out, pageCost{fmt.Sprintf(what, args...), value})
			t.Logf("%-60s %.3g", out[len(out)-1].what, value)
		}
		s := newBareServer(t, program)
		fillInventory(t, s.database, *pageMachines)
		fillViews(t, s.database, *pageMachines)
		s.start(t)
		for _, path := range []string{"/v1/machines", "/v1/status", "/v1/workflows?limit=1000", "/v1/phases?limit=1000"} {
			if views || !strings.Contains(path, "phases") {
				add(s.timed(t, path), "`GET %s`, ms", path)
			}
		}
		for _, viewers := range []int{0, 1, 8} {
			stop := s.view(t, viewers)
			time.Sleep(2 * time.Second) // the initial data is not measured
			add(s.cpuOver(t, pageMeasured, 0), "%d viewers, no changes: server, %%", viewers)
			add(s.cpuOver(t, pageMeasured, 20), "%d viewers, 20 changes/s: server, %%", viewers)
			stop()
		}
		s.measureTab(t, views, add)
	})
	require.True(t, measured)
	return out
}

// measureTab measures the page in a browser.
func (s *bareServer) measureTab(t *testing.T, views bool, add func(float64, string, ...any)) {
	t.Helper()
	tab := browser(t.Context(), t)
	// Durations are processor time: other work on this host does not count.
	cpuTime := performance.Enable().WithTimeDomain(performance.EnableTimeDomainThreadTicks)
	require.NoError(t, chromedp.Run(tab, cpuTime, chromedp.ActionFunc(func(ctx context.Context) error {
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
	for _, what := range []string{"first row, ms", "first row again, ms"} {
		add(s.firstRow(tab, t), "%s", what)
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
	add(of("ScriptDuration"), "a change: script, ms")
	add(of("LayoutDuration")+of("RecalcStyleDuration"), "a change: layout and style, ms")
	add(of("TaskDuration"), "a change: all work, ms")
	add(longest, "longest frame, ms")
	add(after["JSHeapUsedSize"]/1e6, "heap, MB")
	if !views {
		return
	}
	for _, v := range []struct{ name, place, there string }{
		{"a machine", "machines/" + machineName(69), `[data-panel="` + machineName(69) + `"] [data-question]`},
		{"machine form", "machines/" + machineName(69) + "/edit", "[data-machine-form]"},
		{"100 operations", "operations", "[data-operation]"},
		{"50 steps", "operations/run-0", `[data-operation-step="node-49"]`},
		{"100 images", "images", "[data-image]"},
		{"templates", "templates", "[data-template]"},
		{"statistics", "statistics", `[data-chart="phases"] rect`},
		{"installing many", "new/installation", `[data-add="installation"]`},
	} {
		add(s.shown(tab, t, `location.hash = "#/`+v.place+`"`, v.there), "%s, ms", v.name)
	}
	const search = `const e = document.querySelector('input[name="everything"]'); e.focus(); e.value = "node-4";
		e.dispatchEvent(new Event("input", {bubbles: true}))`
	add(s.shown(tab, t, search, "[data-found] a"), "search, ms")
}

// shown does something on the page, and returns the time until an element is there and painted, in ms.
func (s *bareServer) shown(tab context.Context, t *testing.T, do, selector string) (ms float64) {
	t.Helper()
	onPage(tab, t, selector, chromedp.Evaluate(`new Promise(done => {
		const begun = performance.now();
		`+do+`;
		const painted = () => done(performance.now() - begun);
		const look = () => requestAnimationFrame(document.querySelector('`+selector+`') ? painted : look);
		look();
	})`, &ms, awaited))
	return ms
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

// timed returns the time of the best of five answers, in ms.
func (s *bareServer) timed(t *testing.T, path string) float64 {
	t.Helper()
	best := time.Hour
	for range 5 {
		begun := time.Now()
		res := s.ask(t.Context(), t, http.MethodGet, path, "")
		_, err := io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		_ = res.Body.Close()
		best = min(best, time.Since(begun))
	}
	return best.Seconds() * 1000
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

// firstRow opens the page and returns the time until it shows a machine, in ms.
func (s *bareServer) firstRow(tab context.Context, t *testing.T) float64 {
	t.Helper()
	res := s.ask(t.Context(), t, http.MethodPost, "/v1/login-links", "")
	var link struct{ URL string }
	require.NoError(t, json.NewDecoder(res.Body).Decode(&link))
	_ = res.Body.Close()
	within, cancel := context.WithTimeout(tab, pagePatience)
	defer cancel()
	var first float64
	require.NoError(t, chromedp.Run(
		within,
		chromedp.Navigate(link.URL),
		chromedp.Poll(`window.firstRow`, &first, chromedp.WithPollingTimeout(pagePatience)),
	))
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
