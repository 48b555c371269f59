package siterole

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// TargetSteps are the side effects of a target on its host. Each step can be repeated after a crash.
type TargetSteps interface {
	// Check returns the free space for the databases, in bytes, and the problems that prevent this server from becoming the active server.
	Check(ctx context.Context) (free int64, problems []string)
	// Receive verifies the archive in r and unpacks it as a site with the given site epoch, which becomes active later. A site that was
	// received earlier is replaced. The result is the value for Prepared.Files.
	Receive(ctx context.Context, id string, epoch int64, r io.Reader) (map[string]string, error)
	// Discard removes the files that Receive has written.
	Discard(id string) error
	// Image returns how much of an image's file this host already has. SendImage writes r to that file from offset; with offset 0, the file
	// begins again.
	Image(ctx context.Context, img inventory.Image) (ImageState, error)
	SendImage(ctx context.Context, img inventory.Image, offset int64, r io.Reader) (ImageState, error)
}

// Target serves the peer API of a server that was made a standby. It still does so after this server has become active or has retired.
type Target struct {
	File     *File
	Steps    TargetSteps
	Program  string // version of the program
	Temporal string // address of an external Temporal cluster; "" = embedded
	Notify   bool   // this server sends notices when it needs an operator
	// Log gets a record for each refused request. Log should be rate-limited, because unknown clients can send such requests.
	Log *slog.Logger
	Now func() time.Time
	// Activated is called once an activation is stored on the disk.
	Activated func()
	// Metadata returns the handler for metadata requests that the retired source forwards; nil if there is none at this time.
	Metadata func() http.Handler

	preparing sync.Mutex // locked while a site is received
}

// Handler returns the handler of the peer API. Its listener must use ServerTLS.
func (t *Target) Handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST "+apiRoot+"pair", answer(t, t.pair))
	m.HandleFunc("GET "+apiRoot+"state", answer(t, t.known(t.state)))
	m.HandleFunc("GET "+apiRoot+"check", answer(t, t.known(t.check)))
	m.HandleFunc("PUT "+apiRoot+"handovers/{id}", answer(t, t.known(t.prepare)))
	m.HandleFunc("POST "+apiRoot+"handovers/{id}/activate", answer(t, t.known(t.activate)))
	m.HandleFunc("POST "+apiRoot+"handovers/{id}/refuse", answer(t, t.known(t.refuse)))
	m.HandleFunc("GET "+apiRoot+"images/{file}", answer(t, t.known(t.image)))
	m.HandleFunc("PUT "+apiRoot+"images/{file}", answer(t, t.known(t.sendImage)))
	m.HandleFunc(routeMetadata, t.metadata)
	return m
}

type route func(r *http.Request) (any, error)

// answer returns a handler that writes the result of f, or its error, as JSON.
func answer(t *Target, f route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := f(r)
		status := http.StatusOK
		if err != nil {
			t.Log.Warn("refused a peer's request", "route", r.Pattern, "remote", r.RemoteAddr, "error", err)
			v, status = refuse(err)
		}
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // cannot happen: every answer has a JSON form
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(text) // if the response is lost, the peer repeats its request
	}
}

// checkToken returns the fingerprint of the client's key. If the token is not the token of the source, or the client presents no key, the
// error is ErrStranger.
func (t *Target) checkToken(r *http.Request) (string, error) {
	s := t.File.Site()
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if s.Source == nil || subtle.ConstantTimeCompare([]byte(identity.Digest(token)), []byte(s.Source.TokenSHA256)) != 1 {
		return "", ErrStranger
	}

	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", ErrStranger
	}

	return keypin.Of(r.TLS.PeerCertificates[0]), nil
}

// known returns a route that calls f for the paired source, and returns ErrStranger for every other client.
func (t *Target) known(f route) route {
	return func(r *http.Request) (any, error) {
		print, err := t.checkToken(r)
		if err != nil {
			return nil, err
		}
		if s := t.File.Site(); s.Source.Fingerprint == "" || subtle.ConstantTimeCompare([]byte(print), []byte(s.Source.Fingerprint)) != 1 {
			return nil, ErrStranger
		}
		return f(r)
	}
}

