package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/lab"
)

// A deployment is a server as a guide sets it up, with the defaults of that guide.
type deployment struct {
	*lab.Lab
	t     *testing.T
	ns    lab.Namespace
	ingot func(ctx context.Context, args ...string) (string, error) // the command line, as the guide has it
}

// TestTemporalUI opens Temporal's UI from the link on the page, in Chromium, with the addresses of an operator's tunnel to ports 8080
// and 8234. The server was set up
//
//   - by "ingot init --relay-only";
//   - by deploy/compose.yaml: a real Docker with the commands of its first lines. Only the key "name" is an argument of Compose, and the
//     image is the one of bin/;
//   - by the chart. Helm and the image are real; in place of Kubernetes, Docker runs both containers of the pod with the volumes, user,
//     capabilities and probe that helm renders, and the tunnel is the lab's in place of kubectl's.
func TestTemporalUI(t *testing.T) {
	runInTurn(t, 90, 10)
	ctx := needLab(t)
	for name, setUp := range map[string]func(ctx context.Context, t *testing.T, l *lab.Lab) deployment{
		"relay-only": setUpRelayOnly,
		"compose": func(ctx context.Context, t *testing.T, l *lab.Lab) deployment {
			return deployment{l, t, lab.Seed, startDocker(ctx, t, l, lab.Seed).compose(ctx)}
		},
		"chart": func(ctx context.Context, t *testing.T, l *lab.Lab) deployment {
			// The interface of the chart's config.
			const rename = "ip link set eth0 down && ip link set eth0 name eth1 && ip link set eth1 up"
			_, err := l.Command(ctx, lab.Server, "sh", "-c", rename).Output()
			require.NoError(t, err)
			ingot, probe := startDocker(ctx, t, l, lab.Server).chart(ctx)
			d := deployment{l, t, lab.Server, ingot}
			d.await(ctx, "the readiness probe", func() error {
				code, err := d.get(ctx, fmt.Sprintf("%s://%s:%d%s", strings.ToLower(probe.Scheme), probe.Host, probe.Port, probe.Path))
				if err == nil && code != http.StatusOK {
					err = fmt.Errorf("the answer is %d", code)
				}
				return err
			})
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := lab.New(ctx, lab.Options{Dir: keepDir(t), Home: true})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			setUp(ctx, t, l).showTemporalUI(ctx, name)
		})
	}
}

