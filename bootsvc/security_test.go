package bootsvc

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/metadatasvc"
)

var onWire = dhcp.Link{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.10.20.2/24")}}

// TestS4ForwardedForIsNotBelieved: for a request without a MAC, only the address of the
// connection counts. A spoofed header makes no difference.
func TestS4ForwardedForIsNotBelieved(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil), machine(func(m *inventory.Machine) {
		m.Name, m.Interfaces[0].MAC, m.Interfaces[0].Address = "node2", "52:54:00:20:01:02", netip.MustParseAddr("10.10.20.12")
	})}}
	s, _ := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	ask := func(path, source string, header ...string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://10.10.20.2"+path, nil)
		r.RemoteAddr = source + ":40000"
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	for _, path := range []string{"/autoexec.ipxe", "/ipxe/binary/autoexec.ipxe", "/ipxe/binary/snponly.efi"} {
		if w := ask(path, testAddr); w.Code != http.StatusOK {
			t.Fatalf("%s for the armed machine itself: %d", path, w.Code)
		}
		for _, source := range []string{"10.10.20.12", "192.0.2.1"} {
			own := ask(path, source)
			for _, name := range []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip"} {
				value := testAddr
				if name == "Forwarded" {
					value = "for=" + testAddr
				}
				if w := ask(
					path,
					source,
					name,
					value,
				); w.Code != own.Code || w.Body.String() != own.Body.String() ||
					strings.Contains(w.Body.String(), "claim") {
					t.Errorf("%s from %s with %s: %d %s", path, source, name, w.Code, w.Body)
				}
			}
		}
	}
}

