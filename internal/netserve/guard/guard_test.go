package guard_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
)

func TestRecover(t *testing.T) {
	var log bytes.Buffer
	g := guard.New(slog.New(slog.NewTextHandler(&log, nil)))
	var wg sync.WaitGroup
	wg.Go(func() {
		defer g.Recover("a test's packet")
		var b []byte
		_ = b[4]
	})
	wg.Go(func() { defer g.Recover("a packet that is well") })
	wg.Wait()
	require.EqualValues(t, 1, g.Panics())
	require.Contains(t, log.String(), `input="a test's packet" panic="runtime error: index out of range [4] with length 0" stack=`)
}

// A handler that panics ends its connection and nothing else; one that aborts
// on purpose is not counted.
func TestHandler(t *testing.T) {
	g := guard.New(slog.New(slog.DiscardHandler))
	s := httptest.NewServer(g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panics":
			panic("a test's")
		case "/wraps":
			panic(errors.New("a test's"))
		case "/aborts":
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "well")
	})))
	defer s.Close()
	for _, path := range []string{"/panics", "/wraps", "/aborts"} {
		res, err := http.Get(s.URL + path)
		if err == nil {
			_ = res.Body.Close()
		}
		require.Error(t, err, path)
	}
	res, err := http.Get(s.URL)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	require.Equal(t, "well", string(body))
	require.EqualValues(t, 2, g.Panics())
}
