package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// A Peer is another server that may become this site, or has become it.
type Peer struct {
	Name        string    `json:"name"`
	URL         string    `json:"url"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Since       time.Time `json:"since,omitzero"`
}

// NewPeer is a peer with the token that it has made for this server.
type NewPeer struct {
	Peer
	Token inventory.Secret `json:"token"`
}

// SiteStatus says what this server is among its peers.
type SiteStatus struct {
	Name  string `json:"name,omitempty"`
	Role  string `json:"role"` // active | standby | handing-over | retired
	Epoch int64  `json:"epoch,omitempty"`
	// Silent says why nobody is answered although nothing else is known; then a
	// person may decide.
	Silent    string    `json:"silent,omitempty"`
	Since     time.Time `json:"since,omitzero"` // of Silent
	Successor *Peer     `json:"successor,omitempty"`
	Peers     []Peer    `json:"peers"`
	// HandOver is the last one of which this server was the source.
	HandOver *HandOverStatus `json:"handOver,omitempty"`
	// Prepared is the hand-over that lies ready here, Activated the one by which
	// the site came here.
	Prepared  string `json:"prepared,omitempty"`
	Activated string `json:"activated,omitempty"`
	// Intake says why new runs are refused.
	Intake string `json:"intake,omitempty"`
	Why    string `json:"why,omitempty"`
}

// HandOverStatus is a hand-over as its source knows it.
type HandOverStatus struct {
	ID    string    `json:"id"`
	Peer  string    `json:"peer"`
	State string    `json:"state"` // under-way | moved | failed
	Why   string    `json:"why,omitempty"`
	Since time.Time `json:"since"`
}

// Words that a person says of a server that cannot tell by itself.
const (
	WordTakeOver = "take-over" // the other host is off: this server is the site
	WordGiveUp   = "give-up"   // the other server is the site: this one retires
)

// A Site is the server's own state machine among its peers.
type Site interface {
	SiteStatus(ctx context.Context) (SiteStatus, error)
	// AddPeer pairs with a standby and remembers it.
	AddPeer(ctx context.Context, p NewPeer) (Peer, error)
	RemovePeer(ctx context.Context, name string) error
	// Decide passes on a person's word; inventory.ErrConflict when there is
	// nothing to decide. peer is the one that is the site, by WordGiveUp; "" where
	// only one can be.
	Decide(ctx context.Context, word, peer string) error
}

// errMoving marks a refusal while the site is about to move.
var errMoving = errors.New("the site is moving to another host")

// moving refuses new runs while the intake is closed.
func (s *Server) moving(ctx context.Context) error {
	if s.cfg.Intake == nil {
		return nil
	}
	why, err := s.cfg.Intake(ctx)
	if err != nil || why == "" {
		return err
	}
	return hint{fmt.Errorf("new runs are refused: %s: %w", why, errMoving), "ingot operation list --open"}
}

// retryAfter is what who was refused meanwhile is told to wait, seconds.
const retryAfter = "30"

// siteOf returns the state machine, or an error of a server without one.
func (s *Server) siteOf() (Site, error) {
	if s.cfg.Site == nil {
		return nil, fmt.Errorf("this server has no peers: %w", errUnavailable)
	}
	return s.cfg.Site, nil
}

func (s *Server) siteStatus(ctx context.Context) (SiteStatus, error) {
	x, err := s.siteOf()
	if err != nil {
		return SiteStatus{}, err
	}
	return x.SiteStatus(ctx)
}

func (s *Server) getSite(c *gin.Context) {
	st, err := s.siteStatus(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, st)
}

func (s *Server) decideSite(c *gin.Context) {
	x, err := s.siteOf()
	var q struct {
		Word string `json:"word"`
		Peer string `json:"peer"`
	}
	if err == nil {
		err = body(c, &q, false)
	}
	if err == nil && q.Word != WordTakeOver && q.Word != WordGiveUp {
		err = invalid("word", "write take-over or give-up", "%q is neither", q.Word)
	}
	if err == nil {
		err = x.Decide(c.Request.Context(), q.Word, q.Peer)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.cfg.Log.Warn("a person has decided about this server", "word", q.Word, "by", by(c))
	s.getSite(c)
}

func (s *Server) listPeers(c *gin.Context) {
	st, err := s.siteStatus(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusOK, items(st.Peers))
}

// peerName is what stands in files and command lines.
var peerName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// fingerprintForm is the digest of a key.
var fingerprintForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (s *Server) addPeer(c *gin.Context) {
	x, err := s.siteOf()
	var q NewPeer
	if err == nil {
		err = body(c, &q, false)
	}
	if err == nil {
		var p inventory.Problems
		if !peerName.MatchString(q.Name) {
			p.Add("name", "use lower-case letters, digits and -", "%q is no name of a peer", q.Name)
		}
		if !fingerprintForm.MatchString(q.Fingerprint) {
			p.Add("fingerprint", "copy it from what ingot standby printed", "%q is no sha256:<64 hex digits>", q.Fingerprint)
		}
		if q.Token.IsZero() {
			p.Add("token", "send the token that ingot standby made", "is missing")
		}
		err = p.Err()
	}
	var added Peer
	if err == nil {
		added, err = x.AddPeer(c.Request.Context(), q)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.cfg.Log.Info("a peer was added", "peer", added.Name, "url", added.URL, "by", by(c))
	c.JSON(http.StatusCreated, added)
}

func (s *Server) removePeer(c *gin.Context) {
	x, err := s.siteOf()
	if err == nil {
		err = x.RemovePeer(c.Request.Context(), c.Param("name"))
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.cfg.Log.Warn("a peer was removed: it is not asked any more", "peer", c.Param("name"), "by", by(c))
	c.Status(http.StatusNoContent)
}

// startMigrate begins to move the site to a peer.
func (s *Server) startMigrate(c *gin.Context) {
	x, err := s.siteOf()
	var in workflows.MigrateInput
	if err == nil {
		err = body(c, &in, false)
	}
	if err == nil && in.Name == "" {
		in.Name = in.Target
	}
	if err == nil && !peerName.MatchString(in.Name) {
		err = invalid("name", "use lower-case letters, digits and -", "%q is no name of a migration", in.Name)
	}
	var st SiteStatus
	if err == nil {
		st, err = x.SiteStatus(c.Request.Context())
	}
	if err == nil {
		known := false
		for _, p := range st.Peers {
			known = known || p.Name == in.Target
		}
		if !known {
			err = hint{invalid("target", "name a peer", "there is no peer %q", in.Target), "ingot peer list"}
		}
	}
	var started Started
	if err == nil {
		started, err = s.startOperation(c.Request.Context(), workflows.MigrateType, workflows.MigrateID(in.Name), in.Name, in)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.JSON(http.StatusAccepted, started)
}

// Quiet is what operators get of a server that is not the site: how it is,
// why, and a way to decide where only a person can. Everything else is 410 with
// the new address when the site has moved, and 503 otherwise.
type Quiet struct {
	Site        Site
	TokenSHA256 [sha256.Size]byte
	// AllowedHosts as in Config.
	AllowedHosts []string
	Version      string
}

// QuietStatus is what GET /v1/status answers there.
type QuietStatus struct {
	Version string     `json:"version"`
	Site    SiteStatus `json:"site"`
	Time    time.Time  `json:"time"`
}

// Handler returns the routes.
func (q Quiet) Handler() http.Handler {
	hosts := map[string]bool{}
	for _, h := range q.AllowedHosts {
		hosts[hostname(h)] = true
	}
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, map[string]bool{"ok": true}) })
	m.HandleFunc("GET /v1/status", q.admin(func(w http.ResponseWriter, r *http.Request) {
		st, err := q.Site.SiteStatus(r.Context())
		if err != nil {
			replyError(w, err)
			return
		}
		reply(w, http.StatusOK, QuietStatus{Version: q.Version, Site: st, Time: time.Now().UTC()})
	}))
	m.HandleFunc("GET /v1/site", q.admin(q.site))
	m.HandleFunc("POST /v1/site/decide", q.admin(q.decide))
	m.HandleFunc("/", q.elsewhere)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		if !hosts[hostname(r.Host)] {
			reply(w, http.StatusForbidden, answer{Error: "this server does not answer under that host name", Code: codeForbidden})
			return
		}
		m.ServeHTTP(w, r)
	})
}

func reply(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own types
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(text) // who has gone needs none
}

func replyError(w http.ResponseWriter, err error) {
	code, word := status(err)
	a := answer{Error: err.Error(), Code: word}
	var problems inventory.Problems
	if errors.As(err, &problems) {
		a.Problems = problems
	}
	reply(w, code, a)
}

// admin lets the token pass. There are no sessions here: a browser's write has
// no token.
func (q Quiet) admin(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if sum := sha256.Sum256([]byte(token)); subtle.ConstantTimeCompare(sum[:], q.TokenSHA256[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			reply(w, http.StatusUnauthorized, answer{Error: "the admin token is needed", Code: codeUnauthorized})
			return
		}
		h(w, r)
	}
}

func (q Quiet) site(w http.ResponseWriter, r *http.Request) {
	st, err := q.Site.SiteStatus(r.Context())
	if err != nil {
		replyError(w, err)
		return
	}
	reply(w, http.StatusOK, st)
}

func (q Quiet) decide(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Word string `json:"word"`
		Peer string `json:"peer"`
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(&in)
	switch {
	case err != nil:
		err = malformed("", err)
	case in.Word != WordTakeOver && in.Word != WordGiveUp:
		err = invalid("word", "write take-over or give-up", "%q is neither", in.Word)
	default:
		err = q.Site.Decide(r.Context(), in.Word, in.Peer)
	}
	if err != nil {
		replyError(w, err)
		return
	}
	q.site(w, r)
}

// elsewhere answers everything that only the site could.
func (q Quiet) elsewhere(w http.ResponseWriter, r *http.Request) {
	st, err := q.Site.SiteStatus(r.Context())
	if err != nil {
		replyError(w, err)
		return
	}
	if p := st.Successor; st.Role == "retired" && p != nil {
		reply(w, http.StatusGone, answer{
			Error: fmt.Sprintf("this server is retired: its site has moved to %s (%s)", p.Name, p.URL), Code: codeGone, Next: "ask the server " + p.Name,
		})
		return
	}
	text := "this server is " + st.Role + " and answers nobody"
	if st.Silent != "" {
		text += ": " + st.Silent
	}
	w.Header().Set("Retry-After", retryAfter)
	reply(w, http.StatusServiceUnavailable, answer{Error: text, Code: codeUnavailable, Next: "ingot handover status"})
}
