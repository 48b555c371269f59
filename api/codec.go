package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
)

// maxPayloads limits a request of /codec, in bytes. Temporal limits a payload to 2 MiB.
const maxPayloads = 16 << 20

// codecRoutes returns the routes of the codec server. Temporal's UI and command line send payloads there to decrypt and
// encrypt them. The routes accept the admin token, the token of /codec, and a browser session. Pages of this server and
// of the configured Temporal UI may use the session.
//
// The requests are described at https://docs.temporal.io/codec-server.
func (l *sessions) codecRoutes(codec http.Handler) []httpapi.Route {
	handle := func(c *gin.Context) {
		l.allowOrigin(c)
		if !hasToken(c, l.codec) {
			if l.authenticate(c); c.IsAborted() {
				return
			}
			if !l.isCodecOrigin(c) {
				if checkOrigin(c); c.IsAborted() {
					return
				}
			}
		}
		if codec == nil {
			httpapi.Fail(c, httpapi.NotFound())
			return
		}
		c.Request.Body = http.MaxBytesReader(c.Writer, c.Request.Body, maxPayloads)
		c.Header("Cache-Control", "no-store")
		codec.ServeHTTP(c.Writer, c.Request)
	}
	preflight := func(c *gin.Context) { l.allowOrigin(c); c.Status(http.StatusNoContent) }

	return []httpapi.Route{
		{Method: "POST", Path: "/codec/encode", Handler: handle},
		{Method: "POST", Path: "/codec/decode", Handler: handle},
		{Method: "OPTIONS", Path: "/codec/encode", Handler: preflight},
		{Method: "OPTIONS", Path: "/codec/decode", Handler: preflight},
	}
}

func (l *sessions) isCodecOrigin(c *gin.Context) bool {
	return l.codecOrigin != "" && c.GetHeader("Origin") == l.codecOrigin
}

// allowOrigin allows pages of the configured Temporal UI to read the answer (CORS, https://fetch.spec.whatwg.org).
func (l *sessions) allowOrigin(c *gin.Context) {
	c.Header("Vary", "Origin")
	if !l.isCodecOrigin(c) {
		return
	}
	h := c.Writer.Header()
	h.Set("Access-Control-Allow-Origin", l.codecOrigin)
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Access-Control-Allow-Methods", "POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Namespace")
}
