package bootsvc

import (
	"cmp"
	"context"
	"net/netip"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// A tftpAsk is a read request, and the MAC of its client where another DHCP server may have given the address; "" = not known.
type tftpAsk struct {
	tftp.Request
	mac string
}

// fromThisHost reports whether this host sent the request. The source cannot be forged: the
// kernel drops packets from the network with an address of this host as their source.
func (a tftpAsk) fromThisHost() bool {
	return a.From.IsLoopback() || a.From == a.Local
}

// rank returns the rank of a request for a file of m.
func (a tftpAsk) rank(m inventory.Machine, d Decision) tftp.Rank {
	switch {
	case !d.Armed():
		return tftp.RankKnown
	case reserved(m, a.From), a.mac != "" && a.mac == d.Interface.MAC:
		return tftp.RankOwn
	}
	return tftp.RankArmed
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
func (s *Server) readTFTP(ctx context.Context, r tftp.Request) error {
	ask := tftpAsk{r, s.neighbourOf(r.From)}
	if seg := split(ask.Name); len(seg) > 1 && (seg[0] == "grub" || seg[0] == "boot") {
		return s.readGrub(ctx, seg, ask)
	}
	mac, file, ok := tftpPath(ask.Name)
	if !ok {
		return tftp.ErrNoFile
	}
	req := Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	if mac == "" {
		req.MAC, req.Address = ask.mac, ask.From
	}
	lookup, cancel := context.WithTimeout(ctx, lookupTime)
	m, d := s.decided(lookup, req)
	if m == nil && s.admitVisitor(lookup, req.MAC, ask.From) {
		m, d = s.decided(lookup, req)
	}
	cancel()
	s.rememberTFTP(ask.From, cmp.Or(d.Interface.MAC, req.MAC), ask.Name, d)
	switch {
	case m == nil && mac == neighbours.CheckMAC && file == autoexecName && ask.fromThisHost():
		return sendScript(s.checkScript(), ask, tftp.RankOwn)
	case m == nil && file == autoexecName && s.anonymous(req):
		return sendScript(s.chainScript(), ask, tftp.RankKnown)
	case m == nil && !s.anonymous(req):
		return tftp.ErrNoFile
	case m != nil && file == autoexecName:
		return s.tftpScript(ctx, *m, d, ask)
	case m != nil && !d.ServesLoader():
		s.log.With(d.logKeys()...).Info("TFTP refused: the machine is not armed", "file", file, "reasons", d.Reasons)
		if mac == "" { // another DHCP server named the loader, so this is the first packet of this boot
			s.rec.Event(d.event(diskEvent(d), file+" by TFTP"))
		}
		return tftp.ErrNoFile
	}
	f, info, err := s.openLoader(file)
	if err != nil && optionalOfShim.MatchString(file) {
		return tftp.ErrOptional
	}
	if err != nil {
		s.log.With(d.logKeys()...).Warn("TFTP: loader not served", "file", file, "error", err)
		return tftp.ErrNoFile
	}
	defer f.Close()
	rank := tftp.RankKnown
	if m != nil {
		rank = ask.rank(*m, d)
	}
	defer s.beginTransfer(d)()
	began := s.now()
	if err := ask.Send(rank, info.Size(), f); err != nil {
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
func sendScript(script string, ask tftpAsk, rank tftp.Rank) error {
	return ask.Send(rank, int64(len(script)), strings.NewReader(script))
}

func (s *Server) tftpScript(ctx context.Context, m inventory.Machine, d Decision, ask tftpAsk) error {
	script, ok, err := s.script(ctx, m, d, true)
	if err != nil {
		s.log.With(d.logKeys()...).Error("rendering a boot script", "error", err)
	}
	if err != nil || !ok {
		return tftp.ErrNoFile
	}
	if err := sendScript(script, ask, ask.rank(m, d)); err != nil {
		return err
	}
	s.rec.Event(d.event(scriptEvent(d), autoexecName+" by TFTP"))
	return nil
}
