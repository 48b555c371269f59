package agent

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"math/rand/v2"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

// writing returns an assignment for every native action that writes.
func writing(disk *action.Disk, url string) []action.Assignment {
	var all []action.Assignment
	for n, native := range []string{
		action.Image2Disk, action.Wipe, action.ConfigDrive, action.WriteFile, action.Inject, action.GrowPart,
		action.Kexec,
	} {
		all = append(all, action.Assignment{
			Key: action.Key{Epoch: 7, Action: n, Attempt: 1}, Run: "run", Disk: disk, DiskAlias: "/dev/alias",
			Action: action.Action{Name: native, Image: native, Timeout: 600, Environment: map[string]string{
				"IMG_URL":    url,
				"IMG_SHA256": disktest.SHA256(disktest.TestImage()),
				"DEST_DISK":  "/dev/alias",
				"META_DATA":  "x",
				"DEST_PATH":  "/x",
				"CONTENTS":   "x",
				"FILES":      `[{"path": "/x"}]`,
			}},
		})
	}
	return all
}

// S8: the agent does not carry out an order that the site has not signed for this machine, run,
// boot, attempt, plan and disk. It does not even open the disk.
func TestS8ForgedOrdersWriteNothing(t *testing.T) {
	t.Parallel()
	image := &disktest.Mirror{Data: disktest.TestImage()}
	web := httptest.NewServer(image)
	t.Cleanup(web.Close)
	t.Cleanup(func() { // when all of the below are through
		image.Mu.Lock()
		defer image.Mu.Unlock()
		if len(image.Requests) != 0 {
			t.Errorf("%d images were asked for", len(image.Requests))
		}
	})
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	right := func(as action.Assignment) action.Order {
		return action.Order{Machine: "m1", Boot: 1, Plan: "plan", Assignment: as}
	}
	// otherwise signs an order that forge has changed. It sends it with the original assignment or,
	// with both, with the assignment of the changed order.
	otherwise := func(both bool, forge func(*action.Order)) func(*fakeServer, action.Assignment) action.Assignment {
		return func(s *fakeServer, as action.Assignment) action.Assignment {
			o := right(as)
			o.Action.Environment = clone(as.Action.Environment)
			if as.Disk != nil {
				d := *as.Disk
				o.Disk = &d
			}
			forge(&o)
			out := s.order(o)
			if both {
				return out
			}
			as.Signed = out.Signed
			return as
		}
	}
	// forgeAssignment changes the assignment that is sent with a correctly signed order.
	forgeAssignment := func(forge func(*action.Assignment)) func(*fakeServer, action.Assignment) action.Assignment {
		return func(s *fakeServer, as action.Assignment) action.Assignment {
			out := s.order(right(as))
			out.Action.Environment = clone(as.Action.Environment)
			forge(&out)
			return out
		}
	}
	for name, c := range map[string]struct {
		send func(*fakeServer, action.Assignment) action.Assignment
		text string
		cfg  func(*Config)
	}{
		"no signature": {send: func(_ *fakeServer, as action.Assignment) action.Assignment { return as }, text: "the order is not signed"},
		"an empty signature": {send: func(_ *fakeServer, as action.Assignment) action.Assignment {
			as.Signed = &action.Signed{}
			return as
		}, text: "not signed with this site's key"},
		"another key's signature": {send: func(_ *fakeServer, as action.Assignment) action.Assignment {
			signed, err := action.Sign(stranger, right(as))
			if err != nil {
				t.Error(err)
			}
			as.Signed = signed
			return as
		}, text: "not signed with this site's key"},
		"a signature without the context": {send: func(s *fakeServer, as action.Assignment) action.Assignment {
			b, err := json.Marshal(right(as))
			if err != nil {
				t.Error(err)
			}
			as.Signed = &action.Signed{Order: b, Signature: ed25519.Sign(s.signer, b)}
			return as
		}, text: "not signed with this site's key"},
		"an order that was changed": {send: func(s *fakeServer, as action.Assignment) action.Assignment {
			out := s.order(right(as))
			out.Signed.Order = bytes.Replace(out.Signed.Order, []byte("/dev/alias"), []byte("/dev/other"), 1)
			return out
		}, text: "not signed with this site's key"},
		"no key in the boot script":  {send: (*fakeServer).signed, cfg: func(c *Config) { c.PlanKey = "" }, text: "has no key"},
		"signed for another machine": {send: otherwise(true, func(o *action.Order) { o.Machine = "m2" }), text: `for machine "m2"`},
		"signed for no machine":      {send: otherwise(true, func(o *action.Order) { o.Machine = "" }), text: `for machine ""`},
		"signed for another run":     {send: otherwise(false, func(o *action.Order) { o.Run = "other" }), text: `for run "other"`},
		"signed for another epoch":   {send: otherwise(false, func(o *action.Order) { o.Key.Epoch = 6 }), text: "for epoch 6"},
		"signed for another boot":    {send: otherwise(true, func(o *action.Order) { o.Boot = 2 }), text: "for boot 2"},
		"signed for another attempt": {send: otherwise(false, func(o *action.Order) { o.Key.Attempt = 2 }), text: "for attempt 7."},
		"signed for another action":  {send: otherwise(false, func(o *action.Order) { o.Key.Action = 9 }), text: "for attempt 7.9.1"},
		"signed without a plan":      {send: otherwise(true, func(o *action.Order) { o.Plan = "" }), text: "names no plan"},
		"the disk changed outside": {send: forgeAssignment(func(as *action.Assignment) {
			as.Disk = &action.Disk{
				Path: "/dev/sdb", Serial: "S2",
				Size: disktest.ImageDiskSize,
			}
		}), text: "differs from the assignment"},
		"the alias changed outside": {send: forgeAssignment(func(as *action.Assignment) { as.DiskAlias = "/dev/x" }), text: "differs from the assignment"},
		"the digest changed outside": {send: forgeAssignment(func(as *action.Assignment) {
			as.Action.Environment["IMG_SHA256"] = disktest.SHA256([]byte("x"))
		}), text: "differs from the assignment"},
		"the disk changed in it": {send: otherwise(false, func(o *action.Order) { o.Disk.Serial = "S2" }), text: "differs from the assignment"},
		"the digest changed in it": {send: otherwise(false, func(o *action.Order) {
			o.Action.Environment["IMG_SHA256"] = disktest.SHA256([]byte("x"))
		}), text: "differs from the assignment"},
		"signed for a disk that is not there": {send: otherwise(true, func(o *action.Order) { o.Disk.Serial = "S2" }), text: "not found among the machine's disks"},
		"signed for a disk of another size":   {send: otherwise(true, func(o *action.Order) { o.Disk.Size++ }), text: "bytes instead of"},
		"signed for no disk":                  {send: otherwise(true, func(o *action.Order) { o.Disk = nil }), text: "no disk is bound"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			s.sign = func(as action.Assignment) action.Assignment { return c.send(s, as) }
			files, disk, file := disktest.OldDisk(t, disktest.ImageDiskSize)
			disks := &disktest.WatchedDisks{Inner: files}
			cfg := s.config()
			cfg.Disks = disks
			if c.cfg != nil {
				c.cfg(&cfg)
			}
			r := s.start(cfg)
			for _, as := range writing(disk, web.URL) {
				s.update(func() { s.offer = append(s.offer, as) })
				res := s.result(as.Key)
				if res.State != action.Failed || !strings.Contains(res.Message, c.text) {
					t.Errorf("%s: %s %q, want %q", as.Action.Name, res.State, res.Message, c.text)
				}
			}
			content := disktest.MapFile(t, file)
			if _, opened := disks.Counts(); opened != 0 || !bytes.Equal(content, disktest.OldData(disktest.ImageDiskSize)) {
				t.Errorf("the disk was opened %d times", opened)
			}
			s.update(func() { s.gone = "over" })
			if went := r.ended(); len(went) != 1 || went[0] != "reboot" {
				t.Errorf("the machine went %v: it wrote nothing", went)
			}
		})
	}
}

