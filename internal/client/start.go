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

// askAgainFor is how long Start repeats a request whose answer was lost. A restart of the server takes less time.
const askAgainFor = 30 * time.Second

// Start is Send for a POST that starts something. If the answer is lost, Start sends the request again, with the same
// Idempotency-Key, so that the server carries it out only once. Start repeats this, for at most askAgainFor, until the
// server returns a result or an error other than "unavailable". A request that was never written to a connection is not
// sent again. If the server refuses the key because it stores too many keys, Start sends the request once without a key.
func Start[T any](ctx context.Context, c *Client, route string, in any) (Answer[T], error) {
	m := message{method: http.MethodPost, route: route, key: rand.Text()}
	var sent atomic.Bool
	tracing := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	var until time.Time // when to stop repeating the request; zero if no answer was lost
	for {
		a, err := sendJSON[T](tracing, c, m, in)
		var answered *Error
		switch {
		case until.IsZero() && errors.As(err, &answered) && answered.Code == "too_many_keys":
			m.key = "" // the server has not carried out the request
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

// isLost reports whether err means that the server may have carried out the request although no result arrived: there
// is no answer, or the server still works on a request with the same key.
func isLost(err error) bool {
	var answered *Error
	if errors.As(err, &answered) {
		return answered.Code == "under_way"
	}
	return errors.Is(err, ErrUnavailable)
}
