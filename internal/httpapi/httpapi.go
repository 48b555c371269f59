// Package httpapi is the common part of the HTTP APIs for operators and agents: tables of routes, typed requests and
// answers, the mapping of errors to answers, and one log line per request.
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
	// Needs is the role that the caller needs. Only the operators' API has roles; "" means admin there.
	Needs   inventory.Role
	Handler gin.HandlerFunc
}

// NewRouter returns a router that turns errors and panics of its handlers into answers, and logs one line per request.
func NewRouter(log *slog.Logger, g *guard.Guard) *gin.Engine {
	// gin prints its routes unless this global is set.
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	// Trust no proxy headers: the address of the client is always taken from the connection (security S4).
	if err := r.SetTrustedProxies(nil); err != nil {
		panic(err) // an empty list is always valid
	}
	r.HandleMethodNotAllowed = true
	r.NoMethod(func(c *gin.Context) {
		Fail(c, Refuse(http.StatusMethodNotAllowed, CodeInvalid, "this route does not support the method "+c.Request.Method, ""))
	})
	r.NoRoute(func(c *gin.Context) { Fail(c, NotFound()) })
	r.Use(answer(log, g))

	return r
}

// AddRoutes adds a table of routes to a router.
func AddRoutes(r gin.IRoutes, rows []Route) {
	for _, row := range rows {
		r.Handle(row.Method, row.Path, row.Handler)
	}
}

// Fail ends a request with err: no further handlers run, and the router turns err into the answer.
func Fail(c *gin.Context, err error) {
	_ = c.Error(err) // returns its argument
	c.Abort()
}

// answer returns a middleware that calls the next handlers, turns the last error of Fail into the answer, and answers
// 500 after a panic. It logs the route, never the path, because the path of a login link is a secret.
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

// actorKey is the context key under which WithActor stores the name of the client.
type actorKey struct{}

// SetActor stores the name of the authenticated client in the request's context.
func SetActor(c *gin.Context, name string) {
	c.Request = c.Request.WithContext(WithActor(c.Request.Context(), name))
}

// WithActor returns ctx with the name of the client for which something is done.
func WithActor(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, actorKey{}, name)
}

// Actor returns the name of the client, or "" if the request was not authenticated.
func Actor(ctx context.Context) string {
	name, _ := ctx.Value(actorKey{}).(string)
	return name
}

// List is the body of every list. Next is the value for the query parameter "after" of the request for the next page; "" on the last page.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// NewList returns a List of items. Without items, the JSON is [] and not null.
func NewList[T any](items []T) List[T] {
	if items == nil {
		items = []T{}
	}
	return List[T]{Items: items}
}
