package api

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

type sessionStore interface {
	EndSession(ctx context.Context, id string, until time.Time) error
	EndedSessions(ctx context.Context) (map[string]time.Time, error)
}

const (
	cookieName  = "ingot_session"
	linkLife    = 5 * time.Minute
	sessionLife = 24 * time.Hour
	maxLinks    = 100
)

// logins holds login links that wait, and sessions that were ended.
//
// A session needs no memory: the cookie carries its expiry under a MAC whose
// key depends on the admin token, so that it outlives a restart and dies with
// the token. Sessions that were ended before their expiry are in the store, so
// that they stay ended after a restart.
type logins struct {
	store sessionStore
	key   []byte
	token [sha256.Size]byte
	now   func() time.Time

	ending sync.Mutex // held while the end of a session is stored
	mu     sync.Mutex
	links  map[[sha256.Size]byte]time.Time // hash of the code → expiry
	ended  map[string]time.Time            // id of a session → when it would end by itself
}

func newLogins(cfg Config, ended map[string]time.Time) *logins {
	m := hmac.New(sha256.New, cfg.ClaimKey)
	m.Write([]byte("session\x00"))
	m.Write(cfg.TokenSHA256[:])
	return &logins{store: cfg.Store, key: m.Sum(nil), token: cfg.TokenSHA256, now: cfg.Now, links: map[[sha256.Size]byte]time.Time{}, ended: ended}
}

// isAdmin tells whether text is the admin token, in constant time.
func (l *logins) isAdmin(text string) bool {
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(sum[:], l.token[:]) == 1
}

// link makes a code that opens one session within five minutes.
func (l *logins) link() string {
	var b [32]byte
	rand.Read(b[:]) // never returns an error
	code := base64.RawURLEncoding.EncodeToString(b[:])
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	oldest := [sha256.Size]byte{}
	for h, until := range l.links {
		if !now.Before(until) {
			delete(l.links, h)
		} else if t, ok := l.links[oldest]; !ok || until.Before(t) {
			oldest = h
		}
	}
	if len(l.links) >= maxLinks {
		delete(l.links, oldest)
	}
	l.links[sha256.Sum256([]byte(code))] = now.Add(linkLife)
	return code
}

// redeem spends a link's code and returns a cookie.
func (l *logins) redeem(code string) (string, bool) {
	h := sha256.Sum256([]byte(code))
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.links[h]
	delete(l.links, h)
	if !ok || !l.now().Before(until) {
		return "", false
	}
	return l.open(), true
}

// open returns the cookie of a new session.
func (l *logins) open() string {
	var b [24]byte
	binary.BigEndian.PutUint64(b[:8], uint64(l.now().Add(sessionLife).Unix()))
	rand.Read(b[8:]) // never returns an error
	return base64.RawURLEncoding.EncodeToString(append(b[:], l.mac(b[:])...))
}

func (l *logins) mac(b []byte) []byte {
	m := hmac.New(sha256.New, l.key)
	m.Write(b)
	return m.Sum(nil)
}

// session tells whether a cookie is of an open session.
func (l *logins) session(cookie string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cookie)
	if err != nil || len(b) != 24+sha256.Size || !hmac.Equal(l.mac(b[:24]), b[24:]) {
		return false
	}
	until := time.Unix(int64(binary.BigEndian.Uint64(b[:8])), 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ended := l.ended[sessionID(cookie)]
	return !ended && until.After(l.ended[inventory.AllSessions]) && l.now().Before(until)
}

// sessionID is the digest of the cookie: who reads it cannot use the session.
func sessionID(cookie string) string {
	sum := sha256.Sum256([]byte(cookie))
	return hex.EncodeToString(sum[:])
}

// end closes a session permanently. When that cannot be stored it is closed
// until this server is started again.
func (l *logins) end(ctx context.Context, cookie string) error {
	if !l.session(cookie) {
		return nil
	}
	l.ending.Lock()
	defer l.ending.Unlock()
	id, until := sessionID(cookie), l.now().Add(sessionLife)
	l.mu.Lock()
	l.ended[id] = until
	l.mu.Unlock()
	if err := l.store.EndSession(ctx, id, until); err != nil {
		return err
	}
	ended, err := l.store.EndedSessions(ctx)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = ended
	}
	return err
}

// headers are those that every answer to a browser carries.
func (s *Server) headers(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if p := c.Request.URL.Path; strings.HasPrefix(p, "/v1/") || strings.HasPrefix(p, "/login") {
		h.Set("Cache-Control", "no-store")
	}
}

// checkHost refuses names that are not ours, or a page under a name that an
// attacker rebinds to this address would speak with the browser's cookie.
func (s *Server) checkHost(c *gin.Context) {
	if !s.hosts[hostname(c.Request.Host)] {
		refuse(c, http.StatusForbidden, codeForbidden, "this server does not answer under that host name", "add the name to the configured hosts")
	}
}

