package agent

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

func TestWrongServerKeyIsRefused(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	cfg := s.config()
	cfg.Pin = "sha256:" + strings.Repeat("00", 32)
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = a.api.claim(t.Context(), action.Hello{}, &action.Welcome{})
	if err == nil || !strings.Contains(err.Error(), "differs from the key in the boot script") {
		t.Fatalf("the claim ended with %v", err)
	}
	if len(s.hellos) != 0 {
		t.Fatal("the claim was sent to a server with another key")
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	good := Config{Server: "https://192.0.2.1:7443", Pin: "sha256:" + strings.Repeat("ab", 32), Machine: "m", Claim: "c"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"plain http": func(c *Config) { c.Server = "http://192.0.2.1" }, "no server": func(c *Config) { c.Server = "" },
		"no pin": func(c *Config) { c.Pin = "" }, "short pin": func(c *Config) { c.Pin = "sha256:abcd" },
		"short plan key":           func(c *Config) { c.PlanKey = "ed25519:abcd" },
		"another kind of plan key": func(c *Config) { c.PlanKey = strings.Repeat("ab", 32) },
		"no machine":               func(c *Config) { c.Machine = "" }, "no claim": func(c *Config) { c.Claim = "" },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	c := CommandLine(
		"BOOT_IMAGE=vmlinuz console=ttyS0 ingot.server=https://192.0.2.1:7443 ingot.pin=sha256:ab ingot.machine=m1 ingot.claim=ff ingot.plan=ed25519:k ingot.mac=52-54-00-AB-00-01 ingot.rescue=1\n",
	)
	want := Config{
		Server: "https://192.0.2.1:7443", Pin: "sha256:ab", Machine: "m1", Claim: "ff", PlanKey: "ed25519:k",
		MAC: "52:54:00:ab:00:01", Rescue: true,
	}
	if !reflect.DeepEqual(c, want) {
		t.Fatalf("%+v, want %+v", c, want)
	}
	if c := CommandLine("BOOTIF=01-52-54-00-00-00-09"); c.MAC != "52:54:00:00:00:09" {
		t.Fatalf("BOOTIF gave %q", c.MAC)
	}
}

func TestHelloIsRepeatedWithTheSameNonce(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.onClaim = func(w http.ResponseWriter, n int) bool {
		if n < 3 {
			hangUp(w)
		}
		return n < 3
	}
	r := s.start(s.config())
	s.wait("the first poll", func() bool { return s.polls > 0 })
	if len(s.hellos) != 3 || s.hellos[0].Nonce != s.hellos[2].Nonce || len(s.hellos[0].Nonce) < 32 {
		t.Fatalf("hellos: %+v", s.hellos)
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	if r.host.clock.Unix() != 1700000000 {
		t.Fatalf("the clock was set to %v", r.host.clock)
	}
}

func TestRefusedClaimReboots(t *testing.T) {
	t.Parallel()
	for _, code := range []int{404, 409, 410} {
		s := newFakeServer(t)
		s.onClaim = func(w http.ResponseWriter, _ int) bool { w.WriteHeader(code); return true }
		if went := s.start(s.config()).ended(); !reflect.DeepEqual(went, []string{"reboot"}) {
			t.Errorf("after %d the machine went %v", code, went)
		}
	}
}

func TestFailureReportsMessage(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.start(s.config())
	res := s.result(s.give(0, action.Noop, nil,
		map[string]string{"LOG": "a line\nanother", "EXIT": "42", "MESSAGE": "no such luck", "SECRET": "hunter2"}))
	if res.State != action.Failed || res.ExitCode != 42 || res.Message != "no such luck" {
		t.Fatalf("%+v", res)
	}
	if !strings.Contains(res.Log, "a line\nanother\n") || strings.Contains(res.Log, "hunter2") {
		t.Fatalf("log: %s", res.Log)
	}
	res = s.result(s.give(1, "docker.io/library/alpine", nil, nil))
	if res.State != action.Failed || !strings.Contains(res.Message, "the order has no container") {
		t.Fatalf("%+v", res)
	}
}

func TestLostReportIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.onReport = func(w http.ResponseWriter, n int) bool {
		switch n {
		case 1:
			hangUp(w)
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			return false
		}
		return true
	}
	s.start(s.config())
	key := s.give(0, action.Noop, nil, nil)
	s.wait("the third report", func() bool { return len(s.reports) == 3 })
	for _, r := range s.reports {
		if r.Key != key || r.ID != s.reports[0].ID || r.State != action.Success {
			t.Fatalf("%+v", r)
		}
	}
}

func TestSameKeyRunsOnce(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.start(s.config())
	key := s.give(0, action.Noop, nil, nil)
	first := s.result(key)
	s.give(0, action.Noop, nil, map[string]string{"EXIT": "1"})
	s.wait("the second report", func() bool { return len(s.reports) == 2 })
	if got := s.reports[1]; got.ID != first.ID || got.State != action.Success || !got.Started.Equal(first.Started) {
		t.Fatalf("the second answer is %+v, the first was %+v", got, first)
	}
}

func TestAssignmentOfOtherRunIsDropped(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.start(s.config())
	stale := action.Key{Epoch: 6, Attempt: 1}
	s.update(func() {
		s.offer = []action.Assignment{{Key: stale, Run: "run", Action: action.Action{Image: "noop"}}}
	})
	s.wait("two polls", func() bool { return s.polls >= 2 })
	s.update(func() { s.offer = nil })
	s.result(s.give(1, action.Noop, nil, nil))
	for _, r := range s.reports {
		if r.Key == stale {
			t.Fatal("a stale epoch was answered")
		}
	}
}

func TestActionTimeout(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.start(s.config())
	key := action.Key{Epoch: 7, Attempt: 1}
	s.update(func() {
		s.offer = []action.Assignment{{
			Key:    key,
			Action: action.Action{Image: "noop", Environment: map[string]string{"SLEEP": "1000"}, Timeout: 1},
		}}
	})
	if res := s.result(key); res.State != action.Timeout || !strings.Contains(res.Message, "exceeded its timeout") {
		t.Fatalf("%+v", res)
	}
}

func TestStopRunningAction(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.start(s.config())
	key := s.give(0, action.Noop, nil, map[string]string{"SLEEP": "1000"})
	s.wait("progress", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Running != nil })
	s.update(func() { s.orders.Stop = []action.Key{key} })
	if res := s.result(key); res.State != action.Stopped {
		t.Fatalf("%+v", res)
	}
}

func TestStopBeforeAssignment(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	key := action.Key{Epoch: 7, Attempt: 1}
	s.orders.Stop = []action.Key{key}
	s.start(s.config())
	if res := s.result(key); res.State != action.Stopped {
		t.Fatalf("%+v", res)
	}
	var before int
	s.locked(func() { before = len(s.reports) })
	s.give(0, action.Noop, nil, nil)
	s.wait("the answer to the late assignment", func() bool { return len(s.reports) > before && len(s.offer) == 0 })
	s.locked(func() {
		for _, r := range s.reports {
			if r.State != action.Stopped {
				t.Errorf("it ran: %+v", r)
			}
		}
	})
}

// An order to stop that arrives after the work is done and before the report does not turn the
// result into "never started".
func TestStopAfterCompletion(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	a, err := New(s.config())
	if err != nil {
		t.Fatal(err)
	}
	key := action.Key{Epoch: 7, Attempt: 1}
	a.welcome = action.Welcome{Run: "run", Epoch: 7, Boot: 1}
	res := a.execute(t.Context(), s.signed(action.Assignment{Key: key, Action: action.Action{Name: "n", Image: action.Noop}}))
	a.obey(action.Orders{Stop: []action.Key{key}})
	a.post(res)
	if len(a.outbox) != 1 || a.outbox[0].State != action.Success {
		t.Fatalf("%+v", a.outbox)
	}
}

func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.orders.Hold = true
	s.start(s.config())
	s.wait("heartbeats", func() bool { return len(s.beats) > 1 }) // the order of the first heartbeat was obeyed
	key := s.give(0, action.Noop, nil, nil)
	var n int
	s.locked(func() { n = len(s.beats) })
	s.wait("more heartbeats", func() bool { return len(s.beats) >= n+2 })
	s.locked(func() {
		if len(s.reports) != 0 {
			t.Errorf("it worked on hold: %+v", s.reports)
		}
	})
	s.update(func() { s.orders.Hold = false })
	if res := s.result(key); res.State != action.Success {
		t.Fatalf("%+v", res)
	}
}

