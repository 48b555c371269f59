package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// A pageTab is a tab of the browser with the page.
type pageTab struct {
	context.Context
	t   *testing.T
	axe string
}

func openTab(t *testing.T) *pageTab {
	t.Helper()
	axe, err := os.ReadFile("../web/node_modules/axe-core/axe.min.js")
	require.NoError(t, err, "make web installs it")
	return &pageTab{browser(t.Context(), t), t, string(axe)}
}

// do carries out steps; what says for what.
func (p *pageTab) do(what string, steps ...chromedp.Action) {
	p.t.Helper()
	onPage(p, p.t, what, steps...)
}

// check fails the test if axe finds a problem of accessibility in what is shown.
func (p *pageTab) check(what string) {
	p.t.Helper()
	var findings string
	p.do(what, chromedp.Evaluate(p.axe+"; 0", nil), chromedp.Evaluate(`axe.run(document, {resultTypes: ["violations"]}).then(r =>
		r.violations.map(v => v.id + ": " + v.help + "\n" +
			v.nodes.map(n => "  " + n.target.join(" ") + "\n  " + n.failureSummary).join("\n")).join("\n"))`, &findings, awaited))
	assert.Empty(p.t, findings, what)
}

// picture writes a screenshot if INGOT_PICTURES names a folder.
func (p *pageTab) picture(name string) {
	p.t.Helper()
	if dir := os.Getenv("INGOT_PICTURES"); dir != "" {
		var shot []byte
		p.do(name, chromedp.Sleep(500*time.Millisecond), chromedp.CaptureScreenshot(&shot))
		require.NoError(p.t, os.WriteFile(filepath.Join(dir, name+".png"), shot, 0o644))
	}
}

// at shows the page in a size and in light or dark colours, without motion.
func at(width, height int64, scheme string) chromedp.Action {
	return chromedp.Tasks{
		chromedp.EmulateViewport(width, height, chromedp.EmulateScale(1)),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme},
			{Name: "prefers-reduced-motion", Value: "reduce"},
		}),
	}
}

// everywhere checks what is shown, and takes its pictures, in three widths, light and dark.
func (p *pageTab) everywhere(name string) {
	p.t.Helper()
	for _, look := range []struct {
		suffix        string
		width, height int64
		scheme        string
	}{{"", 1440, 900, "light"}, {"-dark", 1440, 900, "dark"}, {"-1024", 1024, 768, "light"}, {"-phone", 390, 844, "light"}} {
		p.do(name+look.suffix, at(look.width, look.height, look.scheme))
		p.fits(name + look.suffix)
		p.check(name + look.suffix)
		p.picture(name + look.suffix)
	}
	p.do("the desktop again", at(1440, 900, "light"))
}

// logIn opens the page with the token of the test.
func (p *pageTab) logIn(s *pageSite, token string) {
	p.t.Helper()
	p.do("logging in", at(1440, 900, "light"), chromedp.Navigate(s.URL+"/"),
		chromedp.SendKeys(`input[name="token"]`, token+"\r", chromedp.ByQuery), see(`[data-machine]`))
}

// typeInto replaces the text of a field of a form.
func typeInto(field, text string) chromedp.Action {
	id := `[id="field-` + field + `"]`
	return chromedp.Tasks{
		chromedp.Evaluate(`{ const e = document.querySelector('`+id+`'); e.focus(); e.select() }`, nil),
		chromedp.SendKeys(id, text, chromedp.ByQuery),
	}
}

// TestPageManagesMachines adds a machine by the form, and edits it while another client changes it.
func TestPageManagesMachines(t *testing.T) {
	runInTurn(t, 15, 8)
	s := newPageSite(t)
	p := openTab(t)
	p.logIn(s, pageToken)

	p.do("the form", click(`a[href="#/new/machine"]`), see(`[data-machine-form]`))
	var focused string
	p.do("what is wrong, all at once, by the keyboard alone",
		chromedp.Focus(`[id="field-name"]`, chromedp.ByQuery),
		chromedp.KeyEvent("Node 7"),
		chromedp.SendKeys(`[id="field-interfaces[0].mac"]`, "02:zz", chromedp.ByQuery),
		chromedp.SendKeys(`[id="field-interfaces[0].address"]`, "10.30.0.300\r", chromedp.ByQuery),
		see(`[data-field="interfaces[0].address"] .failure`),
		chromedp.Evaluate(`document.activeElement.name`, &focused))
	require.Equal(t, "interfaces[0].address", focused)
	p.do("correcting it", typeInto("interfaces[0].address", "10.30.0.77/24\r"), see(`[data-field="name"] .failure`),
		see(`[data-field="interfaces[0].mac"] .failure`))
	p.everywhere("machine-form")
	p.do("adding it", typeInto("name", "node-7x"), typeInto("labels", "rack=<b>r1</b>"), typeInto("interfaces[0].mac", "02:00:00:01:00:77\r"),
		see(`[data-field="labels"] .failure`), typeInto("labels", "rack=r1"), click(`[data-choice="save"]`), see(`[data-panel="node-7x"]`))
	m, err := s.store.Machines.Machine(t.Context(), "node-7x")
	require.NoError(t, err)
	require.Equal(t, "255.255.255.0", m.Interfaces[0].Netmask)

	p.do("editing it", click(`a[href="#/machines/node-7x/edit"]`), see(`[data-machine-form="node-7x"]`), typeInto("labels", "rack=mine"))
	m.Labels = map[string]string{"rack": "theirs"}
	require.NoError(t, s.store.Machines.ChangeMachine(t.Context(), m, "test"))
	var typed, conflict string
	p.do("after another change", click(`[data-choice="save"]`), see(`[data-conflict]`),
		chromedp.Text(`[data-conflict]`, &conflict, chromedp.ByQuery),
		chromedp.Value(`[id="field-labels"]`, &typed, chromedp.ByQuery))
	require.Contains(t, conflict, "labels.rack")
	require.Equal(t, "rack=mine", typed)
	p.everywhere("machine-edit")
	p.do("saving it", click(`[data-choice="save"]`), see(`[data-said]`))
	m, err = s.store.Machines.Machine(t.Context(), "node-7x")
	require.NoError(t, err)
	require.Equal(t, "mine", m.Labels["rack"])

	p.do("deleting it", click(`[data-by-name] summary`), chromedp.SendKeys(`[data-by-name] input`, "node-7x\r", chromedp.ByQuery),
		chromedp.WaitNotPresent(`[data-edit]`, chromedp.ByQuery))
	_, err = s.store.Machines.Machine(t.Context(), "node-7x")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}
