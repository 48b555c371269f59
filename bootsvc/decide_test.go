package bootsvc

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

func TestDecide(t *testing.T) {
	armedBy := func(edit func(*inventory.Grant)) inventory.Grant {
		g := armed("node1")
		if edit != nil {
			edit(&g)
		}
		return g
	}
	pxe := func(arch int) Request { return Request{MAC: testMAC, Class: wire.ClassPXE, Arch: arch} }
	ipxe := Request{MAC: testMAC, Class: wire.ClassIPXE, Arch: 0}
	for _, c := range []struct {
		name    string
		machine inventory.Machine
		grant   inventory.Grant
		request Request
		verdict Verdict
		address bool
		loader  string
		script  bool
		reason  string // one of the reasons contains it
	}{
		{"unknown", inventory.Machine{}, inventory.Grant{}, pxe(0), Unknown, false, "", false, "no machine"},
		{"never armed", machine(nil), inventory.Grant{}, pxe(0), Disk, true, "", false, "no run and no operator"},
		{"armed, BIOS", machine(nil), armedBy(nil), pxe(0), Agent, true, "undionly.kpxe", false, "allows boot 1"},
		{"armed, UEFI 7", machine(nil), armedBy(nil), pxe(7), Agent, true, "snponly.efi", false, "snponly.efi"},
		{"armed, UEFI 9", machine(nil), armedBy(nil), pxe(9), Agent, true, "snponly.efi", false, ""},
		{"armed, HTTP 16", machine(nil), armedBy(nil), Request{MAC: testMAC, Class: wire.ClassHTTP, Arch: 16}, Agent, true, "snponly.efi", false, ""},
		{"armed, HTTP 15", machine(nil), armedBy(nil), Request{MAC: testMAC, Class: wire.ClassHTTP, Arch: 15}, Agent, true, "snponly.efi", false, ""},
		{"armed, IA32", machine(nil), armedBy(nil), pxe(6), Agent, true, "", false, "no loader for architecture UEFI IA32"},
		{"armed, arm64", machine(nil), armedBy(nil), pxe(11), Agent, true, "", false, "no loader"},
		{"armed, own loader", machine(func(m *inventory.Machine) { m.Interfaces[0].Loader = "ipxe.efi" }), armedBy(nil), pxe(7), Agent, true, "ipxe.efi", false, ""},
		{"armed, loader is a path", machine(func(m *inventory.Machine) { m.Interfaces[0].Loader = "../key" }), armedBy(nil), pxe(7), Agent, true, "", false, "no loader"},
		{"armed, arch not said", machine(func(m *inventory.Machine) { m.Interfaces[0].UEFI = true }), armedBy(nil), pxe(-1), Agent, true, "snponly.efi", false, ""},
		{"armed, iPXE", machine(nil), armedBy(nil), ipxe, Agent, true, "", true, "iPXE"},
		{"armed, operating system", machine(nil), armedBy(nil), Request{MAC: testMAC, Class: wire.ClassNone, Arch: -1}, Agent, true, "", false, "does not ask"},
		{"spent", machine(nil), armedBy(func(g *inventory.Grant) { g.Spent = true }), pxe(0), Disk, true, "", false, "spent"},
		{"installer, BIOS", machine(nil), armedBy(func(g *inventory.Grant) { g.Installer = true }), pxe(0), Installer, true, "undionly.kpxe", false, "loader undionly.kpxe"},
		{"installer, iPXE", machine(nil), armedBy(func(g *inventory.Grant) { g.Installer = true }), ipxe, Installer, true, "", true, "iPXE"},
		{"installer, spent", machine(nil), armedBy(func(g *inventory.Grant) { g.Installer, g.Spent = true, true }), ipxe, Disk, true, "", false, "no boot file"},
		{"installer, expired", machine(nil), armedBy(func(g *inventory.Grant) { g.Installer, g.NetbootUntil = true, testNow }), pxe(0), Disk, true, "", false, "closed at"},
		{"expired", machine(nil), armedBy(func(g *inventory.Grant) { g.NetbootUntil = testNow }), pxe(0), Disk, true, "", false, "closed at"},
		{"no boot yet", machine(nil), armedBy(func(g *inventory.Grant) { g.Boot = 0 }), pxe(0), Disk, true, "", false, "not allowed a boot"},
		{"grant of another machine", machine(nil), armed("node2"), pxe(0), Disk, true, "", false, "no run and no operator"},
		{"operator", machine(nil), armedBy(func(g *inventory.Grant) { g.Run = "operator:ada" }), ipxe, Rescue, true, "", true, "armed by ada"},
		{"no netboot", machine(func(m *inventory.Machine) { m.Interfaces[0].DisableNetboot = true }), armedBy(nil), ipxe, Never, true, "", false, "netboot is disabled"},
		{"no DHCP", machine(func(m *inventory.Machine) { m.Interfaces[0].DisableDHCP = true }), armedBy(nil), pxe(0), Agent, false, "undionly.kpxe", false, "DHCP is disabled"},
		{"no address", machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.Addr{} }), armedBy(nil), pxe(0), Agent, false, "undionly.kpxe", false, "no IPv4 address"},
		{"disk by exit", machine(func(m *inventory.Machine) { m.BootFromDisk = MethodExit }), inventory.Grant{}, ipxe, Disk, true, "", true, "ipxe-exit"},
		{"disk by default", machine(nil), inventory.Grant{}, ipxe, Disk, true, "", false, "no boot file"},
		{"disk by 404", machine(func(m *inventory.Machine) { m.BootFromDisk = Method404 }), inventory.Grant{}, ipxe, Disk, true, "", false, "404"},
		{"by address", machine(nil), armedBy(nil), Request{Address: netip.MustParseAddr(testAddr), Class: wire.ClassIPXE}, Agent, true, "", true, ""},
		{"by a wrong address", machine(nil), armedBy(nil), Request{Address: netip.MustParseAddr("10.10.20.99"), Class: wire.ClassIPXE}, Unknown, false, "", false, "no interface"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(c.machine, c.grant, c.request, testNow)
			if d.Verdict != c.verdict || d.Address != c.address || d.Loader != c.loader || d.Script != c.script {
				t.Errorf(
					"verdict %q, address %v, loader %q, script %v; want %q, %v, %q, %v",
					d.Verdict,
					d.Address,
					d.Loader,
					d.Script,
					c.verdict,
					c.address,
					c.loader,
					c.script,
				)
			}
			if !slices.ContainsFunc(d.Reasons, func(r string) bool { return strings.Contains(r, c.reason) }) {
				t.Errorf("reasons %q lack %q", d.Reasons, c.reason)
			}
		})
	}
}

