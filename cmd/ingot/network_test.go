package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
)

func TestGateways(t *testing.T) {
	require.Equal(t, []netip.Addr{netip.MustParseAddr("192.168.1.1")}, gateways(routesLab))
	require.Empty(t, gateways(""))
}

// A member of a bridge or a bond is not offered: its controller has its packets.
func TestControllerOf(t *testing.T) {
	sys := t.TempDir()
	for name, mark := range map[string]string{"eth0": "brport", "eth1": "bonding_slave", "eth2": ""} {
		require.NoError(t, os.MkdirAll(filepath.Join(sys, name, mark), 0o755))
	}
	require.NoError(t, os.Symlink("../br0", filepath.Join(sys, "eth0", "master")))
	require.NoError(t, os.Symlink("../bond0", filepath.Join(sys, "eth1", "master")))
	require.NoError(t, os.Symlink("../vrf-blue", filepath.Join(sys, "eth2", "master"))) // keeps its addresses and packets
	require.Equal(t, "br0", controllerOf(sys, "eth0"))
	require.Equal(t, "bond0", controllerOf(sys, "eth1"))
	require.Empty(t, controllerOf(sys, "eth2"))
	require.Empty(t, controllerOf(sys, "eth9"))
}

// What init has written it does not ask its operator to write.
func TestInitKnowsWhatItHasWritten(t *testing.T) {
	n := config.Netboot{Interfaces: []string{"eth1"}}
	require.True(t, holds(n, []string{"eth1"}, relayOnly{}))
	require.False(t, holds(n, []string{"eth2"}, relayOnly{}))
	relay := relayOnly{on: true, relays: []string{"10.0.20.1"}, address: "192.0.2.10"}
	require.False(t, holds(n, nil, relay))
	n = config.Netboot{RelayOnly: true, Relays: []string{"10.0.20.1"}, Address: "192.0.2.10"}
	require.True(t, holds(n, nil, relay))
	relay.address = "192.0.2.11"
	require.False(t, holds(n, nil, relay))
}

// Doctor names reservations that cannot be answered, one line per subnet.
func TestDoctorLooksAtReservations(t *testing.T) {
	at := func(name, address string) inventory.Machine {
		return inventory.Machine{Name: name, Interfaces: []inventory.Interface{{Address: netip.MustParseAddr(address), Netmask: "255.255.255.0"}}}
	}
	n := inventory.Network{
		Own: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, On: true,
	}
	d := &doctor{}
	d.reservations(n, []inventory.Machine{at("right", "10.0.0.9"), at("self", "10.0.0.2"), at("far-1", "10.0.7.1"), at("far-2", "10.0.7.2")})
	require.Len(t, d.findings, 2)
	require.Equal(t, isWarn, d.findings[0].State)
	require.Contains(t, d.findings[0].Text, "self: 10.0.0.2 is this server's own address")
	require.Contains(t, d.findings[1].Text, "far-1, far-2: no interface of this server is in 10.0.7.0/24")
}