// byKey is where authenticate leaves the name of who asks.
const byKey = "by"

// authenticate lets the admin token and open sessions through.
func (s *Server) authenticate(c *gin.Context) {
	proven := false
	if token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer "); ok {
		proven = s.logins.isAdmin(token)
	} else if cookie, err := c.Cookie(cookieName); err == nil {
		proven = s.logins.session(cookie)
	}
	if proven {
		httpserve.Prefer(c.Request.Context())
		c.Set(byKey, "admin")
		return
	}
	if c.Request.Method == http.MethodGet && !strings.HasPrefix(c.Request.URL.Path, "/v1/") && strings.Contains(c.GetHeader("Accept"), "text/html") {
		c.Abort()
		showLogin(c, http.StatusUnauthorized, "")
		return
	}
	c.Header("WWW-Authenticate", "Bearer")
	refuse(c, http.StatusUnauthorized, codeUnauthorized, "the admin token or a session is needed", "ingot login")
}

//go:embed login.html
var loginPage string

// loginPolicy lets the log-in page load nothing: its one style is named by its digest.
var loginPolicy = func() string {
	_, style, _ := strings.Cut(loginPage, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// Why the log-in page is shown again.
const (
	problemLink  = "This link was used, or is older than five minutes."
	problemToken = "This is not the admin token."
)

// showLogin answers with the log-in page; problem is "" or one of the sentences above.
func showLogin(c *gin.Context, status int, problem string) {
	c.Header("Content-Security-Policy", loginPolicy)
	// With "no-referrer" browsers send the form with "Origin: null".
	c.Header("Referrer-Policy", "same-origin")
	if problem != "" {
		problem = `<p class="failed" role="alert">` + problem + "</p>"
	}
	c.Data(status, "text/html; charset=utf-8", []byte(strings.Replace(loginPage, "<!--problem-->", problem, 1)))
}

// by returns who asks.
func by(c *gin.Context) string { return c.GetString(byKey) }

// checkOrigin refuses writes that another site's page makes the browser send.
func (s *Server) checkOrigin(c *gin.Context) {
	switch c.Request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return
	}
	origin, cookie := c.GetHeader("Origin"), c.GetHeader("Authorization") == ""
	site := c.GetHeader("Sec-Fetch-Site")
	ok := true
	switch {
	case origin != "":
		u, err := url.Parse(origin)
		ok = err == nil && strings.EqualFold(u.Host, c.Request.Host)
	case site != "":
		ok = site == "same-origin" || site == "none"
	case cookie:
		ok = false // every browser sends one of the two with a write
	}
	if !ok {
		refuse(c, http.StatusForbidden, codeForbidden, "a write from another origin", "")
	}
}

func (s *Server) createLoginLink(c *gin.Context) {
	c.JSON(http.StatusCreated, gin.H{
		"url":     strings.TrimSuffix(s.cfg.BaseURL, "/") + "/login/" + s.logins.link(),
		"expires": s.cfg.Now().Add(linkLife).UTC(),
	})
}

func (s *Server) login(c *gin.Context) {
	cookie, ok := s.logins.redeem(c.Param("code"))
	if !ok {
		showLogin(c, http.StatusNotFound, problemLink)
		return
	}
	s.openPage(c, cookie)
}

// maxLoginForm is how long the form of the log-in page may be, in bytes.
const maxLoginForm = 4 << 10

// loginByToken opens a session for who sends the admin token, as the form of the log-in page does.
func (s *Server) loginByToken(c *gin.Context) {
	if s.checkOrigin(c); c.IsAborted() {
		return
	}
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, maxLoginForm)
	if !s.logins.isAdmin(strings.TrimSpace(c.PostForm("token"))) {
		s.cfg.Log.Warn("a log-in with a wrong token", "from", c.ClientIP())
		showLogin(c, http.StatusUnauthorized, problemToken)
		return
	}
	s.openPage(c, s.logins.open())
}

// openPage gives the browser its session and leads it to the page.
func (s *Server) openPage(c *gin.Context, cookie string) {
	http.SetCookie(c.Writer, s.cookie(cookie, int(sessionLife/time.Second)))
	c.Redirect(http.StatusSeeOther, "/")
}

func (s *Server) logout(c *gin.Context) {
	http.SetCookie(c.Writer, s.cookie("", -1))
	if cookie, err := c.Cookie(cookieName); err == nil {
		if err := s.logins.end(c.Request.Context(), cookie); err != nil {
			s.fail(c, err)
			return
		}
	}
	c.Status(http.StatusNoContent)
}

func (s *Server) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: strings.HasPrefix(s.cfg.BaseURL, "https:"),
	}
}
