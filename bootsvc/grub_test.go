package bootsvc

import (
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

func withShim(m *inventory.Machine) { m.Interfaces[0].Loader = inventory.LoaderShim }

// TestShimIsForUEFIByTFTP: who gets shim, and why the others do not.
func TestShimIsForUEFIByTFTP(t *testing.T) {
	m, g := machine(withShim), armed("node1")
	installer := g
	installer.Installer = true
	for _, c := range []struct {
		class wire.Class
		arch  int
		grant inventory.Grant
		want  string
	}{
		{wire.ClassPXE, wire.ArchUEFI, g, "shimx64.efi"},
		{wire.ClassPXE, wire.ArchUEFIEBC, g, "shimx64.efi"},
		{wire.ClassPXE, wire.ArchBIOS, g, "undionly.kpxe"},
		{wire.ClassHTTP, wire.ArchHTTP, g, ""},
		{wire.ClassPXE, wire.ArchUEFI, installer, ""},
		{wire.ClassPXE, wire.ArchBIOS, installer, "undionly.kpxe"},
		{wire.ClassPXE, 11, g, ""},
	} {
		d := Decide(m, c.grant, Request{MAC: testMAC, Class: c.class, Arch: c.arch}, testNow)
		if d.Loader != c.want {
			t.Errorf("%s %d: loader %q instead of %q: %v", c.class, c.arch, d.Loader, c.want, d.Reasons)
		}
		if last := d.Reasons[len(d.Reasons)-1]; c.want == "" && !strings.Contains(last, "no loader") {
			t.Errorf("%s %d: the reason is %q", c.class, c.arch, last)
		}
	}
}

// TestLoaderOfTheSite: interfaces that name no loader have the one of the configuration.
func TestLoaderOfTheSite(t *testing.T) {
	m := machine(func(m *inventory.Machine) {
		m.Interfaces = append(m.Interfaces, inventory.Interface{MAC: "52:54:00:20:01:02", Loader: "ipxe.efi"})
	})
	for site, want := range map[string]string{"": "snponly.efi", inventory.LoaderShim: "shimx64.efi", inventory.LoaderIPXEShim: "snponly-shim.efi"} {
		s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{m}}, func(c *Config) { c.Loader = site })
		for _, c := range []struct {
			mac, want string
			arch      int
		}{{testMAC, want, wire.ArchUEFI}, {testMAC, "undionly.kpxe", wire.ArchBIOS}, {"52:54:00:20:01:02", "ipxe.efi", wire.ArchUEFI}} {
			if d := s.decider.decide(m, armed("node1"), Request{MAC: c.mac, Class: wire.ClassPXE, Arch: c.arch}); d.Loader != c.want {
				t.Errorf("%q: %s, architecture %d: loader %q instead of %q", site, c.mac, c.arch, d.Loader, c.want)
			}
		}
	}
}

