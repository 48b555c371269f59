package bootsvc

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// romText returns an option of a packet as a PXE ROM of about 2010 reads it: until a zero byte, also if that is in
// the next option.
func romText(b []byte, code uint8) string {
	for o := b[240:]; len(o) > 1 && o[0] != 255; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		if o[0] == code {
			text, _, _ := strings.Cut(string(o[2:]), "\x00")
			return text
		}
		o = o[2+int(o[1]):]
	}
	return ""
}

// A PXE ROM that reads options 66 and 67 until a zero byte gets its loader by TFTP under the name that it read,
// whichever option follows.
func TestOldROMsReadTheFileName(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	here := netip.MustParsePrefix("10.10.20.2/24")
	uuid := generic(97, append([]byte{0}, "AAAAAAAAAAAAAAAA"...)...)
	for _, mode := range []inventory.DHCPMode{inventory.DHCPReservation, inventory.DHCPProxy} {
		s, _ := newServer(t, f, inMode(mode))
		s.network.neighbour = func(netip.Addr) (string, bool) { return testMAC, true }
		tftp := startTFTP(t, s)
		for _, arch := range []byte{wire.ArchBIOS, wire.ArchUEFIEBC} {
			for name, extra := range map[string][]dhcpv4.Modifier{
				"option 97": {uuid}, "the end": nil, "option 82": {generic(82, 1, 2, 'p', '7')},
			} {
				in := dhcp.Link{Name: "lo", Prefixes: []netip.Prefix{here}, Mode: mode, Port: 67}
				kind := dhcpv4.MessageTypeDiscover
				if mode == inventory.DHCPProxy && arch != wire.ArchBIOS {
					in.Port, in.From, kind = wire.ProxyPort, netip.MustParseAddrPort("10.10.20.170:4011"), dhcpv4.MessageTypeRequest
				}
				where := fmt.Sprintf("%s, architecture %d, then %s", mode, arch, name)
				r := s.dhcp.Handle(t.Context(), packet(t, kind, append(extra, pxeClient(arch))...).ToBytes(), in)
				if r.Route == dhcp.RouteNone {
					t.Fatalf("%s: no answer", where)
				}
				sent := r.Packet.ToBytes()
				file := romText(sent, 67)
				if mode == inventory.DHCPReservation {
					if server := romText(sent, 66); server != testSelf.String() {
						t.Errorf("%s: the ROM reads the server as %q", where, server)
					}
					file = testMAC + "/" + file // loopback is not the machine's address
				}
				if body, err := tftptest.Get(t, tftp, file); err != nil || !strings.Contains(body, "\n") {
					t.Errorf("%s: the ROM asks for %q: %v", where, file, err)
				}
			}
		}
	}
}

// Option 93 is a list: its first architecture that has a loader counts (RFC 4578 §2.1). A machine whose
// document says that it is no x86 gets no loader for x86.
func TestArchitecturesOfAClient(t *testing.T) {
	for _, c := range []struct {
		list []byte
		edit func(*inventory.Machine)
		file string
		why  string
	}{
		{list: []byte{0, 6, 0, 7}, file: loaderUEFI},
		{list: []byte{0, 7, 0, 6}, file: loaderUEFI},
		{list: []byte{0, 10, 0, 6, 0, 0}, file: loaderBIOS},
		{list: []byte{0, 7, 9}, file: loaderUEFI}, // a byte too many
		{list: []byte{0, 6, 0, 10}, why: "no loader for architecture UEFI IA32"},
		{list: []byte{0, 0}, edit: onARM, why: "no loader for BIOS x86, because the machine's document sets arch: aarch64"},
		{list: []byte{0, 11, 0, 7}, edit: onARM, why: "no loader for UEFI x64, because the machine's document sets arch: aarch64"},
		{list: []byte{0, 0}, edit: func(m *inventory.Machine) { onARM(m); m.Interfaces[0].Loader = "ipxe.efi" }, file: "ipxe.efi"},
	} {
		f := &fakeMachines{machines: []inventory.Machine{machine(c.edit)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
		var log strings.Builder
		s, _ := newServer(t, f, func(cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		p := packet(t, dhcpv4.MessageTypeDiscover, generic(60, []byte("PXEClient:Arch:00006:UNDI:003016")...), generic(93, c.list...))
		r := s.dhcp.Handle(t.Context(), p.ToBytes(), dhcp.Link{Name: "eth0"})
		if r.Route == dhcp.RouteNone || r.Packet.BootFileName != c.file {
			t.Errorf("option 93 = %x: %s, want file %q", c.list, describe(r), c.file)
		}
		if !strings.Contains(log.String(), c.why) {
			t.Errorf("option 93 = %x: %q is not in the log: %s", c.list, c.why, log.String())
		}
	}
}

func onARM(m *inventory.Machine) { m.Interfaces[0].Arch = "aarch64" }
