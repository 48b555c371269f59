package main

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
)

// networkOf returns what this host knows now of the network of the machines.
func networkOf(n config.Netboot) inventory.Network {
	out := inventory.Network{On: n.On(), Subnets: bootsvc.Subnets(n.Interfaces)}
	if a, err := netip.ParseAddr(n.Address); err == nil {
		out.Own = append(out.Own, a) // in a container, its host's
	}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLoopback() {
				out.Own = append(out.Own, p.Addr())
			}
		}
	}
	out.Relays, _ = config.Prefixes(n.Relays) // checked when the configuration was read
	// What cannot be read names no gateway.
	routes, _ := os.ReadFile("/proc/net/route")
	out.Gateways = gateways(string(routes))
	return out
}

// gateways returns the routers of the default routes in what /proc/net/route
// says.
func gateways(routes string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(routes) {
		if w, ok := parseRoute(line); ok && w.to.Bits() == 0 && w.via.IsValid() {
			out = append(out, w.via)
		}
	}
	return out
}

// parseRoute reads a line of /proc/net/route; false: its head, or a route that
// leads nowhere.
func parseRoute(line string) (way, bool) {
	const up, gateway, reject = 0x1, 0x2, 0x200
	f := strings.Fields(line)
	if len(f) < 8 {
		return way{}, false
	}
	to, err1 := hexAddr(f[1])
	via, err2 := hexAddr(f[2])
	mask, err3 := hexAddr(f[7])
	flags, err4 := strconv.ParseUint(f[3], 16, 32)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || flags&up == 0 || flags&reject != 0 {
		return way{}, false
	}
	ones, _ := net.IPMask(mask.AsSlice()).Size()
	w := way{to: netip.PrefixFrom(to, ones), device: f[0]}
	if flags&gateway != 0 {
		w.via = via
	}
	return w, true
}

// controllerOf returns the bridge or bond that interface name is a member of,
// by the kernel's tree at sys (/sys/class/net); "" = none. A member has no
// packets of its own.
func controllerOf(sys, name string) string {
	for _, mark := range []string{"brport", "bonding_slave"} {
		if _, err := os.Stat(filepath.Join(sys, name, mark)); err != nil {
			continue
		}
		if to, err := os.Readlink(filepath.Join(sys, name, "master")); err == nil {
			return filepath.Base(to)
		}
	}
	return ""
}

// sysClassNet is where the kernel shows network interfaces.
const sysClassNet = "/sys/class/net"
