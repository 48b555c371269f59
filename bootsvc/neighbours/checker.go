// Package neighbours deals with other hosts on the networks of this server. It finds other DHCP servers and writes
// configuration for them. It finds hosts that use an address. It also limits how many answers may wait for hosts that
// do not answer ARP.
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

// CheckMAC is a MAC that no machine has: "ingot" after a locally administered prefix. Every Ingot server that answers
// machines also answers a DISCOVER of PXE class from CheckMAC. The answer contains no address and no loader, only the
// URL of a script that boots from disk. Therefore a check can find every Ingot server on a network without affecting a
// machine.
const CheckMAC = "02:69:6e:67:6f:74"

// CheckPath is the URL path of the script that a server names in its answer to a check.
const CheckPath = "/ipxe/script/" + CheckMAC + "/auto.ipxe"

// Limits of a check.
const (
	checkTries = 5
	checkWait  = time.Second // how long to wait after each try, also for the answers of other servers
)

// A Checker sends the DHCP requests that a machine sends when it boots from the network.
type Checker struct {
	self  netip.Addr
	guard *guard.Guard
	mu    sync.Mutex
	wait  map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4
}

// NewChecker returns a Checker for this server, which has the address self.
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

// Deliver passes the reply p to the call of Ask that waits for it. If no call waits for p, Deliver drops p.
func (c *Checker) Deliver(p *dhcpv4.DHCPv4) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.wait[p.TransactionID] <- p: // if no call waits for p, the channel is nil, so p is dropped
	default:
	}
}

// Ask sends DISCOVERs from CheckMAC until this server has answered, but at most checkTries times. It returns all
// servers that have answered. If iface is "", Ask sends the DISCOVERs only to this server, as a relay would.
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

// readAnswers passes each packet that arrives on the client port to Deliver, until conn is closed.
func (c *Checker) readAnswers(conn *net.UDPConn) {
	buf := make([]byte, wire.MaxDatagram)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // for example an ICMP error about a packet that was sent before
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

// clientSocket opens the socket of a DHCP client on the interface iface; "" = any interface. It is a plain UDP socket,
// so that the DHCP server on this host also receives what the socket broadcasts.
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

// maxNamed limits how many servers of each kind are kept and listed. A limit is needed because any host on the network
// can forge answers to a check (security S48), and the notes are stored in the history of a workflow.
const maxNamed = 8

// Answers are the servers that have answered a check.
type Answers struct {
	self   netip.Addr
	ours   bool         // self has answered
	twins  []netip.Addr // other Ingot servers
	others []netip.Addr // other DHCP servers
	// Whether more than maxNamed servers of this kind have answered.
	moreTwins, moreOthers bool
}

// add adds the server that has sent the answer f, unless the server is already listed.
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

// Judge returns an error if this server has not answered, or if another Ingot server has answered. notes list the other
// DHCP servers. Both texts contain at, which says where the check was made.
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
