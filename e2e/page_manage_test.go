package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
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

// write replaces the text of the editor on the page.
func write(text string) chromedp.Action {
	return chromedp.Evaluate(fmt.Sprintf(
		`{ const e = document.querySelector(".editor textarea"); e.value = %q; e.dispatchEvent(new Event("input", {bubbles: true})) }`,
		text,
	), nil)
}

// choose picks an option of a field of a form.
func choose(field, value string) chromedp.Action {
	id := `[id="field-` + field + `"]`
	return chromedp.Tasks{
		chromedp.Poll(`[...document.querySelectorAll('`+id+` option')].some(o => o.value === "`+value+`")`, nil),
		chromedp.SetValue(id, value, chromedp.ByQuery),
		chromedp.Evaluate(`document.querySelector('`+id+`').dispatchEvent(new Event("change", {bubbles: true}))`, nil),
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

	const card = `ethernets: [{name: nic0, mac: "02:00:00:01:00:77", mtu: `
	p.do("its network, as YAML", typeInto("network", card+"5}]"), click(`[data-choice="save"]`),
		see(`[data-field="network"] [data-line="1"]`))
	p.everywhere("machine-network")
	p.do("correcting it", typeInto("network", card+"9000}]"), click(`[data-choice="save"]`), see(`[data-said]`))
	m, err = s.store.Machines.Machine(t.Context(), "node-7x")
	require.NoError(t, err)
	require.Equal(t, 9000, m.Network.Ethernets[0].MTU)

	p.do("deleting it", click(`[data-by-name] summary`), chromedp.SendKeys(`[data-by-name] input`, "node-7x\r", chromedp.ByQuery),
		chromedp.WaitNotPresent(`[data-edit]`, chromedp.ByQuery))
	_, err = s.store.Machines.Machine(t.Context(), "node-7x")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}

// TestPageManagesImages uploads an image over a connection that breaks, and deletes it although a machine names it.
func TestPageManagesImages(t *testing.T) {
	runInTurn(t, 15, 8)
	s := newPageSite(t)
	file := filepath.Join(t.TempDir(), "Some Disk.img")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("some"), 5<<20), 0o600))
	const long = "ubuntu-24.04-server-cloudimg-amd64"
	require.NoError(t, s.store.Images.PutImage(t.Context(), inventory.Image{
		Name: long, File: long, SHA256: strings.Repeat("0", 64), Format: "raw", Size: 1 << 30,
		Warning: "the image contains neither a partition table nor a file system: no machine boots from it",
	}, "test"))
	p := openTab(t)
	p.logIn(s, pageToken)

	var name string
	var lines float64
	p.do("the images", click(`nav a[href="#/images"]`), see(`[data-image="debian-12"]`))
	p.everywhere("images")
	p.do(
		"a form",
		click(`a[href="#/new/image"]`),
		see(`[data-image-form="catalogue"]`),
		chromedp.Evaluate(`{ const [short, long] = ["debian-12", "`+long+`"].map(name =>
			document.querySelector('[data-image="' + name + '"] a').offsetHeight); long / short }`, &lines),
	)
	require.InDelta(t, 1, lines, 0, "the name of an image wraps although there is room")
	p.everywhere("image-add")
	p.do("a file", choose("way", "upload"),
		chromedp.SetUploadFiles(`[id="field-file"]`, []string{file}, chromedp.ByQuery),
		see(`[data-image-form="upload"] [data-choice="add-image"]:not(:disabled)`),
		chromedp.Value(`[id="field-name"]`, &name, chromedp.ByQuery))
	require.Equal(t, "some-disk", name)
	p.do("over a connection that breaks", click(`[data-choice="add-image"]`), see(`[data-transfer="some-disk"]`),
		see(`[data-image-panel="some-disk"]`))
	require.Greater(t, s.uploads.Load(), int64(3), "20 MiB in parts of 8, and one that was cut off")
	i, err := s.store.Images.Image(t.Context(), "some-disk")
	require.NoError(t, err)
	require.Equal(t, int64(20<<20), i.Given().Size)
	p.do("reading it again", click(`[data-choice="verify"]`), chromedp.WaitVisible(`[role="status"]:not(:empty)`, chromedp.ByQuery))
	p.everywhere("image")

	// What names it is said before it goes.
	require.NoError(t, s.store.Machines.PutMachines(t.Context(), []inventory.Machine{{
		Name: "namer", Image: "some-disk", Interfaces: []inventory.Interface{{MAC: "02:00:00:01:00:70"}},
	}}, false, "test"))
	var said string
	p.do("deleting it", click(`[data-by-name] summary`), chromedp.SendKeys(`[data-by-name] input`, "some-disk\r", chromedp.ByQuery),
		see(`[data-by-name] .refused`), chromedp.Text(`[data-by-name] .refused`, &said, chromedp.ByQuery))
	require.Contains(t, said, "machine namer")
	p.do("deleting it nevertheless", click(`[data-by-name] input[name="anyway"]`), click(`[data-choice="delete-image"]`),
		chromedp.WaitNotPresent(`[data-image="some-disk"]`, chromedp.ByQuery))
}