// TestS6RoutesOfTheProvisioningListener: the listener serves only the documented routes,
// and none of those for operators and agents.
func TestS6RoutesOfTheProvisioningListener(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	meta, err := metadatasvc.New(metadatasvc.Config{URL: "http://10.10.20.2", Key: testKey}, noMachines{f}, &fakeJournal{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ := newServer(t, f, func(c *Config) { c.Fallback = meta.Handler() })
	f.setGrant(armed("node1"))
	asks := []string{
		"GET /metrics",
		"GET /debug/pprof/",
		"GET /debug/vars",
		"GET /v1",
		"GET /ui",
		"GET /login",
		"GET /healthz",
		"GET /favicon.svg",
		"GET /index.html",
		"GET /.git/config",
	}
	for _, name := range []string{"operator", "agent"} {
		b, err := os.ReadFile("../api/testdata/routes-" + name + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		asks = append(asks, strings.Split(strings.TrimSpace(string(b)), "\n")...)
	}
	if len(asks) < 50 {
		t.Fatalf("only %d routes are known", len(asks))
	}
	fill := strings.NewReplacer("{name}", "node1", "{mac}", testMAC, "{machine}", "node1", "{run}", "0199aa-run", "{job}", "j", "{code}", "c")
	for _, a := range asks {
		method, path, _ := strings.Cut(fill.Replace(a), " ")
		if w := get(t, s.Handler(), method, path, testAddr); w.Code != http.StatusNotFound && w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d %s", a, w.Code, w.Body)
		}
	}
	// The golden list has the path and method of every route that is answered.
	d := Decide(f.machines[0], armed("node1"), Request{MAC: testMAC, Class: wire.ClassIPXE}, testNow)
	base := "/boot/52-54-00-20-01-01/" + inventory.BootToken(testKey, d.Owner, d.Boot)
	served := []string{
		"/autoexec.ipxe",
		"/auto.ipxe",
		"/" + testMAC + "/auto.ipxe",
		"/ipxe/binary/autoexec.ipxe",
		"/ipxe/binary/snponly.efi",
		"/ipxe/binary/" + testMAC + "/snponly.efi",
		"/ipxe/binary/" + testMAC + "/autoexec.ipxe",
		"/ipxe/script/" + testMAC + "/auto.ipxe",
		base + "/vmlinuz",
		base + "/initramfs",
		"/",
		"/latest/",
		"/latest/meta-data/hostname",
		"/metadata",
	}
	for _, path := range served {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			if w := get(t, s.Handler(), method, path, testAddr); w.Code != http.StatusOK {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions, "TRACE", "CONNECT", "PROPFIND"} {
			if w := get(t, s.Handler(), method, path, testAddr); w.Code < 400 {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
}

// noMachines adds the methods for the metadata server to fakeMachines.
type noMachines struct{ *fakeMachines }

func (n noMachines) Machine(_ context.Context, name string) (inventory.Machine, error) {
	m, _, err := n.find(func(m inventory.Machine) bool { return m.Name == name })
	return m, err
}

func (n noMachines) Grant(_ context.Context, name string) (inventory.Grant, error) {
	_, g, err := n.find(func(m inventory.Machine) bool { return m.Name == name })
	return g, err
}

func (n noMachines) UserData(context.Context, string) (user, vendor inventory.Secret, err error) {
	return user, vendor, nil
}

// hex40 matches the derived values that differ between two scripts: claims and the
// tokens in URLs.
var hex40 = regexp.MustCompile(`[0-9a-f]{40,64}`)

// words splits a script like iPXE: into lines, and at blanks into words; one that begins with # begins a comment
// (src/core/exec.c). An operator is a word as any other here. iPXE replaces ${…} in each word, which is therefore split there.
func words(script string) [][]string {
	var out [][]string
	for _, line := range regexp.MustCompile(`\r\n|\r|\n`).Split(script, -1) {
		var command []string
		for _, w := range strings.Fields(hex40.ReplaceAllString(line, "DIGEST")) {
			if w[0] == '#' {
				break
			}
			command = append(command, strings.Fields(strings.ReplaceAll(w, "${", " ${ "))...)
		}
		out = append(out, command)
	}
	return out
}

// specialArgs are kernel parameters with characters that mean something to a loader or a shell, and nothing to a kernel.
var specialArgs = []string{
	"acpi_osi=!",
	"memmap=12M$1G",
	"mitigations=auto;nosmt",
	"a~b",
	"a^b",
	"*",
	"?",
	"!",
	"$",
	"a$",
	"{a",
	"a}",
	"[a]",
	"(hd0)/x",
	"$(reboot)",
	"$root",
	"`id`",
	"a;shell",
	"a&&shell",
	"a||shell",
	"a&shell",
	"a|shell",
	"|",
	"&",
	"<a>",
	"a>b",
	"a#b",
	"if",
	"-x",
	"}{",
	"{",
	"~",
}

// TestSpecialKernelArguments: they reach the kernel as they are, as single words of iPXE and of GRUB.
func TestSpecialKernelArguments(t *testing.T) {
	m := machine(func(m *inventory.Machine) { m.KernelArgs = specialArgs })
	if ps := inventory.Validate(m); len(ps) > 0 {
		t.Fatal(ps)
	}
	want := strings.Join(specialArgs, " ")
	var ipxe, grub string
	for _, line := range words(scriptOf(t, &fakeMachines{machines: []inventory.Machine{m}}, "node1")) {
		if len(line) > 0 && line[0] == "kernel" {
			ipxe = strings.Join(line, " ")
		}
	}
	if !strings.HasSuffix(ipxe, " panic=30 "+want+" || goto again") {
		t.Errorf("iPXE: %s", ipxe)
	}
	s, _ := newServer(t, &fakeMachines{machines: []inventory.Machine{m}}, nil)
	script, err := s.scripts.grubScript(
		m,
		Decide(m, armed("node1"), Request{MAC: testMAC, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}, testNow),
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range grubWords(script) {
		if len(line) > 0 && line[0] == "linux" {
			grub = strings.Join(line, " ")
		}
	}
	if !strings.HasSuffix(grub, " panic=30 "+want) {
		t.Errorf("GRUB: %s\n%s", grub, script)
	}
}

// FuzzS14BootScript: for any values in the inventory, a boot script either has the same
// structure as every other, with the values as single words, or it is refused. Values
// that pass validation are not refused.
func FuzzS14BootScript(f *testing.F) {
	for _, arg := range []string{
		"nouveau.modeset=0", "console=ttyS1,115200n8", "ip=10.0.0.1::10.0.0.254:255.255.255.0:node1:eth0:off", "module_blacklist=a,b", "a@b%c+d",
		"a b", "a\nshell", "a\rshell", "a;shell", "a&&shell", "a||shell", "a&shell", "a|shell", "#!ipxe", "${net0/mac}", "$(id)", "`id`", `a"b`, "a'b", "a\\b", "", "-x",
		"ingot.claim=0", "ingot.server=https://evil", "rdinit=/bin/sh", "init=/bin/sh", "initrd=x", "a\x00b", "a\u2028shell", "a\vb", "a\tb", "ä", "\xff", "}{", "a#b", "<a>",
	} {
		f.Add("node1", arg, "second=2")
		f.Add(arg, "first=1", arg)
	}
	for _, arg := range append([]string{";", "&&", "||", "#", "a${", "--"}, specialArgs...) {
		f.Add("node1", arg, "second=2")
		f.Add("node1", "first=1", arg)
	}
	f.Add("node1; shell", "a", "b")
	f.Add("node1 || shell", "a", "b")
	base := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.KernelArgs = []string{"ARG1", "ARG2"} })}}
	want := words(scriptOf(f, base, "node1"))
	f.Fuzz(func(t *testing.T, name, arg1, arg2 string) {
		m := machine(func(m *inventory.Machine) { m.Name, m.KernelArgs = name, []string{arg1, arg2} })
		valid := len(inventory.Validate(m)) == 0
		fake := &fakeMachines{machines: []inventory.Machine{m}}
		script := scriptOf(t, fake, name)
		if script == "" {
			if valid && len(arg1)+len(arg2) < 1000 {
				t.Fatalf("name %q, arguments %q %q are valid in the inventory and refused in the script", name, arg1, arg2)
			}
			return
		}
		for _, v := range []string{name, arg1, arg2} {
			for _, bad := range []string{"\r", "\n", "${", " ", "\t", "\v", "\f", "\x00"} {
				if strings.Contains(v, bad) || v == "" || v[0] == '#' {
					t.Fatalf("%q was rendered", v)
				}
			}
			if slices.Contains([]string{";", "&&", "||"}, v) {
				t.Fatalf("%q was rendered", v)
			}
		}
		for _, v := range []string{arg1, arg2} {
			if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(v, "ingot.") || slices.Contains([]string{"rdinit", "init", "initrd"}, name) {
				t.Fatalf("%q replaces an argument of the server", v)
			}
		}
		got := words(script)
		if len(got) != len(want) {
			t.Fatalf("%d lines instead of %d:\n%s", len(got), len(want), script)
		}
		place := strings.NewReplacer("ingot.machine=node1", "ingot.machine="+name, "ARG1", arg1, "ARG2", arg2)
		for n := range want {
			line := make([]string, len(want[n]))
			for i, w := range want[n] {
				if line[i] = place.Replace(w); w == "node1" {
					line[i] = name
				}
				line[i] = hex40.ReplaceAllString(line[i], "DIGEST")
			}
			if !slices.Equal(got[n], line) {
				t.Fatalf("line %d is %q instead of %q", n+1, got[n], line)
			}
		}
	})
}

// scriptOf returns the script of an armed machine, or "" if it was refused.
func scriptOf(t testing.TB, f *fakeMachines, name string) string {
	t.Helper()
	s, _ := newServer(t, f, nil)
	f.setGrant(armed(name))
	w := get(t, s.Handler(), http.MethodGet, "/ipxe/script/525400200101/auto.ipxe", testAddr)
	if w.Code != http.StatusOK {
		return ""
	}
	return w.Body.String()
}

// TestS44NoSecretOnTheKernelCommandLine: the claim is the only secret in a boot script
// and in DHCP replies.
func TestS44NoSecretOnTheKernelCommandLine(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.UserData, m.VendorData = inventory.NewSecret("canary-user"), inventory.NewSecret("canary-vendor")
		m.BMC = &inventory.BMC{
			Driver:   inventory.DriverIPMI,
			Host:     "10.0.9.1",
			User:     "canary-bmcuser",
			Password: inventory.NewSecret("canary-bmc"),
		}
		m.Notes = map[string]string{"x": "canary-note"}
	})}}
	s, _ := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	g := armed("node1")
	script := scriptOf(t, f, "node1")
	claim := inventory.Claim(testKey, g.Owner, g.Boot)
	if !strings.Contains(script, "ingot.claim="+claim+" ") {
		t.Fatal("the script carries no claim")
	}
	var all strings.Builder
	all.WriteString(script)
	for _, mod := range []dhcpv4.Modifier{pxeClient(0), pxeClient(7), pxeClient(16), generic(77, []byte("iPXE")...)} {
		r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, mod).ToBytes(), onWire)
		if r.Route == dhcp.RouteNone {
			t.Fatal("not answered")
		}
		all.Write(r.Packet.ToBytes())
	}
	for what, secret := range map[string]string{
		"a canary": "canary", "the capability": inventory.Capability(testKey, g.Owner), "the nonce": inventory.Nonce(testKey, g.Owner), "the key": string(testKey),
	} {
		if strings.Contains(all.String(), secret) {
			t.Errorf("%s is sent in plain text", what)
		}
	}
	// The token in the URLs differs from the claim, because URLs end up in logs.
	if strings.Count(script, claim) != 1 {
		t.Error("the claim is in a URL")
	}
	known := regexp.MustCompile(`^(initrd=initramfs|rdinit=/init|ingot\.(server|pin|machine|mac|claim|plan)=\S+|console=\S+|panic=30)$`)
	for _, line := range strings.Split(script, "\n") {
		args, ok := strings.CutPrefix(line, "kernel ")
		if !ok {
			continue
		}
		for _, a := range strings.Fields(strings.TrimSuffix(args, " || goto again"))[1:] {
			if !known.MatchString(a) {
				t.Errorf("argument %q is not one that this test knows to be harmless", a)
			}
		}
	}
}

