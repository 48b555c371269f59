package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// askAgainFor limits how long Start waits for a server that was interrupted: longer than a restart takes.
const askAgainFor = 30 * time.Second

// Start is Send for a POST that starts something. If its answer is lost, the request is sent again with the same
// Idempotency-Key, so the server carries it out once, until it is answered by more than 503. A request that was not sent is
// not sent again. If the server stores no further keys, it is sent once without a key.
func Start[T any](ctx context.Context, c *Client, route string, in any) (Answer[T], error) {
	m := message{method: http.MethodPost, route: route, key: rand.Text()}
	var sent atomic.Bool
	tracing := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	var until time.Time // zero: no answer was lost
	for {
		a, err := sendJSON[T](tracing, c, m, in)
		var answered *Error
		switch {
		case until.IsZero() && errors.As(err, &answered) && answered.Code == "too_many_keys":
			m.key = "" // nothing was carried out
			return sendJSON[T](ctx, c, m, in)
		case until.IsZero() && sent.Load() && isLost(err):
			until = time.Now().Add(askAgainFor)
		}
		if err == nil || until.IsZero() || time.Now().After(until) || !isLost(err) && !errors.Is(err, ErrUnavailable) {
			return a, err
		}

		select {
		case <-time.After(c.pause):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

// isLost reports whether the server may have carried out a request whose answer did not arrive.
func isLost(err error) bool {
	var answered *Error
	if errors.As(err, &answered) {
		return answered.Code == "under_way"
	}
	return errors.Is(err, ErrUnavailable)
}
