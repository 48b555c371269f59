package metadatasvc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// callerKind is what the nonce in a phone-home request proves about the system that has sent it.
type callerKind int

const (
	unknownSystem    callerKind = iota // wrong nonce, or no run owns the machine
	installedSystem                    // system that the current run has installed
	unfinishedSystem                   // system that the current run is still installing
	earlierSystem                      // system of an earlier run, while the netboot window is open
)

// kindOf returns what nonce proves about its sender. For an unknown machine, m has only a name. kindOf does the same
// work for known and unknown machines, so that its timing reveals nothing.
func (s *Server) kindOf(m inventory.Machine, g inventory.Grant, nonce string, now time.Time) callerKind {
	installation := inventory.Installation{}
	if m.Installation != nil {
		installation = *m.Installation
	}
	present := inventory.Equal(nonce, inventory.Nonce(s.cfg.Key, g.Owner))
	earlier := inventory.Equal(nonce, inventory.Nonce(s.cfg.Key, installation.Owner))
	switch {
	case len(s.cfg.Key) == 0 || g.Run == "" || g.Machine != m.Name:
	case present && g.Acting:
		return unfinishedSystem
	case present:
		return installedSystem
	case earlier && installation.Machine == g.Machine && g.NetbootOpen(now) && !g.ByOperator():
		return earlierSystem
	}
	return unknownSystem
}

// servePhoneHome stores an event for a phone-home request. The nonce proves which system has sent it; the form fields
// are for display only. It returns 200 only after the event is stored; otherwise the client retries.
//
// A phone-home during the actions of the run does not prove an installation: the agent has died, and the machine has
// booted an unfinished system. The answer is 503, so that the client retries, because the run may be about to finish
// its last action. While the netboot window is open, any phone-home means that the machine has booted from its disk
// instead of the network.
func (s *Server) servePhoneHome(w http.ResponseWriter, r *http.Request, machine, nonce string) {
	m, err := s.machines.Machine(r.Context(), machine)
	if err != nil {
		s.logFailure(err, "looking up a machine for phone-home")
		m = inventory.Machine{Name: machine}
	}
	g := s.grantOf(r.Context(), machine)
	kind := s.kindOf(m, g, nonce, s.now())
	if kind == unknownSystem {
		notFound(w)
		return
	}
	detail, ok := readReportForm(w, r)
	if !ok {
		return
	}

	e := inventory.Event{
		Machine: g.Machine, Run: g.Run, Epoch: g.Epoch, Boot: g.Boot,
		Kind: inventory.EventPhoneHome, Key: "phone-home", At: s.now(), Count: 1, Detail: detail,
	}
	switch {
	case kind == installedSystem:
		e.Message = "the installed system reported its state"
	case g.NetbootOpen(s.now()):
		e.Kind, e.Message = inventory.EventBootLost, "the system on the disk phoned home, so the machine did not boot from the network"
	default: // an unfinished system: the event only wakes the run, as a network boot does
		e.Kind, e.Message = inventory.EventRebooted, "an incomplete system phoned home; the report is ignored"
	}
	if !s.appendEvent(r.Context(), e) || kind == unfinishedSystem {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // ignored: the client retries if it gets no answer
}

// appendEvent stores an event and returns false if that failed.
func (s *Server) appendEvent(ctx context.Context, e inventory.Event) bool {
	log := s.log.With(e.LogKeys()...)
	if err := s.journal.AppendEvents(ctx, []inventory.Event{e}); err != nil {
		log.Error("writing a phone-home", "error", err)
		return false
	}
	log.Info("phone-home recorded", "kind", e.Kind)
	return true
}

// readReportForm returns the form fields of a phone-home request that are kept, as JSON. If the form is invalid or too
// large, it sends an error answer and returns false.
func readReportForm(w http.ResponseWriter, r *http.Request) (detail json.RawMessage, ok bool) {
	r.Body = http.MaxBytesReader(w, r.Body, maxPhoneHome)
	if err := r.ParseForm(); err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			http.Error(w, "at most 64 KiB", http.StatusRequestEntityTooLarge)
			return nil, false
		}
		http.Error(w, "the form cannot be read", http.StatusBadRequest)
		return nil, false
	}
	fields := map[string]string{}
	for _, k := range []string{"instance_id", "hostname", "fqdn"} {
		if v := printable(r.PostForm.Get(k)); v != "" {
			fields[k] = v
		}
	}
	detail, err := json.Marshal(fields)
	if err != nil {
		detail = nil // never happens: a map of strings can always be encoded
	}
	return detail, true
}
