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
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/inventory"
)

// SessionStore stores which sessions were ended before they expired, for example by a logout.
type SessionStore interface {
	EndSession(ctx context.Context, id string, until time.Time) error
	EndedSessions(ctx context.Context) (map[string]time.Time, error)
}

const (
	cookieName  = "ingot_session"
	linkLife    = 5 * time.Minute
	sessionLife = 24 * time.Hour
	maxLinks    = 100
)

// Access configures the credentials of the API, and the host names under which operators reach it. TokenSHA256 and
// ClaimKey are required.
type Access struct {
	// TokenSHA256 is the SHA-256 of the admin token.
	TokenSHA256 [sha256.Size]byte
	// MetricsSHA256 is the SHA-256 of a token that is valid for GET /metrics only; zero means that there is no such
	// token.
	MetricsSHA256 [sha256.Size]byte
	// CodecSHA256 is the SHA-256 of a token that is valid for /codec only; zero means that there is no such token.
	CodecSHA256 [sha256.Size]byte
	// CodecOrigin is the origin of Temporal's UI. Pages of this origin may use /codec with a browser session of this
	// server. If CodecOrigin is "", no other origin may use /codec in this way.
	CodecOrigin string
	// ClaimKey is the key with which the claims of agents are made. The key of the session cookies and the key of the
	// fingerprints of requests are derived from ClaimKey.
	ClaimKey []byte
	// AllowedHosts are the host names and addresses, without port, under which operators reach this server. nil means
	// localhost, 127.0.0.1 and ::1.
	AllowedHosts []string
	// BaseURL is the beginning of login links; "" means http://127.0.0.1:8080. If BaseURL is an https URL, the session
	// cookie has the attribute Secure.
	BaseURL string
}

// sessions authenticates operators by the admin token or by a browser session. It also holds the unused login links.
//
// The server does not store open sessions. A session cookie holds the time when the session expires, and a MAC. The key
// of the MAC is derived from the admin token. Therefore a session survives a restart of the server, and ends when the
// token changes. The store holds the sessions that have ended early, so that a restart does not open them again.
type sessions struct {
	store SessionStore
	key   []byte
	token [sha256.Size]byte
	meter [sha256.Size]byte // SHA-256 of the token of /metrics; zero if there is none
	codec [sha256.Size]byte // SHA-256 of the token of /codec; zero if there is none
	// codecOrigin is the only other origin whose pages may use a session, and only for /codec.
	codecOrigin string
	hosts       map[string]bool
	base        string
	log         *slog.Logger
	now         func() time.Time

	ending sync.Mutex // held while end stores that a session has ended and reads all ended sessions
	mu     sync.Mutex
	links  map[[sha256.Size]byte]time.Time // SHA-256 of the link's code → expiry
	ended  map[string]time.Time            // session id → time from which this entry is no longer needed
}

func newSessions(store SessionStore, a Access, log *slog.Logger, now func() time.Time) (*sessions, error) {
	ended, err := store.EndedSessions(context.Background())
	if err != nil {
		return nil, fmt.Errorf("making the API: %w", err)
	}
	m := hmac.New(sha256.New, a.ClaimKey)
	m.Write([]byte("session\x00"))
	m.Write(a.TokenSHA256[:])
	l := &sessions{
		store: store, key: m.Sum(nil), token: a.TokenSHA256, meter: a.MetricsSHA256, codec: a.CodecSHA256, codecOrigin: a.CodecOrigin,
		hosts: hostSet(a.AllowedHosts), base: a.BaseURL,
		log: log, now: now,
		links: map[[sha256.Size]byte]time.Time{}, ended: ended,
	}
	if l.base == "" {
		l.base = "http://127.0.0.1:8080"
	}

	return l, nil
}

func answerHealth(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"ok": true}) }

// openRoutes returns the routes that need no authentication: the health check and the login.
func (l *sessions) openRoutes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "GET", Path: "/healthz", Handler: answerHealth},
		{Method: "GET", Path: "/login/:code", Handler: l.openByLink},
		{Method: "POST", Path: "/login", Handler: l.openByToken},
	}
}

func (l *sessions) routes() []httpapi.Route {
	return []httpapi.Route{
		{Method: "POST", Path: "/v1/login-links", Handler: httpapi.Handle(http.StatusCreated, httpapi.NoBody, l.createLink)},
		{Method: "POST", Path: "/v1/logout", Handler: l.logout},
	}
}

const metricsPath = "/metrics"

// metricsRoutes returns the route of /metrics. The route accepts the token of /metrics, a client certificate, the admin
// token and a session.
func (l *sessions) metricsRoutes(metrics http.Handler) []httpapi.Route {
	return []httpapi.Route{{Method: "GET", Path: metricsPath, Handler: func(c *gin.Context) {
		if !l.isMeter(c) {
			if l.authenticate(c); c.IsAborted() {
				return
			}
		}
		if metrics == nil {
			httpapi.Fail(c, httpapi.NotFound())
			return
		}
		metrics.ServeHTTP(c.Writer, c.Request)
	}}}
}

