package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestAnInstallersBootIsSpentByItsPayload(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	g, err := w.AllowInstaller(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	require.True(t, g.Installer)
	require.False(t, g.Spent)
	require.Equal(t, w.in(time.Hour), g.SecretsUntil, "documents are served from the first moment on")
	_, err = w.redeem(o, 1, "n1")
	require.ErrorIs(t, err, inventory.ErrNotFound, "no agent belongs to this boot")

	other := o
	other.Epoch++
	require.ErrorIs(t, w.SpendBoot(ctx, other, 1, "initrd"), inventory.ErrFenced)
	require.ErrorIs(t, w.SpendBoot(ctx, o, 2, "initrd"), inventory.ErrFenced)
	require.NoError(t, w.SpendBoot(ctx, o, 1, "initrd"))
	require.NoError(t, w.SpendBoot(ctx, o, 1, "initrd"))
	require.Len(t, w.events(inventory.EventPayload), 1)
	g, err = w.AllowInstaller(ctx, o, 1, w.in(2*time.Hour))
	require.NoError(t, err)
	require.True(t, g.Spent, "renewing makes no new boot")
	require.False(t, g.NetbootOpen(w.clock.Now()))

	g, err = w.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	require.False(t, g.Installer)
	require.False(t, g.Spent)
	require.ErrorIs(t, w.SpendBoot(ctx, o, 2, "initrd"), inventory.ErrFenced, "this boot is the agent's")
	require.NoError(t, w.EndGrant(ctx, o))
	require.ErrorIs(t, w.SpendBoot(ctx, o, 2, "initrd"), inventory.ErrFenced)
}

func TestTheFirstReportOfAnInstallerCounts(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	_, err := w.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.InstallerReported(ctx, o, false, "")
	require.ErrorIs(t, err, inventory.ErrFenced, "the agent is at work, no installer")
	_, err = w.AllowInstaller(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	fresh, err := w.InstallerReported(ctx, o, true, "no disk")
	require.NoError(t, err)
	require.True(t, fresh)
	fresh, err = w.InstallerReported(ctx, o, false, "")
	require.NoError(t, err)
	require.False(t, fresh)
	require.Empty(t, w.events(inventory.EventInstalled))
	failed := w.events(inventory.EventInstallFailed)
	require.Len(t, failed, 1)
	require.Equal(t, "no disk", failed[0].Message)
	require.Equal(t, 2, failed[0].Boot)

	// Another boot is asked anew.
	_, err = w.AllowInstaller(ctx, o, 3, w.in(time.Hour))
	require.NoError(t, err)
	fresh, err = w.InstallerReported(ctx, o, false, "")
	require.NoError(t, err)
	require.True(t, fresh)
	n, err := w.PendingSignals(ctx, o)
	require.NoError(t, err)
	require.Equal(t, 2, n, "the run hears of both")
}