// pair binds the token to the key of the first client that shows it: later, the token is accepted only with this key.
func (t *Target) pair(r *http.Request) (any, error) {
	print, err := t.checkToken(r)
	if err != nil {
		return nil, err
	}
	_, err = t.File.Change(func(s *Site) error {
		if s.Source.Fingerprint != "" && s.Source.Fingerprint != print {
			return fmt.Errorf("the token belongs to %q, which has another key: %w", s.Source.Name, ErrStranger)
		}
		s.Source.Fingerprint, s.Source.Name = print, r.URL.Query().Get("name")
		return nil
	})
	if err != nil {
		return nil, err
	}

	return t.check(r)
}

func (t *Target) state(r *http.Request) (any, error) { return t.stateOf(r.URL.Query().Get("id")), nil }

func (t *Target) stateOf(id string) State {
	s := t.File.Site()
	st := State{
		Program: t.Program, Name: s.Name, Role: s.Role, Epoch: s.Epoch, Activated: s.Activated,
		Refused: id != "" && slices.Contains(s.Refused, id), Successor: s.Successor,
	}
	if s.Prepared != nil {
		st.Prepared = s.Prepared.ID
	}
	return st
}

func (t *Target) check(r *http.Request) (any, error) {
	out := Report{State: t.stateOf(""), Temporal: t.Temporal, Notify: t.Notify, Problems: []string{}}
	if out.Role != Standby {
		out.Problems = append(out.Problems, fmt.Sprintf("the target is %s in site epoch %d, but only a standby can take over", out.Role,
			out.Epoch))
		return out, nil
	}

	free, problems := t.Steps.Check(r.Context())
	out.Free, out.Problems = free, append(out.Problems, problems...)
	return out, nil
}

// maxRefused is how many refused ids are stored. At any time, a source has at most one hand-over under way.
const maxRefused = 1000