// TestSignedIPXE: firmware fetches the shim of the iPXE project and what that asks for, by TFTP or HTTP; the script starts
// Debian's kernel through Debian's shim.
func TestSignedIPXE(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.Interfaces[0].Loader = inventory.LoaderIPXEShim
		m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1")
	})}}
	s, _ := newServer(t, f, nil)
	for _, name := range []string{"snponly-shim.efi", "shimx64.efi"} {
		write(t, filepath.Join(s.cfg.LoaderDir, name), name)
	}
	f.setGrant(armed("node1"))
	h, addr := s.Handler(), startTFTP(t, s)
	e, err := s.Why(t.Context(), testMAC)
	if err != nil {
		t.Fatal(err)
	}
	byHTTP := "http://10.10.20.2/ipxe/binary/" + strings.ReplaceAll(testMAC, ":", "-") + "/"
	for n, want := range []string{"undionly.kpxe", "snponly-shim.efi", byHTTP + "snponly-shim.efi"} {
		if got := e.Answers[n]; got.BootFile != want {
			t.Errorf("%s gets %q instead of %q: %s", got.Client, got.BootFile, want, got.Reason)
		}
	}
	for _, name := range []string{"snponly-shim.efi", "snponly.efi", "autoexec.ipxe"} {
		if _, err := tftptest.Get(t, addr, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	script := get(t, h, http.MethodGet, "/ipxe/script/"+testMAC+"/auto.ipxe", "127.0.0.1").Body.String()
	_, after, _ := strings.Cut(script, "initramfs || goto again\n")
	shim, _, _ := strings.Cut(after, "\n")
	if shim != "shim "+byHTTP+"shimx64.efi ||" || !strings.HasPrefix(after, shim+"\nboot ") {
		t.Errorf("the kernel does not start through Debian's shim:\n%s", script)
	}
	for _, name := range []string{"snponly-shim.efi", "snponly.efi", "shimx64.efi"} {
		if w := get(t, h, http.MethodGet, strings.TrimPrefix(byHTTP, "http://10.10.20.2")+name, "127.0.0.1"); w.Code != http.StatusOK {
			t.Errorf("%s: %d", name, w.Code)
		}
	}
}

// TestGrubDiscovers: where the site's loader is shim, an unknown machine boots the agent through GRUB, and it only reports.
func TestGrubDiscovers(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) {
		c.Loader = inventory.LoaderShim
		c.Discovery = map[string]inventory.Range{"lo": {From: netip.MustParseAddr("127.0.0.2"), To: netip.MustParseAddr("127.0.0.2")}}
	})
	for _, name := range SecureLoaderFiles(inventory.LoaderShim) {
		write(t, filepath.Join(s.cfg.LoaderDir, name), name)
	}
	addr := startTFTP(t, s)
	in := dhcp.Link{Name: "lo", Port: dhcpv4.ServerPort, Mode: inventory.DHCPReservation}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	if _, err := tftptest.Get(t, addr, "/grub/m/"+mac.String()); err == nil {
		t.Error("a machine that has no lease gets GRUB's configuration")
	}
	s.discovery.guests["lo"].earlierUntil = testNow
	offer := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithHwAddr(mac), pxeClient(7)).ToBytes(), in)
	if offer.Route == dhcp.RouteNone || offer.Packet.BootFileName != "shimx64.efi" {
		t.Fatalf("the offer is %v", offer.Packet)
	}
	script, err := tftptest.Get(t, addr, "/grub/m/"+mac.String())
	if err != nil || !strings.Contains(script, " 'ingot.discover=1' ") || strings.Contains(script, "ingot.claim") {
		t.Fatalf("%q, %v", script, err)
	}
	for _, file := range grubFile.FindAllStringSubmatch(script, -1) {
		if _, err := tftptest.Get(t, addr, file[1]); err != nil {
			t.Errorf("%s: %v", file[1], err)
		}
	}
}

// grubServer serves a machine with loader shim whose reservation is the loopback address.
func grubServer(t *testing.T) (*Server, *fakeMachines, *fakeJournal, string) {
	t.Helper()
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		withShim(m)
		m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1")
	})}}
	s, j := newServer(t, f, nil)
	return s, f, j, startTFTP(t, s)
}

var grubFile = regexp.MustCompile(`\(tftp,10\.10\.20\.2\)(/boot/\S+/(vmlinuz|initramfs))`)

