package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
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

// Access configures the credentials of the API, and the host names under which operators reach it. TokenSHA256 and
// ClaimKey are required.
type Access struct {
	// TokenSHA256 is the SHA-256 of the admin token. All other tokens are in the inventory.
	TokenSHA256 inventory.TokenDigest
	// CodecOrigin is the origin of Temporal's UI. Pages of this origin may use /codec with a browser session of this
	// server. If CodecOrigin is "", no other origin may use /codec in this way.
	CodecOrigin string
	// ClaimKey is the key with which the claims of agents are made. The key of the fingerprints of requests is derived
	// from it.
	ClaimKey []byte
	// AllowedHosts are the host names and addresses, without port, under which operators reach this server. nil means
	// localhost, 127.0.0.1 and ::1.
	AllowedHosts []string
	// BaseURL is the beginning of login links; "" means http://127.0.0.1:8080. If BaseURL is an https URL, the session
	// cookie has the attribute Secure.
	BaseURL string
}

// access decides who may use which route. A client proves a token, or a session that was opened with a token; the role
// of the token must allow the route.
type access struct {
	tokens   TokenStore
	sessions SessionStore
	admin    inventory.TokenDigest
	// codecOrigin is the only other origin whose pages may use a session, and only for /codec.
	codecOrigin string
	hosts       map[string]bool
	log         *slog.Logger
	now         func() time.Time
	needs       map[string]inventory.Role // by method and path of the route
}

// addRoutes adds a table of routes to a router, and records which roles they need.
func (a *access) addRoutes(r gin.IRoutes, rows []httpapi.Route) {
	httpapi.AddRoutes(r, rows)
	for _, row := range rows {
		a.needs[row.Method+" "+row.Path] = row.Needs
	}
}

// A credential is what a request proves its caller with: the digest of a token, or of the cookie of a session.
type credential struct {
	digest inventory.TokenDigest
	kind   string // of the session; "" if digest belongs to a token
}

// credentialOf returns the credential of a request, or false if the request has none. A token takes precedence.
func credentialOf(c *gin.Context) (credential, bool) {
	if token, ok := strings.CutPrefix(c.GetHeader("Authorization"), "Bearer "); ok {
		return credential{digest: sha256.Sum256([]byte(token))}, true
	}
	cookie, err := c.Cookie(cookieName)
	return credential{digest: sha256.Sum256([]byte(cookie)), kind: inventory.SessionPage}, err == nil
}

// A caller is the token that a request has proven.
type caller struct {
	inventory.Token
	credential credential
	digest     inventory.TokenDigest // of the token, even if the credential is a session
}

// callerKey is the context key of the caller.
type callerKey struct{}

// callerOf returns the caller of an authenticated request.
func callerOf(ctx context.Context) caller {
	who, _ := ctx.Value(callerKey{}).(caller)
	return who
}

// identify returns the caller with a credential. If the token or the session does not exist or has ended, the error is
// inventory.ErrNotFound. The admin token is found without the inventory.
func (a *access) identify(ctx context.Context, given credential) (caller, error) {
	who := caller{credential: given, digest: given.digest}
	var err error
	if given.kind != "" {
		if who.digest, err = a.sessions.TokenOfSession(ctx, given.kind, given.digest); err != nil {
			return caller{}, err
		}
	}
	if subtle.ConstantTimeCompare(who.digest[:], a.admin[:]) == 1 {
		who.Token = describeAdmin()
		return who, nil
	}
	who.Token, err = a.tokens.TokenOf(ctx, who.digest)
	return who, err
}

// describeAdmin describes the admin token, which is not in the inventory.
func describeAdmin() inventory.Token {
	return inventory.Token{ID: inventory.AdminToken, Name: inventory.AdminToken, Role: inventory.RoleAdmin}
}

// authenticate accepts tokens and the cookies of open sessions. If a request has neither, the answer is 401, with the
// login page if a browser requests a page.
func (a *access) authenticate(c *gin.Context) {
	err := inventory.ErrNotFound
	if given, ok := credentialOf(c); ok {
		var who caller
		if who, err = a.identify(c.Request.Context(), given); err == nil {
			setCaller(c, who)
			return
		}
	}
	if !errors.Is(err, inventory.ErrNotFound) {
		httpapi.Fail(c, err)
		return
	}
	page := c.Request.Method == http.MethodGet && !strings.HasPrefix(c.Request.URL.Path, "/v1/")
	if page && strings.Contains(c.GetHeader("Accept"), "text/html") {
		c.Abort()
		showLogin(c, http.StatusUnauthorized, "")
		return
	}
	c.Header("WWW-Authenticate", "Bearer")
	httpapi.Fail(c, httpapi.Refuse(http.StatusUnauthorized, httpapi.CodeUnauthorized, "a valid token or a session is needed", "ingot login"))
}

// setCaller records the caller of a request.
func setCaller(c *gin.Context, who caller) {
	httpserve.Prefer(c.Request.Context())
	httpapi.SetActor(c, who.Name)
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), callerKey{}, who))
}