// A machine without an open window never gets an answer that leads to a write.
func TestNothingWithoutAWindow(t *testing.T) {
	for _, class := range []wire.Class{wire.ClassNone, wire.ClassPXE, wire.ClassHTTP, wire.ClassIPXE} {
		for arch := -1; arch < 45; arch++ {
			for _, method := range []string{MethodDefault, MethodExit, Method404, MethodSanboot} {
				for n, g := range []inventory.Grant{{}, {Owner: inventory.Owner{Machine: "node1", Epoch: 9}, Boot: 1, NetbootUntil: testNow.Add(time.Hour)}, armed("node2")} {
					m := machine(func(m *inventory.Machine) { m.BootFromDisk, m.Interfaces[0].Loader = method, "ipxe.efi" })
					d := Decide(m, g, Request{MAC: testMAC, Class: class, Arch: arch}, testNow)
					if d.Armed() || d.Loader != "" {
						t.Fatalf("class %q, arch %d, grant %d: %+v", class, arch, n, d)
					}
				}
			}
		}
	}
}

func TestWhy(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	e, err := s.Why(t.Context(), "52-54-00-20-01-01")
	if err != nil {
		t.Fatal(err)
	}
	if e.Machine != "node1" || e.Verdict != string(Agent) || e.Address != testAddr || e.Boot != 1 || len(e.Answers) != 4 {
		t.Errorf("%+v", e)
	}
	want := []string{
		"undionly.kpxe",
		"snponly.efi",
		"http://10.10.20.2/ipxe/binary/52-54-00-20-01-01/snponly.efi",
		"http://10.10.20.2/ipxe/script/52:54:00:20:01:01/auto.ipxe",
	}
	for i, a := range e.Answers {
		if a.BootFile != want[i] {
			t.Errorf("%s is given %q, want %q", a.Client, a.BootFile, want[i])
		}
	}
	if e, err := s.Why(t.Context(), "52:54:00:99:99:99"); err != nil || e.Verdict != string(Unknown) || len(e.Reasons) == 0 {
		t.Errorf("unknown: %+v, %v", e, err)
	}
	if _, err := s.Why(t.Context(), "node1"); !errors.Is(err, inventory.ErrInvalid) {
		t.Errorf("no MAC: %v", err)
	}
	f.err = errors.New("database is gone")
	if _, err := s.Why(t.Context(), testMAC); err == nil {
		t.Error("a broken inventory was explained")
	}
}

func TestNewNamesAllProblems(t *testing.T) {
	_, err := New(
		Config{
			Interfaces: []string{"lo"},
			Address:    testSelf,
			AgentURL:   "http://10.10.20.2:7443/x y",
			AgentPin:   "sha256:zz",
			ClaimKey:   []byte("short"),
		},
		&fakeMachines{},
		&fakeJournal{},
	)
	var p inventory.Problems
	if !errors.As(err, &p) || len(p) != 3 {
		t.Errorf("got %v", err)
	}
	if s, err := New(Config{}, &fakeMachines{}, &fakeJournal{}); err != nil || s == nil {
		t.Errorf("without interfaces: %v", err)
	}
}

// A server without its key only gives addresses.
func TestWithoutKey(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, func(c *Config) { c.ClaimKey = nil })
	f.setGrant(armed("node1"))
	e, err := s.Why(t.Context(), testMAC)
	if err != nil || e.Verdict != string(Disk) || e.Address != testAddr ||
		!strings.Contains(strings.Join(e.Reasons, "; "), "has no key of claims") {
		t.Errorf("%+v, %v", e, err)
	}
	for _, a := range e.Answers {
		if a.BootFile != "" {
			t.Errorf("%s is given %s", a.Client, a.BootFile)
		}
	}
}
