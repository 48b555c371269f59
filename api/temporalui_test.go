package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// temporalUI makes the site have a UI of Temporal, which answers with what it was asked.
func (s *site) temporalUI() http.Handler {
	s.T.Helper()
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "_csrf", Value: "of-the-ui"})
		http.SetCookie(w, &http.Cookie{Name: cookieName, Value: "forged"})
		_, _ = fmt.Fprintf(w, "%s %s host=%s cookie=%q authorization=%q", r.Method, r.URL.EscapedPath(), r.Host,
			r.Header.Values("Cookie"), r.Header.Get("Authorization"))
	}))
	s.T.Cleanup(inner.Close)
	s.restart(func(c *siteConfig) {
		c.TemporalUI = TemporalUI{Port: "8234", Bound: func() bool { return s.uiBound }, Dial: func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", inner.Listener.Addr().String())
		}}
	})
	s.uiBound = true
	return s.api.TemporalUI()
}

// openUI opens a session of the UI with a link that the token has made.
func (s *site) openUI(ui http.Handler, proof header) header {
	s.T.Helper()
	link := decode[loginLink](s.T, send(s.T, s.operator, http.MethodPost, "/v1/temporal-ui-links", nil, proof, ownOrigin), http.StatusCreated)
	u, err := url.Parse(link.URL)
	require.NoError(s.T, err)
	require.Equal(s.T, "127.0.0.1:8234", u.Host)
	rec := send(s.T, ui, http.MethodGet, u.Path, nil)
	require.Equal(s.T, http.StatusSeeOther, rec.Code)
	require.Equal(s.T, http.StatusUnauthorized, send(s.T, ui, http.MethodGet, u.Path, nil).Code, "a link works once")
	c := rec.Result().Cookies()[0]
	require.True(s.T, c.HttpOnly)
	require.Equal(s.T, http.SameSiteStrictMode, c.SameSite)
	return header{"Cookie", c.Name + "=" + c.Value}
}

// TestS49TemporalUISessions: the UI needs a session of its own, which is worth nothing at the API, and no credential of Ingot
// reaches the UI.
func TestS49TemporalUISessions(t *testing.T) {
	s := newSite(t)
	ui := s.temporalUI()
	page := s.session()
	pageCookie := header{"Cookie", page.Name + "=" + page.Value}
	cookie := s.openUI(ui, pageCookie)
	get := func(hs ...header) int { return send(t, ui, http.MethodGet, "/namespaces", nil, hs...).Code }
	require.Equal(t, http.StatusOK, get(cookie))

	for _, h := range [][]header{
		nil, {bearer(adminToken)}, {pageCookie}, {{"Cookie", uiCookie + "=" + page.Value}}, {{"Cookie", uiCookie + "="}},
	} {
		require.Equal(t, http.StatusUnauthorized, get(h...), h)
	}
	_, value, _ := strings.Cut(cookie.value, "=")
	for _, h := range []header{cookie, {"Cookie", cookieName + "=" + value}, bearer(value)} {
		require.Equal(t, http.StatusUnauthorized, send(t, s.operator, http.MethodGet, "/v1/machines", nil, h).Code, h)
	}
	require.Equal(t, http.StatusForbidden, get(cookie, header{"Host", "evil.example"}))

	post := func(hs ...header) int {
		return send(t, ui, http.MethodPost, "/api/v1/x", nil, append(hs, cookie, header{"Host", "127.0.0.1:8234"})...).Code
	}
	require.Equal(t, http.StatusOK, post(header{"Origin", "http://127.0.0.1:8234"}))
	require.Equal(t, http.StatusForbidden, post(), "a browser names the origin of a write")
	require.Equal(t, http.StatusForbidden, post(header{"Origin", "http://127.0.0.1:8080"}), "the page is another origin")
	require.Equal(t, http.StatusForbidden, post(header{"Origin", "http://evil.example"}))

	rec := send(t, ui, http.MethodGet, "/api/v1/namespaces/default/workflows/machine%2Fn1", nil, bearer(adminToken),
		header{"Cookie", cookie.value + "; " + pageCookie.value + "; _csrf=mine; other=1"})
	require.Equal(t, `GET /api/v1/namespaces/default/workflows/machine%2Fn1 host=127.0.0.1:8080 cookie=["_csrf=mine"] authorization=""`,
		rec.Body.String())
	require.Len(t, rec.Result().Cookies(), 1)
	require.Equal(t, "_csrf", rec.Result().Cookies()[0].Name)
	require.Equal(t, "frame-ancestors 'none'", rec.Header().Get("Content-Security-Policy"))
}

