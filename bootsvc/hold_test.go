package bootsvc

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// acting returns the grant of a run whose agent is carrying out actions.
func acting(edit func(*inventory.Grant)) inventory.Grant {
	g := armed("node1")
	g.Spent, g.Acting = true, true
	if edit != nil {
		edit(&g)
	}
	return g
}

// During a run's actions, the system on the disk is incomplete: the machine is not sent
// to its disk, and the agent is not booted again either.
func TestDecideHoldsAMachineInItsActions(t *testing.T) {
	for _, c := range []struct {
		name    string
		grant   inventory.Grant
		request Request
		verdict Verdict
		loader  string
		script  bool
	}{
		{"spent, BIOS", acting(nil), Request{MAC: testMAC, Class: wire.ClassPXE, Arch: wire.ArchBIOS}, Hold, "undionly.kpxe", false},
		{"spent, UEFI", acting(nil), Request{MAC: testMAC, Class: wire.ClassPXE, Arch: wire.ArchUEFI}, Hold, "snponly.efi", false},
		{"spent, HTTP", acting(nil), Request{MAC: testMAC, Class: wire.ClassHTTP, Arch: wire.ArchHTTP}, Hold, "snponly.efi", false},
		{"spent, iPXE", acting(nil), Request{MAC: testMAC, Class: wire.ClassIPXE, Arch: wire.ArchUnknown}, Hold, "", true},
		{"spent, operating system", acting(nil), Request{MAC: testMAC, Arch: wire.ArchUnknown}, Hold, "", false},
		{"spent, window closed for an operator", acting(func(g *inventory.Grant) { g.NetbootUntil = time.Time{} }), Request{MAC: testMAC, Class: wire.ClassIPXE}, Hold, "", true},
		{"next boot, window closed", acting(func(g *inventory.Grant) { g.Spent, g.Boot, g.NetbootUntil = false, 2, testNow }), Request{MAC: testMAC, Class: wire.ClassIPXE}, Hold, "", true},
		{"next boot, open", acting(func(g *inventory.Grant) { g.Spent, g.Boot = false, 2 }), Request{MAC: testMAC, Class: wire.ClassIPXE}, Agent, "", true},
		{"last action, spent", acting(func(g *inventory.Grant) { g.Acting = false }), Request{MAC: testMAC, Class: wire.ClassIPXE}, Disk, "", false},
		{"run over", acting(func(g *inventory.Grant) { g.Run = "" }), Request{MAC: testMAC, Class: wire.ClassIPXE}, Disk, "", false},
		{"another machine's", func() inventory.Grant { g := acting(nil); g.Machine = "node2"; return g }(), Request{MAC: testMAC, Class: wire.ClassIPXE}, Disk, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Decide(machine(nil), c.grant, c.request, testNow)
			if d.Verdict != c.verdict || d.Loader != c.loader || d.Script != c.script {
				t.Errorf("verdict %q, loader %q, script %v; want %q, %q, %v", d.Verdict, d.Loader, d.Script, c.verdict, c.loader, c.script)
			}
			if d.Verdict == Hold &&
				(d.Armed() || !slices.ContainsFunc(d.Reasons, func(r string) bool { return strings.Contains(r, "actions of run") })) {
				t.Errorf("armed %v, reasons %q", d.Armed(), d.Reasons)
			}
		})
	}
}

// DHCP, TFTP, HTTP and Why agree about a machine on hold. No answer contains a claim,
// and neither kernel nor initramfs is served.
func TestHoldIsTheSameOnEveryListener(t *testing.T) {
	for _, method := range []string{MethodDefault, MethodExit, Method404, MethodSanboot} {
		f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.BootFromDisk = method })}}
		s, j := newServer(t, f, nil)
		f.setGrant(armed("node1"))
		boot := get(t, s.Handler(), http.MethodGet, "/ipxe/script/"+testMAC+"/auto.ipxe", testAddr)
		kernel := field(boot.Body.String(), "kernel ")
		j.kinds(t, s)
		f.setGrant(acting(nil))

		for _, path := range []string{"/ipxe/script/" + testMAC + "/auto.ipxe", "/ipxe/script/" + testMAC + "/hold.ipxe", "/autoexec.ipxe"} {
			w := get(t, s.Handler(), http.MethodGet, path, testAddr)
			script := w.Body.String()
			if w.Code != http.StatusOK || strings.Contains(script, "claim") || strings.Contains(script, "kernel") ||
				strings.Contains(script, "exit") ||
				!strings.Contains(script, "/ipxe/script/"+testMAC+"/hold.ipxe || goto hold") {
				t.Errorf("%q, %s: %d\n%s", method, path, w.Code, script)
			}
		}
		if w := get(t, s.Handler(), http.MethodGet, strings.TrimPrefix(kernel, s.Base()), testAddr); w.Code != http.StatusNotFound {
			t.Errorf("%q: the kernel of a boot that is spent: %d", method, w.Code)
		}
		if w := get(t, s.Handler(), http.MethodGet, "/ipxe/binary/52-54-00-20-01-01/snponly.efi", testAddr); w.Code != http.StatusOK {
			t.Errorf("%q: the loader: %d", method, w.Code)
		}
		if kinds := j.kinds(t, s); !strings.Contains(kinds, inventory.EventRebooted) || strings.Contains(kinds, inventory.EventScript) {
			t.Errorf("%q: events %q", method, kinds)
		}
		e, err := s.Why(t.Context(), testMAC)
		if err != nil || e.Verdict != string(Hold) || e.Answers[0].BootFile != "undionly.kpxe" ||
			!strings.HasSuffix(e.Answers[3].BootFile, "/auto.ipxe") {
			t.Errorf("%q: %+v, %v", method, e, err)
		}

		// When the run has ended, the hold script ends for every method. A 404 would keep
		// the machine in it.
		f.setGrant(acting(func(g *inventory.Grant) { g.Run = "" }))
		if w := get(
			t,
			s.Handler(),
			http.MethodGet,
			"/ipxe/script/"+testMAC+"/hold.ipxe",
			testAddr,
		); w.Code != http.StatusOK ||
			!strings.Contains(w.Body.String(), "exit") {
			t.Errorf("%q: over: %d\n%s", method, w.Code, w.Body)
		}
		// When the next boot is allowed, the hold script leads to it.
		f.setGrant(armed("node1"))
		if w := get(
			t,
			s.Handler(),
			http.MethodGet,
			"/ipxe/script/"+testMAC+"/hold.ipxe",
			testAddr,
		); !strings.Contains(
			w.Body.String(),
			"ingot.claim=",
		) {
			t.Errorf("%q: armed: %d\n%s", method, w.Code, w.Body)
		}
	}
}

// field returns the word after prefix.
func field(text, prefix string) string {
	_, rest, _ := strings.Cut(text, prefix)
	word, _, _ := strings.Cut(rest, " ")
	return word
}
