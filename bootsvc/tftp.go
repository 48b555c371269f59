package bootsvc

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// A tftpAsk is a read request. If another DHCP server may have assigned the client's address, mac is the client's MAC;
// "" = not known.
type tftpAsk struct {
	tftp.Request
	mac string
}

// fromThisHost reports whether this host sent the request. The source address cannot be forged: the kernel drops
// packets from the network whose source is an address of this host.
func (a tftpAsk) fromThisHost() bool {
	return a.From.IsLoopback() || a.From == a.Local
}

// rank returns the importance of this request for a file of m.
func (a tftpAsk) rank(m inventory.Machine, d Decision) tftp.Rank {
	switch {
	case !d.Armed():
		return tftp.RankKnown
	case hasAddress(m, a.From), a.mac != "" && a.mac == d.Interface.MAC:
		return tftp.RankOwn
	}
	return tftp.RankArmed
}

// tftpPath splits a requested path into an optional MAC and a file name. It accepts slashes and backslashes. ok is
// false for any other path.
func tftpPath(name string) (mac, file string, ok bool) {
	seg := splitPath(name)
	switch len(seg) {
	case 1:
		file = seg[0]
	case 2:
		if mac, ok = wire.ParseMAC(seg[0]); !ok {
			return "", "", false
		}
		file = seg[1]
	}
	if !isFileName(file) {
		return "", "", false
	}
	return mac, file, true
}

// tftpFiles answers the read requests of TFTP.
type tftpFiles struct {
	cfg     *Config
	decider *decider
	scripts *scripts
	loaders *loaders
	history *wire.History
	rec     *wire.Recorder
}

