package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestUpgradeUnderLoad starts runs with the build of the baseline commit, which is named in the
// file e2e/baseline (make previous), one in each kind of wait. It finishes them with this build:
// the workflows replay, this server serves the baseline's agents, and it reads the baseline's
// database. TestReplay in workflows replays recorded histories (security S13).
func TestUpgradeUnderLoad(t *testing.T) {
	runInTurn(t, 19, 3)
	ctx := needLab(t)
	previous := filepath.Join("..", "bin", "previous")
	for _, f := range []string{"ingot", "worker-agent"} {
		_, err := os.Stat(filepath.Join(previous, f))
		require.NoError(t, err, "run make previous")
	}
	s, err := NewSite(ctx, Options{Root: "..", Programs: previous, Dir: keepDir(t)})
	require.NoError(t, err)
	s.keep(t)

	s.template(ctx, t, "step", `version: "0.1"
name: step
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: one, image: noop, timeout: 600}
  - {name: two, image: noop, timeout: 600}
  - {name: "off", image: poweroff, timeout: 60}
`)
	s.template(ctx, t, "write", `version: "0.1"
name: write
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: wipe, image: wipe, timeout: 600, environment: {DEST_DISK: /dev/vda}}
  - {name: "off", image: poweroff, timeout: 60}
`)
	s.template(ctx, t, "sleep", `version: "0.1"
name: sleep
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: sleep, image: noop, timeout: 600, environment: {SLEEP: "15"}}
  - {name: "off", image: poweroff, timeout: 60}
`)
	machine := func(n int, name string) *Simulated {
		mac := fmt.Sprintf("52:54:02:00:00:%02x", n)
		require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{map[string]any{
			"name": name, "interfaces": []any{map[string]any{"mac": mac, "address": fmt.Sprintf("10.10.120.%d", n), "netmask": "255.255.255.0"}},
		}}}, nil))
		return s.Simulate(name, mac)
	}
	start := func(name, template string, see func(w inventory.Workflow) bool) {
		_, err := s.Provision(ctx, contract.ProvisionInput{Machine: name, Template: template})
		require.NoError(t, err)
		_, err = s.Follow(ctx, name, see)
		require.NoError(t, err)
	}
	phase := func(phase string) func(w inventory.Workflow) bool {
		return func(w inventory.Workflow) bool { return w.Phase == phase }
	}

	// Waits for its power button.
	off := machine(1, "off")
	start("off", "step", phase(inventory.PhasePower))

	// This run has assigned an action.
	busy := machine(2, "busy")
	start("busy", "step", phase(inventory.PhasePower))
	_, err = busy.armed(ctx)
	require.NoError(t, err)
	_, err = busy.Boot(ctx)
	require.NoError(t, err)
	first := busy.assigned(ctx, t)

	// This run asks which of two disks to use.
	asks := machine(3, "asks")
	asks.Facts = action.Facts{Disks: []action.Disk{
		{Path: "/dev/vda", Serial: "A", Size: 1 << 30, Blank: true}, {Path: "/dev/vdb", Serial: "B", Size: 1 << 30, Blank: true},
	}}
	start("asks", "write", phase(inventory.PhasePower))
	_, err = asks.armed(ctx)
	require.NoError(t, err)
	_, err = asks.Boot(ctx)
	require.NoError(t, err)
	w, err := s.Follow(ctx, "asks", func(w inventory.Workflow) bool { return w.Question != nil })
	require.NoError(t, err)

	// The agent of the old build is carrying out an action.
	old := machine(4, "old")
	start("old", "sleep", phase(inventory.PhasePower))
	agent := s.agent(ctx, t, old, filepath.Join(previous, "worker-agent"))
	_, err = s.Follow(ctx, "old", func(w inventory.Workflow) bool { return len(w.Actions) > 0 && w.Actions[0].State == action.Running })
	require.NoError(t, err)

	require.NoError(t, s.Upgrade(ctx, "../bin"))

	require.NoError(t, busy.Done(ctx, first))
	busy.obey(ctx, t)
	s.ended(ctx, t, "busy", inventory.StateSuccess)

	s.must(ctx, t, "workflow", "decide", "asks", "--question", w.Question.ID, "--choice", contract.Retry, "--disk-serial", "B")
	a := asks.assigned(ctx, t)
	require.Equal(t, "B", a.Disk.Serial)
	require.NoError(t, asks.Done(ctx, a))
	asks.obey(ctx, t)
	s.ended(ctx, t, "asks", inventory.StateSuccess)

	_, err = off.armed(ctx)
	require.NoError(t, err)
	_, err = off.Boot(ctx)
	require.NoError(t, err)
	off.obey(ctx, t)
	s.ended(ctx, t, "off", inventory.StateSuccess)

	s.ended(ctx, t, "old", inventory.StateSuccess)
	require.NoError(t, agent.Wait())
	var list struct{ Items []inventory.Workflow }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows", nil, &list))
	require.Len(t, list.Items, 4, "every run is the one that the old build began")
	for _, m := range []string{"off", "busy", "asks", "old"} {
		s.closed(ctx, t, m)
	}
}

// agent runs the given agent program for an armed machine, with a file of 1 GiB as its only disk.
func (s *Site) agent(ctx context.Context, t *testing.T, m *Simulated, program string) *lab.Cmd {
	t.Helper()
	args, err := m.armed(ctx)
	require.NoError(t, err)
	disk := filepath.Join(s.dir, m.Name+".raw")
	require.NoError(t, os.WriteFile(disk, nil, 0o600))
	require.NoError(t, os.Truncate(disk, 1<<30))
	c := s.Command(ctx, lab.Server, program, append(agentFlags(args),
		"-machine", m.Name, "-mac", m.MAC, "-disk", "/dev/vda="+disk+",serial="+m.Name)...)
	require.NoError(t, c.Start())
	return c
}