func TestRescueCarriesNothingOut(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	cfg := s.config()
	cfg.Rescue = true
	s.give(0, action.Noop, nil, nil)
	s.start(cfg)
	s.wait("heartbeats", func() bool { return len(s.beats) >= 2 })
	s.locked(func() {
		if s.polls != 0 || !s.beats[1].Idle {
			t.Errorf("%d polls, %+v", s.polls, s.beats)
		}
	})
}

func TestGone(t *testing.T) {
	t.Parallel()
	t.Run("before anything was written", func(t *testing.T) {
		s := newFakeServer(t)
		r := s.start(s.config())
		s.result(s.give(0, action.Noop, nil, nil))
		s.update(func() { s.gone = "another run owns the machine" })
		if went := r.ended(); !reflect.DeepEqual(went, []string{"reboot"}) {
			t.Fatalf("the machine went %v", went)
		}
	})
	t.Run("after a write", func(t *testing.T) {
		s := newFakeServer(t)
		cfg := s.config()
		disks, disk, _ := disktest.OldDisk(t, 32*blockdev.MiB)
		cfg.Disks = disks
		r := s.start(cfg)
		if res := s.result(s.give(0, action.Wipe, disk, map[string]string{"BLOCK_DEVICE": "/dev/alias"})); res.State != action.Success {
			t.Fatalf("%+v", res)
		}
		s.wait("a heartbeat that says so", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Wrote })
		s.update(func() { s.gone = "cancelled" })
		if went := r.ended(); !reflect.DeepEqual(went, []string{"poweroff"}) {
			t.Fatalf("the machine went %v", went)
		}
	})
	t.Run("while something runs", func(t *testing.T) {
		s := newFakeServer(t)
		r := s.start(s.config())
		s.give(0, action.Noop, nil, map[string]string{"SLEEP": "1000"})
		s.wait("progress", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Running != nil })
		s.update(func() { s.gone = "cancelled" })
		if went := r.ended(); !reflect.DeepEqual(went, []string{"reboot"}) {
			t.Fatalf("the machine went %v", went)
		}
	})
}

