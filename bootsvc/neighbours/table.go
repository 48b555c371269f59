package neighbours

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// networksFor is how long the networks of this host are cached.
const networksFor = 5 * time.Second

// Table looks up single addresses in the kernel's neighbour table (arp(7)). A look-up sends nothing. Forged source
// addresses can fill the table, but a look-up takes no longer in a full table.
type Table struct {
	read atomic.Pointer[hostNetworks]
}

// hostNetworks caches the networks of this host on which addresses are resolved by ARP.
type hostNetworks struct {
	at  time.Time
	all []hostNetwork
}

type hostNetwork struct {
	device string
	prefix netip.Prefix // address of this host, with the prefix length
}

// networks returns the IPv4 networks of the Ethernet interfaces of this host that are up, or nil if they cannot be
// read.
func (n *Table) networks() []hostNetwork {
	known := n.read.Load()
	if known != nil && time.Since(known.at) < networksFor {
		return known.all
	}
	next := &hostNetworks{at: time.Now()}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 || len(i.HardwareAddr) != 6 {
			continue
		}
		for _, p := range wire.Prefixes(&i) {
			next.all = append(next.all, hostNetwork{i.Name, p})
		}
	}
	n.read.Store(next)
	return next.all
}

// MAC returns the MAC for the address a in the kernel's neighbour table; ok is false if there is no resolved entry.
func (n *Table) MAC(a netip.Addr) (mac string, ok bool) {
	for _, x := range n.networks() {
		if !x.prefix.Contains(a) {
			continue
		}
		if mac, ok, err := kernelNeighbour(x.device, a); err == nil && ok {
			return wire.HostMAC(mac)
		}
	}
	return "", false
}

// Unresolved reports whether the address a is on a network of this host and the kernel has no MAC for it. For an
// address behind a router it returns false: to reach it, the kernel resolves only the router's address, and there are
// few routers.
func (n *Table) Unresolved(a netip.Addr) bool {
	onLink := false
	for _, x := range n.networks() {
		if x.prefix.Addr() == a {
			return false
		}
		if !x.prefix.Contains(a) {
			continue
		}
		if _, ok, err := kernelNeighbour(x.device, a); err != nil || ok {
			return false
		}
		onLink = true
	}
	return onLink
}

// arpRequest is struct arpreq of arp(7).
type arpRequest struct {
	protocol, hardware sockaddr
	flags              int32
	_                  sockaddr // mask
	device             [unix.IFNAMSIZ]byte
}

// sockaddr is struct sockaddr. If family is AF_INET, data begins with a port.
type sockaddr struct {
	family uint16
	data   [14]byte
}

const arpComplete = 2 // ATF_COM of arp(7)

// kernelNeighbour returns the MAC for the address a in the kernel's neighbour table of a device. ok is false if there
// is no entry with a resolved Ethernet address.
func kernelNeighbour(device string, a netip.Addr) (mac net.HardwareAddr, ok bool, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, fmt.Errorf("opening a socket for the neighbour table: %w", err)
	}
	defer unix.Close(fd)
	r := arpRequest{protocol: sockaddr{family: unix.AF_INET}}
	copy(r.protocol.data[2:], a.AsSlice())
	copy(r.device[:unix.IFNAMSIZ-1], device)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGARP, uintptr(unsafe.Pointer(&r)))
	switch {
	case e == unix.ENXIO:
		return nil, false, nil
	case e != 0:
		return nil, false, fmt.Errorf("asking the kernel for the neighbour %s on %s: %w", a, device, e)
	}
	return r.hardware.data[:6], r.flags&arpComplete != 0 && r.hardware.family == unix.ARPHRD_ETHER, nil
}
