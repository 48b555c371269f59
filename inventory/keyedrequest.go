package inventory

import (
	"context"
	"errors"
)

// ErrTooManyKeys means that a request with an Idempotency-Key is not accepted now, because too many are stored.
var ErrTooManyKeys = errors.New("too many Idempotency-Keys")

// A KeyedRequest is the record of a request that was sent with an Idempotency-Key. The record is written before the request has an effect.
type KeyedRequest struct {
	ID          string // digest of the sender and the key
	Fingerprint string // keyed digest of method, path, query and body
	// Workflow is the id of the workflow that the request starts; "" = none. Before is the newest run with this workflow id from before the
	// request; "" = none.
	Workflow, Before string
	Status           int    // HTTP status of the answer; 0: there is none yet
	Answer           []byte // body of the answer; nil: there is none yet, or it is too large to be kept
}

// keyedRequest is the context key under which the id of a keyed request is stored.
type keyedRequest struct{}

// WithKeyedRequest returns a context for the work that the keyed request with this id causes.
func WithKeyedRequest(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, keyedRequest{}, id)
}

// KeyedRequestOf returns the id of the keyed request to which ctx belongs, or "".
func KeyedRequestOf(ctx context.Context) string {
	id, _ := ctx.Value(keyedRequest{}).(string)
	return id
}
