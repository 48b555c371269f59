package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	cdp "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// hostile is a text from a machine that tries to control a browser or a terminal. %s is a unique
// text for finding it.
const hostile = `%s<img src=x onerror="window.pwned=1"><script>window.pwned=1</script><svg onload="window.pwned=1"></svg>` +
	`<a href="javascript:window.pwned=1">x</a><iframe srcdoc="<script>parent.pwned=1</script>"></iframe>"'>{{7*7}}${7*7}` +
	"\x1b[2J\x1b]0;title\x07\u202egpj.exe\x00end"

// TestS47HostileMachineInTheBrowser lets a machine send such texts everywhere (facts, messages,
// logs, DHCP). It opens the page in a real browser and uses the command line with the same data.
func TestS47HostileMachineInTheBrowser(t *testing.T) {
	runInTurn(t, 7, 6)
	ctx := needLab(t)
	s := site(ctx, t)
	s.template(
		ctx,
		t,
		"tell",
		"version: \"0.1\"\nname: tell\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n  - {name: tell, image: noop, timeout: 600}\n",
	)
	s.template(ctx, t, "put", "version: \"0.1\"\nname: put\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n"+
		"  - {name: put, image: image2disk, timeout: 600, environment: {IMG_URL: \"http://192.0.2.1/x.raw\", IMG_SHA256: "+
		"\""+strings.Repeat("ab", 32)+"\", DEST_DISK: /dev/sda}}\n")

	say := func(mark string) string { return fmt.Sprintf(hostile, mark) }
	start := func(n int, name, template string, facts action.Facts) *Simulated {
		t.Helper()
		m := s.Simulate(name, fmt.Sprintf("52:54:04:00:00:%02x", n))
		m.Facts = facts
		doc := map[string]any{
			"name":       name,
			"interfaces": []any{map[string]any{"mac": m.MAC, "address": fmt.Sprintf("10.10.20.%d", 210+n), "netmask": "255.255.255.0"}},
		}
		require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil))
		_, err := s.Provision(ctx, contract.ProvisionInput{Machine: name, Template: template})
		require.NoError(t, err)
		_, err = m.armed(ctx)
		require.NoError(t, err)
		_, err = m.Boot(ctx)
		require.NoError(t, err)
		return m
	}
	facts := action.Facts{Manufacturer: say("maker"), Product: say("product"), Serial: say("smbios"), Firmware: say("firmware")}
	m := start(1, "tells", "tell", facts)
	var a *action.Assignment
	for a == nil {
		var err error
		a, err = m.Next(ctx)
		require.NoError(t, err)
	}
	now := time.Now()
	require.NoError(t, m.Report(ctx, action.Result{
		Key:     a.Key,
		ID:      "x",
		State:   action.Failed,
		Message: say("message"),
		Log:     say("logged") + "\n",
		Started: now,
		Ended:   now,
		Output:  map[string]string{say("output"): say("output")},
	}))
	_, err := s.Follow(ctx, "tells", func(w inventory.Workflow) bool { return w.State == inventory.StateFailed })
	require.NoError(t, err)
	facts.Disks = []action.Disk{
		{
			Path:       "/dev/sda",
			Serial:     say("serial"),
			Model:      say("model"),
			Transport:  say("transport"),
			Size:       1 << 30,
			Signatures: []string{say("signature")},
		},
		{Path: "/dev/sdb", Serial: say("another"), Model: say("model"), Size: 2 << 30},
	}
	start(2, "asks", "put", facts)
	_, err = s.Follow(ctx, "asks", func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseWaiting })
	require.NoError(t, err)

	s.browse(ctx, t, map[string][]string{"tells": {"message", "logged"}, "asks": {"serial", "model", "another", "transport"}})

	for _, args := range [][]string{
		{"workflow", "get", "tells"},
		{"workflow", "logs", "tells"},
		{"workflow", "events", "tells"},
		{"workflow", "list"},
		{"machine", "list"},
		{"machine", "get", "asks"},
		{"machine", "disks", "asks"},
		{"workflow", "get", "asks"},
		{"workflow", "get", "asks", "-o", "json"},
		{"machine", "disks", "asks", "-o", "yaml"},
		{"why", "asks"},
		{"status"},
	} {
		out := s.must(ctx, t, args...)
		for _, r := range out {
			if r != '\n' && r != '\t' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e') {
				t.Fatalf("ingot %s writes %U: %q", strings.Join(args, " "), r, out)
			}
		}
	}
	require.Contains(t, s.must(ctx, t, "workflow", "logs", "tells"), "logged<img src=x", "the text is there, as text")
}

