package bootsvc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// serveTFTP serves until ctx ends. It uses a single port: with a new port for each
// transfer, every router between relay and server would need connection tracking.
//
// One goroutine receives packets and answers ACKs. Each transfer has another one, which
// looks the machine up, reads the file ahead and repeats lost blocks.
func (s *Server) serveTFTP(ctx context.Context, c *tftpConn) error {
	c.guard, c.limits, c.stats = s.guard, s.limits, &s.stats.tftp
	defer c.Close() // when no transfer uses it
	var transfers sync.WaitGroup
	defer transfers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer c.shut()
	defer context.AfterFunc(ctx, c.shut)()
	return c.receive(func(session *tftpSession) {
		transfers.Go(func() { s.transferTFTP(ctx, c, session) })
	})
}

// transferTFTP handles one read request.
func (s *Server) transferTFTP(ctx context.Context, c *tftpConn, session *tftpSession) {
	err := errBrokeOff
	defer func() {
		if v := recover(); v != nil {
			s.guard.Caught("a TFTP transfer", v)
		}
		switch {
		case err == nil:
			s.stats.tftpServed.Add(1)
		case errors.Is(err, errOptional):
		case errors.Is(err, errNoFile), errors.Is(err, errBusy):
			s.stats.tftpRefused.Add(1)
		default:
			s.stats.tftpAborted.Add(1)
		}
		c.finish(session, err)
	}()
	session.unresolved = c.limits.unresolved(session.peer.Addr())
	err = s.readTFTP(ctx, askTFTP{
		name: session.request.name, from: session.peer.Addr(), local: session.local,
		send: func(rank tftpRank, size int64, content io.Reader) error {
			return c.transfer(session, rank, size, content)
		},
	})
}

// askTFTP is a read request.
type askTFTP struct {
	name  string
	from  netip.Addr
	local netip.Addr
	mac   string // of from, where another DHCP server may have given that address; "" = not known
	// send sends the file, and returns when the client has acknowledged all of it.
	send func(rank tftpRank, size int64, content io.Reader) error
}

// fromThisHost reports whether this host sent the request. The source cannot be forged: the
// kernel drops packets from the network with an address of this host as their source.
func (a askTFTP) fromThisHost() bool {
	return a.from.IsLoopback() || a.from == a.local
}

// rank returns the rank of a request for a file of m.
func (a askTFTP) rank(m inventory.Machine, d Decision) tftpRank {
	switch {
	case !d.Armed():
		return rankKnown
	case reserved(m, a.from), a.mac != "" && a.mac == d.Interface.MAC:
		return rankOwn
	}
	return rankArmed
}

// tftpPath splits a file name as firmware writes it into an optional MAC and a plain
// name.
func tftpPath(name string) (mac, file string, ok bool) {
	seg := split(name)
	switch len(seg) {
	case 1:
		file = seg[0]
	case 2:
		if mac, ok = wire.ParseMAC(seg[0]); !ok {
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
func (s *Server) readTFTP(ctx context.Context, ask askTFTP) error {
	ask.mac = s.neighbourOf(ask.from)
	if seg := split(ask.name); len(seg) > 1 && (seg[0] == "grub" || seg[0] == "boot") {
		return s.readGrub(ctx, seg, ask)
	}
	mac, file, ok := tftpPath(ask.name)
	if !ok {
		return errNoFile
	}
	req := Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	if mac == "" {
		req.MAC, req.Address = ask.mac, ask.from
	}
	lookup, cancel := context.WithTimeout(ctx, dhcpLookup)
	m, d := s.decided(lookup, req)
	if m == nil && s.admitVisitor(lookup, req.MAC, ask.from) {
		m, d = s.decided(lookup, req)
	}
	cancel()
	s.rememberTFTP(ask.from, cmp.Or(d.Interface.MAC, req.MAC), ask.name, d)
	switch {
	case m == nil && mac == CheckMAC && file == autoexecName && ask.fromThisHost():
		return sendScript(s.checkScript(), ask, rankOwn)
	case m == nil && file == autoexecName && s.anonymous(req):
		return sendScript(s.chainScript(), ask, rankKnown)
	case m == nil && !s.anonymous(req):
		return errNoFile
	case m != nil && file == autoexecName:
		return s.tftpScript(ctx, *m, d, ask)
	case m != nil && !d.ServesLoader():
		s.log.With(d.logKeys()...).Info("TFTP refused: the machine is not armed", "file", file, "reasons", d.Reasons)
		if mac == "" { // another DHCP server named the loader, so this is the first packet of this boot
			s.rec.Event(d.event(diskEvent(d), file+" by TFTP"))
		}
		return errNoFile
	}
	f, info, err := s.openLoader(file)
	if err != nil && optionalOfShim.MatchString(file) {
		return errOptional
	}
	if err != nil {
		s.log.With(d.logKeys()...).Warn("TFTP: loader not served", "file", file, "error", err)
		return errNoFile
	}
	defer f.Close()
	rank := rankKnown
	if m != nil {
		rank = ask.rank(*m, d)
	}
	defer s.beginTransfer(d)()
	began := s.now()
	if err := ask.send(rank, info.Size(), f); err != nil {
		// UEFI requests the size, aborts, and then downloads.
		s.log.With(d.logKeys()...).Debug("TFTP transfer ended early", "file", file, "error", err)
		return err
	}
	if m != nil {
		s.rec.Transfer(d.event(inventory.EventLoader, file+" by TFTP"), began)
	}
	return nil
}

// rememberTFTP remembers a read request of a client that boots.
func (s *Server) rememberTFTP(from netip.Addr, mac, name string, d Decision) {
	s.History.Add(mac, wire.Entry{
		At: s.now(), Where: "TFTP from " + from.String(),
		Request: plaintext.ASCII("RRQ "+name, wire.MaxText), Reply: "verdict " + string(d.Verdict),
	})
}

// sendScript sends a script.
func sendScript(script string, ask askTFTP, rank tftpRank) error {
	return ask.send(rank, int64(len(script)), strings.NewReader(script))
}

func (s *Server) tftpScript(ctx context.Context, m inventory.Machine, d Decision, ask askTFTP) error {
	script, ok, err := s.script(ctx, m, d, true)
	if err != nil {
		s.log.With(d.logKeys()...).Error("rendering a boot script", "error", err)
	}
	if err != nil || !ok {
		return errNoFile
	}
	if err := sendScript(script, ask, ask.rank(m, d)); err != nil {
		return err
	}
	s.rec.Event(d.event(scriptEvent(d), autoexecName+" by TFTP"))
	return nil
}