// TestGrubBootsTheAgent reads what GRUB reads, and boots the files that it is told.
func TestGrubBootsTheAgent(t *testing.T) {
	s, f, j, addr := grubServer(t)
	f.setGrant(armed("node1"))
	for _, name := range []string{"revocations_sku.efi", "revocations_sbat.efi", "shim_certificate_0.efi", "/grub/x86_64-efi/command.lst"} {
		if _, err := tftptest.Get(t, addr, name); err == nil {
			t.Errorf("%s was served", name)
		}
	}
	config, err := tftptest.Get(t, addr, "/grub/grub.cfg")
	if err != nil || config != grubConfig {
		t.Fatalf("grub.cfg: %q, %v", config, err)
	}
	if kinds := j.kinds(t, s); kinds != "" {
		t.Errorf("events %q before the machine's own file", kinds)
	}
	script, err := tftptest.Get(t, addr, "/grub/m/"+testMAC)
	if err != nil {
		t.Fatal(err)
	}
	dashes, err := tftptest.Get(t, addr, "/grub/m/"+strings.ReplaceAll(testMAC, ":", "-"))
	if err != nil || dashes != script {
		t.Errorf("with dashes: %q, %v", dashes, err)
	}
	if strings.Contains(script, "initrd=initramfs") || !strings.Contains(script, " 'ingot.machine=node1' ") {
		t.Errorf("the command line is wrong:\n%s", script)
	}
	files := grubFile.FindAllStringSubmatch(script, -1)
	if len(files) != 2 {
		t.Fatalf("kernel and initramfs are missing:\n%s", script)
	}
	want := map[string]string{"vmlinuz": "the kernel", "initramfs": "the initramfs"}
	for _, file := range files {
		if body, err := tftptest.Get(t, addr, file[1]); err != nil || body != want[file[2]] {
			t.Errorf("%s: %q, %v", file[1], body, err)
		}
	}
	var asked strings.Builder
	for _, h := range s.History.Of(testMAC) {
		asked.WriteString(h.Where + " " + h.Request + " " + h.Answer + "\n")
	}
	for _, want := range []string{
		"RRQ /grub/grub.cfg ", "RRQ /grub/m/" + testMAC + " verdict agent", "RRQ /boot/" + testMAC + "/TOKEN/vmlinuz ",
	} {
		if !strings.Contains(asked.String(), want) {
			t.Errorf("%q is not remembered:\n%s", want, asked.String())
		}
	}
	if token := splitPath(files[0][1])[2]; strings.Contains(asked.String(), token) {
		t.Errorf("the boot's token %s is remembered:\n%s", token, asked.String())
	}
	waitFor(t, func() bool { return s.Stats().TFTPServed == 5 })
	if kinds := j.kinds(t, s); kinds != "initrd kernel script" {
		t.Errorf("events %q", kinds)
	}
	if n := s.Stats().TFTPRefused; n != 0 {
		t.Errorf("%d refusals are counted: files that shim and GRUB can do without count", n)
	}

	// The boot after this one has another token, and a spent boot has none.
	next := armed("node1")
	next.Boot++
	spent := armed("node1")
	spent.Spent = true
	for _, g := range []inventory.Grant{next, spent} {
		f.setGrant(g)
		for _, file := range files {
			if _, err := tftptest.Get(t, addr, file[1]); err == nil {
				t.Errorf("%s was served by a boot that has ended", file[2])
			}
		}
	}
}

// TestGrubOfAMachineThatIsNotArmed: on hold it waits, otherwise it restarts, and a machine that is
// not known or boots an installer gets nothing.
func TestGrubOfAMachineThatIsNotArmed(t *testing.T) {
	s, f, _, addr := grubServer(t)
	hold := armed("node1")
	hold.Spent, hold.Acting = true, true
	installer := armed("node1")
	installer.Installer = true
	notArmed := armed("node1")
	notArmed.NetbootUntil = testNow
	for _, c := range []struct {
		grant inventory.Grant
		want  string
	}{{hold, "\nset ingot=hold\nsleep 10\n"}, {notArmed, "\nreboot\n"}, {installer, ""}} {
		f.setGrant(c.grant)
		got, err := tftptest.Get(t, addr, "/grub/m/"+testMAC)
		if (err == nil) != (c.want != "") || !strings.Contains(got, c.want) || strings.Contains(got, "linux") {
			t.Errorf("%q, %v instead of %q", got, err, c.want)
		}
	}
	f.setGrant(notArmed)
	off, _ := newServer(t, f, inMode(inventory.DHCPOff))
	if got, err := tftptest.Get(t, startTFTP(t, off), "/grub/m/"+testMAC); err != nil || !strings.Contains(got, "\nset ingot=disk\n") {
		t.Errorf("%q, %v: another server names the loader after a restart as well", got, err)
	}
	for _, name := range []string{"/grub/m/52:54:00:99:99:99", "/grub/m/x", "/boot/x/y/vmlinuz", "/boot/" + testMAC + "/y/vmlinuz", "/boot/" + testMAC + "/y/passwd"} {
		if got, err := tftptest.Get(t, addr, name); err == nil {
			t.Errorf("%s was served: %q", name, got)
		}
	}
	if n := s.Stats().TFTPRefused; n == 0 {
		t.Error("no refusal is counted")
	}
}