func (t *Target) prepare(r *http.Request) (any, error) {
	id, digest := r.PathValue("id"), r.URL.Query().Get("digest")
	epoch, err := strconv.ParseInt(r.URL.Query().Get("epoch"), 10, 64)
	if err != nil || epoch < 1 || id == "" || len(digest) != 2*sha256.Size || !isFileName(id) {
		return nil, fmt.Errorf("preparing a hand-over: invalid id, epoch or digest: %w", inventory.ErrInvalid)
	}
	if !t.preparing.TryLock() {
		return nil, fmt.Errorf("another hand-over is being received: %w", errBusy)
	}
	defer t.preparing.Unlock()

	s := t.File.Site()
	switch {
	case s.Activated == id:
		return t.stateOf(id), nil
	case slices.Contains(s.Refused, id):
		return nil, fmt.Errorf("hand-over %q was refused: %w", id, inventory.ErrConflict)
	case s.Role != Standby:
		return nil, s.require(Standby)
	case s.Prepared != nil && s.Prepared.ID == id && s.Prepared.Digest == digest:
		return t.stateOf(id), nil
	}

	t.Log.Info("a site is being received", "handover", id, "from", s.Source.Name)
	// Receive removes the files of the earlier site, so remove the record of that site first.
	if _, err := t.File.Change(func(s *Site) error { s.Prepared = nil; return nil }); err != nil {
		return nil, err
	}

	h := sha256.New()
	files, err := t.Steps.Receive(r.Context(), id, epoch+1, io.TeeReader(r.Body, h))
	if err != nil {
		return nil, fmt.Errorf("receiving hand-over %q: %w", id, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != digest {
		return nil, fmt.Errorf("receiving hand-over %q: the received bytes have the SHA-256 %.12s instead of %.12s: %w", id, got, digest, errBusy)
	}

	_, err = t.File.Change(func(s *Site) error {
		if slices.Contains(s.Refused, id) { // refused after the check above
			return fmt.Errorf("hand-over %q was refused: %w", id, inventory.ErrConflict)
		}
		s.Prepared = &Prepared{ID: id, Epoch: epoch + 1, Digest: digest, At: t.Now().UTC(), Files: files}
		return nil
	})
	if err != nil {
		return nil, err
	}

	t.Log.Info("a site is prepared", "handover", id)
	return t.stateOf(id), nil
}

// errBusy is temporary: the source repeats its request.
var errBusy = errors.New("not now")

// activate is the commit point: this server is the active server as soon as the role file is on the disk.
func (t *Target) activate(r *http.Request) (any, error) {
	id := r.PathValue("id")
	now, err := t.File.Change(func(s *Site) error {
		switch {
		case s.Activated == id:
			return nil
		case slices.Contains(s.Refused, id):
			return fmt.Errorf("hand-over %q was refused: %w", id, inventory.ErrConflict)
		case s.Role != Standby:
			return s.require(Standby)
		case s.Prepared == nil || s.Prepared.ID != id:
			return fmt.Errorf("hand-over %q is not prepared on this server: %w", id, inventory.ErrConflict)
		}
		becomeActive(s, "handed over by "+s.Source.Name)
		return nil
	})
	if err != nil {
		return nil, err
	}

	t.Log.Info("this server now runs the site", "handover", id, "epoch", now.Epoch)
	t.Activated()
	return t.stateOf(id), nil
}

// becomeActive changes s from a standby with a prepared site to the active server of this site.
func becomeActive(s *Site, why string) {
	s.Role, s.Why = Active, why
	s.Epoch, s.Activated, s.ReKey = s.Prepared.Epoch, s.Prepared.ID, true
}

func (t *Target) refuse(r *http.Request) (any, error) {
	id := r.PathValue("id")
	s, err := t.File.Change(func(s *Site) error {
		switch {
		case s.Activated == id:
			return fmt.Errorf("hand-over %q was activated: %w", id, inventory.ErrConflict)
		case slices.Contains(s.Refused, id):
			return nil
		case len(s.Refused) >= maxRefused:
			return fmt.Errorf("%d hand-overs were refused: make a new standby: %w", maxRefused, inventory.ErrConflict)
		}
		s.Refused = append(s.Refused, id)
		if s.Prepared != nil && s.Prepared.ID == id && s.Role == Standby {
			s.Prepared = nil
		}
		return nil
	})
	if err != nil {
		return nil, err
	}

	t.Log.Warn("refused a hand-over permanently: the source continues to run the site", "handover", id)
	if s.Prepared == nil && s.Role == Standby {
		if err := t.Steps.Discard(id); err != nil {
			t.Log.Warn("removing the received files", "handover", id, "error", err)
		}
	}

	return t.stateOf(id), nil
}

// TakeOver makes a standby active without its source, after the operator has stated that the source is off. If no site is prepared here,
// the error is inventory.ErrConflict.
func (t *Target) TakeOver(by string) error {
	_, err := t.File.Change(func(s *Site) error {
		if s.Role != Standby || s.Prepared == nil {
			return fmt.Errorf("no site is prepared on this server; to restore a backup, run ingot restore: %w", inventory.ErrConflict)
		}
		becomeActive(s, "taken over by "+by+", who said that the source is off")
		return nil
	})
	if err == nil {
		t.Activated()
	}

	return err
}

func (t *Target) image(r *http.Request) (any, error) {
	img, err := imageOf(r)
	if err != nil {
		return nil, err
	}
	return t.Steps.Image(r.Context(), img)
}

func (t *Target) sendImage(r *http.Request) (any, error) {
	img, err := imageOf(r)
	if err != nil {
		return nil, err
	}

	offset, err1 := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	var err2 error
	img.Size, err2 = strconv.ParseInt(r.URL.Query().Get("size"), 10, 64)
	if err1 != nil || err2 != nil || offset < 0 || img.Size < offset {
		return nil, fmt.Errorf("invalid offset or size: %w", inventory.ErrInvalid)
	}
	if err := t.File.Site().require(Standby); err != nil {
		return nil, err
	}

	return t.Steps.SendImage(r.Context(), img, offset, r.Body)
}

// imageOf returns an image with the file name, the digest and the inPlace path that the request names, or inventory.ErrInvalid.
func imageOf(r *http.Request) (inventory.Image, error) {
	img := inventory.Image{File: r.PathValue("file"), SHA256: r.URL.Query().Get("digest")}
	if path := r.URL.Query().Get("inPlace"); path != "" {
		img.InPlace = &inventory.InPlace{Path: path}
	}
	if raw, err := hex.DecodeString(img.SHA256); err != nil || len(raw) != sha256.Size || !isFileName(img.File) {
		return img, fmt.Errorf("invalid file or digest: %w", inventory.ErrInvalid)
	}
	return img, nil
}

// isFileName reports whether s is a safe file name: at most 200 letters, digits and ". _ - +", not starting with a dot.
func isFileName(s string) bool {
	return s != "" && len(s) <= 200 && s[0] != '.' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-+", r)
	})
}
