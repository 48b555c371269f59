package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/pin/tftp/v3"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	tftpBlock   = 1428 // fits an MTU of 1500 with room for a VLAN tag and a tunnel
	tftpTimeout = 2 * time.Second
	tftpRetries = 5
)

// Operation codes (RFC 1350, 2347).
const (
	opRRQ   = 1
	opWRQ   = 2
	opData  = 3
	opACK   = 4
	opError = 5
	opOACK  = 6
)

// serveTFTP serves until ctx ends. It uses a single port: with a new port for each
// transfer, every router between relay and server would need connection tracking.
func (s *Server) serveTFTP(ctx context.Context, c *tftpConn) error {
	defer c.Close()
	c.guard = s.guard
	srv := tftp.NewServer(func(name string, rf io.ReaderFrom) error { return s.transferTFTP(ctx, c, name, rf) }, nil)
	srv.SetBlockSize(tftpBlock)
	srv.SetBlockSizeNegotiation(false) // it would limit blocks to 512: the library does not know the MTU
	srv.SetTimeout(tftpTimeout)
	srv.SetRetries(math.MaxInt) // tftpConn ends a transfer after tftpRetries
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

// serveOnce runs the library's loop. In single-port mode the loop panics if it sends
// on the channel of a transfer that has just ended. tftpConn prevents that, but a
// panic must not stop DHCP either: it is recovered, and the caller starts the loop
// again, which holds no lock at that point.
func (s *Server) serveOnce(srv *tftp.Server, c *tftpConn) (done bool, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.guard.Caught("a TFTP packet", v)
			done, err = false, nil
		}
	}()
	if err := srv.Serve(c); err != nil {
		return true, fmt.Errorf("serving TFTP: %w", err)
	}
	return true, nil
}

// transferTFTP handles one read request. It runs in a goroutine of the library, which
// does not recover panics.
func (s *Server) transferTFTP(ctx context.Context, c *tftpConn, name string, rf io.ReaderFrom) (err error) {
	remote := rf.(tftp.OutgoingTransfer).RemoteAddr()
	session := c.session(peerOf(&remote))
	if session == nil {
		return errNoFile // WriteTo sends nothing without a session
	}
	defer func() {
		if v := recover(); v != nil {
			s.guard.Caught("a TFTP transfer", v)
			err = errBrokeOff
		}
		if err == nil {
			s.stats.tftpServed.Add(1)
		} else {
			s.stats.tftpRefused.Add(1)
		}
		if !errors.Is(err, errNoFile) || session.crowded {
			c.end(session) // nothing more is sent
		}
	}()
	return s.readTFTP(ctx, name, rf, askTFTP{session.peer.Addr(), session.local, func(rank tftpRank) bool { return c.serve(session, rank) }})
}

// askTFTP is the source and destination address of a request.
type askTFTP struct {
	from  netip.Addr
	local net.IP
	// serve makes room for a transfer. It returns false if there is no room.
	serve func(rank tftpRank) bool
}

// fromThisHost reports whether this host sent the request. The source cannot be forged: the
// kernel drops packets from the network with an address of this host as their source.
func (a askTFTP) fromThisHost() bool {
	return a.from.IsLoopback() || a.from == addr4(a.local)
}

// rank returns the rank of a request for a file of m.
func (a askTFTP) rank(m inventory.Machine, d Decision) tftpRank {
	switch {
	case !d.Armed():
		return rankKnown
	case reserved(m, a.from):
		return rankOwn
	}
	return rankArmed
}

var (
	// errBusy means that transfers of a higher rank need the room. The client gets no
	// answer and retries.
	errBusy     = errors.New("too many transfers")
	errBrokeOff = errors.New("the transfer broke off")
)

// errNoFile is the error that a client gets, for any reason.
var errNoFile = errors.New("file not found")

// tftpPath splits a file name as firmware writes it into an optional MAC and a plain
// name.
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
func (s *Server) readTFTP(ctx context.Context, name string, rf io.ReaderFrom, ask askTFTP) error {
	mac, file, ok := tftpPath(name)
	if !ok {
		return errNoFile
	}
	req := Request{MAC: mac, Class: ClassIPXE, Arch: ArchUnknown}
	if mac == "" {
		req.Address = ask.from
	}
	lookup, cancel := context.WithTimeout(ctx, dhcpLookup)
	req = s.identify(req)
	m, d := s.decided(lookup, req)
	cancel()
	switch {
	case m == nil && mac == CheckMAC && file == autoexecName && ask.fromThisHost():
		return sendScript(s.checkScript(), rf, ask, rankOwn)
	case m == nil && file == autoexecName && s.anonymous(req):
		return sendScript(s.chainScript(), rf, ask, rankKnown)
	case m == nil && !s.anonymous(req):
		return errNoFile
	case m != nil && file == autoexecName:
		return s.tftpScript(ctx, *m, d, rf, ask)
	case m != nil && !d.ServesLoader():
		s.log.Info("TFTP refused: the machine is not armed", "machine", d.Machine, "file", file, "reasons", d.Reasons)
		if mac == "" { // another DHCP server named the loader, so this is the first packet of this boot
			s.rec.event(d, diskEvent(d), file+" by TFTP")
		}
		return errNoFile
	}
	f, info, err := s.openLoader(file)
	if err != nil {
		s.log.Warn("TFTP: no such loader", "machine", d.Machine, "file", file, "error", err)
		return errNoFile
	}
	defer f.Close()
	rank := rankKnown
	if m != nil {
		rank = ask.rank(*m, d)
	}
	if !ask.serve(rank) {
		return errBusy
	}
	rf.(tftp.OutgoingTransfer).SetSize(info.Size())
	if _, err := rf.ReadFrom(f); err != nil {
		// UEFI requests the size, aborts, and then downloads.
		s.log.Debug("TFTP transfer ended early", "machine", d.Machine, "file", file, "error", err)
		return err
	}
	if m != nil {
		s.rec.event(d, inventory.EventLoader, file+" by TFTP")
	}
	return nil
}

// sendScript sends a script.
func sendScript(script string, rf io.ReaderFrom, ask askTFTP, rank tftpRank) error {
	if !ask.serve(rank) {
		return errBusy
	}
	rf.(tftp.OutgoingTransfer).SetSize(int64(len(script)))
	_, err := rf.ReadFrom(strings.NewReader(script))
	return err
}

func (s *Server) tftpScript(ctx context.Context, m inventory.Machine, d Decision, rf io.ReaderFrom, ask askTFTP) error {
	script, ok, err := s.script(ctx, m, d, true)
	if err != nil {
		s.log.Error("rendering a boot script", "machine", m.Name, "error", err)
	}
	if err != nil || !ok {
		return errNoFile
	}
	if err := sendScript(script, rf, ask, ask.rank(m, d)); err != nil {
		return err
	}
	s.rec.event(d, scriptEvent(d), autoexecName+" by TFTP")
	return nil
}
