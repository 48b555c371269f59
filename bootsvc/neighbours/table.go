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

// networksFor is how long the networks of this host are not read again.
const networksFor = 5 * time.Second

// Table asks the kernel's neighbour table (arp(7)) for single addresses: the time does not depend on the size of the table,
// which a flood of forged sources fills, and no host is asked.
type Table struct {
	read atomic.Pointer[hostNetworks]
}

// hostNetworks are the networks of this host where addresses are resolved by ARP, as last read.
type hostNetworks struct {
	at  time.Time
	all []hostNetwork
}

type hostNetwork struct {
	device string
	prefix netip.Prefix // with the address of this host
}

// networks returns the networks of the Ethernet interfaces of this host.
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

// MAC returns the MAC that the kernel knows for an address.
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

// Unresolved reports whether an address is on a network of this host, and the kernel does not know its MAC. Behind a router, it is
// the router that has to be known, and there are few of those.
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

// sockaddr is struct sockaddr. Its data begin with a port if the family is AF_INET.
type sockaddr struct {
	family uint16
	data   [14]byte
}

const arpComplete = 2 // ATF_COM of arp(7)

// kernelNeighbour returns the MAC that the kernel knows for an address of an interface's network.
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