// grubWords reads a script as GRUB does, which has all of sh's operators: into commands, and into words, whose parts may
// be in single quotes or behind a backslash (GRUB manual, "Quoting"). It returns nil if a character outside of these has a
// meaning that is not known here.
func grubWords(script string) (out [][]string) {
	var command []string
	word, started := "", false
	end := func() {
		if started {
			command = append(command, hex40.ReplaceAllString(word, "DIGEST"))
		}
		word, started = "", false
	}
	for rest := script; rest != ""; {
		part, length, ends := rest[:1], 1, false
		switch known := knownGrub(rest); {
		case rest[0] == '\'':
			body, _, closed := strings.Cut(rest[1:], "'")
			if !closed {
				return nil
			}
			part, length = body, len(body)+2
		case known != "":
			part, length = "KNOWN", len(known)
		case rest[0] == '\\' && len(rest) > 1 && rest[1] != '\n':
			part, length = rest[1:2], 2
		case rest[0] == ' ', rest[0] == '\n', rest[0] == ';':
			ends = true
			if end(); rest[0] != ' ' {
				out, command = append(out, command), nil
			}
		case strings.ContainsAny(part, "\"\\$`{}()<>|&#*?~!\t\r\v\f\x00"):
			return nil
		}
		if !ends {
			word, started = word+part, true
		}
		rest = rest[length:]
	}
	end()
	return append(out, command)
}

// knownGrub returns the part of the server's own at the beginning of a script that has a meaning to GRUB, "" for none.
func knownGrub(script string) string {
	for _, known := range []string{`"$ingot"`, "(tftp,10.10.20.2)"} {
		if strings.HasPrefix(script, known) {
			return known
		}
	}
	return ""
}

// FuzzS14GrubConfig: for any values in the inventory, the machine's part of GRUB's configuration has
// the same commands as every other, with the values as single words, or it is refused.
func FuzzS14GrubConfig(f *testing.F) {
	for _, arg := range []string{
		"nouveau.modeset=0", "ip=10.0.0.1::10.0.0.254:255.255.255.0:node1:eth0:off", "a b", "a\nreboot", "a;reboot", "a&reboot", "a|b", "$root",
		"${root}", "$(reboot)", "`id`", `a"b`, "a'b", `a\`, "", "-x", "{", "}", "(hd0)/x", "a#b", "a>b", "if", "a\x00b", "ä", "\xff", "*", "?", "!",
		"initrd=x", "ingot.claim=0",
	} {
		f.Add("node1", arg, "second=2")
		f.Add(arg, "first=1", arg)
	}
	for _, arg := range specialArgs {
		f.Add("node1", arg, "second=2")
	}
	render := func(t testing.TB, name string, args ...string) string {
		m := machine(func(m *inventory.Machine) { m.Name, m.KernelArgs = name, args })
		s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{m}}, nil)
		g := armed(name)
		script, err := s.scripts.grubScript(m, Decide(m, g, Request{MAC: testMAC, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}, testNow))
		if err != nil {
			return ""
		}
		return script
	}
	want := grubWords(render(f, "node1", "ARG1", "ARG2"))
	if len(want) < 5 {
		f.Fatalf("the configuration cannot be read: %q", want)
	}
	f.Fuzz(func(t *testing.T, name, arg1, arg2 string) {
		script := render(t, name, arg1, arg2)
		if script == "" {
			m := machine(func(m *inventory.Machine) { m.Name, m.KernelArgs = name, []string{arg1, arg2} })
			if len(inventory.Validate(m)) == 0 && len(arg1)+len(arg2) < 1000 {
				t.Fatalf("name %q, arguments %q %q are valid in the inventory and refused in GRUB's configuration", name, arg1, arg2)
			}
			return
		}
		got := grubWords(script)
		if len(got) != len(want) {
			t.Fatalf("%d commands instead of %d:\n%s", len(got), len(want), script)
		}
		place := strings.NewReplacer("ingot.machine=node1", "ingot.machine="+name, "ARG1", arg1, "ARG2", arg2)
		for n := range want {
			line := make([]string, len(want[n]))
			for i, w := range want[n] {
				line[i] = hex40.ReplaceAllString(place.Replace(w), "DIGEST")
			}
			if n == 0 {
				line[len(line)-1] = name
			}
			if !slices.Equal(got[n], line) {
				t.Fatalf("command %d is %q instead of %q", n+1, got[n], line)
			}
		}
	})
}
