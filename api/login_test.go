package api

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// session logs in as a browser does and returns its cookie.
func (s *site) session() *http.Cookie {
	s.T.Helper()
	link := decode[struct{ URL string }](s.T, s.do(http.MethodPost, "/v1/login-links", nil), http.StatusCreated)
	u, err := url.Parse(link.URL)
	require.NoError(s.T, err)
	require.Equal(s.T, "127.0.0.1:8080", u.Host)
	rec := send(s.T, s.operator, http.MethodGet, u.Path, nil)
	require.Equal(s.T, http.StatusSeeOther, rec.Code)
	require.Equal(s.T, "/", rec.Header().Get("Location"))
	require.Equal(s.T, http.StatusNotFound, send(s.T, s.operator, http.MethodGet, u.Path, nil).Code, "a link works once")
	require.Len(s.T, rec.Result().Cookies(), 1)
	return rec.Result().Cookies()[0]
}

func TestEveryRouteNeedsATokenOrSession(t *testing.T) {
	s := newSite(t)
	for _, r := range routes(s.operator) {
		method, path, _ := strings.Cut(r, " ")
		if method == http.MethodOptions {
			continue // a browser asks without a session, and learns nothing
		}
		rec := send(t, s.operator, method, path, nil)
		switch path {
		case "/healthz", "/readyz":
			require.Equal(t, http.StatusOK, rec.Code, r)
		case "/login/{code}":
			require.Equal(t, http.StatusNotFound, rec.Code, r)
		case "/login":
			require.Equal(t, http.StatusForbidden, rec.Code, r) // no browser sends it without an origin
		default:
			require.Equal(t, http.StatusUnauthorized, rec.Code, r)
			require.Equal(t, http.StatusUnauthorized, send(t, s.operator, method, path, nil, bearer("wrong")).Code, r)
		}
	}
	page := send(t, s.operator, http.MethodGet, "/", nil, header{"Accept", "text/html"})
	require.Equal(t, http.StatusUnauthorized, page.Code)
	require.Contains(t, page.Body.String(), "ingot login")
	require.Contains(t, page.Body.String(), `name="token"`)
}

// TestS49LoginByToken: the form of the log-in page opens a session for a valid token alone.
func TestS49LoginByToken(t *testing.T) {
	s := newSite(t)
	post := func(token string, hs ...header) *httptest.ResponseRecorder {
		return send(t, s.operator, http.MethodPost, "/login", "token="+url.QueryEscape(token),
			append([]header{{"Content-Type", "application/x-www-form-urlencoded"}}, hs...)...)
	}
	own := header{"Origin", "http://127.0.0.1:8080"}
	for _, token := range []string{"", "wrong", strings.Repeat("x", maxLoginForm)} {
		rec := post(token, own)
		require.Equal(t, http.StatusUnauthorized, rec.Code)
		require.Empty(t, rec.Result().Cookies())
		require.Contains(t, rec.Body.String(), problemToken)
	}
	require.Equal(t, http.StatusForbidden, post(adminToken, header{"Origin", "http://evil.example"}).Code)
	require.Equal(t, http.StatusForbidden, post(adminToken).Code, "every browser names the origin of a form")
	rec := post(adminToken+"\n", own)
	require.Equal(t, http.StatusSeeOther, rec.Code)
	require.Equal(t, "/", rec.Header().Get("Location"))
	require.Len(t, rec.Result().Cookies(), 1)
	c := rec.Result().Cookies()[0]
	require.True(t, c.HttpOnly)
	require.Equal(t, http.StatusOK, send(t, s.operator, http.MethodGet, "/v1/machines", nil, header{"Cookie", c.Name + "=" + c.Value}).Code)
}

// TestLoginPageLoadsNothing (S49): the page has its style within, and the policy lets nothing else in.
func TestLoginPageLoadsNothing(t *testing.T) {
	s := newSite(t)
	rec := send(t, s.operator, http.MethodGet, "/login/wrong", nil)
	require.Contains(t, rec.Body.String(), problemLink)
	policy := rec.Header().Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'; style-src 'sha256-")
	require.NotContains(t, policy, "unsafe")
	for _, loads := range []string{"<script", " src=", "<link", "url(", " style=", "@import"} {
		require.NotContains(t, rec.Body.String(), loads)
	}
}

