package bmc

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestOperationsAreObserved: each operation is reported once, with its outcome and without a name of the site.
func TestOperationsAreObserved(t *testing.T) {
	b := newBench(t)
	var seen []string
	b.cfg.Observe = func(_ context.Context, o Operation) {
		require.GreaterOrEqual(t, o.Took, time.Duration(0))
		seen = append(seen, fmt.Sprintf("%s, %s: %s", o.Driver, o.Name, o.Outcome))
	}
	ctx := t.Context()
	lost := func(context.Context) error { return inventory.ErrFenced }
	gone, cancel := context.WithCancel(ctx)
	cancel()

	_, err := b.State(ctx, b.bmc, password())
	require.NoError(t, err)
	_, err = b.SetBootDevice(ctx, b.bmc, password(), inventory.BootDevice{Device: "pxe"}, lost)
	require.Error(t, err)
	_, err = b.State(ctx, b.bmc, inventory.NewSecret("wrong"))
	require.Error(t, err)
	_, err = b.State(gone, b.bmc, password())
	require.Error(t, err)
	require.Error(t, b.Set(ctx, inventory.BMC{Driver: inventory.DriverManual}, inventory.Secret{}, "on", nil))
	waker := inventory.BMC{Driver: inventory.DriverWOL, MAC: "52:54:00:00:00:01", Broadcast: netip.MustParseAddr("192.0.2.255")}
	require.Error(t, b.Set(ctx, waker, inventory.Secret{}, "off", nil))
	require.Equal(t, []string{
		"ipmi, reading power state: ok",
		"ipmi, boot device: fenced",
		"ipmi, reading power state: refused",
		"ipmi, reading power state: cancelled",
		"unknown, power on: unsupported",
		"wol, power off: unsupported",
	}, seen)
}