// TestPageInstallsMany adds machines from a file, and installs those of a selector. The page shows both before it does them.
func TestPageInstallsMany(t *testing.T) {
	runInTurn(t, 10, 8)
	s := newPageSite(t)
	p := openTab(t)
	p.logIn(s, pageToken)
	var docs strings.Builder
	for i := range 5 {
		fmt.Fprintf(&docs, "---\nname: fresh-%d\nimage: debian-12\nlabels: {lot: nine}\ninterfaces: [{mac: \"02:00:00:02:00:%02x\"}]\n", i, i)
	}
	p.addsFile(s, docs.String())
	p.do("what cannot be installed", click(`a[href="#/new/installation"]`), see(`[data-add="installation"]`),
		typeInto("machines", "fresh-0 node-1 hand-1"), click(`[data-choice="preview"]`), see(`[data-field="machines"] .failure li:nth-child(2)`))
	p.do("what can", typeInto("machines", " "), typeInto("selector", "lot=nine\r"), see(`[data-preview="5"]`))
	p.everywhere("install-many")
	p.do("installing it", click(`[data-choice="install-many"]`), click(`[data-choice-sure="install-many"]`),
		see(`[data-operation-panel] [data-choice="pause"]`))
	started, _ := s.temporal.noted()
	in := started[len(started)-1].(contract.RecoverInput)
	require.Equal(t, []string{"fresh-0", "fresh-1", "fresh-2", "fresh-3", "fresh-4"}, in.Machines)
	require.Equal(t, 1, in.Canary)
	require.True(t, in.First)
}

// addsFile stores the machines of a file after a correction, and after another client has changed one of them.
func (p *pageTab) addsFile(s *pageSite, docs string) {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "rack.yaml")
	require.NoError(p.t, os.WriteFile(file, []byte(strings.Replace(docs, "02:00:00:02:00:03", "02:00:00:02:00:zz", 1)), 0o600))
	preview := click(`[data-choice="preview"]`)
	p.do(
		"a file with a problem",
		click(`a[href="#/new/file"]`),
		see(`.editor`),
		chromedp.SetUploadFiles(`[id="field-file"]`, []string{file}, chromedp.ByQuery),
		see(`[data-choice="preview"]:not(:disabled)`),
		typeInto("set", "rack-a1"),
		preview,
		see(`[data-line="20"]`),
	)
	p.everywhere("file-problem")
	p.do("corrected", write(docs), preview, see(`[data-preview="5"]`))
	p.everywhere("file")
	_, err := s.store.Machines.Machine(p.t.Context(), "fresh-0")
	require.ErrorIs(p.t, err, inventory.ErrNotFound)
	p.do("stored", click(`[data-choice="apply"]`), see(`[data-stored]`))

	m, err := s.store.Machines.Machine(p.t.Context(), "fresh-4")
	require.NoError(p.t, err)
	m.Image = "debian-13"
	require.NoError(p.t, s.store.Machines.ChangeMachine(p.t.Context(), m, "test"))
	p.do("a stale file", write(strings.ReplaceAll(docs, "debian-12", "debian-11")), preview, see(`[data-applied="fresh-4"] .failure`),
		see(`[data-choice="apply"]:disabled`))
	p.everywhere("file-conflict")
}