// setUpRelayOnly starts a server with what "ingot init --relay-only" writes.
func setUpRelayOnly(ctx context.Context, t *testing.T, l *lab.Lab) deployment {
	t.Helper()
	log, err := os.Create(filepath.Join(l.Dir(), "ingot.log"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	command := func(ctx context.Context, args ...string) *lab.Cmd {
		c := l.Command(ctx, lab.Seed, filepath.Join(cmp.Or(programs(), "../bin"), "ingot"), args...)
		c.Env = append(os.Environ(), "XDG_CONFIG_HOME="+filepath.Join(l.Dir(), "etc"), "XDG_STATE_HOME="+filepath.Join(l.Dir(), "state"))
		c.Stderr = log
		return c
	}
	d := deployment{l, t, lab.Seed, func(ctx context.Context, args ...string) (string, error) {
		out, err := command(ctx, args...).Output()
		return string(out), err
	}}
	d.must(ctx, "init", "--relay-only", "--address", lab.SeedAddress, "--relay", lab.DirectGateway)
	serve := command(ctx, "serve")
	serve.Stdout = log
	require.NoError(t, serve.Start())
	t.Cleanup(func() {
		serve.Kill()
		<-serve.Done()
	})
	return d
}

func (d deployment) must(ctx context.Context, args ...string) string {
	d.t.Helper()
	out, err := d.ingot(ctx, args...)
	require.NoError(d.t, err)
	return strings.TrimSpace(out)
}

// await tries f until it has no error.
func (d deployment) await(ctx context.Context, what string, f func() error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.NoError(d.t, err, what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// get asks the server's host without a session, and returns the status of the answer.
func (d deployment) get(ctx context.Context, url string) (int, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.DialContext(ctx, d.ns, network, addr)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// uiWrites are what the buttons of Temporal's UI send, and the deletion of a namespace.
var uiWrites = [][2]string{
	{"POST", "/api/v1/namespaces/default/workflows/new"},
	{"POST", "/api/v1/namespaces/default/workflows/machine%2Fwaits/cancel"},
	{"POST", "/api/v1/namespaces/default/workflows/machine%2Fwaits/terminate"},
	{"POST", "/api/v1/namespaces/default/workflows/machine%2Fwaits/signal/answer"},
	{"POST", "/api/v1/namespaces/default/workflows/machine%2Fwaits/update/answer"},
	{"POST", "/api/v1/namespaces/default/workflows/machine%2Fwaits/reset"},
	{"POST", "/api/v1/namespaces/default/batch-operations/all"},
	{"POST", "/api/v1/namespaces/default/schedules/daily"},
	{"PATCH", "/api/v1/namespaces/default/schedules/daily"},
	{"DELETE", "/api/v1/namespaces/default/schedules/daily"},
	{"POST", "/api/v1/namespaces"},
	{"POST", "/api/v1/namespaces/default/update"},
	{"DELETE", "/api/v1/namespaces/default"},
}

// showTemporalUI starts a run that waits for an operator, and looks at it in Temporal's UI, which shows nothing without a session and
// changes nothing with one.
func (d deployment) showTemporalUI(ctx context.Context, picture string) {
	t := d.t
	t.Helper()
	d.await(ctx, "Temporal", func() error {
		out, err := d.ingot(ctx, "status", "-o", "json")
		if err == nil && !ready(out) {
			err = fmt.Errorf("not ready: %s", out)
		}
		return err
	})
	d.must(ctx, "machine", "add", "waits", "--mac", "02:00:00:00:00:01", "--address", "10.10.20.50/24", "--gateway", "10.10.20.1")
	d.must(ctx, "machine", "inspect", "waits")

	for _, path := range []string{"/", "/namespaces/default/workflows", "/api/v1/namespaces/default/workflows", "/api/v1/settings"} {
		code, err := d.get(ctx, fmt.Sprintf("http://127.0.0.1:%d%s", sessionPort, path))
		require.NoError(t, err)
		require.Equal(t, http.StatusUnauthorized, code, path)
	}
	_, err := d.get(ctx, fmt.Sprintf("http://127.0.0.1:%d/", uiPort))
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the UI without a log-in")

	var tunnel []string
	for _, port := range []int{apiPort, sessionPort} {
		at := fmt.Sprintf("127.0.0.1:%d", port)
		to, err := d.Forward(ctx, lab.Host, "127.0.0.1:0", d.ns, at)
		require.NoError(t, err)
		tunnel = append(tunnel, "MAP "+at+" "+to)
	}
	tab := browser(ctx, t, chromedp.Flag("host-resolver-rules", strings.Join(tunnel, ",")))
	opened := chromedp.WaitNewTarget(tab, func(*target.Info) bool { return true })
	onPage(tab, t, "the page", chromedp.Navigate(d.must(ctx, "login-link")), see(`[data-machine="waits"]`), click(`header [data-temporal]`))
	var id target.ID
	select {
	case id = <-opened:
	case <-time.After(time.Minute):
		require.Fail(t, "no window was opened")
	}
	ui, stop := chromedp.NewContext(tab, chromedp.WithTargetID(id))
	defer stop()

	writes, err := json.Marshal(uiWrites)
	require.NoError(t, err)
	var at string
	var answers []int
	onPage(ui, t, "Temporal's UI", see(`a[href*="workflows/machine%2Fwaits"]`), chromedp.Location(&at),
		chromedp.Evaluate(fmt.Sprintf(`Promise.all(%s.map(([method, path]) => fetch(path, {
			method, body: "{}", headers: {"X-CSRF-Token": (document.cookie.match(/_csrf=([^;]*)/) || [])[1]}
		}).then(answer => answer.status)))`, writes), &answers, awaited))
	require.True(t, strings.HasPrefix(at, fmt.Sprintf("http://127.0.0.1:%d/", sessionPort)), at)
	require.Len(t, answers, len(uiWrites))
	for i, code := range answers {
		require.Equal(t, http.StatusMethodNotAllowed, code, uiWrites[i])
	}
	// Headless Chromium takes no picture of a window that a page has opened.
	onPage(tab, t, "Temporal's UI in the first window", chromedp.Navigate(at), see(`a[href*="workflows/machine%2Fwaits"]`))
	(&pageTab{Context: tab, t: t}).picture("temporal-ui-" + picture)
	require.Contains(t, d.must(ctx, "workflow", "get", "waits"), "power the machine on now")
	require.NoError(t, chromedp.Cancel(tab), "closing the browser")
}
