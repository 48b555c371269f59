package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Quiet is the API of a server that is not the active one among its peers. It returns the state of the server, and
// accepts the decisions that only the operator can make. If this server has handed over to another one, all other
// routes return 410 with the address of that server; otherwise they return 503. All fields except AllowedHosts are
// required.
type Quiet struct {
	Site        Site
	TokenSHA256 inventory.TokenDigest
	// AllowedHosts has the same meaning as Access.AllowedHosts.
	AllowedHosts []string
	Version      string
	Guard        *guard.Guard
	Log          *slog.Logger
}

// QuietStatus is the answer of a Quiet server to GET /v1/status.
type QuietStatus struct {
	Version string               `json:"version"`
	Site    inventory.SiteStatus `json:"site"`
	Time    time.Time            `json:"time"`
}

// Handler returns the handler of all routes.
func (q Quiet) Handler() http.Handler {
	s := &sites{site: q.Site, log: q.Log}
	r := httpapi.NewRouter(q.Log, q.Guard)
	r.Use(q.checkHost(hostSet(q.AllowedHosts)))
	r.NoRoute(q.refuse)
	r.NoMethod(q.refuse)
	r.GET("/healthz", answerHealth)
	r.HEAD("/healthz", answerHealth)
	r.GET("/readyz", answerHealth)
	httpapi.AddRoutes(r.Group("", q.authenticate), []httpapi.Route{
		{Method: "GET", Path: "/v1/status", Handler: httpapi.Get(q.status)},
		{Method: "GET", Path: "/v1/site", Handler: httpapi.Get(s.get)},
		{Method: "GET", Path: "/v1/whoami", Handler: httpapi.Get(q.getCaller)},
		{Method: "POST", Path: "/v1/site/decide", Handler: httpapi.Handle(http.StatusOK, httpapi.JSON, s.decide)},
	})
	return r
}

// checkHost sets the security headers of every answer, and refuses requests whose host name is not in hosts. Only
// /metrics may be requested by IP address.
func (q Quiet) checkHost(hosts map[string]bool) gin.HandlerFunc {
	return func(c *gin.Context) {
		c.Header("X-Content-Type-Options", "nosniff")
		c.Header("Cache-Control", "no-store")
		c.Header("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		host := hostname(c.Request.Host)
		isScrape := c.Request.URL.Path == metricsPath && isAddress(host) // so that Prometheus gets the reason from refuse
		if !hosts[host] && !isScrape {
			httpapi.Fail(c, httpapi.Refuse(http.StatusForbidden, httpapi.CodeForbidden, otherHost, ""))
		}
	}
}

// authenticate requires the admin token: named tokens are in the inventory of the active server. This server has no
// sessions, so a page of another origin cannot write: the browser does not add a token to the requests of that page.
func (q Quiet) authenticate(c *gin.Context) {
	if !hasToken(c, q.TokenSHA256) {
		c.Header("WWW-Authenticate", "Bearer")
		httpapi.Fail(c, httpapi.Refuse(http.StatusUnauthorized, httpapi.CodeUnauthorized, "the admin token is needed", ""))
		return
	}
	httpapi.SetActor(c, inventory.AdminToken)
}

// getCaller returns the only token that this server accepts.
func (q Quiet) getCaller(context.Context, httpapi.Empty) (inventory.Token, error) {
	return describeAdmin(), nil
}

func (q Quiet) status(ctx context.Context, _ httpapi.Empty) (QuietStatus, error) {
	st, err := q.Site.SiteStatus(ctx)
	return QuietStatus{Version: q.Version, Site: st, Time: time.Now().UTC()}, err
}

// refuse handles all routes that only the active server offers. It returns 410 or 503.
func (q Quiet) refuse(c *gin.Context) {
	st, err := q.Site.SiteStatus(c.Request.Context())
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	if p := st.Successor; st.Role == "retired" && p != nil {
		httpapi.Fail(c, httpapi.Refuse(http.StatusGone, httpapi.CodeGone,
			fmt.Sprintf("this server is retired: its site has moved to %s (%s)", p.Name, p.URL), "send the request to server "+p.Name))
		return
	}

	text := "this server is " + st.Role + " and answers no requests"
	if st.Silent != "" && hasToken(c, q.TokenSHA256) { // the text of Silent names peers and their addresses
		text += ": " + st.Silent
	}
	c.Header("Retry-After", httpapi.RetryAfter)
	httpapi.Fail(c, httpapi.Refuse(http.StatusServiceUnavailable, httpapi.CodeUnavailable, text, "ingot handover status"))
}
