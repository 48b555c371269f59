package bmc

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// machinesOff has a machine that is off for each driver.
var machinesOff = map[string]func(t *testing.T) (*Driver, inventory.BMC){
	inventory.DriverIPMI: func(t *testing.T) (*Driver, inventory.BMC) { b := newBench(t); return b.Driver, b.bmc },
	inventory.DriverAMT:  func(t *testing.T) (*Driver, inventory.BMC) { b := newAMTBench(t); return b.Driver, b.bmc },
	inventory.DriverRedfish: func(t *testing.T) (*Driver, inventory.BMC) {
		b := newRedfishBench(t, vlab.RedfishDell)
		return b.Driver, b.bmc
	},
	inventory.DriverRPC:  func(t *testing.T) (*Driver, inventory.BMC) { d, _, b := newConsumer(t); return d, b },
	inventory.DriverExec: func(t *testing.T) (*Driver, inventory.BMC) { d, b, _, _ := newPlug(t); return d, b },
}

// TestDriversDoWhatTheirCapabilitiesSay is the conformance test of all drivers.
func TestDriversDoWhatTheirCapabilitiesSay(t *testing.T) {
	for _, name := range inventory.Drivers() {
		can := (&inventory.BMC{Driver: name}).Capabilities()
		require.Equal(t, !can.Manual, providers[name] != nil, name)
		if can.Manual {
			continue
		}
		require.NotNil(t, machinesOff[name], "%s: give it a machine to test with", name)
		t.Run(name, func(t *testing.T) { conform(t, machinesOff[name], can) })
	}
	for name := range providers {
		require.Contains(t, inventory.Drivers(), name)
	}
}

func conform(t *testing.T, machineOff func(t *testing.T) (*Driver, inventory.BMC), can inventory.Capabilities) {
	d, b := machineOff(t)
	d.cfg.Settle = 20 * time.Millisecond
	ctx := t.Context()
	writes := 0
	counted := func(context.Context) error { writes++; return nil }
	fenced := func(context.Context) error { return inventory.ErrFenced }
	supported := func(yes bool, err error) {
		t.Helper()
		if yes {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, inventory.ErrUnsupported)
		}
	}
	state := func() string {
		t.Helper()
		s, err := d.State(ctx, b, password())
		require.NoError(t, err)
		return s
	}

	// Power: proven by a read, and written only if it changes.
	require.Equal(t, Off, state())
	require.NoError(t, d.Set(ctx, b, password(), "off", counted))
	require.Zero(t, writes, "it is off already")
	require.ErrorIs(t, d.Set(ctx, b, password(), "on", fenced), inventory.ErrFenced)
	require.Equal(t, Off, state())
	require.NoError(t, d.Set(ctx, b, password(), "on", counted))
	require.Equal(t, 1, writes)
	require.Equal(t, On, state())
	require.NoError(t, d.Set(ctx, b, password(), "cycle", nil))
	require.Equal(t, On, state())
	supported(can.Soft, d.Set(ctx, b, password(), "reset", nil))
	require.ErrorIs(t, d.Set(ctx, b, password(), "sideways", nil), inventory.ErrInvalid)

	// Boot device.
	warning, err := d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "pxe"}, nil)
	require.NoError(t, err)
	reads := can.BootDevice && !can.BlindBoot
	require.Equal(t, reads, warning == "", "a driver that cannot choose or read back says so: %q", warning)
	report, err := d.Check(ctx, b, password())
	require.NoError(t, err)
	require.Equal(t, On, report.Power)
	require.Equal(t, reads, report.Boot == "pxe once", report.Boot)
	_, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "pxe", Persistent: true}, nil)
	supported(can.Persistent, err)
	_, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "disk"}, nil)
	supported(can.BootDevice, err)
	_, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "none"}, nil)
	require.NoError(t, err)
	_, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "floppy"}, nil)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	if can.BootDevice {
		_, err = d.SetBootDevice(ctx, b, password(), inventory.BootDevice{Device: "pxe"}, fenced)
		require.ErrorIs(t, err, inventory.ErrFenced)
	}

	// The controller itself.
	supported(can.ResetsBMC, d.ResetBMC(ctx, b, password(), nil))
	if can.NeedsPassword {
		_, err = d.State(ctx, b, inventory.Secret{})
		require.ErrorIs(t, err, inventory.ErrRefused)
	}
	b.Host = "203.0.113.9"
	if can.Relayed {
		b.ConsumerURL = "http://203.0.113.9/rpc"
	}
	_, err = d.State(ctx, b, password())
	require.ErrorContains(t, err, "bmc.networks", "nothing outside of the configured networks is dialed")
}
