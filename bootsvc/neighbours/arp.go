package neighbours

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// Number and timing of ARP probes (RFC 5227 §2.1.1). They take less time than when a host probes its own new address,
// because the machine that has declined the address has already probed it.
const (
	arpProbes = 3
	arpWait   = 350 * time.Millisecond // after each probe packet

	kernelWait = time.Second // how long to wait until the kernel has resolved an address
)

const (
	arpLength = 28 // bytes of an ARP packet for Ethernet and IPv4 (RFC 826)
	arpAsk    = 1
)

// Prober finds hosts that use an address.
type Prober struct {
	interfaces []string
	table      *Table
	log        *slog.Logger
}

// NewProber returns a Prober that sends ARP probes on these interfaces.
func NewProber(interfaces []string, t *Table, log *slog.Logger) *Prober {
	return &Prober{interfaces, t, log}
}

// Probe returns the MAC of a host that answers for the address a and is not client. ok is false if there is no such
// host. Probe sends ARP probes and accepts only answers to them, because an entry in the kernel's table may be older
// than the conflict. If ARP probes cannot be sent, Probe uses AskKernel.
func (p *Prober) Probe(a netip.Addr, client string) (mac string, ok bool) {
	for _, name := range p.interfaces {
		iface, err := net.InterfaceByName(name)
		if err != nil || !slices.ContainsFunc(wire.Prefixes(iface), func(n netip.Prefix) bool { return n.Contains(a) }) {
			continue
		}
		mac, err := askARP(iface, a, client)
		if err == nil {
			return mac, mac != ""
		}
		p.log.Warn("cannot probe an address by ARP; asking the kernel instead", "interface", name, "address", a.String(), "error", err)
	}
	mac, ok = p.AskKernel(a)
	return mac, ok && mac != client
}

// askARP returns the MAC of a host that has the address a and is not client, or "" if no such host has answered.
func askARP(iface *net.Interface, a netip.Addr, client string) (mac string, err error) {
	if len(iface.HardwareAddr) != 6 {
		return "", fmt.Errorf("%s has no Ethernet address", iface.Name)
	}
	// Protocol 0 ensures that the socket receives nothing before it is bound to the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("opening a packet socket: %w", err)
	}
	f := os.NewFile(uintptr(fd), "ARP on "+iface.Name)
	defer func() { err = errors.Join(err, f.Close()) }()
	to := &unix.SockaddrLinklayer{Protocol: wire.Hton16(unix.ETH_P_ARP), Ifindex: iface.Index, Halen: 6}
	if err := unix.Bind(fd, to); err != nil {
		return "", fmt.Errorf("binding a packet socket: %w", err)
	}

	copy(to.Addr[:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	question, buf := arpQuestion(iface.HardwareAddr, a), make([]byte, wire.MaxDatagram)
	for range arpProbes {
		if err := unix.Sendto(fd, question, 0, to); err != nil {
			return "", fmt.Errorf("sending an ARP probe: %w", err)
		}
		if err := f.SetReadDeadline(time.Now().Add(arpWait)); err != nil {
			return "", err
		}
		for {
			n, err := f.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return "", fmt.Errorf("reading ARP: %w", err)
			}
			if mac, ok := arpSender(buf[:n], a); ok && mac != client && mac != iface.HardwareAddr.String() {
				return mac, nil
			}
		}
	}
	return "", nil
}

// arpQuestion returns an ARP probe that asks who has the address a. The sender address in the probe is 0.0.0.0, so that
// the probe changes no host's ARP table (RFC 5227).
func arpQuestion(from net.HardwareAddr, a netip.Addr) []byte {
	b := make([]byte, 0, arpLength)
	b = append(b, 0, 1, 8, 0, 6, 4, 0, arpAsk) // hardware type Ethernet, protocol IPv4, and the lengths of their addresses
	b = append(append(b, from...), 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, a.AsSlice()...)
}

// arpSender returns the MAC of the sender of the ARP packet b. ok is false if the sender does not have the address a.
// The packet may be a reply or a request (RFC 5227 §2.1.1).
func arpSender(b []byte, a netip.Addr) (mac string, ok bool) {
	if len(b) < arpLength || !bytes.Equal(b[:6], []byte{0, 1, 8, 0, 6, 4}) || binary.BigEndian.Uint16(b[6:]) > 2 ||
		!bytes.Equal(b[14:18], a.AsSlice()) {
		return "", false
	}
	return wire.ParseMAC(net.HardwareAddr(b[8:14]).String())
}

// AskKernel returns the MAC that the kernel's ARP table has for the address a. ok is false if it has none. AskKernel
// first sends a UDP datagram to a, so that the kernel resolves the address if the table has no entry for it.
func (p *Prober) AskKernel(a netip.Addr) (mac string, ok bool) {
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9))) // discard (RFC 863)
	if err != nil {
		return "", false
	}
	defer c.Close()
	if _, err := c.Write([]byte{0}); err != nil {
		return "", false
	}
	time.Sleep(kernelWait)
	return p.table.MAC(a)
}
