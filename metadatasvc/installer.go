package metadatasvc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
	"github.com/ingotmetal/ingot/inventory"
)

// runDocument returns the document called name from the plan of p's run, with its references replaced by their values. It returns false if
// there is no such document. p.secret must be true.
func (s *Server) runDocument(ctx context.Context, p profile, name string) ([]byte, bool, error) {
	if s.cfg.Installers == nil || p.grant.ByOperator() {
		return nil, false, nil
	}
	plan, err := s.cfg.Installers.Plan(ctx, p.grant.Run)
	if errors.Is(err, inventory.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, d := range plan.Documents {
		if d.Name != name {
			continue
		}
		text, err := inventory.Resolve(d.Contents, func(ref string) (string, error) {
			switch ref {
			case inventory.RefUserData:
				return p.machine.UserData.Reveal(), nil
			case inventory.RefVendorData:
				return p.machine.VendorData.Reveal(), nil
			}
			if v, ok := cloudinit.Reference(ref, s.cfg.URL, s.cfg.Key, p.grant.Owner); ok {
				return v, nil
			}
			return ref, nil // not a reference
		})
		if s.cfg.ImageURL != nil {
			text = inventory.Rebase(text, plan.ImagesURL, s.cfg.ImageURL())
		}
		return []byte(text), true, err
	}
	return nil, false, nil
}

// maxReport is the maximum length of the stored message of an installer's report, in bytes.
const maxReport = 512

// Events that installers report. The names are those that Harvester uses.
const (
	eventStarted   = "STARTED"
	eventSucceeded = "SUCCEEDED"
	eventFailed    = "FAILED"
)

// serveWebhook stores an installer's report. It answers 200 only after the report is stored. Reports are accepted even while the secrets
// window is closed: the answer contains no secret, and the report must count even if the run already waits for an operator.
func (s *Server) serveWebhook(w http.ResponseWriter, r *http.Request, machine, capability, event string) {
	g := s.grantOf(r.Context(), machine)
	event = strings.ToUpper(event)
	if !s.isCapability(g, capability) || g.Run == "" || g.Machine != machine || !g.Installer || s.cfg.Installers == nil ||
		event != eventStarted && event != eventSucceeded && event != eventFailed {
		notFound(w)
		return
	}
	message, status := readMessage(w, r)
	if status != http.StatusOK {
		http.Error(w, "at most 64 KiB", status)
		return
	}

	var err error
	if event == eventStarted { // this event is only displayed
		err = s.journal.AppendEvents(r.Context(), []inventory.Event{{
			Machine: g.Machine, Run: g.Run, Epoch: g.Epoch, Boot: g.Boot,
			Kind: inventory.EventMetadata, At: s.now(), Count: 1, Message: "the installer has begun",
		}})
	} else {
		var fresh bool
		fresh, err = s.cfg.Installers.InstallerReported(r.Context(), g.Owner, event == eventFailed, message)
		if err == nil && fresh {
			s.log.With(g.LogKeys(g.Boot)...).Info("an installer reported", "event", event)
		}
	}
	switch {
	case errors.Is(err, inventory.ErrFenced):
		notFound(w)
		return
	case err != nil:
		s.log.With(g.LogKeys(g.Boot)...).Error("writing an installer's report", "error", err)
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	writeOK(w)
}

// readMessage returns the message of an installer's report as one line of printable ASCII. If the body is a JSON object or a form, the
// message is its field "message"; otherwise it is the whole body. status is 200, or 413 if the body is too large.
func readMessage(w http.ResponseWriter, r *http.Request) (message string, status int) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPhoneHome))
	if err != nil {
		return "", http.StatusRequestEntityTooLarge
	}
	text := string(b)
	// Ignore the content type, because some installers send JSON as text/plain.
	var body struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &body) == nil {
		text = body.Message
	} else if t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); t == "application/x-www-form-urlencoded" {
		if form, err := url.ParseQuery(text); err == nil && form.Has("message") {
			text = form.Get("message")
		}
	}
	text = plaintext.ASCII(strings.NewReplacer("\n", " ", "\t", " ").Replace(text), maxReport)
	return strings.TrimSpace(text), http.StatusOK
}
