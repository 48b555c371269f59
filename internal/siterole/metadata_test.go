package siterole

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestForward (S4): requests of machines to a retired server are answered by the site's
// new host, as if they had been sent there, and by no other server.
func TestForward(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex // the server's goroutines
	var asked []string
	requests := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(asked)
	}
	var serving atomic.Bool
	serving.Store(true)
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, fmt.Sprintf("%s %s from %s by %q: %s", r.Method, r.RequestURI, r.RemoteAddr, r.Header.Get("X-Forwarded-For"), body))
		for k := range r.Header {
			if strings.HasPrefix(k, "Ingot-") || k == "Authorization" {
				asked = append(asked, k)
			}
		}
		if r.URL.Path == "/nothing" {
			http.Error(rw, "not found", http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(rw, "of the target")
	})
	w.target.Metadata = func() http.Handler {
		if !serving.Load() {
			return nil
		}
		return handler
	}
	f, err := Forward(w.peer, w.cert, token, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ask := func(f http.Handler, method, path, body string, head ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		r.RemoteAddr = "10.10.20.107:40000"
		for i := 0; i+1 < len(head); i += 2 {
			r.Header.Set(head[i], head[i+1])
		}
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, r)
		return rec
	}

	r := ask(
		f,
		http.MethodGet,
		"/2009-04-04/meta-data/instance-id?x=%20y",
		"",
		"Authorization",
		"Bearer of-the-machine",
		"Ingot-Client",
		"10.9.9.9",
		"X-Forwarded-For",
		"10.8.8.8",
	)
	require.Equal(t, http.StatusOK, r.Code)
	require.Equal(t, "of the target", r.Body.String())
	require.Empty(t, r.Header().Get(headerServed))
	r = ask(f, http.MethodPost, "/phone-home/m1/abc", "hostname=m1")
	require.Equal(t, http.StatusOK, r.Code)
	r = ask(f, http.MethodGet, "/nothing", "")
	require.Equal(t, http.StatusNotFound, r.Code)
	require.Equal(t, []string{
		`GET /2009-04-04/meta-data/instance-id?x=%20y from 10.10.20.107:0 by "10.8.8.8": `,
		`POST /phone-home/m1/abc from 10.10.20.107:0 by "": hostname=m1`,
		`GET /nothing from 10.10.20.107:0 by "": `,
	}, requests())
	require.Equal(t, http.StatusRequestEntityTooLarge, ask(f, http.MethodPost, "/phone-home/m1/abc", strings.Repeat("x", maxForwarded+1)).Code)

	// A request without a path is not forwarded.
	for _, uri := range []string{"http:foo", "*"} {
		n := len(requests())
		bad := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		bad.URL, err = url.ParseRequestURI(uri)
		require.NoError(t, err)
		bad.RequestURI, bad.RemoteAddr = uri, "10.10.20.107:40000"
		rec := httptest.NewRecorder()
		f.ServeHTTP(rec, bad)
		require.Equal(t, http.StatusBadRequest, rec.Code, uri)
		require.Len(t, requests(), n, uri)
	}

	// Only the pinned server answers, and only the known source.
	stranger, err := Forward(w.peer, certificate(t), token, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	wrong := w.peer
	wrong.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	other, err := Forward(wrong, w.cert, token, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for name, f := range map[string]http.Handler{"a source that it does not know": stranger, "a target with another key": other} {
		n := len(requests())
		r := ask(f, http.MethodGet, "/latest/meta-data/", "")
		require.Equal(t, http.StatusServiceUnavailable, r.Code, name)
		require.Len(t, requests(), n, name)
	}
	serving.Store(false)
	require.Equal(t, http.StatusServiceUnavailable, ask(f, http.MethodGet, "/latest/meta-data/", "").Code, "the target is no site")
	w.killTarget()
	r = ask(f, http.MethodGet, "/latest/meta-data/", "")
	require.Equal(t, http.StatusServiceUnavailable, r.Code, "the target is off")
	require.NotEmpty(t, r.Header().Get("Retry-After"))

	_, err = Forward(inventory.Peer{Name: "dst", URL: w.peer.URL}, w.cert, token, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "the key of peer")
}

// TestForwardHandshakes: many requests share few TLS connections to the target, because
// any host may send requests to a retired server.
func TestForwardHandshakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const asking = 2 * connections
	full, open := make(chan struct{}), make(chan struct{})
	var inside atomic.Int64
	w.target.Metadata = func() http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			if inside.Add(1) == connections {
				close(full)
			}
			<-open
			_, _ = io.WriteString(rw, "of the target")
		})
	}
	var made sync.Map // remote addresses
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		made.Store(r.RemoteAddr, true)
		w.target.Handler().ServeHTTP(rw, r)
	}))
	server.TLS = ServerTLS(certificate(t))
	server.StartTLS()
	t.Cleanup(server.Close)
	peer := inventory.Peer{Name: "dst", URL: server.URL, Fingerprint: keypin.Of(server.Certificate())}
	f, err := Forward(peer, w.cert, token, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	codes := make([]int, asking)
	var all sync.WaitGroup
	for n := range asking {
		all.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/latest/meta-data/", nil)
			r.RemoteAddr = "10.10.20.107:40000"
			rec := httptest.NewRecorder()
			f.ServeHTTP(rec, r)
			codes[n] = rec.Code
		})
	}
	<-full
	close(open)
	all.Wait()
	for _, code := range codes {
		require.Equal(t, http.StatusOK, code)
	}
	n := 0
	made.Range(func(any, any) bool { n++; return true })
	require.LessOrEqual(t, n, connections)
}