// read answers one read request; it is the tftp.Handler.
func (t *tftpFiles) read(ctx context.Context, r tftp.Request) error {
	ask := tftpAsk{r, t.decider.network.neighbourOf(r.From)}
	if seg := splitPath(ask.Name); len(seg) > 1 && (seg[0] == "grub" || seg[0] == "boot") {
		return t.readGrub(ctx, seg, ask)
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
	m, d := t.decider.find(lookup, req, ask.From)
	cancel()
	t.remember(ask.From, cmp.Or(d.Interface.MAC, req.MAC), ask.Name, d)
	switch {
	case m == nil && mac == neighbours.CheckMAC && file == autoexecName && ask.fromThisHost():
		return sendScript(t.scripts.checkScript(), ask, tftp.RankOwn)
	case m == nil && file == autoexecName && t.decider.network.isAnonymous(req):
		return sendScript(t.scripts.chainScript(), ask, tftp.RankKnown)
	case m == nil && !t.decider.network.isAnonymous(req):
		return tftp.ErrNoFile
	case m != nil && file == autoexecName:
		return t.sendBootScript(ctx, *m, d, ask)
	case m != nil && !d.ServesLoader():
		t.cfg.Log.With(d.logKeys()...).Info("TFTP refused: the machine is not armed", "file", file, "reasons", d.Reasons)
		if mac == "" { // another DHCP server named the loader, so this is the first packet of this boot
			t.rec.Event(d.event(diskEvent(d), file+" by TFTP"))
		}
		return tftp.ErrNoFile
	}
	f, info, err := t.loaders.open(file)
	if err != nil && optionalOfShim.MatchString(file) {
		return tftp.ErrOptional
	}
	if err != nil {
		t.cfg.Log.With(d.logKeys()...).Warn("TFTP: loader not served", "file", file, "error", err)
		return tftp.ErrNoFile
	}
	defer f.Close()
	rank := tftp.RankKnown
	if m != nil {
		rank = ask.rank(*m, d)
	}
	defer beginTransfer(t.history, d)()
	began := t.cfg.Now()
	if err := ask.Send(rank, info.Size(), f); err != nil {
		// UEFI first asks only for the size and aborts, and then downloads.
		t.cfg.Log.With(d.logKeys()...).Debug("TFTP transfer ended early", "file", file, "error", err)
		return err
	}
	if m != nil {
		t.rec.Transfer(d.event(inventory.EventLoader, file+" by TFTP"), began)
	}
	return nil
}

// remember adds a read request to the history of the client with this MAC.
func (t *tftpFiles) remember(from netip.Addr, mac, name string, d Decision) {
	t.history.Add(mac, wire.Entry{
		At: t.cfg.Now(), Where: "TFTP from " + from.String(),
		Request: plaintext.ASCII("RRQ "+name, wire.MaxText), Reply: "verdict " + string(d.Verdict),
	})
}

// sendScript sends a script as the answer to ask.
func sendScript(script string, ask tftpAsk, rank tftp.Rank) error {
	return ask.Send(rank, int64(len(script)), strings.NewReader(script))
}

func (t *tftpFiles) sendBootScript(ctx context.Context, m inventory.Machine, d Decision, ask tftpAsk) error {
	script, ok, err := t.scripts.render(ctx, m, d, true)
	if err != nil {
		t.cfg.Log.With(d.logKeys()...).Error("rendering a boot script", "error", err)
	}
	if err != nil || !ok {
		return tftp.ErrNoFile
	}
	if err := sendScript(script, ask, ask.rank(m, d)); err != nil {
		return err
	}
	t.rec.Event(d.event(scriptEvent(d), autoexecName+" by TFTP"))
	return nil
}

// readGrub answers a read request whose path begins with grub or boot: the requests of GRUB after shim has started it.
// GRUB can do without any file that readGrub does not recognize.
func (t *tftpFiles) readGrub(ctx context.Context, seg []string, ask tftpAsk) error {
	req := Request{Address: ask.From, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	common := len(seg) == 2 && seg[1] == "grub.cfg"
	own := len(seg) == 3 && seg[0] == "grub" && seg[1] == "m"
	boot := len(seg) == 4 && seg[0] == "boot"
	switch {
	case own, boot:
		mac, ok := wire.ParseMAC(seg[len(seg)-1])
		if boot {
			mac, ok = wire.ParseMAC(seg[1])
		}
		if !ok {
			return tftp.ErrNoFile
		}
		req = Request{MAC: mac, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}
	case seg[0] != "grub" || !common:
		return tftp.ErrOptional
	}

	lookup, cancel := context.WithTimeout(ctx, lookupTime)
	req = t.decider.network.identify(req)
	visitor := netip.Addr{}
	if own {
		visitor = ask.From
	}
	m, d := t.decider.find(lookup, req, visitor)
	cancel()
	name := ask.Name
	if boot {
		name = "/boot/" + req.MAC + "/TOKEN/" + seg[3] // TOKEN instead of the token, which is a secret: it gives access to the boot's files
	}
	t.remember(ask.From, cmp.Or(d.Interface.MAC, req.MAC), name, d)
	switch {
	case common && (m != nil || t.decider.network.isAnonymous(req)):
		return sendScript(grubConfig, ask, tftp.RankKnown)
	case m == nil:
		return tftp.ErrNoFile
	case own:
		return t.sendGrubScript(*m, d, ask)
	}
	return t.sendAgentOS(*m, d, seg[2], seg[3], ask)
}

// sendGrubScript sends the machine's own configuration file to GRUB.
func (t *tftpFiles) sendGrubScript(m inventory.Machine, d Decision, ask tftpAsk) error {
	script, err := t.scripts.grubScript(m, d)
	if err != nil {
		t.cfg.Log.Error("rendering GRUB's configuration", "machine", m.Name, "error", err)
		return tftp.ErrNoFile
	}
	if err := sendScript(script, ask, ask.rank(m, d)); err != nil {
		return err
	}
	t.rec.Event(d.event(scriptEvent(d), "GRUB's configuration by TFTP"))
	return nil
}

// sendAgentOS sends the kernel or initramfs of the agent OS if isOpen permits that for token.
func (t *tftpFiles) sendAgentOS(m inventory.Machine, d Decision, token, name string, ask tftpAsk) error {
	if !t.scripts.urls.isOpen(d, token) || d.Verdict == Installer {
		return tftp.ErrNoFile
	}
	f, info, kind, err := t.loaders.openAgentOS(name)
	if err != nil {
		return tftp.ErrNoFile
	}
	defer f.Close()
	defer beginTransfer(t.history, d)()
	if err := ask.Send(ask.rank(m, d), info.Size(), f); err != nil {
		return err
	}
	t.rec.Event(d.event(kind, fmt.Sprintf("%d bytes by TFTP", info.Size())))
	return nil
}
