package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"syscall"

	"go.temporal.io/api/serviceerror"

	"github.com/ingotmetal/ingot/inventory"
)

// Values of ErrorBody.Code.
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
	// CodeUnderWay means that an earlier request with the same Idempotency-Key has no answer yet.
	CodeUnderWay = "under_way"
	// CodeTooManyKeys means that the server stores too many Idempotency-Keys and accepts no further one. The request was not carried out.
	CodeTooManyKeys = "too_many_keys"
)

// ErrNoSpace means that a disk has less free space than the configured minimum.
var ErrNoSpace = errors.New("not enough free space")

// RetryAfter is the value of the header Retry-After, in seconds, for requests that are refused because the server is
// handing over to a peer or is not the active one.
const RetryAfter = "30"

// ErrorBody is the JSON body of error answers. Next is a command that helps.
type ErrorBody struct {
	Error    string              `json:"error"`
	Code     string              `json:"code"`
	Problems []inventory.Problem `json:"problems,omitempty"`
	Next     string              `json:"next,omitempty"`
}

// A Refusal is an error with the status and the body of its HTTP answer.
type Refusal struct {
	Status int
	Body   any
}

// Error returns the standard text of the HTTP status.
func (r Refusal) Error() string { return http.StatusText(r.Status) }

// Refuse returns a Refusal with an ErrorBody.
func Refuse(status int, code, text, next string) error {
	return Refusal{status, ErrorBody{Error: text, Code: code, Next: next}}
}

// NotFound returns a Refusal with status 404 and no details.
func NotFound() error { return Refuse(http.StatusNotFound, CodeNotFound, "not found", "") }

// StatusOf returns the HTTP status and the ErrorBody.Code for an error that is not a Refusal. No other function maps
// inventory errors to HTTP.
func StatusOf(err error) (int, string) {
	var tooLarge *http.MaxBytesError
	var unavailable *serviceerror.Unavailable
	var exceeded *serviceerror.DeadlineExceeded
	var exhausted *serviceerror.ResourceExhausted
	var gone *serviceerror.NotFound
	var argument *serviceerror.InvalidArgument
	is := func(targets ...error) bool {
		return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
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
	case is(inventory.ErrStale):
		return http.StatusPreconditionFailed, CodeConflict
	case is(inventory.ErrConflict):
		return http.StatusConflict, CodeConflict
	case is(inventory.ErrSealed, inventory.ErrUnreachable, inventory.ErrUnsupported, inventory.ErrUnavailable,
		inventory.ErrMoving, context.DeadlineExceeded),
		errors.As(err, &unavailable), errors.As(err, &exceeded), errors.As(err, &exhausted):
		return http.StatusServiceUnavailable, CodeUnavailable
	}

	return http.StatusInternalServerError, CodeInternal
}

// BodyOf returns the HTTP status and the body of the answer for err.
func BodyOf(err error) (int, any) {
	if refusal, ok := errors.AsType[Refusal](err); ok {
		return refusal.Status, refusal.Body
	}
	status, code := StatusOf(err)
	b := ErrorBody{Error: inventory.TextOf(err), Code: code}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		b.Error = fmt.Sprintf("the body is larger than %s, the limit of this route", limitText(tooLarge.Limit))
	}
	if problems, ok := errors.AsType[inventory.Problems](err); ok {
		b.Problems = problems
	}

	var hint inventory.Hint
	switch {
	case errors.As(err, &hint):
		b.Next = hint.Next
	case status == http.StatusInsufficientStorage:
		// The request was not carried out: the client can repeat it after space was freed.
		b.Next = "ingot image prune"
	case errors.Is(err, inventory.ErrSealed):
		b.Next = "ingot doctor"
	}

	return status, b
}

// limitText formats a number of bytes in MiB, KiB or bytes: the largest unit that needs no fraction.
func limitText(n int64) string {
	switch {
	case n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
