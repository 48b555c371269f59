package main

import (
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// TestRoutesOf: a router outside of the subnet is set with the kernel's flag onlink.
func TestRoutesOf(t *testing.T) {
	subnet := func(s string) *net.IPNet {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = ip
		return n
	}
	router := dhcpv4.WithOption(dhcpv4.OptRouter(net.IPv4(192, 0, 2, 65)))
	classless := dhcpv4.WithOption(dhcpv4.OptClasslessStaticRoute(
		&dhcpv4.Route{Dest: subnet("192.0.2.65/32"), Router: net.IPv4zero},
		&dhcpv4.Route{Dest: subnet("0.0.0.0/0"), Router: net.IPv4(192, 0, 2, 65)},
	))
	for name, x := range map[string]struct {
		own     string
		options []dhcpv4.Modifier
		want    []string // destination, router, scope, flags
	}{
		"no router":               {own: "192.0.2.77/32"},
		"router in the subnet":    {"192.0.2.77/24", []dhcpv4.Modifier{router}, []string{"0.0.0.0/0 192.0.2.65 universe []"}},
		"router on link":          {"192.0.2.77/32", []dhcpv4.Modifier{router}, []string{"0.0.0.0/0 192.0.2.65 universe [onlink]"}},
		"classless routes alone":  {"192.0.2.77/32", []dhcpv4.Modifier{router, classless}, []string{"192.0.2.65/32 <nil> link []", "0.0.0.0/0 192.0.2.65 universe [onlink]"}},
		"classless routes of /24": {"192.0.2.77/24", []dhcpv4.Modifier{classless}, []string{"192.0.2.65/32 <nil> link []", "0.0.0.0/0 192.0.2.65 universe []"}},
	} {
		ack, err := dhcpv4.New(x.options...)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range routesOf(ack, subnet(x.own)) {
			got = append(got, fmt.Sprint(r.Dst, r.Gw, r.Scope, r.ListFlags()))
		}
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: got %q, want %q", name, got, x.want)
		}
	}
}