// TestSession (S49): it has ended at its expiry, at its end, whatever is started
// again, and when the admin token changes.
func TestSession(t *testing.T) {
	s := newSite(t)
	c := s.session()
	require.True(t, c.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, c.SameSite)
	cookie := header{"Cookie", c.Name + "=" + c.Value}
	get := func(h ...header) int { return send(t, s.operator, http.MethodGet, "/v1/machines", nil, h...).Code }
	require.Equal(t, http.StatusOK, get(cookie))
	require.Equal(t, http.StatusOK, send(t, s.operator, http.MethodGet, "/", nil, cookie).Code)

	forged := []byte(c.Value)
	forged[3] ^= 1
	require.Equal(t, http.StatusUnauthorized, get(header{"Cookie", c.Name + "=" + string(forged)}))
	require.Equal(t, http.StatusUnauthorized, get(cookie, bearer("wrong")), "a wrong token is not made good by a cookie")

	again, err := New(s.apiConfig())
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, send(t, again.Handler(), http.MethodGet, "/v1/machines", nil, cookie).Code, "it outlives a restart")
	other := s.apiConfig()
	other.Access.TokenSHA256[0] ^= 1
	changed, err := New(other)
	require.NoError(t, err)
	require.Equal(
		t,
		http.StatusUnauthorized,
		send(t, changed.Handler(), http.MethodGet, "/v1/machines", nil, cookie).Code,
		"and dies with the token",
	)

	out := send(t, s.operator, http.MethodPost, "/v1/logout", nil, cookie, header{"Origin", "http://127.0.0.1:8080"})
	require.Equal(t, http.StatusNoContent, out.Code)
	require.Negative(t, out.Result().Cookies()[0].MaxAge)
	require.Equal(t, http.StatusUnauthorized, get(cookie))
	again, err = New(s.apiConfig())
	require.NoError(t, err)
	require.Equal(
		t,
		http.StatusUnauthorized,
		send(t, again.Handler(), http.MethodGet, "/v1/machines", nil, cookie).Code,
		"it has ended after a restart, too",
	)

	c = s.session()
	s.Clock.Move(sessionLife + time.Second)
	require.Equal(t, http.StatusUnauthorized, get(header{"Cookie", c.Name + "=" + c.Value}))
}

// S49: a link opens a session for a few minutes only.
func TestLoginLinkExpires(t *testing.T) {
	s := newSite(t)
	u, err := url.Parse(decode[struct{ URL string }](t, s.do(http.MethodPost, "/v1/login-links", nil), http.StatusCreated).URL)
	require.NoError(t, err)
	s.Clock.Move(linkLife)
	rec := send(t, s.operator, http.MethodGet, u.Path, nil)
	require.Equal(t, http.StatusNotFound, rec.Code)
	require.Empty(t, rec.Result().Cookies())
}

// TestS49BrowserGuards: forged origins, hosts and names that are rebound.
func TestS49BrowserGuards(t *testing.T) {
	s := newSite(t, func(c *siteConfig) { c.AllowedHosts = []string{"Ingot.Example", "127.0.0.1"} })
	c := s.session()
	cookie := header{"Cookie", c.Name + "=" + c.Value}
	for _, host := range []string{"evil.example", "127.0.0.1.evil.example:8080", "localhost:8080", "", "169.254.169.254"} {
		r := header{"Host", host}
		if host == "" {
			continue // net/http refuses such requests before us
		}
		require.Equal(t, http.StatusForbidden, send(t, s.operator, http.MethodGet, "/v1/machines", nil, cookie, r).Code, host)
		require.Equal(t, http.StatusForbidden, send(t, s.operator, http.MethodGet, "/healthz", nil, r).Code, host)
	}
	require.Equal(
		t,
		http.StatusOK,
		send(t, s.operator, http.MethodGet, "/v1/machines", nil, cookie, header{"Host", "ingot.example:8080"}).Code,
	)

	write := func(hs ...header) int {
		return send(t, s.operator, http.MethodPost, "/v1/machines/m1/inspect", nil, append([]header{cookie}, hs...)...).Code
	}
	for _, h := range []header{
		{"Origin", "http://evil.example"}, {"Origin", "null"}, {"Origin", "http://127.0.0.1:9999"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"X-None", "x"},
	} {
		require.Equal(t, http.StatusForbidden, write(h), h)
	}
	for _, h := range []header{{"Origin", "http://127.0.0.1:8080"}, {"Sec-Fetch-Site", "same-origin"}} {
		require.Equal(t, http.StatusNotFound, write(h), h) // past the guards: there is no such machine
	}
	// A token comes from a program; a browser with one still may not lie.
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil).Code)
	require.Equal(t, http.StatusForbidden, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil, header{"Origin", "http://evil.example"}).Code)

	for _, p := range []string{"/", "/v1/machines", "/healthz", "/nothing"} {
		h := send(t, s.operator, http.MethodGet, p, nil, cookie).Header()
		require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'self'", p)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), p)
	}
	// Who asks is the socket's peer, whatever a header says: nothing here looks
	// at it, and a spoofed one changes nothing.
	require.Equal(
		t,
		http.StatusForbidden,
		send(t, s.operator, http.MethodGet, "/healthz", nil, header{"Host", "evil.example"}, header{"X-Forwarded-Host", "127.0.0.1"}).Code,
	)
}
