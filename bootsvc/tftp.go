package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/pin/tftp/v3"
	"golang.org/x/net/ipv4"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	tftpBlock       = 1428 // fits an MTU of 1500 with room for a VLAN tag and a tunnel
	tftpTimeout     = 2 * time.Second
	tftpRetries     = 5
	tftpSessions    = 256 // at once
	tftpPerSource   = 8   // at once, of one address
	tftpPerWindow   = 100 // requests of one address in tftpWindow
	tftpWindow      = 10 * time.Second
	tftpSources     = 4096
	tftpSessionLife = 30 * time.Second // without a packet
)

// Operation codes (RFC 1350, 2347).
const (
	opRRQ   = 1
	opWRQ   = 2
	opError = 5
)

// serveTFTP serves until ctx ends. It uses one port: a transfer from a fresh
// port needs connection tracking in every router between relay and server.
func (s *Server) serveTFTP(ctx context.Context, c *tftpConn) error {
	defer c.Close()
	srv := tftp.NewServer(func(name string, rf io.ReaderFrom) error {
		remote := rf.(tftp.OutgoingTransfer).RemoteAddr()
		defer c.end(peerOf(&remote))
		err := s.readTFTP(ctx, name, rf)
		if err != nil {
			s.stats.tftpRefused.Add(1)
		} else {
			s.stats.tftpServed.Add(1)
		}
		return err
	}, nil)
	srv.SetBlockSize(tftpBlock)
	srv.SetBlockSizeNegotiation(false) // it would clamp to 512: the library does not know our connection's MTU
	srv.SetTimeout(tftpTimeout)
	srv.SetRetries(tftpRetries)
	srv.EnableSinglePort()
	stop := context.AfterFunc(ctx, func() {
		srv.Shutdown()
		c.shut()
	})
	defer stop()
	for {
		done, err := s.serveOnce(srv, c)
		if err != nil || done {
			return err
		}
	}
}

// serveOnce runs the library's loop. In single-port mode it may send on a
// channel that the end of a transfer is just closing (a duplicate of the last
// ACK is enough): that panic must not take DHCP down with it. The loop holds
// no lock there and is simply started again.
func (s *Server) serveOnce(srv *tftp.Server, c *tftpConn) (done bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Warn("the TFTP loop is started again", "panic", fmt.Sprint(p))
			done, err = false, nil
		}
	}()
	if err := srv.Serve(c); err != nil {
		return true, fmt.Errorf("serving TFTP: %w", err)
	}
	return true, nil
}

// errNoFile is what a client is told, whatever the reason.
var errNoFile = errors.New("file not found")

// tftpPath splits a file name as firmware writes it, into the MAC that it may
// begin with and a plain name.
func tftpPath(name string) (mac, file string, ok bool) {
	seg := split(name)
	switch len(seg) {
	case 1:
		file = seg[0]
	case 2:
		if mac, ok = ParseMAC(seg[0]); !ok {
			return "", "", false
		}
		file = seg[1]
	}
	if !fileName(file) {
		return "", "", false
	}
	return mac, file, true
}

// readTFTP answers one read request.
func (s *Server) readTFTP(ctx context.Context, name string, rf io.ReaderFrom) error {
	remote := rf.(tftp.OutgoingTransfer).RemoteAddr()
	mac, file, ok := tftpPath(name)
	if !ok {
		return errNoFile
	}
	req := Request{MAC: mac, Class: ClassIPXE, Arch: ArchUnknown}
	if mac == "" {
		req.Address = unmap(remote.AddrPort().Addr())
	}
	lookup, cancel := context.WithTimeout(ctx, dhcpLookup)
	m, d := s.decided(lookup, req)
	cancel()
	if m == nil && mac == CheckMAC && file == autoexecName {
		script := s.checkScript()
		rf.(tftp.OutgoingTransfer).SetSize(int64(len(script)))
		_, err := rf.ReadFrom(strings.NewReader(script))
		return err
	}
	if m == nil {
		return errNoFile
	}
	if file == autoexecName {
		return s.tftpScript(ctx, *m, d, rf)
	}
	if !d.ServesLoader() {
		s.log.Info("TFTP refused: the machine is not armed", "machine", d.Machine, "file", file, "reasons", d.Reasons)
		return errNoFile
	}
	f, info, err := s.openLoader(file)
	if err != nil {
		s.log.Warn("TFTP: no such loader", "machine", d.Machine, "file", file, "error", err)
		return errNoFile
	}
	defer f.Close()
	rf.(tftp.OutgoingTransfer).SetSize(info.Size())
	if _, err := rf.ReadFrom(f); err != nil {
		// UEFI asks for the size first, aborts, and then downloads.
		s.log.Debug("TFTP transfer ended early", "machine", d.Machine, "file", file, "error", err)
		return err
	}
	s.rec.event(d, inventory.EventLoader, file+" by TFTP")
	return nil
}

func (s *Server) tftpScript(ctx context.Context, m inventory.Machine, d Decision, rf io.ReaderFrom) error {
	script, ok, err := s.script(ctx, m, d, true)
	if err != nil {
		s.log.Error("rendering a boot script", "machine", m.Name, "error", err)
	}
	if err != nil || !ok {
		return errNoFile
	}
	rf.(tftp.OutgoingTransfer).SetSize(int64(len(script)))
	if _, err := rf.ReadFrom(strings.NewReader(script)); err != nil {
		return err
	}
	s.rec.event(d, scriptEvent(d), autoexecName+" by TFTP")
	return nil
}

