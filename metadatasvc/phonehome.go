package metadatasvc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// callerKind says which system has sent a phone-home request, as far as the nonce in the request proves it.
type callerKind int

const (
	unknownSystem    callerKind = iota // wrong nonce, or no run owns the machine
	installedSystem                    // system that was installed by the run that owns the machine now
	unfinishedSystem                   // system that this run is still installing
	earlierSystem                      // system of an earlier run, although the machine should boot from the network
	endedSystem                        // system whose run has ended, and no other run owns the machine
)

// kindOf returns which system of the machine m has sent the nonce. If the machine is unknown, m has only a name. kindOf does the same work
// for known and unknown machines, so that the time of the answer does not show whether a machine exists.
func (s *Server) kindOf(m inventory.Machine, g inventory.Grant, nonce string, now time.Time) callerKind {
	installation := inventory.Installation{}
	if m.Installation != nil {
		installation = *m.Installation
	}
	present := inventory.Equal(nonce, inventory.Nonce(s.cfg.Key, g.Owner))
	earlier := inventory.Equal(nonce, inventory.Nonce(s.cfg.Key, installation.Owner))
	switch {
	case len(s.cfg.Key) == 0:
	case g.Run == "" && earlier && installation.Machine == m.Name:
		return endedSystem
	case g.Run == "" || g.Machine != m.Name:
	case present && g.Acting:
		return unfinishedSystem
	case present:
		return installedSystem
	case earlier && installation.Machine == g.Machine && g.NetbootOpen(now) && !g.ByOperator():
		return earlierSystem
	}
	return unknownSystem
}

// servePhoneHome stores an event for a phone-home request. The nonce proves which system has sent the request; the form fields are only
// displayed. The answer is 200 only after the event is stored; after any other answer, the client retries. If the answer to the report that
// ended the run is lost, the client also retries: it gets 200, and nothing is stored.
//
// A phone-home while the run's actions are carried out does not prove an installation: it means that the agent has died and the machine has
// booted an unfinished system. But the run may also be about to finish its last action, so the answer is 503, and the client retries. While
// the netboot window is open, any phone-home means that the machine has booted from its disk instead of the network.
func (s *Server) servePhoneHome(w http.ResponseWriter, r *http.Request, machine, nonce string) {
	m, err := s.machines.Machine(r.Context(), machine)
	if err != nil {
		s.logFailure(err, "looking up a machine for phone-home")
		m = inventory.Machine{Name: machine}
	}
	g, err := s.machines.Grant(r.Context(), machine)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		s.logFailure(err, "looking up a grant")
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	kind := s.kindOf(m, g, nonce, s.now())
	switch kind {
	case unknownSystem:
		notFound(w)
		return
	case endedSystem:
		writeOK(w)
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
	default: // unfinished system: the event only wakes the run, as a network boot does
		e.Kind, e.Message = inventory.EventRebooted, "an incomplete system phoned home; the report is ignored"
	}
	if !s.appendEvent(r.Context(), e) || kind == unfinishedSystem {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	writeOK(w)
}

func writeOK(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // ignore errors: the client retries if it gets no answer
}

// appendEvent stores an event and returns whether it was stored.
func (s *Server) appendEvent(ctx context.Context, e inventory.Event) bool {
	log := s.log.With(e.LogKeys()...)
	if err := s.journal.AppendEvents(ctx, []inventory.Event{e}); err != nil {
		log.Error("writing a phone-home", "error", err)
		return false
	}
	log.Info("phone-home recorded", "kind", e.Kind)
	return true
}

// readReportForm returns, as JSON, those form fields of a phone-home request that are stored. If the form is invalid or too large, it sends
// an error answer and returns false.
func readReportForm(w http.ResponseWriter, r *http.Request) (detail json.RawMessage, ok bool) {
	r.Body = http.MaxBytesReader(w, r.Body, maxPhoneHome)
	if err := r.ParseForm(); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
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
