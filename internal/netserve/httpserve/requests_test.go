package httpserve_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
)

func TestRequestsAreCounted(t *testing.T) {
	var counted httpserve.Requests
	s := httptest.NewServer(counted.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			http.Error(w, "no", http.StatusNotFound)
		case "/file":
			http.ServeContent(w, r, "file", time.Time{}, strings.NewReader("0123456789"))
		case "/flushed":
			_, _ = io.WriteString(w, "abc") // the client sees an error
			w.(http.Flusher).Flush()
			require.NoError(t, http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)))
		}
	})))
	for _, path := range []string{"/missing", "/file", "/flushed", "/empty"} {
		res, err := http.Get(s.URL + path)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	s.Close() // the handlers have returned

	c := counted.Counts()
	require.Equal(t, [5]int64{0, 3, 0, 1, 0}, c.Classes)
	require.EqualValues(t, len("no\n")+len("0123456789")+len("abc"), c.Bytes)
}