// isMeter reports whether a request has the token of /metrics or a verified client certificate. The server asks for
// client certificates only if metrics_ca is configured.
func (l *sessions) isMeter(c *gin.Context) bool {
	if t := c.Request.TLS; t != nil && len(t.VerifiedChains) > 0 {
		httpserve.Prefer(c.Request.Context())
		return true
	}
	return hasToken(c, l.meter)
}

// hasToken reports whether want is the SHA-256 of the bearer token of a request. It compares in constant time. If want
// is zero, it returns false.
func hasToken(c *gin.Context, want [sha256.Size]byte) bool {
	token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(token))
	if !ok || want == [sha256.Size]byte{} || subtle.ConstantTimeCompare(sum[:], want[:]) != 1 {
		return false
	}
	httpserve.Prefer(c.Request.Context())
	return true
}

// isAdmin reports whether text is the admin token. It compares in constant time.
func (l *sessions) isAdmin(text string) bool {
	sum := sha256.Sum256([]byte(text))
	return subtle.ConstantTimeCompare(sum[:], l.token[:]) == 1
}

// newLink creates the code of a login link. The link opens one session and is valid for linkLife. If there are already
// maxLinks unused links, the oldest link becomes invalid.
func (l *sessions) newLink() string {
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

// redeem makes the code of a login link invalid and returns the cookie of a new session. If the code is unknown or has
// expired, it returns false.
func (l *sessions) redeem(code string) (string, bool) {
	h := sha256.Sum256([]byte(code))
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.links[h]
	delete(l.links, h)
	if !ok || !l.now().Before(until) {
		return "", false
	}
	return l.newCookie(), true
}

// newCookie returns the cookie of a new session.
func (l *sessions) newCookie() string {
	var b [24]byte
	binary.BigEndian.PutUint64(b[:8], uint64(l.now().Add(sessionLife).Unix()))
	rand.Read(b[8:]) // never returns an error
	return base64.RawURLEncoding.EncodeToString(append(b[:], l.mac(b[:])...))
}

func (l *sessions) mac(b []byte) []byte {
	m := hmac.New(sha256.New, l.key)
	m.Write(b)
	return m.Sum(nil)
}

// isOpen reports whether the cookie is valid and its session is still open: the session has not expired and was not
// ended.
func (l *sessions) isOpen(cookie string) bool {
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

// sessionID returns the digest of a cookie. The digest identifies the session in the store, and cannot be used as a
// cookie.
func sessionID(cookie string) string {
	sum := sha256.Sum256([]byte(cookie))
	return hex.EncodeToString(sum[:])
}

// end ends a session permanently. If the store fails, end returns the error, and the session stays ended only until
// this server restarts.
func (l *sessions) end(ctx context.Context, cookie string) error {
	if !l.isOpen(cookie) {
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

// setHeaders sets the security headers of every answer.
func setHeaders(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	if p := c.Request.URL.Path; strings.HasPrefix(p, "/v1/") || strings.HasPrefix(p, "/login") {
		h.Set("Cache-Control", "no-store")
	}
}

// checkHost refuses requests whose host name is not configured. Otherwise the page of an attacker could make its host
// name resolve to this server's address, and then use the session cookie in the browser (DNS rebinding).
func (l *sessions) checkHost(c *gin.Context) {
	if host := hostname(c.Request.Host); !l.hosts[host] && !l.isScrapeByAddress(c, host) {
		httpapi.Fail(c, httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden, otherHost, "add the name to hosts in the configuration"))
	}
}

// isScrapeByAddress reports whether the host of a request is an IP address, and the request is for /metrics and
// accepted by isMeter. Such requests are allowed, because the Prometheus operator uses the IP address of the pod, which
// cannot be configured. They are safe even from a browser with a client certificate, because DNS rebinding needs a host
// name.
func (l *sessions) isScrapeByAddress(c *gin.Context, host string) bool {
	return isAddress(host) && c.FullPath() == metricsPath && l.isMeter(c)
}

// isAddress reports whether the host of a request is an IP address.
func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

const otherHost = "this server does not answer under that host name"

// hostSet returns a set of host names in the form in which hostname returns them. If names is nil, the set contains the
// names of the local host.
func hostSet(names []string) map[string]bool {
	if names == nil {
		names = []string{"localhost", "127.0.0.1", "::1"}
	}
	set := map[string]bool{}
	for _, name := range names {
		set[hostname(name)] = true
	}
	return set
}

// hostname returns the host of hostport without the port, in lower case. If the host is an IP address, hostname returns
// its canonical form.
func hostname(hostport string) string {
	if ap, err := netip.ParseAddrPort(hostport); err == nil {
		return ap.Addr().String()
	}
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if a, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return a.String()
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// authenticate accepts the admin token and the cookies of open sessions. If a request has neither, the answer is 401,
// with the login page if a browser requests a page.
func (l *sessions) authenticate(c *gin.Context) {
	proven := false
	if token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer "); ok {
		proven = l.isAdmin(token)
	} else if cookie, err := c.Cookie(cookieName); err == nil {
		proven = l.isOpen(cookie)
	}
	if proven {
		httpserve.Prefer(c.Request.Context())
		httpapi.SetActor(c, "admin")
		return
	}
	page := c.Request.Method == http.MethodGet && !strings.HasPrefix(c.Request.URL.Path, "/v1/")
	if page && strings.Contains(c.GetHeader("Accept"), "text/html") {
		c.Abort()
		showLogin(c, http.StatusUnauthorized, "")
		return
	}
	c.Header("WWW-Authenticate", "Bearer")
	httpapi.Fail(c, httpapi.Refuse(http.StatusUnauthorized, httpapi.CodeUnauthorized,
		"the admin token or a session is needed", "ingot login"))
}

//go:embed login.html
var loginPage string

// loginPolicy is the Content-Security-Policy of the login page. The page must not load anything. Its only style element
// is allowed, because the policy contains the digest of this element.
var loginPolicy = func() string {
	_, style, _ := strings.Cut(loginPage, "<style>")
	style, _, _ = strings.Cut(style, "</style>")
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
}()

// Problems that the login page can show.
const (
	problemLink  = "This link was already used, or is older than five minutes."
	problemToken = "This is not the admin token."
)

// showLogin sends the login page. problem is "", problemLink or problemToken.
func showLogin(c *gin.Context, status int, problem string) {
	c.Header("Content-Security-Policy", loginPolicy)
	// With "no-referrer", browsers would send the form with "Origin: null", and checkOrigin would refuse it.
	c.Header("Referrer-Policy", "same-origin")
	if problem != "" {
		problem = `<p class="failed" role="alert">` + problem + "</p>"
	}
	c.Data(status, "text/html; charset=utf-8", []byte(strings.Replace(loginPage, "<!--problem-->", problem, 1)))
}

// checkOrigin refuses writes that a page of another origin causes in the operator's browser (CSRF).
func checkOrigin(c *gin.Context) {
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
		ok = false // a browser would have sent Origin or Sec-Fetch-Site, as it does with every write
	}
	if !ok {
		httpapi.Fail(c, httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden, "writes from another origin are refused", ""))
	}
}

type loginLink struct {
	URL     string    `json:"url"`
	Expires time.Time `json:"expires"`
}

func (l *sessions) createLink(context.Context, httpapi.Empty) (loginLink, error) {
	return loginLink{
		URL: strings.TrimSuffix(l.base, "/") + "/login/" + l.newLink(), Expires: l.now().Add(linkLife).UTC(),
	}, nil
}

func (l *sessions) openByLink(c *gin.Context) {
	cookie, ok := l.redeem(c.Param("code"))
	if !ok {
		showLogin(c, http.StatusNotFound, problemLink)
		return
	}
	l.openPage(c, cookie)
}

// maxLoginForm limits the size of the form of the login page, in bytes.
const maxLoginForm = 4 << 10

// openByToken opens a session if the form of the login page contains the admin token.
func (l *sessions) openByToken(c *gin.Context) {
	if checkOrigin(c); c.IsAborted() {
		return
	}
	c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, maxLoginForm)
	if !l.isAdmin(strings.TrimSpace(c.PostForm("token"))) {
		l.log.Warn("refused a login with a wrong token", "from", c.ClientIP())
		showLogin(c, http.StatusUnauthorized, problemToken)
		return
	}
	l.openPage(c, l.newCookie())
}

// openPage sets the session cookie and redirects the browser to the web page.
func (l *sessions) openPage(c *gin.Context, cookie string) {
	http.SetCookie(c.Writer, l.cookie(cookie, int(sessionLife/time.Second)))
	c.Redirect(http.StatusSeeOther, "/")
}

func (l *sessions) logout(c *gin.Context) {
	http.SetCookie(c.Writer, l.cookie("", -1))
	if cookie, err := c.Cookie(cookieName); err == nil {
		if err := l.end(c.Request.Context(), cookie); err != nil {
			httpapi.Fail(c, err)
			return
		}
	}
	c.Status(http.StatusNoContent)
}

func (l *sessions) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, HttpOnly: true,
		SameSite: http.SameSiteStrictMode, Secure: strings.HasPrefix(l.base, "https:"),
	}
}
