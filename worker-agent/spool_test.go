package agent

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/facts"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// The complete report is sent again to a server that is away, full or busy, however often it
// refuses.
func TestReportSurvivesOutage(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	codes := []int{500, 502, 503, 504, 507, 401, 403, 408, 425, 429, 0}
	const rounds = 4
	s.onReport = func(w http.ResponseWriter, n int) bool {
		if n > rounds*len(codes) {
			return false
		}
		if code := codes[n%len(codes)]; code != 0 {
			w.WriteHeader(code)
		} else {
			hangUp(w)
		}
		return true
	}
	r := s.start(s.config())
	key := s.give(0, action.Noop, nil, map[string]string{"LOG": "what happened"})
	s.wait("the report that is taken", func() bool { return len(s.reports) == rounds*len(codes)+1 })
	for _, res := range s.reports {
		if res.Key != key || res.ID != s.reports[0].ID || res.State != action.Success || !strings.Contains(res.Log, "what happened") {
			t.Fatalf("%+v", res)
		}
	}
	// The agent continues its work.
	s.result(s.give(1, action.Noop, nil, nil))
	if len(r.host.went) != 0 {
		t.Fatal("the machine left")
	}
}

// A report that the server understands and refuses is shortened. Its last form says that it was
// refused. It neither blocks the agent nor repeats forever.
func TestRefusedReportIsShortened(t *testing.T) {
	t.Parallel()
	for _, code := range []int{400, 404, 413, 422} {
		for takes, want := range map[int]action.State{2: action.Success, 3: action.Failed} {
			t.Run(fmt.Sprintf("%d until report %d", code, takes), func(t *testing.T) {
				t.Parallel()
				s := newFakeServer(t)
				s.onReport = func(w http.ResponseWriter, n int) bool {
					if n >= takes {
						return false
					}
					w.WriteHeader(code)
					_, _ = fmt.Fprintln(w, "invalid report") // the agent may hang up
					return true
				}
				s.start(s.config())
				s.give(0, action.Noop, nil, map[string]string{"LOG": "what happened"})
				s.wait("the report that is taken", func() bool { return len(s.reports) == takes })
				s.result(s.give(1, action.Noop, nil, nil)) // the agent continues its work
				var got []action.Result
				s.locked(func() { got = s.reports })
				if len(got) != takes+1 || got[0].Log == "" || got[1].Log != "" {
					t.Fatalf("%+v", got)
				}
				last := got[takes-1]
				if last.State != want || last.ID != got[0].ID || want == action.Failed && !strings.Contains(last.Message, "invalid report") {
					t.Fatalf("%+v", last)
				}
			})
		}
	}
	t.Run("no form is taken", func(t *testing.T) {
		t.Parallel()
		s := newFakeServer(t)
		s.onReport = func(w http.ResponseWriter, n int) bool {
			if n <= 3 {
				w.WriteHeader(http.StatusUnprocessableEntity)
			}
			return n <= 3
		}
		s.start(s.config())
		s.give(0, action.Noop, nil, map[string]string{"LOG": "what happened"})
		s.wait("the third report", func() bool { return len(s.reports) == 3 })
		s.result(s.give(1, action.Noop, nil, nil)) // the agent continues its work
		// A server that offers the attempt again gets the complete result.
		s.give(0, action.Noop, nil, nil)
		s.wait("the whole report", func() bool { return len(s.reports) == 5 })
		s.locked(func() {
			if whole := s.reports[4]; whole.State != action.Success || whole.Log != s.reports[0].Log || whole.ID != s.reports[0].ID {
				t.Errorf("%+v", whole)
			}
		})
	})
}

func TestShortenedKeepsRequiredFields(t *testing.T) {
	t.Parallel()
	refusal := &fetch.StatusError{Code: 400, Text: "no"}
	for state, want := range map[action.State]action.State{
		action.Success: action.Failed, action.Failed: action.Failed,
		// Every form says that the disk is closed.
		action.Stopped: action.Stopped, action.Timeout: action.Timeout,
	} {
		res := action.Result{
			Key: action.Key{Epoch: 1, Attempt: 1}, ID: "i", State: state, ExitCode: 3, Message: strings.Repeat("ä", 5000), Log: "l",
			Output: map[string]string{"facts": strings.Repeat("x", 1<<20)}, Started: time.Unix(1, 0), Ended: time.Unix(2, 0),
		}
		if first := shortened(res, 1, refusal); first.Log != "" || first.State != state || first.Output == nil {
			t.Errorf("%s: %+v", state, first)
		}
		short := shortened(res, 2, refusal)
		if n := facts.JSONSize(short); n > 2000 {
			t.Errorf("%s: %d bytes", state, n)
		}
		if short.State != want || short.ExitCode == 0 || short.Key != res.Key || short.ID != res.ID || !strings.Contains(short.Message, "400") {
			t.Errorf("%s: %+v", state, short)
		}
	}
}

// An agent whose token was revoked stops and stays. It delivers its report when the server accepts
// it, and leaves when it is told that the run has ended.
func TestRevokedAgentHoldsUntilTheRunIsOver(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	r := s.start(s.config())
	s.give(0, action.Noop, nil, map[string]string{"SLEEP": "1000"})
	s.wait("progress", func() bool { return len(s.beats) > 0 && s.beats[len(s.beats)-1].Running != nil })
	s.update(func() { s.refuse = http.StatusForbidden })
	s.wait("more requests", func() bool { return s.refused >= 10 })
	if len(r.host.went) != 0 {
		t.Fatal("the machine left")
	}
	s.update(func() { s.gone = "decided by an operator" })
	if went := r.ended(); len(went) != 1 || went[0] != "reboot" {
		t.Fatalf("the machine went %v", went)
	}
}

func TestOtherProtocolIsRefused(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	ours := action.Welcome{Protocol: action.Protocol, Token: "token", Run: "run", Epoch: 7, Boot: 1, Heartbeat: 1}
	answers := []any{
		func() any { w := ours; w.Protocol = 0; return w }(),                                                          // a server before protocol numbers
		func() any { w := ours; w.Protocol = action.Protocol - 1; return w }(),                                        // before signed orders
		func() any { w := ours; w.Protocol = action.Protocol + 1; return w }(),                                        // unknown
		map[string]any{"protocol": action.Protocol, "token": "token", "run": "run", "epoch": 7, "boot": 1, "mood": 1}, // with a later field
	}
	s.onWelcome = func(n int) any { return answers[min(n, len(answers))-1] }
	s.start(s.config())
	s.wait("the first poll", func() bool { return s.polls > 0 })
	s.locked(func() {
		if len(s.hellos) != len(answers) {
			t.Errorf("it said hello %d times", len(s.hellos))
		}
	})
}
