package metadatasvc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A caller kind says what the nonce of a system that phones home proves.
type callerKind int

const (
	unknownSystem    callerKind = iota // wrong nonce, or no run waits for it
	installedSystem                    // the system that the present run has installed
	unfinishedSystem                   // a system that the present run has not finished
	earlierSystem                      // the system of an earlier run, while a boot is allowed
)

// kindOf returns which system knows nonce. m is zero for an unknown machine; the
// steps are the same for known and unknown ones.
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
	case earlier && installation.Machine == g.Machine && g.NetbootOpen(now) && !g.Person():
		return earlierSystem
	}
	return unknownSystem
}

// servePhoneHome records that a system reported: the nonce is the evidence, the
// rest is for display. It answers 200 only when the event is stored, so that the
// client tries again.
//
// A system that calls while the run is in its actions was left by an agent that
// died. That does not prove an installation, and the call is refused for now: the
// run may be about to assign its last action. While a boot is allowed and not
// claimed, any call means that the machine has booted its disk instead.
func (s *Server) servePhoneHome(w http.ResponseWriter, r *http.Request, machine, nonce string) {
	m, err := s.machines.Machine(r.Context(), machine)
	if err != nil {
		s.logFailure(err, "looking up a machine for phone-home")
		m = inventory.Machine{Name: machine}
	}
	g, err := s.machines.Grant(r.Context(), machine)
	if err != nil {
		s.logFailure(err, "looking up a grant for phone-home")
		g = inventory.Grant{}
	}
	kind := s.kindOf(m, g, nonce, s.now())
	if kind == unknownSystem {
		notFound(w)
		return
	}
	detail, ok := reported(w, r)
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
	default: // like a request for network boot, it wakes the run and proves nothing
		e.Kind, e.Message = inventory.EventRebooted, "a system that is not finished phoned home: that does not count"
	}
	if !s.appendEvent(r.Context(), e) || kind == unfinishedSystem {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // a repeat changes nothing
}

// appendEvent stores an event; false: it failed.
func (s *Server) appendEvent(ctx context.Context, e inventory.Event) bool {
	err := s.journal.AppendEvents(ctx, []inventory.Event{e})
	if err != nil {
		s.log.Error("writing a phone-home", "machine", e.Machine, "error", err)
	}
	return err == nil
}

// reported reads the form in which a system describes itself; false: it was refused.
func reported(w http.ResponseWriter, r *http.Request) (detail json.RawMessage, ok bool) {
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
		if v := clean(r.PostForm.Get(k)); v != "" {
			fields[k] = v
		}
	}
	detail, err := json.Marshal(fields)
	if err != nil {
		detail = nil // a map of strings always encodes
	}
	return detail, true
}
