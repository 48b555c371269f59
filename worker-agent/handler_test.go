package agent

import (
	"os"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
)

// offerNoop gives the agent a noop with the time-out, environment and handlers of a.
func (s *fakeServer) offerNoop(disk *action.Disk, a action.Action) action.Key {
	key := action.Key{Epoch: 7, Attempt: 1}
	a.Name, a.Image = "n", action.Noop
	s.update(func() {
		s.offer = append(s.offer, action.Assignment{Key: key, Run: "run", Disk: disk, DiskAlias: "/dev/alias", Action: a})
	})
	return key
}

// The handler of a failure writes to the disk, its log is streamed, and the first error stays.
func TestOnFailure(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.Sparse(t, 32*blockdev.MiB)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("left by an earlier system"), 512); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	s := newFakeServer(t)
	cfg := s.config()
	cfg.Disks = files
	s.start(cfg)
	env := map[string]string{"EXIT": "3", "MESSAGE": "the first error"}
	res := s.result(s.offerNoop(disk, action.Action{
		Timeout: 600, Environment: env, OnFailure: []string{"wipe", "BLOCK_DEVICE=/dev/alias"}, OnTimeout: []string{"echo", "wrong one"},
	}))
	if res.State != action.Failed || res.ExitCode != 3 || res.Message != "the first error" || len(res.Output) > 0 {
		t.Errorf("%+v", res)
	}
	for _, line := range []string{"n: FAILED: the first error", "on-failure: begins (wipe)", "on-failure: done in"} {
		if !strings.Contains(res.Log, line) {
			t.Errorf("%q is missing in the log:\n%s", line, res.Log)
		}
	}
	if strings.Contains(res.Log, "wrong one") {
		t.Errorf("on-timeout was carried out, too:\n%s", res.Log)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !blockdev.AllZero(b[:blockdev.MiB]) {
		t.Error("the disk was not wiped")
	}
}

// The handler of a time-out begins when the time is up, and its lines are streamed while it works.
func TestOnTimeout(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.start(s.config())
	words := []string{"noop", "LOG=collected", "SLEEP=1000"}
	key := s.offerNoop(nil, action.Action{
		Timeout: 1, Environment: map[string]string{"SLEEP": "1000"}, OnFailure: []string{"echo", "wrong one"}, OnTimeout: words,
	})
	s.wait("the handler's line", func() bool {
		for _, h := range s.beats {
			if h.Running != nil && strings.Contains(h.Running.Log, "collected") {
				return len(s.reports) == 0
			}
		}
		return false
	})

	// An order to stop ends the handler, and the result stays what it was.
	s.update(func() { s.orders.Stop = []action.Key{key} })
	res := s.result(key)
	if res.State != action.Timeout || !strings.HasPrefix(res.Message, "the action has exceeded its timeout") ||
		!strings.Contains(res.Message, "; on-timeout: "+errStopped.Error()) || strings.Contains(res.Log, "wrong one") {
		t.Errorf("%+v", res)
	}
}

// The error of a handler follows the first one. S23: the agent itself refuses what is not one of its actions.
func TestHandlerFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		words []string
		want  string
	}{
		"it fails":              {[]string{"noop", "EXIT=4", "MESSAGE=the second"}, "; on-failure: the second"},
		"no disk":               {[]string{"wipe"}, "; on-failure: finding the disk: no disk is bound"},
		"of an earlier server":  {[]string{"sh", "-c", "true"}, `; on-failure: invalid "sh"`},
		"another disk than its": {[]string{"wipe", "BLOCK_DEVICE=/dev/other"}, `; on-failure: reading BLOCK_DEVICE="/dev/other": it is not the disk`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newFakeServer(t)
			s.start(s.config())
			env := map[string]string{"EXIT": "3", "MESSAGE": "the first"}
			res := s.result(s.offerNoop(nil, action.Action{Timeout: 600, Environment: env, OnFailure: c.words}))
			if res.State != action.Failed || res.ExitCode != 3 || !strings.HasPrefix(res.Message, "the first"+c.want) {
				t.Errorf("%+v", res)
			}
		})
	}
}

// A handler writes to no protected disk.
func TestHandlerSparesProtectedDisks(t *testing.T) {
	t.Parallel()
	files, disk, file := disktest.Sparse(t, 32*blockdev.MiB)
	if err := os.WriteFile(file, append([]byte("keep"), make([]byte, 32*blockdev.MiB-4)...), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newFakeServer(t)
	cfg := s.config()
	cfg.Disks = files
	s.start(cfg)
	key := action.Key{Epoch: 7, Attempt: 1}
	s.update(func() {
		s.offer = append(s.offer, action.Assignment{
			Key: key, Run: "run", Disk: disk, DiskAlias: "/dev/alias", Protected: []action.DiskID{{Serial: disk.Serial}},
			Action: action.Action{
				Name: "n", Image: action.Noop, Timeout: 600, Environment: map[string]string{"EXIT": "1"}, OnFailure: []string{"wipe"},
			},
		})
	})
	res := s.result(key)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if res.State != action.Failed || !strings.Contains(res.Message, "on-failure: ") || string(b[:4]) != "keep" {
		t.Errorf("%+v, disk %q", res, b[:4])
	}
}

// Success, an order to stop and an order that is not signed run no handler.
func TestNoHandler(t *testing.T) {
	t.Parallel()
	words := []string{"echo", "it was carried out"}
	handled := action.Action{Timeout: 600, OnFailure: words, OnTimeout: words}

	t.Run("success", func(t *testing.T) {
		t.Parallel()
		s := newFakeServer(t)
		s.start(s.config())
		if res := s.result(s.offerNoop(nil, handled)); res.State != action.Success || strings.Contains(res.Log, words[1]) {
			t.Errorf("%+v", res)
		}
	})

	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		s := newFakeServer(t)
		s.start(s.config())
		long := handled
		long.Environment = map[string]string{"SLEEP": "1000"}
		key := s.offerNoop(nil, long)
		s.wait("progress", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Running != nil })
		s.update(func() { s.orders.Stop = []action.Key{key} })
		if res := s.result(key); res.State != action.Stopped || strings.Contains(res.Log, words[1]) {
			t.Errorf("%+v", res)
		}
	})

	t.Run("unsigned", func(t *testing.T) {
		t.Parallel()
		s := newFakeServer(t)
		s.sign = func(as action.Assignment) action.Assignment { return as }
		s.start(s.config())
		if res := s.result(s.offerNoop(nil, handled)); res.State != action.Failed || strings.Contains(res.Log, words[1]) {
			t.Errorf("%+v", res)
		}
	})
}
