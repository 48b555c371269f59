package hostnet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// Routes returns the kernel's main IPv4 routing table in the format of /proc/net/route, or "" if it cannot be read.
func Routes() string {
	routes, err := os.ReadFile("/proc/net/route")
	if err != nil {
		return ""
	}
	return string(routes)
}

// A Route is a route in the kernel's main table.
type Route struct {
	To     netip.Prefix
	Via    netip.Addr // the invalid Addr for a connected network
	Device string
}

// String returns the router or, for a connected network, the interface.
func (r Route) String() string {
	if r.Via.IsValid() {
		return r.Via.String()
	}
	return r.Device
}

// Gateways returns the routers of the default routes in the result of [Routes].
func Gateways(routes string) (out []netip.Addr) {
	for line := range strings.Lines(routes) {
		if r, ok := parseRoute(line); ok && r.To.Bits() == 0 && r.Via.IsValid() {
			out = append(out, r.Via)
		}
	}
	return out
}

// RouteTo returns the most specific route to a in the result of [Routes]. It returns false if there is none. There may
// still be a route in another routing table.
func RouteTo(routes string, a netip.Addr) (best Route, known bool) {
	for line := range strings.Lines(routes) {
		if r, ok := parseRoute(line); ok && r.To.Contains(a) && (!known || r.To.Bits() > best.To.Bits()) {
			best, known = r, true
		}
	}
	return best, known
}

// parseRoute parses a line of the table. It returns false for the header, and for routes that are down or reject packets.
func parseRoute(line string) (Route, bool) {
	const up, gateway, reject = 0x1, 0x2, 0x200
	f := strings.Fields(line)
	if len(f) < 8 {
		return Route{}, false
	}

	to, err1 := hexAddr(f[1])
	via, err2 := hexAddr(f[2])
	mask, err3 := hexAddr(f[7])
	flags, err4 := strconv.ParseUint(f[3], 16, 32)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || flags&up == 0 || flags&reject != 0 {
		return Route{}, false
	}

	ones, _ := net.IPMask(mask.AsSlice()).Size()
	r := Route{To: netip.PrefixFrom(to, ones), Device: f[0]}
	if flags&gateway != 0 {
		r.Via = via
	}

	return r, true
}

// hexAddr parses an address of the table: hexadecimal, in the processor's byte order.
func hexAddr(s string) (netip.Addr, error) {
	n, err := strconv.ParseUint(s, 16, 32)
	if err != nil {
		return netip.Addr{}, err
	}
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], uint32(n))
	return netip.AddrFrom4(b), nil
}
