package actions

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/container"
)

// S23: what the agent itself refuses of a container in a signed order, before it fetches anything.
func TestS23ContainersAreRefused(t *testing.T) {
	t.Parallel()
	good := func() action.Container {
		return action.Container{URL: "http://192.0.2.1/x", SHA256: strings.Repeat("0", 64), Digest: "sha256:" + strings.Repeat("0", 64)}
	}
	for name, x := range map[string]struct {
		change    func(*action.Container)
		volume    string
		protected []action.DiskID
		want      string
	}{
		"no digest":                   {func(c *action.Container) { c.Digest = "latest" }, "", nil, "invalid digest"},
		"no digest of the archive":    {func(c *action.Container) { c.SHA256 = "" }, "", nil, "has no SHA-256"},
		"privileged, protected disks": {func(c *action.Container) { c.Privileged = true }, "", []action.DiskID{{Serial: "P"}}, "protected disks"},
		"no bound disk":               {func(c *action.Container) { c.Disk = true }, "", nil, "no disk is bound"},
		"a partition without leave":   {nil, "/dev/sda1:/mnt", nil, "does not let this container use the disk"},
		"the agent's files":           {nil, "/run:/mnt", nil, "a container cannot see /run"},
		"another disk":                {nil, "/dev/sdb1:/mnt", nil, "is not a partition of the run's disk"},
	} {
		c := good()
		if x.change != nil {
			x.change(&c)
		}
		a := action.Action{Name: "c", Image: "c", Container: &c}
		if x.volume != "" {
			a.Volumes = []string{x.volume}
		}
		task := newTask(Machine{Containers: &container.Runner{}}, action.Assignment{Action: a, DiskAlias: "/dev/sda", Protected: x.protected})
		require.ErrorContains(t, runContainer(t.Context(), task, a), x.want, name)
	}
}
