package e2e

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// terminatedUnderBMC terminates a run whose agent is writing, on a machine with a BMC, and
// provisions the machine again at once. The agent does not notice and continues to write until its
// power is cut; before that, no other boot may be allowed.
func terminatedUnderBMC(ctx context.Context, t *testing.T, s *Site) {
	m, err := s.Add(ctx, lab.Spec{Name: "switched", Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}, nil)
	require.NoError(t, err)
	slow, fast := s.drip(ctx, t, 32<<20, 40*time.Millisecond), s.drip(ctx, t, 24<<20, 0)
	provision := func(d *drip) string {
		in := d.input()
		in.Machine = m.Name()
		run, err := s.Provision(ctx, in)
		require.NoError(t, err)
		return run
	}
	first := provision(slow)
	s.of(ctx, t, first, func(r inventory.Workflow) bool {
		return len(r.Actions) > 0 && r.Actions[0].Total > 0 && r.Actions[0].Done*100/r.Actions[0].Total >= 20
	})
	writing := m.Agent()
	require.NotNil(t, writing)
	require.Equal(t, []int{writing.Pid()}, holders(m.DiskPath()))

	gate := lab.NewGate(lab.StageAgent) // only the first agent can use the disk yet
	m.SetStage(gate.Stage)
	s.terminate(ctx, t, m.Name(), first)
	second := provision(fast)
	_, err = s.Simulate(m.Name(), m.Spec().MAC).armed(ctx)
	require.NoError(t, err)
	require.Empty(t, holders(m.DiskPath()), "a boot of run 2 is allowed while the agent of run 1 may write")
	require.NoError(t, gate.Reached(ctx))
	select {
	case <-writing.Done():
	default:
		require.Fail(t, "the agent of run 1 lives on")
	}
	gate.Open()
	end := s.of(ctx, t, second, final)
	require.Equal(t, inventory.StateSuccess, end.State, end.Message)
	require.Equal(t, 1, m.Writers(), "never two writers")
	require.Equal(t, 2, m.PowerOns(), "once for each run")
	got, err := DigestOf(m.DiskPath(), fast.size)
	require.NoError(t, err)
	require.Equal(t, fast.sum, got, "the disk holds the second run's image, bit by bit")
	s.closed(ctx, t, m.Name())
}
