package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"

	"go.temporal.io/api/serviceerror"

	"github.com/ingotmetal/ingot/inventory"
)

// Codes of error answers.
const (
	CodeNotFound     = "not_found"
	CodeConflict     = "conflict"
	CodeInvalid      = "invalid"
	CodeFenced       = "fenced"
	CodeUnauthorized = "unauthorized"
	CodeForbidden    = "forbidden"
	CodeUnavailable  = "unavailable"
	CodeNoSpace      = "no_space"
	CodeInternal     = "internal"
	CodeGone         = "gone"
	// CodeUnderWay: the first request with the same Idempotency-Key has no answer yet.
	CodeUnderWay = "under_way"
	// CodeTooManyKeys: no further Idempotency-Key is stored now. The request was not carried out.
	CodeTooManyKeys = "too_many_keys"
)

// ErrNoSpace means that free space is below the minimum.
var ErrNoSpace = errors.New("not enough free space")

// RetryAfter is how long, in seconds, a client should wait that was refused while the site
// moves.
const RetryAfter = "30"

// ErrorBody is the body of every error.
type ErrorBody struct {
	Error    string              `json:"error"`
	Code     string              `json:"code"`
	Problems []inventory.Problem `json:"problems,omitempty"`
	Next     string              `json:"next,omitempty"`
}

// A Refusal is an error with its HTTP answer.
type Refusal struct {
	Status int
	Body   any
}

// Error returns the text of the status.
func (r Refusal) Error() string { return http.StatusText(r.Status) }

// Refuse returns a Refusal with an ErrorBody.
func Refuse(status int, code, text, next string) error {
	return Refusal{status, ErrorBody{Error: text, Code: code, Next: next}}
}

// NotFound is the plain answer for an unknown object.
func NotFound() error { return Refuse(http.StatusNotFound, CodeNotFound, "not found", "") }

// StatusOf returns the HTTP status and code for an error. It is the only mapping from
// inventory errors to HTTP.
func StatusOf(err error) (int, string) {
	var tooLarge *http.MaxBytesError
	var unavailable *serviceerror.Unavailable
	var exceeded *serviceerror.DeadlineExceeded
	var exhausted *serviceerror.ResourceExhausted
	var gone *serviceerror.NotFound
	var argument *serviceerror.InvalidArgument
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}

	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge, CodeInvalid
	case is(ErrNoSpace, inventory.ErrFull, syscall.ENOSPC):
		return http.StatusInsufficientStorage, CodeNoSpace
	case is(inventory.ErrFenced):
		return http.StatusConflict, CodeFenced
	case is(inventory.ErrInvalid), errors.As(err, &argument):
		return http.StatusBadRequest, CodeInvalid
	case is(inventory.ErrNotFound), errors.As(err, &gone):
		return http.StatusNotFound, CodeNotFound
	case is(inventory.ErrConflict):
		return http.StatusConflict, CodeConflict
	case is(inventory.ErrSealed, inventory.ErrUnreachable, inventory.ErrUnsupported, inventory.ErrUnavailable,
		inventory.ErrMoving, context.DeadlineExceeded),
		errors.As(err, &unavailable), errors.As(err, &exceeded), errors.As(err, &exhausted):
		return http.StatusServiceUnavailable, CodeUnavailable
	}

	return http.StatusInternalServerError, CodeInternal
}

// BodyOf returns the status and body of the answer for err.
func BodyOf(err error) (int, any) {
	var refusal Refusal
	if errors.As(err, &refusal) {
		return refusal.Status, refusal.Body
	}
	status, code := StatusOf(err)
	b := ErrorBody{Error: inventory.TextOf(err), Code: code}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		b.Error = fmt.Sprintf("the body is larger than %s, which this route takes at most", limitText(tooLarge.Limit))
	}
	var problems inventory.Problems
	if errors.As(err, &problems) {
		b.Problems = problems
	}

	var hint inventory.Hint
	switch {
	case errors.As(err, &hint):
		b.Next = hint.Next
	case status == http.StatusInsufficientStorage:
		// Nothing is lost: the caller still has the data, and an agent sends it again.
		b.Next = "ingot image prune"
	case errors.Is(err, inventory.ErrSealed):
		b.Next = "ingot doctor"
	}

	return status, b
}

// limitText formats a number of bytes in the largest unit without a fraction.
func limitText(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
