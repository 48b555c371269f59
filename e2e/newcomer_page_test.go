package e2e

import (
	"context"
	"os"
	"strings"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// openForwardedPage logs a browser of this machine in to the page of the host, as a newcomer does by "ssh -L 8080:127.0.0.1:8080".
func (h host) openForwardedPage(ctx context.Context, l *lab.Lab) *pageTab {
	h.t.Helper()
	h.must(ctx, "systemd-run --unit forwarder systemd-socket-activate -l "+lab.ServerAddress+":8081 "+
		"/lib/systemd/systemd-socket-proxyd 127.0.0.1:8080")
	address, err := l.Forward(ctx, lab.Host, "127.0.0.1:0", lab.Router, lab.ServerAddress+":8081")
	require.NoError(h.t, err)
	link := strings.Replace(h.must(ctx, "ingot login-link"), "127.0.0.1:8080", address, 1)
	p := openTab(h.t)
	p.do("logging in", at(1440, 900, "light"), chromedp.Navigate(link), see(`[data-machine="node-1"]`))
	return p
}

// show opens a place of the page.
func show(place, sight string) chromedp.Action {
	return chromedp.Tasks{chromedp.Evaluate(`{ location.hash = "`+place+`" }`, nil), see(sight)}
}

// installRackByPage does what installRack does by the command line: everything between the rack's file and eight installed machines is
// done on the page.
func (h host) installRackByPage(ctx context.Context, l *lab.Lab, r *rack) {
	h.t.Helper()
	p := h.openForwardedPage(ctx, l)
	b, err := os.ReadFile(r.file)
	require.NoError(h.t, err)
	docs := string(b)

	p.do("only this rack in the table", chromedp.SendKeys(`input[aria-label="Find a machine"]`, r.name, chromedp.ByQuery))
	p.do("the file", click(`a[href="#/new/file"]`), see(`[data-add="file"]`),
		chromedp.SetUploadFiles(`[id="field-file"]`, []string{r.file}, chromedp.ByQuery), see(`[data-choice="preview"]:not(:disabled)`),
		typeInto("set", r.name), click(`[data-choice="preview"]`), see(`[data-preview="20"]`))
	p.everywhere("newcomer-1-file")
	p.do("storing it", click(`[data-choice="apply"]`), see(`[data-stored]`), see(`[data-machine="`+r.machine(20)+`"]`))

	p.do("editing one", show("#/machines/"+r.machine(2)+"/edit", `[data-machine-form]`),
		choose("template", "image"), click(`[data-choice="save"]`), see(`[data-said]`))
	p.everywhere("newcomer-2-edited")
	p.do("labelling one", show("#/machines/"+r.machine(8)+"/edit", `[data-machine-form="`+r.machine(8)+`"]`),
		typeInto("labels", "rack="+r.name+"\nbatch="+r.name), click(`[data-choice="save"]`), see(`[data-said]`))
	labelled := strings.Replace(docs, "labels: {", "labels: {batch: "+r.name+", ", 7)
	p.do("labelling others by the file", show("#/new/file", `[data-add="file"]`), write(labelled), typeInto("set", r.name),
		click(`[data-choice="preview"]`), see(`[data-applied="`+r.machine(7)+`"][data-result="changed"]`),
		see(`[data-applied="`+r.machine(8)+`"][data-result="unchanged"]`))
	p.everywhere("newcomer-3-labels")
	p.do("storing it", click(`[data-choice="apply"]`), see(`[data-stored]`))

	p.do("eight of them", click(`a[href="#/new/installation"]`), see(`[data-add="installation"]`), typeInto("selector", "batch="+r.name),
		typeInto("concurrency", "4"), click(`[data-choice="preview"]`), see(`[data-preview="8"]`))
	p.everywhere("newcomer-4-preview")
	p.do("installing them", click(`[data-choice="install-many"]`), click(`[data-choice-sure="install-many"]`), see(`[data-operation-panel]`))
	h.correctByPage(p, r)
	h.checkEight(ctx, r)
}

// correctByPage ends the run of the machine with the wrong disk, corrects the disk, and starts the run again.
func (h host) correctByPage(p *pageTab, r *rack) {
	h.t.Helper()
	panel := `[data-panel="` + r.wrong() + `"]`
	p.do("a question", see(`[data-awaited="`+r.wrong()+`"] [data-question]`))
	p.everywhere("newcomer-5-operation")
	p.do("the machine that asks", show("#/machines/"+r.wrong(), panel+` [data-question]`))
	p.everywhere("newcomer-6-question")
	p.do("ending its run", click(panel+` [data-choice="abort"]`), click(`[data-choice-sure="abort"]`), see(panel+`[data-state="FAILED"]`))
	p.everywhere("newcomer-7-failed")
	p.do("correcting it", show("#/machines/"+r.wrong()+"/edit", `[data-machine-form="`+r.wrong()+`"]`),
		typeInto("diskSelector.serial", r.machines[r.wrong()].Spec().DiskSerial), click(`[data-choice="save"]`), see(`[data-said]`))
	p.do(
		"installing it again",
		show("#/machines/"+r.wrong(), panel),
		click(`[data-choice="retry-start"]`),
		click(`[data-choice-sure="retry-start"]`),
	)
	for n := 1; n <= 8; n++ {
		p.do("all eight", see(`[data-machine="`+r.machine(n)+`"][data-state="`+inventory.StateSuccess+`"]`))
	}
	p.everywhere("newcomer-8-done")
}