func TestLeavingIsReportedFirst(t *testing.T) {
	t.Parallel()
	for _, native := range []string{action.Reboot, action.PowerOff} {
		s := newFakeServer(t)
		s.onReport = func(w http.ResponseWriter, n int) bool {
			if n < 3 {
				w.WriteHeader(http.StatusBadGateway)
			}
			return n < 3
		}
		r := s.start(s.config())
		key := s.give(0, native, nil, nil)
		if went := r.ended(); !reflect.DeepEqual(went, []string{native}) {
			t.Fatalf("the machine went %v", went)
		}
		if len(s.reports) != 3 || s.reports[2].Key != key || s.reports[2].State != action.Success {
			t.Fatalf("%s: it left after %+v", native, s.reports)
		}
	}
}

func TestRevokedTokenStopsWriting(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	r := s.start(s.config())
	key := s.give(0, action.Noop, nil, map[string]string{"SLEEP": "1000"})
	s.wait("progress", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Running != nil })
	s.update(func() { s.refuse = http.StatusUnauthorized })
	// The agent stops and keeps asking: a restored server may accept its token again.
	s.wait("more requests", func() bool { return s.refused >= 5 })
	s.update(func() { s.refuse, s.offer = 0, nil })
	if res := s.result(key); res.State != action.Stopped {
		t.Fatalf("%+v", res)
	}
	if len(r.host.went) != 0 {
		t.Fatal("the machine left")
	}
}

func TestCancelEndsTheAgent(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	r := s.start(s.config())
	s.give(0, action.Noop, nil, map[string]string{"SLEEP": "1000"})
	s.wait("progress", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Running != nil })
	r.stop()
	select {
	case err := <-r.done:
		r.done <- err
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("it ended with %v", err)
		}
	case <-time.After(deadline):
		t.Fatal("the agent did not end")
	}
	if len(r.host.went) != 0 {
		t.Fatalf("the machine went %v", r.host.went)
	}
}

func TestPanicIsFailure(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	cfg := s.config()
	cfg.Finder = panicking{after: new(int)}
	s.start(cfg)
	if res := s.result(s.give(0, action.Inspect, nil, nil)); res.State != action.Failed ||
		!strings.Contains(res.Message, "panic: out of luck") {
		t.Fatalf("%+v", res)
	}
}

type panicking struct{ after *int }

func (p panicking) Facts(context.Context) (action.Facts, error) {
	if *p.after++; *p.after > 1 {
		panic("out of luck")
	}
	return action.Facts{}, nil
}
