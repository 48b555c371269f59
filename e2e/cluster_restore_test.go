package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestTemporalRestored loses the server's host while runs are open in the cluster, and restores a backup of before. The restored
// server holds the run of the backup, starts no more machines of its recovery, and cancels a run that began after the backup. No
// BMC is written to.
func TestTemporalRestored(t *testing.T) {
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, _ := clusterSite(ctx, t, lab.TemporalOpen)
	_, err = s.setUp(ctx, t)
	require.NoError(t, err)
	require.NoError(t, s.Start(ctx))
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	const first, second, later = "first", "second", "later"
	machines, gates := map[string]*lab.Machine{}, map[string]*lab.Gate{}
	for _, name := range []string{first, second, later} {
		gates[name] = lab.NewGate(lab.StageAgent)
		spec := lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent"), Stage: gates[name].Stage}
		machines[name], err = s.Add(ctx, spec, func(doc map[string]any) { doc["image"], doc["template"] = "sim", "image" })
		require.NoError(t, err)
	}

	s.must(ctx, t, "recover", "start", "all", "--machine", first+","+second, "--concurrency", "1", "--yes")
	require.NoError(t, gates[first].Reached(ctx))
	passphrase, backup := filepath.Join(s.dir, "passphrase"), filepath.Join(s.dir, "backup.tar")
	require.NoError(t, os.WriteFile(passphrase, []byte("correct horse battery\n"), 0o600))
	s.must(ctx, t, "backup", "--to", backup, "--images", "--passphrase-file", passphrase)
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: later})
	require.NoError(t, err)
	require.NoError(t, gates[later].Reached(ctx))

	s.Kill()
	touched := func() map[string][]any {
		out := map[string][]any{}
		for name, m := range machines {
			out[name] = []any{m.PowerOns(), m.Resets(), m.PowerState(), m.NextBoot(), m.Writers(), m.BMC().Told()}
		}
		return out
	}
	before := touched()
	require.Equal(t, 1, machines[later].PowerOns())
	require.Zero(t, machines[second].PowerOns(), "its turn had not come")
	require.NoError(t, os.Rename(s.data(), filepath.Join(s.dir, "lost")))
	t.Log(s.must(ctx, t, "restore", backup, "--yes", "--passphrase-file", passphrase))
	began := time.Now()
	require.NoError(t, s.Start(ctx))
	t.Logf("the restored server works after %.0f s", time.Since(began).Seconds())

	w, err := s.Follow(ctx, first, func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseWaiting })
	require.NoError(t, err)
	require.Contains(t, w.Question.Text, "the server was restored")
	require.Equal(t, []string{contract.Abort}, w.Question.Choices)
	require.Contains(t, s.must(ctx, t, "status"), first+": its run began before the restore")
	o := s.operationEnds(ctx, t, "recover.all")
	require.Equal(t, inventory.StateFailed, o.State)
	require.Equal(t, map[string]string{first: inventory.StepFailed, second: inventory.StepFailed}, states(o))
	require.Contains(t, o.Steps[1].Message, "the server was restored")

	c, err := client.NewLazyClient(s.temporalOptions(t))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, waitFor(ctx, "the run of after the backup", func() (bool, error) {
		d, err := c.DescribeWorkflowExecution(ctx, workflows.MachineID(later), run)
		return d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, err
	}))
	s.must(ctx, t, "workflow", "decide", first, "--choice", contract.Abort)
	s.ended(ctx, t, first, inventory.StateFailed)
	for name := range machines {
		s.closed(ctx, t, name)
	}
	require.Equal(t, before, touched())
}
