// Package neighbours has what other hosts on the networks of this server do: other DHCP servers, found and configured, hosts that
// use an address, and how many answers may wait for hosts that do not answer ARP.
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

// CheckMAC belongs to no machine ("ingot" after the locally administered prefix).
// Every Ingot server that answers machines answers a DISCOVER of PXE class from it.
// The answer has no address and no loader, only the URL of a script that boots from
// disk. A check can so find every server on a network without affecting a machine.
const CheckMAC = "02:69:6e:67:6f:74"

// CheckPath is the path of the script in the answer to a check.
const CheckPath = "/ipxe/script/" + CheckMAC + "/auto.ipxe"

// Limits of a check.
const (
	checkTries = 5
	checkWait  = time.Second // after each try, also for other servers' answers
)

// A Checker asks for DHCP like a machine that boots from the network.
type Checker struct {
	self  netip.Addr
	guard *guard.Guard
	mu    sync.Mutex
	wait  map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4
}

// NewChecker returns the checker of a server with this address.
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

// Deliver passes a reply to the question that waits for it.
func (c *Checker) Deliver(p *dhcpv4.DHCPv4) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.wait[p.TransactionID] <- p: // a nil channel if none waits for it
	default:
	}
}

// Ask sends DISCOVERs of CheckMAC until this server has answered, and returns the servers that
// answer. If iface is "", it sends like a relay with this server's address.
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

// readAnswers passes packets on a client's port to the question, until conn is closed.
func (c *Checker) readAnswers(conn *net.UDPConn) {
	buf := make([]byte, wire.MaxDatagram)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error of a packet that was sent before
		}
		c.readAnswer(bytes.Clone(buf[:n]))
	}
}

func (c *Checker) readAnswer(b []byte) {
	defer c.guard.Recover("an answer to a check of DHCP")
	if p, err := dhcpv4.FromBytes(b); err == nil {
		c.Deliver(p)
	}
}

// clientSocket opens the socket of a DHCP client on an interface; "" = any. It is an
// ordinary socket, so that this host's own server receives its broadcasts as well.
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
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), // share the port with a DHCP client that allows it
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

// maxNamed limits how many servers of each kind are kept and named. Any host on the
// network can forge answers to a check (security S48), and the notes are stored in a
// workflow's history.
const maxNamed = 8

// Answers are the servers that have answered a check.
type Answers struct {
	self   netip.Addr
	ours   bool         // self has answered
	twins  []netip.Addr // other Ingot servers
	others []netip.Addr // other DHCP servers
	// There were more than maxNamed.
	moreTwins, moreOthers bool
}

// add adds the server of an answer, unless it has it already.
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

// Judge returns an error unless self and no other Ingot server has answered. notes
// name the other DHCP servers.
func (a *Answers) Judge(at string) (notes []string, err error) {
	if len(a.twins) > 0 {
		var names []string
		for _, t := range a.twins {
			names = append(names, t.String())
		}
		if a.moreTwins {
			names = append(names, "and more")
		}
		return nil, fmt.Errorf("machines are answered %s by another server of Ingot, too, %s: stop it first: %w", at,
			strings.Join(names, ", "), inventory.ErrConflict)
	}
	if !a.ours {
		return nil, fmt.Errorf("machines are not answered %s: a DISCOVER of PXE class gets nothing from %s: %w", at, a.self,
			inventory.ErrUnreachable)
	}
	for _, o := range a.others {
		notes = append(notes, fmt.Sprintf("another DHCP server answers %s: %s", at, o))
	}
	if a.moreOthers {
		notes = append(notes, "and more DHCP servers answer "+at)
	}
	return notes, nil
}
