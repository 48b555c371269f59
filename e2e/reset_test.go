package e2e

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestResetLeavesTheMachineAlone resets a run that has installed a machine to each of its workflow
// tasks after the plan was made, with the unmodified temporal command: the BMC gets no command, the
// disk does not change, and the machine can be provisioned afterwards.
func TestResetLeavesTheMachineAlone(t *testing.T) {
	runInTurn(t, 15, 5)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	m, err := s.Add(ctx, lab.Spec{Name: "kept", Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")},
		func(doc map[string]any) { doc["image"] = "sim" })
	require.NoError(t, err)
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name()})
	require.NoError(t, err)
	w := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateSuccess, w.State, w.Message)
	_, err = m.WaitSerial(ctx, "LAB-MINI-PHONED-HOME")
	require.NoError(t, err)

	told, ons, resets, disk := m.BMC().Told(), m.PowerOns(), m.Resets(), digestOf(t, m.DiskPath())
	planned, points := false, 0
	for _, e := range s.shown(ctx, t, m.Name(), run) {
		planned = planned || e.Type == "EVENT_TYPE_ACTIVITY_TASK_COMPLETED"
		if !planned || e.Type != "EVENT_TYPE_WORKFLOW_TASK_COMPLETED" {
			continue
		}
		points++
		r := s.resetRun(ctx, t, m.Name(), run, e.ID)
		t.Logf("reset to event %s: %s: %s", e.ID, r.State, r.Message)
		if points == 1 {
			require.Equal(t, inventory.StateFailed, r.State)
			require.Contains(t, r.Message, "the plan of run")
		}
		require.NotContains(t, r.Next, "failed-step")
		_, err := s.CLI(ctx, "workflow", "retry", r.Run, "--from", "failed-step")
		require.Error(t, err)
		require.Equal(t, told, m.BMC().Told(), "the BMC was given a command")
		s.closed(ctx, t, m.Name())
	}
	require.Greater(t, points, 5)
	require.Equal(t, []any{ons, resets, lab.On}, []any{m.PowerOns(), m.Resets(), m.PowerState()})
	require.Equal(t, disk, digestOf(t, m.DiskPath()))

	s.must(ctx, t, "machine", "provision", m.Name(), "--yes", "--wait")
}

// resetRun resets a run to an event with the unmodified temporal command, and returns the run that follows once it has
// ended. If it asks, abort has to be the only choice, and is taken.
func (s *Site) resetRun(ctx context.Context, t *testing.T, machine, run, event string) inventory.Workflow {
	t.Helper()
	out, err := s.TemporalCLI(ctx, "workflow", "reset", "--workflow-id", workflows.MachineID(machine), "--run-id", run,
		"--event-id", event, "--reason", "test", "-o", "json")
	require.NoError(t, err)
	var next struct {
		RunID string `json:"runId"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &next), "%s", out)
	r := s.of(ctx, t, next.RunID, func(w inventory.Workflow) bool { return w.Question != nil || final(w) })
	if r.Question != nil {
		require.Equal(t, []string{contract.Abort}, r.Question.Choices, r.Question.Text)
		require.NoError(t, s.decides(ctx, machine, contract.Decision{Question: r.Question.ID, Choice: contract.Abort}))
		r = s.of(ctx, t, next.RunID, final)
	}
	return r
}
