package metadatasvc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// callerKind is what the nonce of a phone-home proves about the system that sent it.
type callerKind int

const (
	unknownSystem    callerKind = iota // wrong nonce, or no run owns the machine
	installedSystem                    // the system that the current run has installed
	unfinishedSystem                   // a system that the current run has not finished
	earlierSystem                      // the system of an earlier run, during an open netboot window
)

// kindOf returns the kind of system that knows nonce. m is zero for an unknown machine.
// It takes the same steps for known and unknown machines.
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

// servePhoneHome records that a system reported. Its nonce is the evidence; the other
// fields are for display. It answers 200 only after the event is stored, so that the
// client otherwise retries.
//
// If a system phones home during the run's actions, the agent has died and left it
// unfinished. That does not prove an installation. The answer is 503, because the run
// may be about to assign its last action. During an open netboot window, any
// phone-home means that the machine has booted its disk instead.
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
		e.Message = "the installed system reported"
	case g.NetbootOpen(s.now()):
		e.Kind, e.Message = inventory.EventBootLost, "the system on the disk phoned home: this boot was lost"
	default: // it only wakes the run, like a request for network boot
		e.Kind, e.Message = inventory.EventRebooted, "a system that is not finished phoned home: that does not count"
	}
	if !s.appendEvent(r.Context(), e) || kind == unfinishedSystem {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // if it is lost, the client retries
}

// appendEvent stores an event and returns false if that failed.
func (s *Server) appendEvent(ctx context.Context, e inventory.Event) bool {
	log := s.log.With(e.LogKeys()...)
	if err := s.journal.AppendEvents(ctx, []inventory.Event{e}); err != nil {
		log.Error("writing a phone-home", "error", err)
		return false
	}
	log.Info("the installed system has phoned home", "kind", e.Kind)
	return true
}

// readReportForm returns the form fields in which a system describes itself. If the form is
// invalid, it answers the request and returns false.
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
		detail = nil // a map of strings always encodes
	}
	return detail, true
}
