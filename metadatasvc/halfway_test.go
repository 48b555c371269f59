package metadatasvc

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// phone posts a phone-home of the owner's run.
func phone(t *testing.T, s *Server, o inventory.Owner) int {
	t.Helper()
	path := strings.TrimPrefix(cloudinit.PhoneHomeURL("", testKey, o), "http://10.10.20.2:7172")
	return do(t, s, http.MethodPost, path, node1, "instance_id=i-node1", "Content-Type", "application/x-www-form-urlencoded").Code
}

// A phone-home of an unfinished system during the run's actions is not evidence.
// cloud-init must retry, because the answer may change.
func TestPhoneHomeBeforeTheLastActionIsNoEvidence(t *testing.T) {
	s, f, j := newServer(t)
	g := f.grants["node1"]
	g.Acting, g.Spent = true, true
	f.grants["node1"] = g
	if code := phone(t, s, g.Owner); code != http.StatusServiceUnavailable {
		t.Errorf("answered %d", code)
	}
	if len(j.events) != 1 || j.events[0].Kind != inventory.EventRebooted || j.events[0].Boot != g.Boot ||
		!strings.Contains(j.events[0].Message, "phoned home") {
		t.Fatalf("%+v", j.events)
	}
	// The next boot is allowed, and the same system phones home: that boot was lost.
	g.Spent, g.Boot, g.NetbootUntil = false, 2, testNow.Add(time.Hour)
	f.grants["node1"] = g
	if code := phone(t, s, g.Owner); code != http.StatusServiceUnavailable {
		t.Errorf("answered %d", code)
	}
	if len(j.events) != 2 || j.events[1].Kind != inventory.EventBootLost || j.events[1].Boot != 2 {
		t.Fatalf("%+v", j.events)
	}
	// After the last action, the phone-home counts.
	g.Acting, g.Spent = false, true
	f.grants["node1"] = g
	if code := phone(t, s, g.Owner); code != http.StatusOK || len(j.events) != 3 || j.events[2].Kind != inventory.EventPhoneHome {
		t.Fatalf("%d %+v", code, j.events)
	}
}

// If the system of an earlier run phones home during an armed boot, the boot was lost.
// Once the run has ended, a repeated phone-home is answered and not stored. At any other time, and for any other nonce,
// the answer is 404.
func TestPhoneHomeOfAnEarlierRun(t *testing.T) {
	earlier := inventory.Owner{Machine: "node1", Run: "run-0", Epoch: 2}
	ended := func(g *inventory.Grant) { g.Run = "" }
	for _, c := range []struct {
		name  string
		edit  func(g *inventory.Grant)
		owner inventory.Owner
		lost  bool
	}{
		{"armed", func(*inventory.Grant) {}, earlier, true},
		{"armed for an installer", func(g *inventory.Grant) { g.Installer = true }, earlier, true},
		{"spent", func(g *inventory.Grant) { g.Spent = true }, earlier, false},
		{"window closed", func(g *inventory.Grant) { g.NetbootUntil = testNow }, earlier, false},
		{"no boot allowed yet", func(g *inventory.Grant) { g.Boot = 0 }, earlier, false},
		{"no run", ended, earlier, false},
		{"no run, of another epoch", ended, inventory.Owner{Machine: "node1", Run: "run-0", Epoch: 1}, false},
		{"armed by hand", func(g *inventory.Grant) { g.Run = "operator:ada" }, earlier, false},
		{"of an epoch that wrote nothing", func(*inventory.Grant) {}, inventory.Owner{Machine: "node1", Run: "run-0", Epoch: 1}, false},
		{"of another machine", func(*inventory.Grant) {}, inventory.Owner{Machine: "node2", Run: "run-0", Epoch: 2}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, f, j := newServer(t)
			m := f.machines["node1"]
			m.Installation = &inventory.Installation{Owner: earlier, Boot: 1}
			f.machines["node1"] = m
			g := inventory.Grant{Owner: inventory.Owner{Machine: "node1", Run: "run-1", Epoch: 3}, Boot: 1, NetbootUntil: testNow.Add(time.Hour)}
			c.edit(&g)
			f.grants["node1"] = g
			code := phone(t, s, c.owner)
			if !c.lost {
				want := http.StatusNotFound
				if c.name == "no run" {
					want = http.StatusOK
				}
				if code != want || len(j.events) != 0 {
					t.Fatalf("%d %+v", code, j.events)
				}
				return
			}
			// The answer is 200, so that the system does not retry.
			if code != http.StatusOK || len(j.events) != 1 {
				t.Fatalf("%d %+v", code, j.events)
			}
			if e := j.events[0]; e.Kind != inventory.EventBootLost || e.Run != "run-1" || e.Epoch != 3 || e.Boot != 1 || e.Key == "" {
				t.Errorf("%+v", e)
			}
		})
	}
}

// A system keeps its instance id until a run writes the disk. Then every tree has the
// instance id of the run and its boot.
func TestInstanceIDNamesRunAndBoot(t *testing.T) {
	s, f, _ := newServer(t)
	ids := func() []string {
		t.Helper()
		capability := strings.TrimSuffix(cloudinit.URL("", testKey, f.grants["node1"].Owner), "nocloud/")
		out := []string{
			get(t, s, "/2009-04-04/meta-data/instance-id", node1).Body.String(),
			get(t, s, capability+"latest/meta-data/instance-id", node1).Body.String(),
		}
		for _, doc := range []string{get(t, s, capability+"nocloud/meta-data", node1).Body.String(), get(t, s, "/latest/dynamic/instance-identity/document", node1).Body.String(), get(t, s, "/metadata", node1).Body.String()} {
			_, rest, _ := strings.Cut(doc, `"i-node1`)
			id, _, _ := strings.Cut(rest, `"`)
			out = append(out, "i-node1"+id)
		}
		return out
	}
	same := func(want string) {
		t.Helper()
		for _, id := range ids() {
			if id != want {
				t.Errorf("%q, want %q", id, want)
			}
		}
	}
	same("i-node1")
	wrote := func(run string, epoch int64, boot int) {
		m := f.machines["node1"]
		m.Installation = &inventory.Installation{Owner: inventory.Owner{Machine: "node1", Run: run, Epoch: epoch}, Boot: boot}
		f.machines["node1"] = m
	}
	wrote("0199aa11-2233-4455", 3, 1)
	same("i-node1-0199aa11-3-1")
	wrote("0199aa11-2233-4455", 3, 2)
	same("i-node1-0199aa11-3-2")
}