// made counts elements that could only come from a machine's text: an element that would fetch
// something, or that has attributes or a script that would run.
const made = "[...document.querySelectorAll('*')].filter(e => e.getAttribute('src') === 'x' || e.localName === 'iframe' ||" +
	" (e.localName === 'script' && e.textContent.includes('pwned')) ||" +
	" [...e.attributes].some(a => (a.name.startsWith('on') || ['href', 'src', 'srcdoc', 'style', " +
	"'action'].includes(a.name)) && a.value.includes('pwned'))).length"

// browse opens the panels of machines and waits until the page shows the unique texts. The texts
// must have become nothing but text.
func (s *Site) browse(ctx context.Context, t *testing.T, marks map[string][]string) {
	t.Helper()
	runtime.LockOSThread() // as in watchPage
	defer runtime.UnlockOSThread()
	chromium, err := exec.LookPath("chromium")
	require.NoError(t, err, "make deps installs it")
	link := strings.Replace(strings.TrimSpace(s.must(ctx, t, "login-link")), fmt.Sprintf("127.0.0.1:%d", apiPort), s.API, 1)
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.WindowSize(1440, 1100), chromedp.WSURLReadTimeout(3*time.Minute))
	alloc, cancelAlloc := chromedp.NewExecAllocator(ctx, opts...)
	defer cancelAlloc()
	tab, cancelTab := chromedp.NewContext(alloc)
	defer cancelTab()
	var mu sync.Mutex
	var thrown []string
	chromedp.ListenTarget(tab, func(ev any) {
		if e, ok := ev.(*cdp.EventExceptionThrown); ok {
			mu.Lock()
			defer mu.Unlock()
			thrown = append(thrown, e.ExceptionDetails.Error())
		}
	})
	require.NoError(t, chromedp.Run(tab, chromedp.Navigate(link)))
	for machine, words := range marks {
		require.NoError(t, chromedp.Run(tab,
			chromedp.WaitVisible(`[data-machine="`+machine+`"]`, chromedp.ByQuery),
			click(`[data-machine="`+machine+`"] *`),
			chromedp.WaitVisible(`[data-panel="`+machine+`"]`, chromedp.ByQuery),
		))
		for _, w := range words {
			require.NoError(
				t,
				chromedp.Run(
					tab,
					chromedp.Poll(`document.body.innerText.includes("`+w+`<img src=x onerror=")`, nil, chromedp.WithPollingTimeout(time.Minute)),
				),
				"%s: %s",
				machine,
				w,
			)
		}
		var text string
		var pwned bool
		var elements int
		require.NoError(t, chromedp.Run(tab,
			chromedp.Evaluate(`document.body.innerText`, &text),
			chromedp.Evaluate(`window.pwned !== undefined`, &pwned),
			chromedp.Evaluate(made, &elements),
		))
		require.False(t, pwned, "a machine's text was carried out")
		require.Zero(t, elements, "a machine's text became elements")
		require.NotContains(t, text, "\x1b")
		require.NotContains(t, text, "\u202e", "text that runs backwards")
		require.Contains(t, text, "{{7*7}}${7*7}")
	}
	// The check would find such elements, and the page's policy refuses text as a handler or as
	// markup.
	const planted = `const a = document.createElement('a'); a.setAttribute('href', 'javascript:window.pwned=1'); document.body.append(a)`
	const refused = `[
		() => document.body.setAttribute('onclick', 'window.pwned=1'),
		() => { document.body.innerHTML = '<b>x</b>' },
	].filter(f => { try { f(); return false } catch { return true } }).length`
	var seen, threw int
	require.NoError(t,
		chromedp.Run(tab, chromedp.Evaluate(planted, nil), chromedp.Evaluate(made, &seen), chromedp.Evaluate(refused, &threw)))
	require.Equal(t, 1, seen)
	require.Equal(t, 2, threw)
	mu.Lock()
	defer mu.Unlock()
	require.Empty(t, thrown)
}
