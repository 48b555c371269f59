package bmc

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestBMCDoesNotAnswer: the operator reads that the BMC does not answer. What ipmitool wrote is in the debug log.
func TestBMCDoesNotAnswer(t *testing.T) {
	const said = "Get Auth Capabilities error\nError issuing Get Channel Authentication Capabilities request\n" +
		"Error: Unable to establish IPMI v2 / RMCP+ session"
	for what, do := range map[string]func(b *bench) error{
		"reading the power state": func(b *bench) error {
			_, err := b.State(t.Context(), b.bmc, password())
			return err
		},
		"power on": func(b *bench) error { return b.Set(t.Context(), b.bmc, password(), "on", nil) },
		"boot pxe": func(b *bench) error {
			_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe"}, nil)
			return err
		},
	} {
		b := newBench(t)
		for _, command := range []string{"chassis-power-status", "chassis-power-on", "chassis-bootdev-pxe", "chassis-bootparam-get", "raw-0x00-0x08"} {
			b.set("fail-"+command, said)
		}
		err := do(b)
		require.ErrorIs(t, err, inventory.ErrUnreachable, what)
		require.ErrorContains(t, err, ": BMC 192.0.2.3 does not answer (IPMI, UDP port 623; check the BMC's address", what)
		require.NotContains(t, err.Error(), "RMCP", what)
		require.Contains(t, b.log.String(), "Unable to establish IPMI v2 / RMCP+ session", "for an operator who looks for the reason")
	}

	b := newBench(t)
	b.set("fail-chassis-power-status", "> Error: no response from RAKP 1 message\nError: Unable to establish IPMI v2 / RMCP+ session")
	_, err := b.State(t.Context(), b.bmc, password())
	require.ErrorContains(t, err, "check bmc.user and bmc.cipherSuite", "it has answered the request before the log-in")
}

// TestSilentBMCOfOtherDrivers: a port on which nothing listens is the same for each protocol.
func TestSilentBMCOfOtherDrivers(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	port := l.Addr().(*net.TCPAddr).Port
	for driver, want := range map[string]string{
		inventory.DriverRedfish: "BMC 127.0.0.1 does not answer (Redfish: dial tcp 127.0.0.1:",
		inventory.DriverAMT:     "BMC 127.0.0.1 does not answer (AMT: dial tcp 127.0.0.1:",
	} {
		b := newBench(t)
		b.cfg.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
		x := inventory.BMC{Driver: driver, Host: "127.0.0.1", Port: port, User: "admin"}
		_, err := b.State(t.Context(), x, password())
		require.ErrorIs(t, err, inventory.ErrUnreachable, driver)
		require.ErrorContains(t, err, want)
	}
}