// A tftpConn stands between the library and the socket. It admits read
// requests within bounds, answers from the address that was asked, and sends
// to a source that has not answered yet no more packets than came from it:
// the source of a request is easily forged (security S34).
type tftpConn struct {
	*net.UDPConn
	p4     *ipv4.PacketConn
	mu     sync.Mutex
	live   map[netip.AddrPort]*tftpSession
	recent map[netip.Addr]*tftpSource
	closed bool
}

type tftpSession struct {
	local  net.IP
	last   time.Time
	asked  int // requests seen
	sent   int // packets sent before the first ACK
	proven bool
}

type tftpSource struct {
	since time.Time
	count int
}

func listenTFTP(ctx context.Context, addr string, self netip.Addr) (*tftpConn, error) {
	full := withHost(addr, self)
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, "udp4", full)
	if err != nil {
		return nil, fmt.Errorf("binding UDP %s for TFTP: %w (%s)", full, err, portRemedy(err, "TFTP address"))
	}
	conn := pc.(*net.UDPConn)
	p4 := ipv4.NewPacketConn(conn)
	if err := p4.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, errors.Join(fmt.Errorf("asking for packet information: %w", err), conn.Close())
	}
	return &tftpConn{UDPConn: conn, p4: p4, live: map[netip.AddrPort]*tftpSession{}, recent: map[netip.Addr]*tftpSource{}}, nil
}

// ReadFrom returns the next packet that belongs to an admitted transfer.
func (c *tftpConn) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		n, cm, from, err := c.p4.ReadFrom(b)
		if err != nil {
			c.mu.Lock()
			closed := c.closed
			c.mu.Unlock()
			if closed {
				time.Sleep(10 * time.Millisecond) // the library reads on until its transfers have ended
			}
			return n, from, err
		}
		src, ok := from.(*net.UDPAddr)
		if !ok || n < 4 || b[0] != 0 {
			continue
		}
		var local net.IP
		if cm != nil && cm.Dst != nil && !cm.Dst.IsMulticast() && !cm.Dst.Equal(net.IPv4bcast) {
			local = cm.Dst
		}
		switch peer := peerOf(src); b[1] {
		case opWRQ:
			if c.rate(peer.Addr()) {
				_, _ = c.p4.WriteTo([]byte("\x00\x05\x00\x02read-only\x00"), &ipv4.ControlMessage{Src: local}, src) // a lost error costs the client a time-out
			}
		case opRRQ:
			if c.admit(peer, local) {
				return n, from, nil
			}
		default:
			if c.known(peer, b[1]) {
				return n, from, nil
			}
		}
	}
}

// WriteTo sends what the library has for a transfer.
func (c *tftpConn) WriteTo(b []byte, to net.Addr) (int, error) {
	dst, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, net.ErrClosed
	}
	c.mu.Lock()
	session := c.live[peerOf(dst)]
	if c.closed || session == nil && b[1] != opError {
		c.mu.Unlock()
		return 0, io.ErrClosedPipe // not a net.Error: the library gives up instead of trying again
	}
	cm := &ipv4.ControlMessage{}
	if session != nil {
		if !session.proven && session.sent >= session.asked {
			c.mu.Unlock()
			return len(b), nil
		}
		session.sent++
		cm.Src = session.local
	}
	c.mu.Unlock()
	return c.p4.WriteTo(b, cm, to)
}

// rate counts a request of an address; false: too many.
func (c *tftpConn) rate(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rateLocked(a, time.Now())
}

func (c *tftpConn) rateLocked(a netip.Addr, now time.Time) bool {
	src := c.recent[a]
	if src == nil || now.Sub(src.since) > tftpWindow {
		if src == nil && len(c.recent) >= tftpSources {
			maps.DeleteFunc(c.recent, func(_ netip.Addr, s *tftpSource) bool { return now.Sub(s.since) > tftpWindow })
			if len(c.recent) >= tftpSources {
				return false
			}
		}
		src = &tftpSource{since: now}
		c.recent[a] = src
	}
	src.count++
	return src.count <= tftpPerWindow
}

func (c *tftpConn) admit(peer netip.AddrPort, local net.IP) bool {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.rateLocked(peer.Addr(), now) {
		return false
	}
	if session := c.live[peer]; session != nil {
		session.asked++
		session.last = now
		return true
	}
	of := 0
	for p, session := range c.live {
		if now.Sub(session.last) > tftpSessionLife {
			delete(c.live, p)
		} else if p.Addr() == peer.Addr() {
			of++
		}
	}
	if len(c.live) >= tftpSessions || of >= tftpPerSource {
		return false
	}
	c.live[peer] = &tftpSession{local: local, last: now, asked: 1}
	return true
}

func (c *tftpConn) known(peer netip.AddrPort, op byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	session := c.live[peer]
	if session == nil {
		return false
	}
	session.last = time.Now()
	session.proven = session.proven || op != opError
	return true
}

// end forgets a transfer. The library may still send an error for it, which
// needs no session.
func (c *tftpConn) end(peer netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.live, peer)
}

func peerOf(a *net.UDPAddr) netip.AddrPort {
	p := a.AddrPort()
	return netip.AddrPortFrom(unmap(p.Addr()), p.Port())
}

func (c *tftpConn) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
