// Package neighbours deals with other hosts on the networks of this server: it finds other DHCP servers and writes
// configuration for them, finds hosts that use an address, and limits how many answers may wait for hosts that do not
// answer ARP.
package neighbours

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// CheckMAC belongs to no machine ("ingot" after the locally administered prefix). Every Ingot server that answers
// machines also answers a DISCOVER of PXE class from CheckMAC. The answer contains no address and no loader, only the
// URL of a script that boots from disk. A check can therefore find every Ingot server on a network without affecting a
// machine.
const CheckMAC = "02:69:6e:67:6f:74"

// CheckPath is the path of the script that the answer to a check names.
const CheckPath = "/ipxe/script/" + CheckMAC + "/auto.ipxe"

// Limits of a check.
const (
	checkTries = 5
	checkWait  = time.Second // after each try, also to collect the answers of other servers
)

// A Checker sends the DHCP requests of a machine that boots from the network.
type Checker struct {
	self  netip.Addr
	guard *guard.Guard
	mu    sync.Mutex
	wait  map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4
}

// NewChecker returns the checker of the server with the address self.
func NewChecker(self netip.Addr, g *guard.Guard) *Checker {
	return &Checker{self: self, guard: g, wait: map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4{}}
}

func (c *Checker) begin(id dhcpv4.TransactionID) (<-chan *dhcpv4.DHCPv4, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan *dhcpv4.DHCPv4, 16)
	c.wait[id] = ch
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.wait, id)
	}
}

// Deliver passes a reply to the call of Ask that sent its DISCOVER. Without such a call, it drops the reply.
func (c *Checker) Deliver(p *dhcpv4.DHCPv4) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.wait[p.TransactionID] <- p: // a nil channel, which never receives, if no call waits for the reply
	default:
	}
}

// Ask sends DISCOVERs from CheckMAC until this server has answered, at most checkTries, and returns all servers that
// have answered. If iface is "", it sends them to this server only, as a relay would.
func (c *Checker) Ask(ctx context.Context, iface string) (found Answers, err error) {
	found.self = c.self
	mac, err := net.ParseMAC(CheckMAC)
	if err != nil {
		return found, err
	}
	p, err := probeClients[0].newDiscover(mac)
	if err != nil {
		return found, err
	}
	answers, end := c.begin(p.TransactionID)
	defer end()
	local, to := ":68", netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 67)
	if iface == "" {
		p.GatewayIPAddr = c.self.AsSlice()
		local, to = netip.AddrPortFrom(c.self, 0).String(), netip.AddrPortFrom(c.self, 67)
	}
	conn, err := clientSocket(ctx, local, iface)
	if err != nil {
		return found, err
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close() // ends the reader
	if iface != "" {
		reading.Add(1)
		go func() {
			defer reading.Done()
			c.readAnswers(conn)
		}()
	}
	for range checkTries {
		if _, err := conn.WriteToUDPAddrPort(p.ToBytes(), to); err != nil {
			return found, err
		}
		for wait := time.After(checkWait); wait != nil; {
			select {
			case <-ctx.Done():
				return found, ctx.Err()
			case <-wait:
				wait = nil
			case r := <-answers:
				if f, ok := parseOffer(r.ToBytes(), p.TransactionID); ok {
					found.add(f)
				}
			}
		}
		if found.ours {
			return found, nil
		}
	}
	return found, nil
}

// readAnswers delivers packets that arrive on the client port, until conn is closed.
func (c *Checker) readAnswers(conn *net.UDPConn) {
	buf := make([]byte, wire.MaxDatagram)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for a packet sent earlier
		}
		c.readAnswer(bytes.Clone(buf[:n]))
	}
}

func (c *Checker) readAnswer(b []byte) {
	defer c.guard.Recover("a reply to a DHCP check")
	if p, err := dhcpv4.FromBytes(b); err == nil {
		c.Deliver(p)
	}
}

// clientSocket opens the socket of a DHCP client on an interface; "" = any. It is an ordinary UDP socket, so that the
// server on this host also receives its broadcasts.
func clientSocket(ctx context.Context, local, iface string) (*net.UDPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if iface == "" {
			return nil
		}
		var opt error
		err := c.Control(func(fd uintptr) {
			opt = errors.Join(
				unix.BindToDevice(int(fd), iface),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), // share the port with a DHCP client that permits it
			)
		})
		return errors.Join(err, opt)
	}}
	pc, err := lc.ListenPacket(ctx, "udp4", local)
	if err != nil {
		return nil, err
	}
	return pc.(*net.UDPConn), nil
}

// maxNamed limits how many servers of each kind are kept and listed. Any host on the network can forge answers to a
// check (security S48), and the notes are stored in a workflow's history.
const maxNamed = 8

// Answers are the servers that have answered a check.
type Answers struct {
	self   netip.Addr
	ours   bool         // self has answered
	twins  []netip.Addr // other Ingot servers
	others []netip.Addr // other DHCP servers
	// Whether there were more than maxNamed of this kind.
	moreTwins, moreOthers bool
}

// add adds the server that sent the answer f, unless it is already listed.
func (a *Answers) add(f ForeignServer) {
	switch {
	case f.Server == a.self:
		a.ours = true
	case strings.HasSuffix(f.BootFile, CheckPath):
		keep(&a.twins, &a.moreTwins, f.Server)
	default:
		keep(&a.others, &a.moreOthers, f.Server)
	}
}

func keep(named *[]netip.Addr, more *bool, server netip.Addr) {
	switch {
	case slices.Contains(*named, server):
	case len(*named) < maxNamed:
		*named = append(*named, server)
	default:
		*more = true
	}
}

// Judge returns an error if this server has not answered, or another Ingot server has. notes list the other DHCP
// servers. at describes in both texts where the check was made.
func (a *Answers) Judge(at string) (notes []string, err error) {
	if len(a.twins) > 0 {
		var names []string
		for _, t := range a.twins {
			names = append(names, t.String())
		}
		if a.moreTwins {
			names = append(names, "and more")
		}
		return nil, fmt.Errorf("machines are also answered %s by another server of Ingot, %s; stop that server first: %w", at,
			strings.Join(names, ", "), inventory.ErrConflict)
	}
	if !a.ours {
		return nil, fmt.Errorf("machines get no DHCP answer %s: a PXE DISCOVER was not answered by %s: %w", at, a.self,
			inventory.ErrUnreachable)
	}
	for _, o := range a.others {
		notes = append(notes, fmt.Sprintf("another DHCP server answers %s: %s", at, o))
	}
	if a.moreOthers {
		notes = append(notes, "more DHCP servers answer "+at)
	}
	return notes, nil
}
