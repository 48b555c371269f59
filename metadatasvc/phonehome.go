package metadatasvc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// A speaker is a system that phones home, by what its nonce proves.
type speaker int

const (
	unknownSystem    speaker = iota // wrong nonce, or no run that would want to know
	installedSystem                 // the system that the present run has installed
	unfinishedSystem                // a system that the present run has not finished
	earlierSystem                   // the system of an earlier run, while a boot is allowed
)

// speakerOf tells who knows nonce. m is zero for a machine that nobody knows. The
// steps are the same for everybody.
func (s *Server) speakerOf(m inventory.Machine, g inventory.Grant, nonce string, now time.Time) speaker {
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
// A system that speaks while the run is in its actions was left by an agent that
// died. That is no evidence of an installation, and its call is refused for now:
// the run may be about to give its last action. While a boot is allowed and not
// claimed, any call means that the machine has booted its disk instead.
func (s *Server) servePhoneHome(w http.ResponseWriter, r *http.Request, machine, nonce string) {
	m, err := s.machines.Machine(r.Context(), machine)
	if err != nil {
		s.complain(err, "looking up a machine for phone-home")
		m = inventory.Machine{Name: machine}
	}
	g, err := s.machines.Grant(r.Context(), machine)
	if err != nil {
		s.complain(err, "looking up a grant for phone-home")
		g = inventory.Grant{}
	}
	who := s.speakerOf(m, g, nonce, s.now())
	if who == unknownSystem {
		notFound(w)
		return
	}
	detail, ok := reported(w, r)
	if !ok {
		return
	}
	e := inventory.Event{Machine: g.Machine, Run: g.Run, Epoch: g.Epoch, Boot: g.Boot, Kind: inventory.EventPhoneHome, Key: "phone-home", At: s.now(), Count: 1, Detail: detail}
	switch {
	case who == installedSystem:
		e.Message = "the installed system reported"
	case g.NetbootOpen(s.now()):
		e.Kind, e.Message = inventory.EventBootLost, "the system on the disk phoned home: this boot was lost"
	default: // as its request for network boot would be: it wakes the run, and proves nothing
		e.Kind, e.Message = inventory.EventRebooted, "a system that is not finished phoned home: that does not count"
	}
	if !s.appendEvent(r.Context(), e) || who == unfinishedSystem {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n")) // a repeat changes nothing
}

// appendEvent stores an event; false: it could not.
func (s *Server) appendEvent(ctx context.Context, e inventory.Event) bool {
	err := s.journal.AppendEvents(ctx, []inventory.Event{e})
	if err != nil {
		s.log.Error("writing a phone-home", "machine", e.Machine, "error", err)
	}
	return err == nil
}

// reported reads what a system says of itself; false: it was refused.
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
	said := map[string]string{}
	for _, k := range []string{"instance_id", "hostname", "fqdn"} {
		if v := clean(r.PostForm.Get(k)); v != "" {
			said[k] = v
		}
	}
	detail, err := json.Marshal(said)
	if err != nil {
		detail = nil // a map of strings always encodes
	}
	return detail, true
}
