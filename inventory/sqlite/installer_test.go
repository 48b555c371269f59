package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

func TestPayloadSpendsInstallerBoot(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	g, err := w.Grants.AllowInstaller(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	require.True(t, g.Installer)
	require.False(t, g.Spent)
	require.Equal(t, w.in(time.Hour), g.SecretsUntil, "documents are served from the beginning")
	_, err = w.redeem(o, 1, "n1")
	require.ErrorIs(t, err, inventory.ErrNotFound, "no agent belongs to this boot")

	other := o
	other.Epoch++
	require.ErrorIs(t, w.Plans.SpendBoot(ctx, other, 1, "initrd"), inventory.ErrFenced)
	require.ErrorIs(t, w.Plans.SpendBoot(ctx, o, 2, "initrd"), inventory.ErrFenced)
	require.NoError(t, w.Plans.SpendBoot(ctx, o, 1, "initrd"))
	require.NoError(t, w.Plans.SpendBoot(ctx, o, 1, "initrd"))
	require.Len(t, w.events(inventory.EventPayload), 1)
	g, err = w.Grants.AllowInstaller(ctx, o, 1, w.in(2*time.Hour))
	require.NoError(t, err)
	require.True(t, g.Spent, "renewing does not allow a new boot")
	require.False(t, g.NetbootOpen(w.clock.Now()))

	g, err = w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	require.False(t, g.Installer)
	require.False(t, g.Spent)
	require.ErrorIs(t, w.Plans.SpendBoot(ctx, o, 2, "initrd"), inventory.ErrFenced, "this boot is the agent's")
	require.NoError(t, w.Grants.EndGrant(ctx, o))
	require.ErrorIs(t, w.Plans.SpendBoot(ctx, o, 2, "initrd"), inventory.ErrFenced)
}

func TestFirstInstallerReportCounts(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	_, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.Plans.InstallerReported(ctx, o, false, "")
	require.ErrorIs(t, err, inventory.ErrFenced, "the agent is running, not an installer")
	_, err = w.Grants.AllowInstaller(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	fresh, err := w.Plans.InstallerReported(ctx, o, true, "no disk")
	require.NoError(t, err)
	require.True(t, fresh)
	g, err := w.Grants.Grant(ctx, o.Machine)
	require.NoError(t, err)
	require.True(t, g.Spent, "the delivery is not recorded, but an installer that reports has booted: its restart does not boot it again")
	require.False(t, g.NetbootOpen(w.clock.Now()))
	fresh, err = w.Plans.InstallerReported(ctx, o, false, "")
	require.NoError(t, err)
	require.False(t, fresh)
	require.Empty(t, w.events(inventory.EventInstalled))
	failed := w.events(inventory.EventInstallFailed)
	require.Len(t, failed, 1)
	require.Equal(t, "no disk", failed[0].Message)
	require.Equal(t, 2, failed[0].Boot)

	// A system that phones home for its own boot has booted, too.
	_, err = w.Grants.AllowInstaller(ctx, o, 3, w.in(time.Hour))
	require.NoError(t, err)
	for _, boot := range []int{2, 3} {
		require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{{
			Machine: o.Machine, Run: o.Run, Epoch: o.Epoch, Boot: boot,
			Kind: inventory.EventPhoneHome, Key: "phone-home",
		}}))
		g, err = w.Grants.Grant(ctx, o.Machine)
		require.NoError(t, err)
		require.Equal(t, boot == 3, g.Spent)
	}

	// Another boot can report again.
	require.NoError(t, w.Grants.MoreBoots(ctx, o, inventory.MaxBoots))
	_, err = w.Grants.AllowInstaller(ctx, o, 4, w.in(time.Hour))
	require.NoError(t, err)
	fresh, err = w.Plans.InstallerReported(ctx, o, false, "")
	require.NoError(t, err)
	require.True(t, fresh)
	n, err := w.Events.PendingSignals(ctx, o)
	require.NoError(t, err)
	require.Equal(t, 4, n, "the run hears of each")
}

// The agent restarts the machine when its report is acknowledged, maybe before the run reads the
// report: the report itself allows the installer's boot.
func TestReportOfLeavingAgentAllowsInstaller(t *testing.T) {
	for _, c := range []struct {
		name  string
		state action.State
		until time.Duration
		left  int
		boot  int
	}{
		{"success", action.Success, time.Hour, 2, 2},
		{"failure", action.Failed, time.Hour, 2, 1},
		{"another action", action.Success, 0, 2, 1},
		{"no boot left", action.Success, time.Hour, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			ctx := t.Context()
			o := w.take("run-1")
			_, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
			require.NoError(t, err)
			_, err = w.redeem(o, 1, "n1")
			require.NoError(t, err)
			if c.left == 0 {
				require.NoError(t, w.Grants.own(ctx, grantChange{what: "using up boots", set: "boots_left = ?4", value: 0}, o))
			}
			k := action.Key{Epoch: o.Epoch, Action: 0, Attempt: 1}
			a := inventory.Assignment{Owner: o, Boot: 1, Key: k}
			if c.until > 0 {
				a.NextUntil = w.in(c.until)
			}
			require.NoError(t, w.Assignments.Assign(ctx, a))
			_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r", State: c.state})
			require.NoError(t, err)
			g, err := w.Grants.Grant(ctx, o.Machine)
			require.NoError(t, err)
			require.Equal(t, c.boot, g.Boot)
			require.Equal(t, c.boot == 2, g.Installer)
			require.Equal(t, c.boot == 2, g.NetbootOpen(w.clock.Now()))
			if c.boot == 2 {
				require.Equal(t, w.in(c.until), g.SecretsUntil)
				// A repeated report allows nothing again.
				require.NoError(t, w.Grants.CloseNetboot(ctx, o))
				_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r", State: c.state})
				require.NoError(t, err)
				g, err = w.Grants.Grant(ctx, o.Machine)
				require.NoError(t, err)
				require.False(t, g.NetbootOpen(w.clock.Now()))
			}
		})
	}
}
