package config

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A range belongs to an interface in mode reservation or to a listed relay; next to another DHCP server
// there is none.
func TestDiscovery(t *testing.T) {
	const head = "netboot:\n  interfaces: [eth0, eth1]\n  dhcp: {eth1: proxy}\n  relays: [10.10.30.1]\n  discovery:\n"
	c, err := load(t, head+"    ranges: {eth0: 10.0.1.200-10.0.1.230, 10.10.30.1/24: 10.10.30.200-10.10.30.230}\n    beside: [eth1]\n")
	require.NoError(t, err)
	require.True(t, c.Netboot.Discovery.On())
	_, err = load(t, head+"    beside: [eth1]\n    accept: [{name: \"node-{serial}\"}]\n")
	require.NoError(t, err, "the other server gives the address")
	for text, want := range map[string]string{
		"    ranges: {eth1: 10.0.1.200-10.0.1.230}\n":                             "another server assigns the addresses",
		"    ranges: {10.10.40.1/24: 10.10.40.200-10.10.40.230}\n":                "relay 10.10.40.1 is not in netboot.relays",
		"    ranges: {10.10.30.1/24: 10.10.31.200-10.10.31.230}\n":                "is not in network 10.10.30.0/24",
		"    ranges: {10.10.30.1: 10.10.30.1-10.10.30.230}\n":                     "contains the relay's address 10.10.30.1",
		"    beside: [eth0]\n":                                                    "invalid interface eth0",
		"    ranges: {eth0: 10.0.1.200-10.0.1.230}\n    accept: [{name: node}]\n": "addresses",
		"    accept: [{name: node, addresses: 10.0.1.20-10.0.1.30}]\n":            "no machine is discovered",
	} {
		_, err := load(t, head+text)
		require.ErrorContains(t, err, want, text)
	}
}

// An address is in one range only: each pair that overlaps is an error, along with all other errors.
func TestDiscoveryRangesOverlap(t *testing.T) {
	_, err := load(t, `netboot:
  interfaces: [eth0, eth1, eth2]
  discovery:
    ranges:
      eth0: 10.0.1.200-10.0.1.230
      eth1: 10.0.1.230-10.0.1.240
      eth2: 10.0.1.210-10.0.1.220
      eth3: 10.0.2.1-10.0.2.2
`)
	for _, want := range []string{
		":6: netboot.discovery.ranges.eth1: 10.0.1.230-10.0.1.240 overlaps 10.0.1.200-10.0.1.230 of netboot.discovery.ranges.eth0 (choose other addresses",
		":7: netboot.discovery.ranges.eth2: 10.0.1.210-10.0.1.220 overlaps 10.0.1.200-10.0.1.230 of netboot.discovery.ranges.eth0 (choose other addresses",
		":8: netboot.discovery.ranges.eth3: eth3 is not one of netboot.interfaces",
	} {
		require.ErrorContains(t, err, want)
	}
	require.Equal(t, 2, strings.Count(err.Error(), "overlaps"), err)
}
