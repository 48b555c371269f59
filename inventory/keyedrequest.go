package inventory

import (
	"context"
	"errors"
)

// ErrTooManyKeys means that no further keyed request is stored now.
var ErrTooManyKeys = errors.New("too many Idempotency-Keys")

// A KeyedRequest is the record of a request that was sent with an Idempotency-Key. It is written before the request has
// an effect.
type KeyedRequest struct {
	ID          string // digest of the sender and the key
	Fingerprint string // keyed digest of method, path, query and body
	// Workflow is the id of the workflow that the request starts, and Before the newest run of that id before it; "": none.
	Workflow, Before string
	Status           int    // of the answer; 0: there is none yet
	Answer           []byte // body of the answer; nil: there is none yet, or it is too large to be kept
}

// keyedRequest is the key of a keyed request's id in a context.
type keyedRequest struct{}

// WithKeyedRequest returns the context of what a keyed request does.
func WithKeyedRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, keyedRequest{}, id)
}

// KeyedRequestOf returns the id of the keyed request to which ctx belongs, or "".
func KeyedRequestOf(ctx context.Context) string {
	id, _ := ctx.Value(keyedRequest{}).(string)
	return id
}
