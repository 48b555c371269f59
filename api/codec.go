package api

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// maxPayloads limits a request of /codec, in bytes. Temporal limits a payload to 2 MiB.
const maxPayloads = 16 << 20

// codecRoutes returns the routes of the codec server, which decrypts and encrypts payloads for Temporal's UI and command
// line. It refuses requests from web pages, except pages of this server and of the configured Temporal UI.
//
// The requests are described at https://docs.temporal.io/codec-server.
func (a *access) codecRoutes(codec http.Handler) []httpapi.Route {
	handle := func(c *gin.Context) {
		a.allowOrigin(c)
		if !a.admit(c) {
			return
		}
		if !a.isCodecOrigin(c) {
			if checkOrigin(c); c.IsAborted() {
				return
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
	preflight := func(c *gin.Context) { a.allowOrigin(c); c.Status(http.StatusNoContent) }

	return []httpapi.Route{
		{Method: "POST", Path: "/codec/encode", Needs: inventory.RoleCodec, Handler: handle},
		{Method: "POST", Path: "/codec/decode", Needs: inventory.RoleCodec, Handler: handle},
		{Method: "OPTIONS", Path: "/codec/encode", Handler: preflight},
		{Method: "OPTIONS", Path: "/codec/decode", Handler: preflight},
	}
}

func (a *access) isCodecOrigin(c *gin.Context) bool {
	return a.codecOrigin != "" && c.GetHeader("Origin") == a.codecOrigin
}

// allowOrigin allows pages of the configured Temporal UI to read the answer (CORS, https://fetch.spec.whatwg.org).
func (a *access) allowOrigin(c *gin.Context) {
	c.Header("Vary", "Origin")
	if !a.isCodecOrigin(c) {
		return
	}
	h := c.Writer.Header()
	h.Set("Access-Control-Allow-Origin", a.codecOrigin)
	h.Set("Access-Control-Allow-Credentials", "true")
	h.Set("Access-Control-Allow-Methods", "POST")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Namespace")
}
