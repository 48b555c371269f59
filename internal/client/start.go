package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/http"
	"time"
)

// askAgainFor limits how long Start waits for a server that was interrupted: longer than a restart takes.
const askAgainFor = 30 * time.Second

// Start is Send for a POST that starts something. If its answer is lost, the request is sent again with the same
// Idempotency-Key, so the server carries it out once. A server that cannot be reached at all is not asked again.
func Start[T any](ctx context.Context, c *Client, route string, in any) (Answer[T], error) {
	m := message{method: http.MethodPost, route: route, key: rand.Text()}
	until := time.Now().Add(askAgainFor)
	for sent := false; ; {
		a, err := sendJSON[T](ctx, c, m, in)
		sent = sent || !isDialError(err)
		if err == nil || !sent || !isLost(err) || time.Now().After(until) {
			return a, err
		}

		select {
		case <-time.After(c.pause):
		case <-ctx.Done():
			return a, ctx.Err()
		}
	}
}

// isDialError reports whether the request was not sent.
func isDialError(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// isLost reports whether the server may have carried out a request whose answer did not arrive.
func isLost(err error) bool {
	var answered *Error
	if errors.As(err, &answered) {
		return answered.Code == "under_way"
	}
	return errors.Is(err, ErrUnavailable)
}