// TestPageManagesTemplates corrects a template at the lines that the server names, and makes a token.
func TestPageManagesTemplates(t *testing.T) {
	runInTurn(t, 15, 8)
	s := newPageSite(t)
	p := openTab(t)
	p.logIn(s, pageToken)
	const source = `textarea[aria-label="Source of the template"]`
	const good = "version: \"0.1\"\nname: mine\nglobal_timeout: 60\ntasks:\n- name: a\n  worker: \"{{.device_1}}\"\n  actions:\n" +
		"  - {name: b, image: noop, timeout: 5}\n"
	var selected string
	p.do("a template with two problems", click(`nav a[href="#/templates"]`), see(`[data-template="image"]`), click(`a[href="#/new/template"]`),
		see(source), write("version: \"0.1\"\nname: mine\ncolour: red\nglobal_timeout: x\n"), click(`[data-choice="save"]`),
		see(`[data-line="3"]`), see(`[data-line="4"]`))
	p.everywhere("template")
	p.do("to the line", click(`[data-line="3"]`), chromedp.Evaluate(
		`{ const a = document.activeElement; a.value.slice(a.selectionStart, a.selectionEnd) }`, &selected))
	require.Equal(t, "colour: red", selected)
	p.do("correcting it", write(good), click(`[data-choice="save"]`), see(`[data-template-panel="mine"]`))
	stored, err := s.store.Templates.Template(t.Context(), "mine")
	require.NoError(t, err)
	require.Equal(t, good, stored.Source)

	p.do(
		"the tokens",
		click(`nav a[href="#/tokens"]`),
		chromedp.SendKeys(`[id="field-name"]`, "watcher\r", chromedp.ByQuery),
		see(`[data-secret]`),
	)
	var token string
	p.do("the token", chromedp.Text(`[data-secret]`, &token, chromedp.ByQuery), see(`[data-token="watcher"]`))
	p.everywhere("tokens")
	p.do("once", click(`[data-choice="kept"]`), chromedp.WaitNotPresent(`[data-secret]`, chromedp.ByQuery))

	// A session that may only read sees it all, and acts on nothing.
	reader := openTab(t)
	reader.logIn(s, token)
	var tabs int
	for place, there := range map[string]string{
		"/#/machines/new": `[data-panel="new"] [data-choice="install"]`, "/#/images/debian-12": `[data-image-panel] [data-choice="verify"]`,
		"/#/templates/mine": `[data-template-panel] [data-choice="save"]`, "/#/machines/new/edit": `[data-edit] [data-choice="save"]`,
	} {
		reader.do(place, chromedp.Navigate(s.URL+place), chromedp.WaitReady(there+":disabled", chromedp.ByQuery),
			chromedp.Evaluate(`document.querySelectorAll('nav a').length`, &tabs))
		assert.Equal(t, 5, tabs, "tokens are for administrators")
	}

	p.do("revoking it", click(`[data-token="watcher"] summary`),
		chromedp.SendKeys(`[data-token="watcher"] input[name="confirm"]`, "watcher\r", chromedp.ByQuery),
		chromedp.WaitNotPresent(`[data-token="watcher"]`, chromedp.ByQuery))
	reader.do("after that", see(`input[name="token"]`))
}