// TestS30MalformedPackets sends captured packets that are cut, extended or have flipped
// bits, from a known machine and from unknown clients. The server must not crash, answer
// unknown clients, amplify, or fill the log or the inventory.
func TestS30MalformedPackets(t *testing.T) {
	var log bytes.Buffer
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, j := newServer(t, f, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	f.setGrant(armed("node1"))
	r := rand.New(rand.NewPCG(1, 2)) // the same packets each time
	sent, answered := 0, 0
	try := func(b []byte, known bool) {
		t.Helper()
		b = slices.Clone(b)
		if len(b) >= 34 {
			mac := []byte{0x52, 0x54, 0, 0x20, 1, 1}
			if !known {
				mac = []byte{2, byte(sent >> 16), byte(sent >> 8), byte(sent), 0, 1}
			}
			copy(b[28:], mac)
		}
		sent++
		reply := s.dhcp.Handle(t.Context(), b, onWire)
		if reply.Route == dhcp.RouteNone {
			return
		}
		answered++
		sent := reply.Packet.ToBytes()
		if !known {
			t.Fatalf("a stranger was answered: %x", b)
		}
		// A reply is at most twice as long as its request, or as a minimal BOOTP packet.
		if len(sent) > 2*max(len(b), 300) {
			t.Fatalf("%d bytes were answered by %d", len(b), len(sent))
		}
		checkConfined(t, b, reply, func(a netip.Addr) bool { return a == netip.MustParseAddr(testAddr) })
	}
	for _, c := range dhcpPackets(t, captures) {
		for _, known := range []bool{true, false} {
			try(c.Payload, known)
			for cut := 0; cut < len(c.Payload); cut += 7 {
				try(c.Payload[:cut], known)
			}
			try(append(slices.Clone(c.Payload), bytes.Repeat([]byte{82, 255, 1}, 300)...), known)
			for range 30 {
				b := slices.Clone(c.Payload)
				for range 1 + r.IntN(6) {
					b[r.IntN(len(b))] ^= 1 << r.IntN(8)
				}
				try(b, known)
			}
		}
	}
	if answered < 1000 || s.Stats().DHCPMalformed < 1000 || s.Stats().DHCPUnknown < 1000 {
		t.Errorf("of %d packets %d were answered: %+v", sent, answered, s.Stats())
	}
	s.rec.Flush(t.Context())
	if len(j.events) > 16 || len(j.seen) > 64+256 {
		t.Errorf("%d events and %d unknown MACs were written", len(j.events), len(j.seen))
	}
	// Each of the few messages is logged at most 60 times a minute.
	if n := strings.Count(log.String(), "\n"); n == 0 || n > 600 {
		t.Errorf("%d lines of log for %d packets", n, sent)
	}
}

// TestS30OnlyConfiguredInterfaces: without interfaces, no port is bound. A reservation is
// not handed out in another subnet.
func TestS30OnlyConfiguredInterfaces(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, func(c *Config) { c.Relays = []netip.Prefix{netip.MustParsePrefix("10.10.20.1/32")} })
	for relay, want := range map[string]dhcp.Route{"10.10.20.1": dhcp.RouteRelay, "10.10.20.77": dhcp.RouteNone, "192.0.2.1": dhcp.RouteNone, "127.0.0.1": dhcp.RouteNone} {
		p := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP(relay)))
		if r := s.dhcp.Handle(t.Context(), p.ToBytes(), onWire); r.Route != want {
			t.Errorf("through %s: %s", relay, r.Route)
		}
	}
	// Without listed relays, a relay of another subnet gets no answer either.
	open, _ := newServer(t, f, nil)
	p := packet(t, dhcpv4.MessageTypeDiscover, dhcpv4.WithGatewayIP(net.ParseIP("192.0.2.1")))
	if r := open.dhcp.Handle(t.Context(), p.ToBytes(), onWire); r.Route != dhcp.RouteNone {
		t.Errorf("through a relay elsewhere: %s", r.Route)
	}
	none, err := New(Config{}, f, &fakeJournal{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := none.Run(ctx); err != nil { // binding ports would fail
		t.Error(err)
	}
}

// TestS46S48FloodWritesBoundedRows sends forged packets of an armed machine and of
// unknown clients to a server with a real inventory. They write one row and one signal
// per run, boot and kind, and a limited number of unknown MACs; the file stays small.
func TestS46S48FloodWritesBoundedRows(t *testing.T) {
	const forged = 5000
	path := filepath.Join(t.TempDir(), "ingot.db")
	store, err := sqlite.Open(t.Context(), path, noKeys{}, sqlite.WithClock(func() time.Time { return testNow }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := t.Context()
	if err := store.Machines.PutMachines(ctx, []inventory.Machine{machine(nil)}, false, "test"); err != nil {
		t.Fatal(err)
	}
	g, err := store.Grants.TakeGrant(ctx, "node1", "run-1", "machine/node1", false)
	if err == nil {
		_, err = store.Grants.AllowBoot(ctx, g.Owner, 1, testNow.Add(time.Hour))
	}
	if err != nil {
		t.Fatal(err)
	}
	stored := func(name string) int64 { // bytes of a copy of the inventory, which has no free pages and no WAL
		t.Helper()
		if err := store.Backup(ctx, path+name); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path + name)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	before := stored(".before")
	var log bytes.Buffer
	var cfg Config
	newServer(t, &fakeMachines{}, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
		cfg = *c
	})
	s, err := New(cfg, store.Machines, fakesite.InventoryOf(store))
	if err != nil {
		t.Fatal(err)
	}
	grantBefore, err := store.Grants.Grant(ctx, "node1")
	if err != nil {
		t.Fatal(err)
	}
	for n := range forged {
		s.dhcp.Handle(ctx, packet(t, dhcpv4.MessageTypeDiscover, pxeClient(byte(n%20)), func(p *dhcpv4.DHCPv4) {
			p.TransactionID = dhcpv4.TransactionID{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
			p.UpdateOption(dhcpv4.OptClassIdentifier("PXEClient" + strings.Repeat("x", n%200)))
			if n%3 == 0 { // relays that do not exist
				p.GatewayIPAddr = net.IPv4(10, byte(n), byte(n>>8), 1)
			}
		}).ToBytes(), onWire)
		s.dhcp.Handle(ctx, packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0), func(p *dhcpv4.DHCPv4) {
			p.ClientHWAddr = net.HardwareAddr{2, 0, 0, byte(n >> 16), byte(n >> 8), byte(n)}
			p.UpdateOption(dhcpv4.OptClassIdentifier(strings.Repeat("\x1b[2J<script>", 20)))
			if n%2 == 0 {
				p.GatewayIPAddr = net.IPv4(10, byte(n), byte(n>>8), 1)
			}
		}).ToBytes(), onWire)
		for _, path := range []string{"/ipxe/script/" + testMAC + "/auto.ipxe", "/ipxe/binary/" + testMAC + "/snponly.efi"} {
			if n%50 == 0 {
				get(t, s.Handler(), http.MethodGet, path, testAddr)
			}
		}
		if n%100 == 0 {
			s.rec.Flush(ctx)
		}
	}
	s.rec.Flush(ctx)
	events, err := store.Events.Events(ctx, inventory.EventFilter{Run: "run-1", Limit: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int64{}
	for _, e := range events {
		if _, twice := kinds[e.Kind]; twice {
			t.Errorf("kind %s has two rows", e.Kind)
		}
		kinds[e.Kind] = e.Count
		if len(e.Message) > 512 || len(e.Detail) > 512 {
			t.Errorf("an event of kind %s carries %d bytes", e.Kind, len(e.Message)+len(e.Detail))
		}
	}
	if kinds[inventory.EventDHCP] < forged/8 {
		t.Errorf("the flood was not received: %v", kinds)
	}
	signals, err := store.Events.Unsignalled(ctx, 0, 100_000)
	if err != nil || len(signals) > len(kinds) {
		t.Errorf("%d signals for %v: %v", len(signals), kinds, err)
	}
	seen, err := store.Seen.SeenUnknown(ctx)
	if err != nil || len(seen) == 0 || len(seen) > 1000 {
		t.Errorf("%d unknown MACs are stored: %v", len(seen), err)
	}
	for _, x := range seen {
		if len(x.Class) > 64 || strings.ContainsRune(x.Class, '\x1b') {
			t.Errorf("class %q", x.Class)
		}
	}
	all, err := store.Events.LastSeq(ctx)
	if err != nil || all > 100_000 {
		t.Errorf("%d %v", all, err)
	}
	// No packet extends a window, opens a secret or spends a boot.
	if after, err := store.Grants.Grant(ctx, "node1"); err != nil || after != grantBefore {
		t.Errorf("the grant was %+v and is %+v: %v", grantBefore, after, err)
	}
	if grown := stored(".after") - before; grown > 256<<10 {
		t.Errorf("the inventory has grown by %d bytes", grown)
	}
	if n := strings.Count(log.String(), "\n"); n > 600 {
		t.Errorf("%d lines of log", n)
	}
}

// checkConfined fails t if r answers b with an address that is not allowed, or is sent to another host than the relay of
// onWire's network or the client: at the address that it has or is given, or by broadcast.
func checkConfined(t testing.TB, b []byte, r dhcp.Reply, allowed func(netip.Addr) bool) {
	t.Helper()
	p, err := dhcpv4.FromBytes(b)
	if err != nil {
		t.Fatal(err)
	}
	given := wire.Addr4(r.Packet.YourIPAddr)
	if given.IsValid() && !allowed(given) {
		t.Fatalf("a reply gives %s", given)
	}
	confined := false
	switch r.Route {
	case dhcp.RouteRelay:
		confined = r.To == wire.Addr4(p.GatewayIPAddr) && onWire.Prefixes[0].Contains(r.To)
	case dhcp.RouteUnicast:
		confined = r.To == wire.Addr4(p.ClientIPAddr) && allowed(r.To)
	case dhcp.RouteRaw:
		confined = r.To == given && given.IsValid()
	case dhcp.RouteBroadcast:
		confined = !r.To.IsValid()
	}
	if !confined {
		t.Fatalf("a reply is sent by %s to %s", r.Route, r.To)
	}
}

type noKeys struct{}

func (noKeys) Seal(_, _ string, plain []byte) ([]byte, error)  { return plain, nil }
func (noKeys) Open(_, _ string, sealed []byte) ([]byte, error) { return sealed, nil }

// TestS3LookupsAreTheSame: known and unknown machines cost one look-up each, and a wrong
// token gets the same answer for both.
func TestS3LookupsAreTheSame(t *testing.T) {
	f := &counting{fakeMachines: &fakeMachines{machines: []inventory.Machine{machine(nil)}}}
	s, _ := newServer(t, f.fakeMachines, nil)
	s.decider.machines = f
	var first *httptest.ResponseRecorder
	for _, path := range []string{"/boot/52-54-00-20-01-01/%s/vmlinuz", "/boot/52-54-00-20-01-02/%s/vmlinuz"} {
		f.calls = 0
		w := get(t, s.Handler(), http.MethodGet, fmt.Sprintf(path, strings.Repeat("0", 40)), testAddr)
		if f.calls != 1 || w.Code != http.StatusNotFound {
			t.Errorf("%s: %d calls, %d", path, f.calls, w.Code)
		}
		if first == nil {
			first = w
		}
		if w.Body.String() != first.Body.String() || fmt.Sprint(w.Header()) != fmt.Sprint(first.Header()) {
			t.Errorf("%s: %v %s", path, w.Header(), w.Body)
		}
	}
}

// counting counts look-ups.
type counting struct {
	*fakeMachines
	calls int
}

func (c *counting) MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error) {
	c.calls++
	return c.fakeMachines.MachineByMAC(ctx, mac)
}
