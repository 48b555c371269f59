package config

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/inventory"
)

// TestS31RelayOnlyWithoutRelays: the server refuses to start, and says what
// to write.
func TestS31RelayOnlyWithoutRelays(t *testing.T) {
	_, err := load(t, "netboot:\n  relay_only: true\n  interfaces: [eth0]\n")
	require.ErrorIs(t, err, inventory.ErrInvalid)
	for _, want := range []string{"ingot.yaml:3", "relays are also answered on interfaces", "netboot.address", "write this server's address", "netboot.relays", "relays: [10.0.20.1]"} {
		require.Contains(t, err.Error(), want)
	}
	_, err = load(t, "netboot:\n  listen: everywhere\n")
	require.ErrorContains(t, err, "invalid IPv4 address")
	_, err = load(t, "netboot:\n  listen: 0.0.0.0\n")
	require.ErrorContains(t, err, "relay_only: true")
}

func TestRelayOnly(t *testing.T) {
	c, err := load(t, "netboot:\n  relay_only: true\n  address: 192.168.1.10\n  relays: [10.10.20.1]\n")
	require.NoError(t, err)
	require.True(t, c.Netboot.On())
	require.False(t, Default().Netboot.On())
}

// TestLoader: an unknown loader is refused; names of files belong to interfaces of machines.
func TestLoader(t *testing.T) {
	c, err := load(t, "netboot:\n  loader: shim\n")
	require.NoError(t, err)
	require.Equal(t, inventory.LoaderShim, c.Netboot.Loader)
	_, err = load(t, "netboot:\n  loader: ipxe.efi\n")
	require.ErrorContains(t, err, "ingot.yaml:2")
	require.ErrorContains(t, err, `unknown loader "ipxe.efi" (write one of shim, ipxe-shim, or leave it out)`)
}

// An address names its interface. An address that this host does not have does not
// make it listen anywhere.
func TestAddressAlone(t *testing.T) {
	c, err := load(t, "netboot:\n  address: 127.0.0.1\n")
	require.NoError(t, err)
	require.True(t, c.Netboot.On())
	n, err := c.Netboot.Resolve()
	require.NoError(t, err)
	require.Len(t, n.Interfaces, 1)
	c.Netboot.Address = "192.0.2.77"
	_, err = c.Netboot.Resolve()
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "no interface of this host has the address 192.0.2.77")
	c.Netboot.RelayOnly = true
	n, err = c.Netboot.Resolve()
	require.NoError(t, err)
	require.Empty(t, n.Interfaces)
}

func TestDHCPModes(t *testing.T) {
	c, err := load(t, "netboot:\n  interfaces: [eth0, eth1]\n  dhcp: {eth0: proxy, eth1: off}\n")
	require.NoError(t, err)
	require.Equal(t, map[string]inventory.DHCPMode{"eth0": inventory.DHCPProxy, "eth1": inventory.DHCPOff}, c.Netboot.DHCP)
	require.True(t, c.Netboot.Answers())

	c, err = load(t, "netboot:\n  interfaces: [eth0]\n  dhcp: {eth0: off}\n")
	require.NoError(t, err)
	require.False(t, c.Netboot.Answers())

	_, err = load(t, "netboot:\n  interfaces: [eth0]\n  dhcp: {eth0: relay, eth1: proxy}\n")
	for _, want := range []string{"ingot.yaml:3", `invalid DHCP mode "relay"`, "write one of reservation, proxy, off", "eth1 is not one of netboot.interfaces"} {
		require.ErrorContains(t, err, want)
	}
}

// TestS36MinimumSBAT: generations by component; every mistake is named with its line.
func TestS36MinimumSBAT(t *testing.T) {
	c, err := load(t, "netboot:\n  minimum_sbat: {shim: 4, grub: 5, grub.debian: 0}\n")
	require.NoError(t, err)
	require.Equal(t, sbat.Minimum{"shim": 4, "grub": 5, "grub.debian": 0}, c.Netboot.MinimumSBAT)

	_, err = load(t, "netboot:\n  minimum_sbat:\n    shim: -1\n    grub: 70000\n    \"a,b\": 1\n")
	for _, want := range []string{
		"ingot.yaml:3", "invalid generation -1", "ingot.yaml:4", "invalid generation 70000",
		`invalid component name "a,b"`, "write for example {shim: 4, grub: 5}",
	} {
		require.ErrorContains(t, err, want)
	}
}
