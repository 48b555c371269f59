// Package httpapi is the common part of the HTTP interfaces for operators and agents: routes
// as rows of a table, typed requests and answers, one mapping of errors, and one log line
// per request.
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// A Route is one row of a routing table.
type Route struct {
	Method, Path string
	Handler      gin.HandlerFunc
}

// NewRouter returns a router that answers errors and panics of its handlers, and logs one
// line per request.
func NewRouter(log *slog.Logger, g *guard.Guard) *gin.Engine {
	// gin prints its routes unless this global is set.
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	// The peer's address is read from the socket: no header changes it (security S4).
	if err := r.SetTrustedProxies(nil); err != nil {
		panic(err) // an empty list is always valid
	}
	r.HandleMethodNotAllowed = true
	r.NoMethod(func(c *gin.Context) {
		Fail(c, Refuse(http.StatusMethodNotAllowed, CodeInvalid, "this route has no method "+c.Request.Method, ""))
	})
	r.NoRoute(func(c *gin.Context) { Fail(c, NotFound()) })
	r.Use(answer(log, g))

	return r
}

// AddRoutes adds routes to a router.
func AddRoutes(r gin.IRoutes, rows []Route) {
	for _, row := range rows {
		r.Handle(row.Method, row.Path, row.Handler)
	}
}

// Fail ends the handling of a request with an error, which NewRouter's handler turns into
// the answer.
func Fail(c *gin.Context, err error) {
	_ = c.Error(err) // returns its argument
	c.Abort()
}

// answer calls the handlers, recovers a panic, and turns their error into the answer. It
// logs routes and never paths, because the path of a login link is a secret.
func answer(log *slog.Logger, g *guard.Guard) gin.HandlerFunc {
	return func(c *gin.Context) {
		start := time.Now()
		defer func() {
			if v := recover(); v != nil {
				if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
					panic(v)
				}
				g.Caught(c.Request.Method+" "+c.FullPath(), v)
				if !c.Writer.Written() {
					c.AbortWithStatusJSON(http.StatusInternalServerError, ErrorBody{Error: "internal error", Code: CodeInternal})
				}
			}
			log.Debug("request", "method", c.Request.Method, "route", c.FullPath(),
				"status", c.Writer.Status(), "took", time.Since(start))
		}()

		c.Next()
		if failed := c.Errors.Last(); failed != nil && !c.Writer.Written() {
			answerError(c, log, failed.Err)
		}
	}
}

func answerError(c *gin.Context, log *slog.Logger, err error) {
	status, body := BodyOf(err)
	if errors.Is(err, inventory.ErrMoving) {
		c.Header("Retry-After", RetryAfter)
	}
	if status == http.StatusInternalServerError && c.Request.Context().Err() == nil {
		log.Error("answering a request", "method", c.Request.Method, "route", c.FullPath(), "error", err)
	}
	c.AbortWithStatusJSON(status, body)
}

// actorKey is the key of the client's name in a request's context.
type actorKey struct{}

// SetActor records the sender of the request.
func SetActor(c *gin.Context, name string) {
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), actorKey{}, name))
}

// Actor returns the sender of the request, or "" if it was not authenticated.
func Actor(ctx context.Context) string {
	name, _ := ctx.Value(actorKey{}).(string)
	return name
}

// List is the body of every list. Next is the value of after for the next page, or "" on the
// last page.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// NewList returns a List whose items are never null in JSON.
func NewList[T any](items []T) List[T] {
	if items == nil {
		items = []T{}
	}
	return List[T]{Items: items}
}
