package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestOldOrderIsNotRepeated: a decommission is cancelled, and the machine is installed. The decommission is then retried by REST, by
// the command line, and with Temporal's own reset: the installed system stays. The page offers no retry. Jobs of the BMC and
// inspections change nothing in what the page shows of a machine that is ready, or whose installation failed.
func TestOldOrderIsNotRepeated(t *testing.T) {
	runInTurn(t, 60, 1)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	m, err := s.Add(ctx, lab.Spec{Name: "kept", Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")},
		func(doc map[string]any) { doc["image"] = "sim" })
	require.NoError(t, err)

	s.must(ctx, t, "machine", "decommission", "kept", "--yes")
	old, err := s.Follow(ctx, "kept", func(inventory.Workflow) bool { return true })
	require.NoError(t, err)
	require.Equal(t, inventory.TypeDecommission, old.Type)
	s.must(ctx, t, "workflow", "cancel", old.Run, "--wait")
	s.must(ctx, t, "machine", "provision", "kept", "--yes", "--wait")
	_, err = m.WaitSerial(ctx, "LAB-MINI-PHONED-HOME")
	require.NoError(t, err)
	ons, resets, disk := m.PowerOns(), m.Resets(), digestOf(t, m.DiskPath())
	kept := func(after string) {
		t.Helper()
		require.Equal(t, []int{ons, resets}, []int{m.PowerOns(), m.Resets()}, after)
		require.Equal(t, disk, digestOf(t, m.DiskPath()), after)
		require.Equal(t, inventory.StateSuccess, s.stateOf(ctx, t, "kept"), after)
	}

	for _, from := range []string{contract.FromStart, contract.FromFailedStep} {
		err = s.REST(ctx, http.MethodPost, "/v1/workflows/"+old.Run+"/retry", map[string]string{"from": from}, nil)
		require.ErrorContains(t, err, "only the newest run can be retried", from)
		_, err = s.CLI(ctx, "workflow", "retry", old.Run, "--from", from, "--yes")
		require.ErrorContains(t, err, "only the newest run can be retried", from)
	}
	kept("REST and command line")

	for _, e := range s.shown(ctx, t, "kept", old.Run) {
		if e.Type != "EVENT_TYPE_WORKFLOW_TASK_COMPLETED" {
			continue
		}
		r := s.resetRun(ctx, t, "kept", old.Run, e.ID)
		require.NotEqual(t, inventory.StateSuccess, r.State)
		require.Equal(t, []int{ons, resets}, []int{m.PowerOns(), m.Resets()}, "reset to event %s", e.ID)
		require.Equal(t, disk, digestOf(t, m.DiskPath()), "reset to event %s", e.ID)
	}

	s.showsInstallation(ctx, t)
}

// stateOf returns the state that the list of machines shows.
func (s *Site) stateOf(ctx context.Context, t *testing.T, machine string) string {
	t.Helper()
	var m struct{ Workflow inventory.Workflow }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines/"+machine, nil, &m))
	return m.Workflow.State
}

// showsInstallation installs a machine again, and then lets an installation fail. Neither a job of its BMC nor an inspection
// changes what the page and the list show.
func (s *Site) showsInstallation(ctx context.Context, t *testing.T) {
	t.Helper()
	s.template(ctx, t, "fails", `version: "0.1"
name: fails
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: fail, image: noop, timeout: 60, environment: {EXIT: "3"}}
`)
	tab := s.openPage(ctx, t)
	row, panel := `[data-machine="kept"]`, `[data-panel="kept"]`
	for _, c := range []struct{ template, state, retry string }{
		{"", inventory.StateSuccess, "false"}, {"fails", inventory.StateFailed, "true"},
	} {
		run, err := s.Provision(ctx, contract.ProvisionInput{Machine: "kept", Template: c.template})
		require.NoError(t, err)
		w := s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil || final(w) })
		if w.Question != nil {
			require.NoError(t, s.decides(ctx, "kept", contract.Decision{Question: w.Question.ID, Choice: contract.Abort}))
			s.of(ctx, t, run, final)
		}
		s.must(ctx, t, "machine", "power", "status", "kept")
		_, err = s.CLI(ctx, "bmc", "job", "create", "kept", "--task", "media:http://192.0.2.1/x.iso") // the simulator has no drive
		require.Error(t, err)
		s.must(ctx, t, "machine", "inspect", "kept", "--wait")

		require.Equal(t, c.state, s.stateOf(ctx, t, "kept"))
		require.Contains(t, s.must(ctx, t, "machine", "list", "--state", c.state), "kept")
		var retries string
		var shot []byte
		onPage(tab, t, c.state,
			see(row+`[data-state="`+c.state+`"]`), click(row+` a`), see(panel+` [data-choice="decommission"], `+panel+` details`),
			chromedp.Evaluate(`String(document.querySelector('`+panel+` [data-choice^="retry"]') !== null)`, &retries),
			chromedp.CaptureScreenshot(&shot))
		require.Equal(t, c.retry, retries, c.state)
		if dir := os.Getenv("E2E_PICTURES"); dir != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "state-"+c.state+".png"), shot, 0o644))
		}
	}
}
