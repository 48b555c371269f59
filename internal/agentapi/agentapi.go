// Package agentapi serves the HTTP API for agents. An agent redeems the claim of its boot and gets a token. With the
// token it fetches work and images and sends reports. The API needs its own TLS listener: the boot script pins the key
// of the listener.
package agentapi

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
)

// New returns the handler of all routes.
func New(c Config) http.Handler {
	if c.Heartbeat <= 0 {
		c.Heartbeat = 2 * time.Second
	}
	if c.SecretsFor <= 0 {
		c.SecretsFor = time.Hour
	}
	// Requests without a valid token can also cause log lines: limit their rate.
	c.Log = slog.New(quietlog.Handler(c.Log.Handler(), c.Now))
	s := &server{Config: c}

	r := httpapi.NewRouter(c.Log, c.Guard)
	r.Use(func(c *gin.Context) { c.Header("X-Content-Type-Options", "nosniff") })
	httpapi.AddRoutes(r, []httpapi.Route{
		{Method: "POST", Path: "/agent/v1/discover", Handler: s.discover},
		{Method: "POST", Path: "/agent/v1/claim", Handler: httpapi.Handle(http.StatusOK, lenientBody(maxHello), s.claim)},
	})
	httpapi.AddRoutes(r.Group("", s.authenticate), []httpapi.Route{
		{Method: "GET", Path: "/agent/v1/next", Handler: s.next},
		{Method: "POST", Path: "/agent/v1/report", Handler: httpapi.Handle(http.StatusNoContent, lenientBody(maxReport), s.report)},
		{Method: "POST", Path: "/agent/v1/heartbeat", Handler: httpapi.Handle(http.StatusOK, lenientBody(maxHeartbeat), s.heartbeat)},
		{Method: "GET", Path: "/agent/v1/images/:name", Handler: s.image},
		{Method: "GET", Path: "/agent/v1/runtime", Handler: s.runtime},
	})

	return r
}
