package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/action"
)

// factsOf is a Finder.
type factsOf action.Facts

func (f factsOf) Facts(context.Context) (action.Facts, error) { return action.Facts(f), nil }

// S8: an agent on an unknown machine reports the hardware until the machine was accepted, sends no
// claim and asks for no work; then the machine reboots.
func TestS8DiscoverReportsUntilAccepted(t *testing.T) {
	s := newFakeServer(t)
	var reports atomic.Int32
	mux := s.http.Config.Handler.(*http.ServeMux)
	mux.HandleFunc("POST /agent/v1/discover", func(w http.ResponseWriter, r *http.Request) {
		var d action.Discovery
		if err := json.NewDecoder(r.Body).Decode(&d); err != nil || d.MAC != "52:54:00:00:00:01" || d.Facts.Serial != "SN1" {
			t.Errorf("%v %+v", err, d)
		}
		switch reports.Add(1) {
		case 1:
			http.Error(w, "busy", http.StatusServiceUnavailable)
		case 2:
			s.answer(w, action.Discovered{Known: true, Machine: "m1", Again: 1})
		}
	})
	cfg := Config{
		Server:   s.http.URL,
		Pin:      s.pin,
		MAC:      "52:54:00:00:00:01",
		Discover: true,
		Finder:   factsOf{Serial: "SN1"},
		Backoff:  20 * time.Millisecond,
	}
	r := s.start(cfg)
	if went := r.ended(); reports.Load() != 2 || !slices.Equal(went, []string{"reboot"}) {
		t.Errorf("%d reports, then %v", reports.Load(), went)
	}
	if s.polls != 0 || len(s.hellos) != 0 {
		t.Errorf("%d polls, %d claims", s.polls, len(s.hellos))
	}
}

// An agent that the server does not want to hear leaves.
func TestDiscoverIsRefused(t *testing.T) {
	s := newFakeServer(t) // answers 404
	r := s.start(Config{Server: s.http.URL, Pin: s.pin, MAC: "52:54:00:00:00:01", Discover: true})
	if went := r.ended(); !slices.Equal(went, []string{"reboot"}) {
		t.Errorf("%v", went)
	}
}
