package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"github.com/gin-gonic/gin"
	"go.temporal.io/api/serviceerror"

	"github.com/ingotmetal/ingot/inventory"
)

// Codes of an error's answer.
const (
	codeNotFound     = "not_found"
	codeConflict     = "conflict"
	codeInvalid      = "invalid"
	codeFenced       = "fenced"
	codeUnauthorized = "unauthorized"
	codeForbidden    = "forbidden"
	codeUnavailable  = "unavailable"
	codeNoSpace      = "no_space"
	codeInternal     = "internal"
	codeGone         = "gone"
)

// errUnavailable marks what cannot be answered now and may be asked again.
var errUnavailable = errors.New("not available now")

// errNoSpace: below the minimum of free space.
var errNoSpace = errors.New("not enough free space")

// answer is the body of every error.
type answer struct {
	Error    string              `json:"error"`
	Code     string              `json:"code"`
	Problems []inventory.Problem `json:"problems,omitempty"`
	Next     string              `json:"next,omitempty"`
}

// hint is an error with the command that helps.
type hint struct {
	error
	next string
}

func (h hint) Unwrap() error { return h.error }

// status maps an error to the status and code of its answer: the one place
// where the vocabulary of inventory meets HTTP.
func status(err error) (int, string) {
	var tooLarge *http.MaxBytesError
	var unavailable *serviceerror.Unavailable
	var exceeded *serviceerror.DeadlineExceeded
	var exhausted *serviceerror.ResourceExhausted
	var gone *serviceerror.NotFound
	var argument *serviceerror.InvalidArgument
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, codeInvalid
	case errors.Is(err, errNoSpace), errors.Is(err, inventory.ErrFull), errors.Is(err, syscall.ENOSPC):
		return http.StatusInsufficientStorage, codeNoSpace
	case errors.Is(err, inventory.ErrFenced):
		return http.StatusConflict, codeFenced
	case errors.Is(err, inventory.ErrInvalid), errors.As(err, &argument):
		return http.StatusBadRequest, codeInvalid
	case errors.Is(err, inventory.ErrNotFound), errors.As(err, &gone):
		return http.StatusNotFound, codeNotFound
	case errors.Is(err, inventory.ErrConflict):
		return http.StatusConflict, codeConflict
	case errors.Is(err, inventory.ErrSealed), errors.Is(err, inventory.ErrUnreachable), errors.Is(err, inventory.ErrUnsupported),
		errors.Is(err, errUnavailable), errors.Is(err, errMoving), errors.Is(err, context.DeadlineExceeded),
		errors.As(err, &unavailable), errors.As(err, &exceeded), errors.As(err, &exhausted):
		return http.StatusServiceUnavailable, codeUnavailable
	}
	return http.StatusInternalServerError, codeInternal
}

// fail answers with err.
func (s *Server) fail(c *gin.Context, err error) {
	code, word := status(err)
	a := answer{Error: err.Error(), Code: word}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		a.Error = fmt.Sprintf("the body is larger than %s, which this route takes at most", limitText(tooLarge.Limit))
	}
	var problems inventory.Problems
	if errors.As(err, &problems) {
		a.Problems = problems
	}
	var h hint
	if errors.As(err, &h) {
		a.Next = h.next
	}
	if errors.Is(err, errMoving) {
		c.Header("Retry-After", retryAfter)
	}
	if code == http.StatusInsufficientStorage && a.Next == "" {
		// What was to be written is lost to nobody: the caller still has it, and an agent sends it again.
		a.Next = "ingot image prune"
	}
	if errors.Is(err, inventory.ErrSealed) && a.Next == "" {
		a.Next = "ingot doctor"
	}
	if code == http.StatusInternalServerError && c.Request.Context().Err() == nil {
		s.cfg.Log.Error("answering a request", "method", c.Request.Method, "route", c.FullPath(), "error", err)
	}
	c.AbortWithStatusJSON(code, a)
}

// limitText writes a number of bytes in the unit in which it is whole.
func limitText(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// refuse answers with an error of the listener itself.
func refuse(c *gin.Context, status int, code, text, next string) {
	c.AbortWithStatusJSON(status, answer{Error: text, Code: code, Next: next})
}

// invalid is one problem as an error.
func invalid(field, remedy, format string, args ...any) error {
	var p inventory.Problems
	p.Add(field, remedy, format, args...)
	return p
}
