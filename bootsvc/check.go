package bootsvc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	pin "github.com/pin/tftp/v3"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

// CheckMAC belongs to no machine ("ingot" after the locally administered prefix).
// Every Ingot server that answers machines answers a DISCOVER of PXE class from it.
// The answer has no address and no loader, only the URL of a script that boots from
// disk. A check can so find every server on a network without affecting a machine.
const CheckMAC = "02:69:6e:67:6f:74"

// checkURL is the path of the script in the answer to a check.
const checkURL = "/ipxe/script/" + CheckMAC + "/" + scriptName

// answerCheck answers a DISCOVER of CheckMAC. It does not answer other packets.
func (s *Server) answerCheck(p *dhcpv4.DHCPv4, req Request, giaddr netip.Addr) reply {
	if p.MessageType() != dhcpv4.MessageTypeDiscover || req.Class != wire.ClassPXE {
		return reply{}
	}
	r := s.base(p, dhcpv4.MessageTypeOffer)
	r.SetBroadcast() // the client has no address and takes none
	r.ServerIPAddr = s.cfg.Address.AsSlice()
	r.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient"))
	r.UpdateOption(dhcpv4.OptBootFileName(s.Base() + checkURL))
	s.stats.dhcpAnswered.Add(1)
	return s.send(r, giaddr, netip.Addr{})
}

// checkScript returns the script for CheckMAC, by HTTP and TFTP.
func (s *Server) checkScript() string {
	return "#!ipxe\necho Ingot at " + s.cfg.Address.String() + ": this address belongs to no machine, booting from disk\n" + exitLines
}

// checks are the running checks, which wait for replies.
type checks struct {
	mu   sync.Mutex
	wait map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4
}

func (c *checks) begin(id dhcpv4.TransactionID) (<-chan *dhcpv4.DHCPv4, func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wait == nil {
		c.wait = map[dhcpv4.TransactionID]chan *dhcpv4.DHCPv4{}
	}
	ch := make(chan *dhcpv4.DHCPv4, 16)
	c.wait[id] = ch
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.wait, id)
	}
}

// deliver passes a reply to the check that waits for it.
func (c *checks) deliver(p *dhcpv4.DHCPv4) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case c.wait[p.TransactionID] <- p: // a nil channel if no check waits for it
	default:
	}
}

// Limits of a check.
const (
	checkTries = 5
	checkWait  = time.Second // after each try, also for other servers' answers
)

// CheckClient sends the requests of a machine's firmware that boots from the network.
// It returns an error unless this server answers, no other Ingot server does, and the
// script in the answer is served by HTTP and TFTP. notes name the other DHCP servers
// that answered, and what could not be checked.
//
// With interfaces, the DISCOVER is broadcast on each of them and reaches every DHCP
// server and relay there. A server that answers only relays has no such network. It
// sends what a relay would to its own port 67, and cannot find other servers.
func (s *Server) CheckClient(ctx context.Context) (notes []string, err error) {
	if s.cfg.Listen.IsValid() {
		return []string{"not checked from a client's side: " + s.cfg.Address.String() + " is not an address of this host, ask from outside"}, nil
	}
	where := s.cfg.Interfaces
	if s.cfg.RelayOnly {
		where = []string{""}
	}
	for _, name := range where {
		if s.cfg.mode(name) == inventory.DHCPOff {
			notes = append(notes, "DHCP was not asked for on "+name+": another server answers there (netboot.dhcp)")
			continue
		}
		at := "on " + name
		if name == "" {
			at = "as a relay"
		}
		found := answered{self: s.cfg.Address}
		err := s.discover(ctx, name, &found)
		if errors.Is(err, syscall.EADDRINUSE) {
			notes = append(notes, "DHCP was not asked for "+at+": another program has UDP port 68")
			continue
		}
		if err != nil {
			return notes, fmt.Errorf("asking for DHCP %s: %w", at, err)
		}
		others, err := found.judge(at)
		if err != nil {
			return notes, err
		}
		notes = append(append(notes, fmt.Sprintf("DHCP asked for %s is answered by %s alone of all servers of Ingot", at,
			s.cfg.Address)), others...)
	}
	if err := s.fetchCheck(ctx); err != nil {
		return notes, err
	}
	return append(notes, "the boot script of a client is served by HTTP and TFTP"), nil
}

