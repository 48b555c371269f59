package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// fits fails the test if the page or its panel is wider than its room, or if a text in it is cut.
func (p *pageTab) fits(what string) {
	p.t.Helper()
	var cut []string
	p.do(what, chromedp.Evaluate(`(() => {
		const seen = e => e.offsetParent !== null && !e.closest(".sr");
		const name = e => (e.className || e.tagName) + ": " + e.textContent.slice(0, 60);
		const cut = [...document.querySelectorAll(".tall .lines, .tall .of-name, .chip, .pill, .panel th, .panel td, .panel p, .panel h2, .panel dd")]
			.filter(seen).filter(e => !e.closest("thead") && e.clientWidth > 0 && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1))
			.map(e => "cut: " + name(e));
		for (const box of [document.documentElement, ...document.querySelectorAll(".list, .side, .panel, .scroll")])
			if (seen(box) || box === document.documentElement)
				if (box.scrollWidth > box.clientWidth + 1) cut.push("too wide: " + name(box));
		const words = [...document.querySelectorAll(".steps :is(.label, .took)")].filter(seen);
		for (const e of words) {
			const text = document.createRange();
			text.selectNodeContents(e);
			if (text.getBoundingClientRect().height > 1.9 * parseFloat(getComputedStyle(e).fontSize)) cut.push("two lines: " + name(e));
		}
		const labels = words.filter(e => e.matches(".label")).map(e => e.getBoundingClientRect());
		labels.forEach((r, i) => { const n = labels[i + 1]; if (n && n.top === r.top && n.left < r.right) cut.push("step " + i + " covers the next"); });
		return cut;
	})()`, &cut))
	assert.Empty(p.t, cut, what)
}

// addStory adds a finished run whose phases all took time, and a recovery with a machine that failed.
func (s *pageSite) addStory(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	began := time.Now().Add(-time.Hour)
	w := inventory.Workflow{
		Run: "run-slow", ID: "machine/slow", Type: inventory.TypeProvision, Machine: "slow", Template: "harvester", Image: "debian-12",
		State: inventory.StateSuccess, Phase: inventory.PhaseDone, Evidence: "webhook", Installer: true, Started: began, Updated: began,
		Actions: []inventory.ActionRecord{{Name: "wipe", Image: "wipe", State: action.Success, Attempt: 1, StartedAt: began, Seconds: 83}},
	}
	var events []inventory.Event
	before := ""
	for i, phase := range []string{"plan", "arm", "power", "dhcp", "loader", "agent", "bind", "action", "install", "disarm", "ready"} {
		detail, err := json.Marshal(inventory.PhaseChange{Phase: phase, Before: before, Seconds: 203})
		require.NoError(t, err)
		before = phase
		events = append(events, inventory.Event{
			Machine: w.Machine, Run: w.Run, Kind: inventory.EventPhase, Key: fmt.Sprint(i), Detail: detail,
			At: began.Add(time.Duration(i) * 203 * time.Second),
		})
	}
	w.Ended = began.Add(11 * 203 * time.Second)
	m := inventory.Machine{Name: w.Machine, Interfaces: []inventory.Interface{{MAC: "02:00:00:02:00:01", UEFI: true}}}
	require.NoError(t, s.store.Machines.PutMachines(ctx, []inventory.Machine{m}, false, "test"))
	require.NoError(t, s.store.Workflows.PutWorkflow(ctx, w))
	require.NoError(t, s.store.Events.AppendEvents(ctx, events))

	o := inventory.Operation{
		Run: "run-recover", ID: "recover/rack-2", Type: inventory.TypeRecover, Name: "rack-2", State: inventory.StateRunning, Step: "node-57",
		Message: "1 of 3 machines installed, 1 failed", Started: began, Updated: began,
	}
	const wipes, waits = "wipe the machine and install it", "until the installed system has phoned home"
	for name, state := range map[string]string{"node-2": inventory.StepDone, "node-57": inventory.StepRunning, "node-61": inventory.StepFailed} {
		step := inventory.OperationStep{
			Name: name, Machine: name, Does: wipes, Waits: waits, Undo: "none: the old contents of the disk are lost",
			State: state, Budget: 2 * time.Hour, Since: began,
		}
		if state == inventory.StepFailed {
			step.Message = "action 2 of 4, grow-partition: the disk has no partition table, " + strings.Repeat("and-a-word-without-end", 6)
			step.Ended = began.Add(12 * time.Minute)
		}
		o.Steps = append(o.Steps, step)
	}
	require.NoError(t, s.store.Operations.PutOperation(ctx, o))
}