// TestS37TemporalUINeedsOperate: the session has the role of the token with which the link was made, and ends with that token.
func TestS37TemporalUINeedsOperate(t *testing.T) {
	s := newSite(t)
	ui := s.temporalUI()
	require.Equal(t, http.StatusForbidden,
		send(t, s.operator, http.MethodPost, "/v1/temporal-ui-links", nil, bearer(s.token("reader", inventory.RoleRead))).Code)
	cookie := s.openUI(ui, bearer(s.token("alice", inventory.RoleOperate)))
	require.Equal(t, http.StatusOK, send(t, ui, http.MethodGet, "/", nil, cookie).Code)
	s.do(http.MethodPost, "/v1/tokens", `{"name":"alice","role":"read","replace":true}`)
	require.Equal(t, http.StatusUnauthorized, send(t, ui, http.MethodGet, "/", nil, cookie).Code)
}

// TestS49TemporalUIAndItsPort: no link leads to another program that has the port, and a log-out ends the UI's session, too.
func TestS49TemporalUIAndItsPort(t *testing.T) {
	s := newSite(t)
	ui := s.temporalUI()
	page := s.session()
	pageCookie := header{"Cookie", page.Name + "=" + page.Value}
	cookie := s.openUI(ui, pageCookie)
	out := send(t, s.operator, http.MethodPost, "/v1/logout", nil, header{"Cookie", pageCookie.value + "; " + cookie.value}, ownOrigin)
	require.Equal(t, http.StatusNoContent, out.Code)
	require.Equal(t, http.StatusUnauthorized, send(t, ui, http.MethodGet, "/", nil, cookie).Code)

	s.uiBound = false
	require.Equal(t, http.StatusServiceUnavailable, s.do(http.MethodPost, "/v1/temporal-ui-links", nil).Code)
}

func TestS49LocalPath(t *testing.T) {
	const workflow = "/namespaces/default/workflows/machine%2Fn1/r1"
	require.Equal(t, workflow, localPath(workflow))
	for _, path := range []string{
		"", "x", "//evil.example", "/\\evil.example", "https://evil.example/", "/x\r\nSet-Cookie: a=b", "javascript:alert(1)", "/%zz",
	} {
		require.Equal(t, "/", localPath(path), path)
	}
}

// TestTemporalUIBehindAProxy: the link leads to the proxy, and the UI answers under its name.
func TestTemporalUIBehindAProxy(t *testing.T) {
	s := newSite(t)
	s.temporalUI()
	s.restart(func(c *siteConfig) {
		c.TemporalUI.URL, c.AllowedHosts = "https://temporal.example.com", []string{"temporal.example.com", "127.0.0.1"}
	})
	link := decode[loginLink](t, s.do(http.MethodPost, "/v1/temporal-ui-links", nil), http.StatusCreated)
	path, ok := strings.CutPrefix(link.URL, "https://temporal.example.com/")
	require.True(t, ok, link.URL)
	require.Equal(t, http.StatusSeeOther,
		send(t, s.api.TemporalUI(), http.MethodGet, "/"+path, nil, header{"Host", "temporal.example.com"}).Code)
}

// TestTemporalUIIsMissing: a site with a cluster has no UI of its own.
func TestTemporalUIIsMissing(t *testing.T) {
	s := newSite(t)
	require.Equal(t, http.StatusServiceUnavailable, s.do(http.MethodPost, "/v1/temporal-ui-links", nil).Code)
}