// maxNamed limits how many servers of each kind are kept and named. Any host on the
// network can forge answers to a check (security S48), and the notes are stored in a
// workflow's history.
const maxNamed = 8

// answered are the servers that have answered a check.
type answered struct {
	self   netip.Addr
	ours   bool         // self has answered
	twins  []netip.Addr // other Ingot servers
	others []netip.Addr // other DHCP servers
	// There were more than maxNamed.
	moreTwins, moreOthers bool
}

// add adds the server of an answer, unless it has it already.
func (a *answered) add(f ForeignServer) {
	switch {
	case f.Server == a.self:
		a.ours = true
	case strings.HasSuffix(f.BootFile, checkURL):
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

// judge returns an error unless self and no other Ingot server has answered. notes
// name the other DHCP servers.
func (a *answered) judge(at string) (notes []string, err error) {
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

// discover sends DISCOVERs of CheckMAC until this server has answered, and adds the
// servers that answer to found. If iface is "", it sends like a relay with this
// server's address.
func (s *Server) discover(ctx context.Context, iface string, found *answered) error {
	mac, err := net.ParseMAC(CheckMAC)
	if err != nil {
		return err
	}
	p, err := probeClients[0].newDiscover(mac)
	if err != nil {
		return err
	}
	answers, end := s.checks.begin(p.TransactionID)
	defer end()
	local, to := ":68", netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 67)
	if iface == "" {
		p.GatewayIPAddr = s.cfg.Address.AsSlice()
		local, to = netip.AddrPortFrom(s.cfg.Address, 0).String(), netip.AddrPortFrom(s.cfg.Address, 67)
	}
	conn, err := clientSocket(ctx, local, iface)
	if err != nil {
		return err
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer conn.Close() // ends the reader
	if iface != "" {
		reading.Add(1)
		go func() {
			defer reading.Done()
			s.readAnswers(conn)
		}()
	}
	for range checkTries {
		if _, err := conn.WriteToUDPAddrPort(p.ToBytes(), to); err != nil {
			return err
		}
		for wait := time.After(checkWait); wait != nil; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-wait:
				wait = nil
			case r := <-answers:
				if f, ok := offer(r.ToBytes(), p.TransactionID); ok {
					found.add(f)
				}
			}
		}
		if found.ours {
			return nil
		}
	}
	return nil
}

// readAnswers passes packets on a client's port to the check, until conn is closed.
func (s *Server) readAnswers(conn *net.UDPConn) {
	buf := make([]byte, wire.MaxDatagram)
	for {
		n, _, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an error of a packet that was sent before
		}
		s.readAnswer(bytes.Clone(buf[:n]))
	}
}

func (s *Server) readAnswer(b []byte) {
	defer s.guard.Recover("an answer to a check of DHCP")
	if p, err := dhcpv4.FromBytes(b); err == nil {
		s.checks.deliver(p)
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

// fetchCheck fetches the script of CheckMAC by HTTP and TFTP, like a machine.
func (s *Server) fetchCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Base()+checkURL, nil)
	if err != nil {
		return err
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := t.RoundTrip(req)
	var script []byte
	if err == nil {
		script, err = io.ReadAll(io.LimitReader(resp.Body, maxHTTPBody))
		err = errors.Join(err, resp.Body.Close())
	}
	if err == nil && string(script) != s.checkScript() {
		err = fmt.Errorf("the answer (%s) came from another server", resp.Status)
	}
	if err != nil {
		return fmt.Errorf("fetching the boot script of a client, %s: %w: %w", req.URL, err, inventory.ErrUnreachable)
	}
	addr := httpserve.WithHost(s.cfg.TFTPAddr, s.cfg.bind())
	var b bytes.Buffer
	c, err := pin.NewClient(addr)
	if err == nil {
		c.SetTimeout(tftp.Timeout)
		c.SetRetries(tftp.Retries)
		var from io.WriterTo
		if from, err = c.Receive(CheckMAC+"/"+autoexecName, "octet"); err == nil {
			_, err = from.WriteTo(&b)
		}
	}
	if err == nil && b.String() != s.checkScript() {
		err = errors.New("the answer came from another server")
	}
	if err != nil {
		return fmt.Errorf("fetching the boot script of a client by TFTP from %s: %w: %w", addr, err, inventory.ErrUnreachable)
	}
	return nil
}
