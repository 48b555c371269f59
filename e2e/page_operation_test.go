package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// TestPageShowsGenesis uses only the page to operate a Genesis: its questions, what it waits for,
// and the buttons for the answers.
func TestPageShowsGenesis(t *testing.T) {
	runInTurn(t, 25, 6)
	ctx := needLab(t)
	s := site(ctx, t)
	file, router := s.exampleLab(t)
	// Another host uses the address that the file gives to the router.
	setRouterAddress := func(verb string) {
		t.Helper()
		require.NoError(t, s.Command(ctx, lab.Router, "ip", "addr", verb, router+"/24", "dev", "eth20").Run())
	}
	setRouterAddress("add")
	s.must(ctx, t, "genesis", "start", file, "--yes")

	tab := s.openPage(ctx, t)
	do := func(what string, steps ...chromedp.Action) {
		t.Helper()
		onPage(tab, t, what, steps...)
	}

	var rows int
	do(
		"the operation",
		see(`[data-operation="genesis/home"]`),
		click(`[data-operation="genesis/home"] *`),
		see(`[data-operation-panel="genesis/home"]`),
		see(`[data-operation-step="join-ms-02-c"]`),
		chromedp.Evaluate(`document.querySelectorAll('[data-operation-step]').length`, &rows),
	)
	require.Equal(t, 11, rows)

	// Preflight asks a question, and no machine was powered on.
	var question, title string
	do(
		"the question",
		see(`[data-question^="preflight"]`),
		chromedp.Text(`[data-question^="preflight"]`, &question, chromedp.ByQuery),
		chromedp.Title(&title),
	)
	require.Contains(t, question, "already answers at "+router+", the address for machine vp6630")
	require.Contains(t, title, "(1) waiting")
	setRouterAddress("del")
	// The host remembers the owner of an address for a while.
	require.NoError(t, s.Command(ctx, s.Namespace, "ip", "neigh", "flush", "all").Run())
	do(
		"trying again",
		click(`[data-question^="preflight"] [data-choice="retry"]`),
		see(`[data-operation-step="preflight"][data-step-state="done"]`),
	)

	// A machine without a BMC waits for an operator, who confirms here.
	var row string
	do(
		"the router's power",
		see(`[data-awaited="vp6630"] [data-choice="powered-on"]`),
		see(`[data-operation-step="router"][data-tone="waiting"] time`),
		chromedp.Text(`[data-operation-step="router"]`, &row, chromedp.ByQuery),
	)
	require.Contains(t, row, "vp6630")
	require.Contains(t, row, "switches vp6630 on")
	do(
		"saying that it is on",
		click(`[data-awaited="vp6630"] [data-choice="powered-on"]`),
		chromedp.WaitNotPresent(`[data-awaited="vp6630"] [data-choice="powered-on"]`, chromedp.ByQuery),
	)
	do(
		"cancelling",
		click(`[data-operation-panel] [data-choice="cancel"]`),
		click(`[data-choice-sure="cancel"]`),
		see(`[data-operation="genesis/home"][data-state="CANCELLED"]`),
	)
	s.closed(ctx, t, "vp6630")
}

// picture saves a picture of the page while the cluster's first node is being installed.
func (e *genesisRun) picture(ctx context.Context, file string) {
	e.t.Helper()
	e.until(ctx, "create", func(o inventory.Operation, row inventory.OperationStep) bool {
		require.False(e.t, inventory.Final(o.State), "%s: %s", o.Step, o.Message)
		w, err := e.runOf(ctx, row.Run)
		return row.Run != "" && err == nil && w.Phase == inventory.PhaseInstall
	})
	var shot []byte
	require.NoError(e.t, chromedp.Run(
		e.openPage(ctx, e.t),
		chromedp.EmulateViewport(1440, 1240),
		chromedp.WaitVisible(
			`[data-operation="genesis/home"]`,
			chromedp.ByQuery,
		),
		click(`[data-operation="genesis/home"] *`),
		chromedp.WaitVisible(`[data-operation-step="create"][data-step-state="running"]`, chromedp.ByQuery),
		chromedp.CaptureScreenshot(&shot),
	))
	require.NoError(e.t, os.WriteFile(file, shot, 0o644))
}

var imageOf = regexp.MustCompile(`(file: (images/[^,]+), sha256: )[0-9a-f]{64}`)

// exampleLab writes the example lab, changed to the lab's own network and existing images. It
// returns its file and the address of its router.
func (s *Site) exampleLab(t *testing.T) (file, router string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "lab")
	require.NoError(t, os.CopyFS(dir, os.DirFS("../deploy/genesis")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "images"), 0o755))
	server := netip.MustParseAddr(s.Address).As4()
	net := fmt.Sprintf("%d.%d.%d.", server[0], server[1], server[2])
	moved := strings.NewReplacer("10.10.20.", "10.99.20.", "192.168.1.10", s.Address, "192.168.1.2", net+"50", "192.168.1.", net)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		text := imageOf.ReplaceAllStringFunc(moved.Replace(string(b)), func(m string) string {
			part := imageOf.FindStringSubmatch(m)
			require.NoError(t, os.WriteFile(filepath.Join(dir, part[2]), []byte(part[2]+strings.Repeat("\n", 4096)), 0o644))
			sum := sha256.Sum256([]byte(part[2] + strings.Repeat("\n", 4096)))
			return part[1] + hex.EncodeToString(sum[:])
		})
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "lab.yaml"), net + "50"
}