// authorize refuses a request whose caller lacks the role that the route needs. A route that names no role needs the
// role admin. Paths that are no route belong to the page.
func (a *access) authorize(c *gin.Context) {
	needs := inventory.RoleRead
	if path := c.FullPath(); path != "" {
		needs = cmp.Or(a.needs[c.Request.Method+" "+path], inventory.RoleAdmin)
	}
	if err := requireRole(c.Request.Context(), needs); err != nil {
		httpapi.Fail(c, err)
	}
}

// requireRole returns a refusal unless the role of the caller allows needs.
func requireRole(ctx context.Context, needs inventory.Role) error {
	who := callerOf(ctx)
	if who.Role.Allows(needs) {
		return nil
	}
	return httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden,
		fmt.Sprintf("token %q has the role %s; this request needs the role %s", who.Name, who.Role, needs),
		fmt.Sprintf("an administrator can create another token: ingot token create NAME --role %s", needs))
}

// admit authenticates and authorizes the caller of a route that is registered before these handlers are. It returns false
// after it has refused the request.
func (a *access) admit(c *gin.Context) bool {
	if a.authenticate(c); !c.IsAborted() {
		a.authorize(c)
	}
	return !c.IsAborted()
}

// recheckEvery is how long a request can go on after its token or session has ended.
const recheckEvery = 500 * time.Millisecond

// errCallerGone is why the context of a request is cancelled whose token or session has ended.
var errCallerGone = errors.New("the token or the session of this request has ended")

// endWithCaller is the middleware that ends a request, such as an event stream or an upload, soon after its token was
// revoked or its session has ended.
func (a *access) endWithCaller(c *gin.Context) {
	given := callerOf(c.Request.Context()).credential
	ctx, cancel := context.WithCancelCause(c.Request.Context())
	defer cancel(nil)
	c.Request = c.Request.WithContext(ctx)

	rc := http.NewResponseController(c.Writer)
	var mu sync.Mutex // without it, a deadline could hit the next request of the connection
	var timer *time.Timer
	done := false
	recheck := func() {
		_, err := a.identify(ctx, given)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case done:
		case errors.Is(err, inventory.ErrNotFound):
			cancel(errCallerGone)
			// End reads of the body, and writes to a client that reads slowly. A writer without deadlines returns an error.
			past := time.Unix(1, 0)
			_, _ = rc.SetReadDeadline(past), rc.SetWriteDeadline(past)
		default:
			timer.Reset(recheckEvery)
		}
	}
	mu.Lock()
	timer = time.AfterFunc(recheckEvery, recheck)
	mu.Unlock()
	defer func() { // also after a panic, as of a capture that breaks off
		mu.Lock()
		defer mu.Unlock()
		done = true
		timer.Stop()
	}()

	c.Next()
}

const metricsPath = "/metrics"

// metricsRoutes returns the route of /metrics. A verified client certificate gives access to this route without a token.
func (a *access) metricsRoutes(metrics http.Handler) []httpapi.Route {
	return []httpapi.Route{{Method: "GET", Path: metricsPath, Needs: inventory.RoleMetrics, Handler: func(c *gin.Context) {
		if !hasCertificate(c) && !a.admit(c) {
			return
		}
		if metrics == nil {
			httpapi.Fail(c, httpapi.NotFound())
			return
		}
		metrics.ServeHTTP(c.Writer, c.Request)
	}}}
}

// hasCertificate reports whether a request has a verified client certificate. The server asks for client certificates
// only if metrics_ca is configured.
func hasCertificate(c *gin.Context) bool {
	t := c.Request.TLS
	if t == nil || len(t.VerifiedChains) == 0 {
		return false
	}
	httpserve.Prefer(c.Request.Context())
	return true
}

// checkHost refuses requests whose host name is not configured. Otherwise the page of an attacker could make its host
// name resolve to this server's address, and then use the session cookie in the browser (DNS rebinding).
func (a *access) checkHost(c *gin.Context) {
	if host := hostname(c.Request.Host); !a.hosts[host] && !a.isScrapeByAddress(c, host) {
		httpapi.Fail(c, httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden, otherHost, "add the name to hosts in the configuration"))
	}
}

// isScrapeByAddress reports whether the host of a request is an IP address, and the request is for /metrics and has a
// client certificate or a token with the role metrics. Such requests are allowed, because the Prometheus operator uses
// the IP address of the pod, which cannot be configured. They are safe even from a browser with a client certificate,
// because DNS rebinding needs a host name.
func (a *access) isScrapeByAddress(c *gin.Context, host string) bool {
	if !isAddress(host) || c.FullPath() != metricsPath {
		return false
	}
	if hasCertificate(c) {
		return true
	}
	given, ok := credentialOf(c)
	if !ok || given.kind != "" {
		return false
	}
	who, err := a.identify(c.Request.Context(), given)
	return err == nil && who.Role == inventory.RoleMetrics
}

// hasToken reports whether want is the SHA-256 of the bearer token of a request. It compares in constant time.
func hasToken(c *gin.Context, want inventory.TokenDigest) bool {
	given, ok := credentialOf(c)
	if !ok || given.kind != "" || subtle.ConstantTimeCompare(given.digest[:], want[:]) != 1 {
		return false
	}
	httpserve.Prefer(c.Request.Context())
	return true
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