func clone(m map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// S8: after a change of any byte, a signed assignment is refused or has the same meaning.
func TestS8EveryByteIsSigned(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	a, err := New(s.config())
	if err != nil {
		t.Fatal(err)
	}
	a.welcome = action.Welcome{Run: "run", Epoch: 7, Boot: 1}
	right := s.signed(writing(&action.Disk{Path: "/dev/sda", Serial: "S1", Size: 1 << 30}, "http://192.0.2.1/i")[0])
	want, err := a.order(right)
	if err != nil {
		t.Fatal(err)
	}
	wire := jsonOf(right)
	refused, same := 0, 0
	change := func(i int, b byte) {
		bad := bytes.Clone(wire)
		bad[i] = b
		var as action.Assignment
		if json.Unmarshal(bad, &as) != nil {
			return
		}
		o, err := a.order(as)
		switch {
		case err != nil:
			refused++
		case bytes.Equal(jsonOf(o), jsonOf(want)):
			same++
		default:
			t.Fatalf("byte %d made %q of %q: %s was taken", i, b, wire[i], jsonOf(o))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range wire {
		change(i, wire[i]^1)
		change(i, byte(' '+r.IntN(95)))
	}
	if refused < len(wire)/2 {
		t.Fatalf("%d refused, %d the same", refused, same)
	}
}

// S8: a run has one plan. A signed order of another plan is refused.
func TestS8RunHasOnePlan(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	plan := "one"
	s.sign = func(as action.Assignment) action.Assignment {
		var now string
		s.locked(func() { now = plan })
		return s.order(action.Order{Machine: "m1", Plan: now, Assignment: as})
	}
	s.start(s.config())
	if res := s.result(s.give(0, action.Noop, nil, nil)); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
	s.locked(func() { plan = "another" })
	if res := s.result(s.give(1, action.Noop, nil, nil)); res.State != action.Failed || !strings.Contains(res.Message, "began with plan one") {
		t.Fatalf("%+v", res)
	}
	s.locked(func() { plan = "one" })
	if res := s.result(s.give(2, action.Noop, nil, nil)); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
}

// An order with unknown fields from a newer server is accepted.
func TestOrderWithUnknownFields(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	a, err := New(s.config())
	if err != nil {
		t.Fatal(err)
	}
	a.welcome = action.Welcome{Run: "run", Epoch: 7, Boot: 1}
	key := action.Key{Epoch: 7, Attempt: 1}
	as := action.Assignment{Key: key, Run: "run", Action: action.Action{Name: "n", Image: action.Noop, Timeout: 9}}
	var more map[string]any
	if err := json.Unmarshal(jsonOf(action.Order{Machine: "m1", Plan: "p", Assignment: as}), &more); err != nil {
		t.Fatal(err)
	}
	more["mood"] = "good"
	more["action"].(map[string]any)["nice"] = 19
	b := jsonOf(more)
	// The signature covers the received bytes, not this package's encoding of the order.
	as.Signed = &action.Signed{Order: b, Signature: ed25519.Sign(s.signer, append([]byte("ingot order 1\x00"), b...))}
	if _, err := a.order(as); err != nil {
		t.Fatal(err)
	}
}