// TestPageViews shows table, run and operation on a desktop, on a small screen, zoomed to 200 %, and on a phone: nothing is
// wider than the window, and no reason, step or row of an operation is cut.
func TestPageViews(t *testing.T) {
	runInTurn(t, 15, 8)
	s := newPageSite(t)
	s.addStory(t)
	p := openTab(t)
	p.logIn(s, pageToken)

	places := map[string]string{
		"machines/node-69": `[data-panel="node-69"] [data-question]`, "machines/slow": `[data-panel="slow"] [data-step="install"]`,
		"operations/run-recover": `[data-operation-panel] [data-operation-step="node-61"]`, "": `[data-machine="node-69"]`,
	}
	screens := []struct {
		name          string
		width, height int64
		scale         float64
		colours       string
	}{
		{"desktop", 1440, 900, 1, "light"}, {"small", 1024, 768, 1, "dark"}, {"zoomed", 720, 450, 2, "light"}, {"phone", 390, 844, 1, "dark"},
	}
	for _, screen := range screens {
		p.do(screen.name, at(screen.width, screen.height, screen.colours),
			chromedp.EmulateViewport(screen.width, screen.height, chromedp.EmulateScale(screen.scale)))
		for place, sight := range places {
			what := screen.name + "-" + strings.ReplaceAll(place, "/", "-")
			p.do(what, chromedp.Navigate(s.URL+"/#/"+place), see(sight))
			p.fits(what)
			p.picture(what)
			if screen.colours == "dark" {
				p.check(what)
			}
		}
	}

	p.do("the desktop again", at(1440, 900, "light"), chromedp.Navigate(s.URL+"/#/"))
	p.answersMany(s)
	p.showsThePast(s)
	p.findsEverything(s)
}

// findsEverything searches by keyboard, lists the operations, and shows the charts.
func (p *pageTab) findsEverything(s *pageSite) {
	p.t.Helper()
	const field = `input[name="everything"]`
	p.do("a search", chromedp.SendKeys(field, "slow", chromedp.ByQuery), see(`[data-found] a[href="#/runs/run-slow"]`))
	p.everywhere("search")
	p.do("the first hit", chromedp.SendKeys(field, kb.Enter, chromedp.ByQuery), see(`[data-panel="slow"]`),
		chromedp.WaitNotPresent(`[data-found]`, chromedp.ByQuery))
	p.do("the operations", chromedp.Navigate(s.URL+"/#/operations"), see(`[data-operation] progress`))
	p.everywhere("operations")
	p.do("one of them", click(`[data-operation="recover/rack-2"] a`), see(`[data-operation-panel="recover/rack-2"] [data-choice="pause"]`))
	p.do("the charts", chromedp.Navigate(s.URL+"/#/statistics"), see(`[data-chart="days"] rect`),
		see(`[data-chart="phases"] [data-bar="Install"] rect`), see(`[data-chart="actions"] [data-bar="wipe"]`))
	p.everywhere("statistics")
	p.do("the days as a table", click(`[data-chart="days"] summary`), see(`[data-chart="days"] table`))
	p.check("the days as a table")
}

// hostileText is what a machine may send to take over a reader's browser.
const hostileText = "\x1b]0;owned\x07<img src=x onerror=\"document.title='owned'\">\u202e"

// pageWhy is the decision for every machine of the site, with one packet.
func pageWhy(context.Context, string) (any, error) {
	return inventory.Explanation{
		Verdict: "disk", Reasons: []string{"the machine is not armed"},
		Exchanges: []inventory.Exchange{{At: time.Now(), Where: "eno2", Request: "DHCPDISCOVER " + hostileText, Answer: "DHCPOFFER"}},
	}, nil
}

// showsThePast opens the runs, the syslog and the last packets of a machine, and one of its runs.
func (p *pageTab) showsThePast(s *pageSite) {
	p.t.Helper()
	require.NoError(p.t, s.store.Syslog.PutSyslog(p.t.Context(), []inventory.SyslogLine{
		{Machine: "slow", At: time.Now(), Severity: "err", Program: "kernel", Text: hostileText + strings.Repeat("w", 300)},
	}))
	p.do("a machine", chromedp.Navigate(s.URL+"/#/machines/slow"), see(`[data-panel="slow"]`))
	for part, sight := range map[string]string{"runs": `[data-run="run-slow"]`, "syslog": `[data-syslog="err"]`, "packets": `[data-packet]`} {
		p.do(part, chromedp.Focus(`[data-part="`+part+`"] summary`, chromedp.ByQuery), chromedp.KeyEvent(kb.Enter), see(sight))
	}
	p.everywhere("past")
	var title string
	p.do("its run", click(`[data-run="run-slow"] a`), see(`[data-run-panel="run-slow"] [data-step="install"]`), chromedp.Title(&title))
	require.NotEqual(p.t, "owned", title)
	p.everywhere("run")
}

// answersMany answers machines that ask the same, by keyboard alone.
func (p *pageTab) answersMany(s *pageSite) {
	p.t.Helper()
	focus := func(selector string) chromedp.Action { return chromedp.Focus(selector, chromedp.ByQuery) }
	p.do("the same question", focus(`[data-bulk="decide"] summary`), chromedp.KeyEvent(kb.Enter), see(`[data-bulk="decide"] input:checked`))
	p.check("the same question")
	p.picture("same-question")
	p.do("all but the first", focus(`[data-bulk="decide"] input`), chromedp.KeyEvent(" "), see(`[data-bulk="decide"] input:not(:checked)`),
		focus(`[data-choice="retry-many"]`), chromedp.KeyEvent(kb.Enter),
		see(`[data-choice-sure="retry-many"]:focus`), chromedp.KeyEvent(kb.Enter), see(`[data-choice="retry-many"]:not(:disabled)`))
	_, answers := s.temporal.noted()
	require.Equal(p.t, []string{
		sampleRun(94, "", time.Time{}).Run + " 1.power.1 retry",
		sampleRun(119, "", time.Time{}).Run + " 1.power.1 retry",
		sampleRun(144, "", time.Time{}).Run + " 1.power.1 retry",
	}, answers)
}
