package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// TemporalUI describes the web UI of the embedded Temporal server, which has no log-in, and how operators reach it. It is a
// listener of its own, because the UI does not work below a path, and so that its pages are of another origin than the API.
type TemporalUI struct {
	// Dial connects to the UI, which only reads. If Dial is nil, there is no UI.
	Dial func(ctx context.Context) (net.Conn, error)
	// URL is where a proxy leads to the listener, without a path. If URL is empty, operators reach the listener directly.
	URL  string
	Port string // of the listener
	TLS  bool   // whether the listener has TLS
	// Bound reports whether this server has the port.
	Bound func() bool
}

// uiCookie is the name of the cookie of a session of Temporal's UI. The cookie gives access to nothing else.
const uiCookie = "ingot_temporal_ui"

// temporalUI serves Temporal's UI to operators who have opened it by a link. The link is made by the API, and works once.
type temporalUI struct {
	*access
	TemporalUI
	guard *guard.Guard
}

func newTemporalUI(a *access, ui TemporalUI, g *guard.Guard) *temporalUI {
	return &temporalUI{a, ui, g}
}

func (u *temporalUI) routes() []httpapi.Route {
	return []httpapi.Route{{
		Method: "POST", Path: "/v1/temporal-ui-links", Needs: inventory.RoleOperate, Handler: u.createLink,
	}}
}

// createLink makes a link that opens the UI at its URL, or else under the host name of this request.
func (u *temporalUI) createLink(c *gin.Context) {
	if u.Dial == nil {
		httpapi.Fail(c, fmt.Errorf("this server has no UI of Temporal: %w", inventory.ErrUnsupported))
		return
	}
	if !u.Bound() {
		httpapi.Fail(c, hint(fmt.Errorf("port %s of Temporal's UI is taken by another program: %w", u.Port, inventory.ErrUnavailable),
			"set temporal.ui_listen in the configuration"))
		return
	}
	ctx := c.Request.Context()
	code, err := u.open(ctx, callerOf(ctx).digest, inventory.SessionUILink, linkLife)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	direct := url.URL{Scheme: "http", Host: net.JoinHostPort(hostname(c.Request.Host), u.Port)}
	if u.TLS {
		direct.Scheme = "https"
	}
	link := cmp.Or(u.URL, direct.String()) + "/open/" + code
	c.JSON(http.StatusCreated, loginLink{URL: link, Expires: u.now().Add(linkLife).UTC()})
}

// handler returns the handler of the listener: /open/CODE opens a session, and everything else needs one.
func (u *temporalUI) handler() http.Handler {
	r := httpapi.NewRouter(u.log, u.guard)
	r.HandleMethodNotAllowed, r.RedirectTrailingSlash = false, false // all other paths belong to the UI
	r.Use(func(c *gin.Context) {
		c.Header("Content-Security-Policy", "frame-ancestors 'none'")
		c.Header("X-Content-Type-Options", "nosniff")
		c.Header("Referrer-Policy", "no-referrer")
	}, u.checkHost)
	r.GET("/open/:code", u.openByLink)
	proxy := u.proxy()
	r.NoRoute(u.authenticate, checkOrigin, u.endWithCaller, func(c *gin.Context) { proxy.ServeHTTP(c.Writer, c.Request) })
	return r
}

func (u *temporalUI) openByLink(c *gin.Context) {
	ctx := c.Request.Context()
	token, err := u.sessions.RedeemLink(ctx, inventory.SessionUILink, sha256.Sum256([]byte(c.Param("code"))))
	var who caller
	if err == nil {
		who, err = u.identify(ctx, credential{digest: token})
	}
	var cookie string
	if err == nil {
		cookie, err = u.open(ctx, who.digest, inventory.SessionUI, sessionLife)
	}
	switch {
	case errors.Is(err, inventory.ErrNotFound):
		refuseUI(c)
	case err != nil:
		httpapi.Fail(c, err)
	default:
		u.log.Info("a session of Temporal's UI was opened", "by", who.Name, "from", c.ClientIP())
		http.SetCookie(c.Writer, newCookie(uiCookie, cookie, int(sessionLife/time.Second), u.TLS))
		c.Redirect(http.StatusSeeOther, localPath(c.Query("to")))
	}
}

// localPath returns path if it is a path of the UI, and otherwise "/": a link must not lead to another host.
func localPath(path string) string {
	if u, err := url.Parse(path); err != nil || u.Scheme != "" || u.Host != "" || !strings.HasPrefix(path, "/") ||
		strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n") {
		return "/"
	}
	return path
}

// authenticate accepts the sessions of the UI alone, and only while their token has the role operate.
func (u *temporalUI) authenticate(c *gin.Context) {
	cookie, err := c.Cookie(uiCookie)
	if err != nil {
		refuseUI(c)
		return
	}
	who, err := u.identify(c.Request.Context(), credential{digest: sha256.Sum256([]byte(cookie)), kind: inventory.SessionUI})
	switch {
	case errors.Is(err, inventory.ErrNotFound), err == nil && !who.Role.Allows(inventory.RoleOperate):
		refuseUI(c)
	case err != nil:
		httpapi.Fail(c, err)
	default:
		setCaller(c, who)
	}
}

func refuseUI(c *gin.Context) {
	c.Abort()
	c.String(http.StatusUnauthorized,
		"Open Temporal's UI from Ingot's page, or by the link that ingot temporal ui prints. A link works once, for five minutes.\n")
}

// proxy passes requests on to the UI. No credential of Ingot reaches the UI, and of its cookies only the one against forged
// requests reaches the browser.
func (u *temporalUI) proxy() http.Handler {
	const csrfCookie = "_csrf"
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "temporal-ui"})
			r.Out.Host = r.In.Host // the UI writes this host name into its pages
			for _, name := range []string{"Authorization", "Authorization-Extras", "Cookie"} {
				r.Out.Header.Del(name)
			}
			if c, err := r.In.Cookie(csrfCookie); err == nil {
				r.Out.AddCookie(&http.Cookie{Name: csrfCookie, Value: c.Value})
			}
		},
		ModifyResponse: func(r *http.Response) error {
			cookies := r.Cookies()
			r.Header.Del("Set-Cookie")
			for _, c := range cookies {
				if c.Name == csrfCookie {
					r.Header.Add("Set-Cookie", c.String())
				}
			}
			return nil
		},
		Transport: &http.Transport{
			DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return u.Dial(ctx) },
			MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
		},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(u.log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			u.log.Warn("Temporal's UI does not answer", "error", err)
			http.Error(w, "Temporal's UI does not answer: Temporal is starting, or is down", http.StatusServiceUnavailable)
		},
	}
}
