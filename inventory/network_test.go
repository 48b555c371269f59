package inventory

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNetwork(t *testing.T) {
	n := Network{
		Own: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}, On: true,
	}
	require.Equal(t, "this server's own address", n.Taken(netip.MustParseAddr("10.0.0.2")))
	require.Equal(t, "this server's gateway", n.Taken(netip.MustParseAddr("10.0.0.1")))
	require.Empty(t, n.Taken(netip.MustParseAddr("10.0.0.3")))

	at := func(address string) Interface {
		return Interface{Address: netip.MustParseAddr(address), Netmask: "255.255.255.0"}
	}
	_, unserved := n.Unserved(at("10.0.0.9"))
	require.False(t, unserved)
	subnet, unserved := n.Unserved(at("10.0.7.9"))
	require.True(t, unserved)
	require.Equal(t, "10.0.7.0/24", subnet.String())
	silent := at("10.0.7.9")
	silent.DisableDHCP = true
	_, unserved = n.Unserved(silent)
	require.False(t, unserved, "nothing is to be answered there")
	_, unserved = n.Unserved(Interface{})
	require.False(t, unserved)

	var ms []Machine
	for i := range 5 {
		ms = append(ms, Machine{Name: fmt.Sprintf("node-%d", i), Interfaces: []Interface{at("10.0.7.9"), at("10.0.7.10")}})
	}
	ms = append(ms, Machine{Name: "far", Interfaces: []Interface{at("10.0.8.9")}})
	require.Equal(t, []string{
		"node-0, node-1, node-2 and 2 more: no interface of this server is in 10.0.7.0/24: DHCP is answered there only through a relay with an address in it",
		"far: no interface of this server is in 10.0.8.0/24: DHCP is answered there only through a relay with an address in it",
	}, n.Warnings(ms))

	n.Relays = []netip.Prefix{netip.MustParsePrefix("10.0.7.1/32")}
	require.Len(t, n.Warnings(ms), 1)
	require.Contains(t, n.Reason(netip.MustParsePrefix("10.0.8.0/24")), "nor is any relay of netboot.relays")
	leased := at("192.0.2.77")
	leased.Netmask, leased.Gateway = "255.255.255.255", netip.MustParseAddr("10.0.7.1")
	_, unserved = n.Unserved(leased)
	require.False(t, unserved, "the listed relay is its router")
	leased.Gateway = netip.MustParseAddr("192.0.2.65")
	_, unserved = n.Unserved(leased)
	require.True(t, unserved)
	n.On = false
	require.Empty(t, n.Warnings(ms), "DHCP is off")
}

// A lease time is text in JSON; a number is read as seconds.
func TestLeaseTimeInJSON(t *testing.T) {
	b, err := json.Marshal(Interface{MAC: "02:00:00:00:00:01", LeaseTime: Lease(24 * time.Hour)})
	require.NoError(t, err)
	require.JSONEq(t, `{"mac":"02:00:00:00:00:01","leaseTime":"24h0m0s"}`, string(b))
	for text, want := range map[string]time.Duration{
		`"24h0m0s"`: 24 * time.Hour, `"90m"`: 90 * time.Minute, `3600`: time.Hour, `"3600"`: time.Hour, `4294967294`: 4294967294 * time.Second,
	} {
		var i Interface
		require.NoError(t, json.Unmarshal([]byte(`{"leaseTime":`+text+`}`), &i), text)
		require.Equal(t, Lease(want), i.LeaseTime, text)
	}
	for _, text := range []string{`"soon"`, `-1`, `86400000000000`} {
		require.ErrorIs(t, json.Unmarshal([]byte(`{"leaseTime":`+text+`}`), &Interface{}), ErrInvalid, text)
	}
}

func TestGatewayWarnings(t *testing.T) {
	at := func(name, address, gateway string) Machine {
		m := Machine{Name: name, Interfaces: []Interface{{Address: netip.MustParseAddr(address)}}}
		if gateway != "" {
			m.Interfaces[0].Gateway = netip.MustParseAddr(gateway)
		}
		return m
	}
	router := at("router", "10.0.0.1", "")
	nodes := []Machine{
		at("n1", "10.0.0.5", "10.0.0.1"), at("n2", "10.0.0.6", "10.0.0.1"), at("n3", "10.0.0.7", "10.0.0.1"),
		at("n4", "10.0.0.8", "10.0.0.1"),
	}
	unreserved := Machine{Name: "u", Interfaces: []Interface{{}}}
	require.Empty(t, GatewayWarnings(append(nodes, unreserved), append(nodes, router, unreserved)))
	require.Equal(t, []string{"router: 10.0.0.1 is the gateway of n1, n2, n3 and 1 more: give it another address, unless it is their router"},
		GatewayWarnings([]Machine{router}, append(nodes, router)))
}
