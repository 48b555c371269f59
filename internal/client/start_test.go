package client

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// startAt returns a client of a server that handles requests by their number, and the keys and bodies of its requests.
func startAt(t *testing.T, handle func(n int, w http.ResponseWriter)) (*Client, *[]string) {
	t.Helper()
	var mu sync.Mutex // a request may come while the handler of a broken connection is still ending
	var seen []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		seen = append(seen, r.Header.Get("Idempotency-Key")+string(body))
		n := len(seen)
		mu.Unlock()
		handle(n, w)
	}))
	t.Cleanup(s.Close)
	c, err := New(Session{Server: s.URL})
	require.NoError(t, err)
	c.pause = 0
	return c, &seen
}

type started struct {
	Run string `json:"run"`
}

func TestStartIsSentAgainWithItsKeyUntilItIsAnswered(t *testing.T) {
	c, seen := startAt(t, func(n int, w http.ResponseWriter) {
		switch n {
		case 1:
			panic(http.ErrAbortHandler) // the connection breaks before the answer
		case 2:
			w.Header().Set("Content-Length", "100") // and in the answer
			_, _ = io.WriteString(w, `{"run":`)
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable) // its Temporal is not ready yet
			_, _ = io.WriteString(w, `{"error": "not yet", "code": "unavailable"}`)
		case 4:
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error": "the first one is under way", "code": "under_way"}`)
		default:
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, `{"run": "r1"}`)
		}
	})
	a, err := Start[started](t.Context(), c, "/v1/machines/m1/inspect", map[string]int{"a": 1})
	require.NoError(t, err)
	require.Equal(t, "r1", a.Value.Run)
	require.Len(t, *seen, 5)
	for _, s := range *seen {
		require.Equal(t, (*seen)[0], s)
	}
	key, err := strconv.Unquote((*seen)[0][:len((*seen)[0])-len(`{"a":1}`)])
	require.NoError(t, err)
	require.Greater(t, len(key), 20)

	_, err = Start[started](t.Context(), c, "/v1/machines/m1/inspect", map[string]int{"a": 1})
	require.NoError(t, err)
	require.NotEqual(t, (*seen)[0], (*seen)[5], "another order has another key")
}

func TestRefusedStartIsNotSentAgain(t *testing.T) {
	for status, code := range map[int]string{http.StatusConflict: "conflict", http.StatusServiceUnavailable: "unavailable"} {
		c, seen := startAt(t, func(_ int, w http.ResponseWriter) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error": "no", "code": "`+code+`"}`)
		})
		_, err := Start[started](t.Context(), c, "/v1/machines/m1/inspect", nil)
		require.Error(t, err)
		require.Len(t, *seen, 1)
	}

	c, err := New(Session{Server: "http://127.0.0.1:1"})
	require.NoError(t, err)
	_, err = Start[started](t.Context(), c, "/v1/machines/m1/inspect", nil)
	require.ErrorIs(t, err, ErrUnavailable, "a server that is not there")
	require.NotErrorIs(t, err, inventory.ErrConflict)
}

func TestStartWithoutKeyIfNoFurtherIsStored(t *testing.T) {
	c, seen := startAt(t, func(n int, w http.ResponseWriter) {
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"error": "no", "code": "too_many_keys"}`)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"run": "r1"}`)
	})
	_, err := Start[started](t.Context(), c, "/v1/machines/m1/inspect", 1)
	require.NoError(t, err)
	require.Len(t, *seen, 2)
	require.Equal(t, "1", (*seen)[1])
}

// TestStartIsNotRepeatedWithoutHavingBeenSent: a handshake that fails has carried nothing out.
func TestStartIsNotRepeatedWithoutHavingBeenSent(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	c, err := New(Session{Server: "https" + strings.TrimPrefix(s.URL, "http")})
	require.NoError(t, err)
	c.pause = time.Hour
	_, err = Start[started](t.Context(), c, "/v1/machines/m1/inspect", nil)
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, seen := startAt(t, func(int, http.ResponseWriter) {
		cancel()
		panic(http.ErrAbortHandler)
	})
	_, err := Start[started](ctx, c, "/v1/machines/m1/inspect", nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, *seen, 1)
}
