package fetch_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/fetch"
)

// ingot is a server that owns no address.
type ingot struct{ owned string }

func (i ingot) Owns(u *url.URL) bool { return i.owned != "" && strings.HasPrefix(u.String(), i.owned) }

func (ingot) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer token")
	return http.DefaultClient.Do(r)
}

func content() []byte { return bytes.Repeat([]byte("0123456789abcdef"), 10_000) }

// open opens the file of a server and returns all of it.
func open(t *testing.T, m http.Handler, digested bool) (*fetch.Source, []byte, error) {
	t.Helper()
	web := httptest.NewServer(m)
	t.Cleanup(web.Close)
	o := fetch.Opener{Server: ingot{}, Log: t.Logf, Backoff: time.Millisecond}
	s, err := o.OpenAddress(t.Context(), web.URL+"/image?key=geheim", digested)
	if err != nil {
		require.NotContains(t, err.Error(), "geheim", "the query may be a credential")
		return nil, nil, err
	}
	defer s.Close()
	b, err := io.ReadAll(s)
	if err != nil {
		require.NotContains(t, err.Error(), "geheim")
	}
	return s, b, err
}

// cutting is a server that ends its first answer after 50,000 bytes.
func cutting() *disktest.Mirror {
	m := &disktest.Mirror{Data: content(), Etag: `"v1"`}
	m.Serve = func(w http.ResponseWriter, _ *http.Request, request int) bool {
		if request == 1 {
			m.CutAfter(w, 0, 50_000)
		}
		return false
	}
	return m
}

// A download goes on at the byte at which its connection broke.
func TestSourceGoesOn(t *testing.T) {
	m := cutting()
	s, b, err := open(t, m, false)
	require.NoError(t, err)
	require.Equal(t, m.Data, b)
	require.Equal(t, []string{"", "bytes=50000-"}, m.Requests)
	require.EqualValues(t, len(m.Data), s.Total)
	require.EqualValues(t, len(m.Data), s.Received.Load())

	// A server without ranges sends the same file again from its beginning.
	m = cutting()
	first := m.Serve
	m.Serve = func(w http.ResponseWriter, r *http.Request, n int) bool {
		r.Header.Del("Range")
		return first(w, r, n)
	}
	_, b, err = open(t, m, false)
	require.NoError(t, err)
	require.Equal(t, m.Data, b)
}

// A file that changed is not put together from two versions.
func TestSourceChanged(t *testing.T) {
	for name, change := range map[string]func(m *disktest.Mirror, w http.ResponseWriter) bool{
		"another ETag": func(m *disktest.Mirror, w http.ResponseWriter) bool {
			w.Header().Set("ETag", `"v2"`)
			_, _ = w.Write(m.Data) // the agent may hang up
			return true
		},
		"another ETag of a part": func(m *disktest.Mirror, w http.ResponseWriter) bool {
			w.Header().Set("ETag", `"v2"`)
			w.Header().Set("Content-Range", "bytes 50000-159999/160000")
			w.WriteHeader(http.StatusPartialContent)
			return true
		},
		"another size": func(_ *disktest.Mirror, w http.ResponseWriter) bool {
			w.Header().Set("ETag", `"v1"`)
			w.Header().Set("Content-Range", "bytes 50000-59999/60000")
			w.WriteHeader(http.StatusPartialContent)
			return true
		},
		"it is shorter": func(_ *disktest.Mirror, w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return true
		},
	} {
		m := cutting()
		first := m.Serve
		m.Serve = func(w http.ResponseWriter, r *http.Request, n int) bool {
			return first(w, r, n) || n > 1 && change(m, w)
		}
		_, b, err := open(t, m, false)
		require.ErrorIs(t, err, fetch.ErrChanged, name)
		require.Len(t, b, 50_000)
	}

	// Without ETag and date, only a digest could show it.
	m := cutting()
	m.Etag = ""
	_, _, err := open(t, m, false)
	require.ErrorIs(t, err, fetch.ErrChanged)
	m = cutting()
	m.Etag = ""
	_, b, err := open(t, m, true)
	require.NoError(t, err)
	require.Equal(t, m.Data, b)
}

// answering is a server that gives one answer before it serves the file.
func answering(answer func(w http.ResponseWriter)) *disktest.Mirror {
	return &disktest.Mirror{Data: content(), Serve: func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 1 {
			answer(w)
		}
		return n == 1
	}}
}

func TestSourceAnswers(t *testing.T) {
	for code, again := range map[int]bool{
		http.StatusNotFound: false, http.StatusForbidden: false, http.StatusConflict: false,
		http.StatusServiceUnavailable: true, http.StatusTooManyRequests: true, http.StatusInternalServerError: true,
	} {
		m := answering(func(w http.ResponseWriter) { w.WriteHeader(code) })
		_, b, err := open(t, m, false)
		if again {
			require.NoError(t, err, code)
			require.Equal(t, m.Data, b)
			continue
		}
		var status *fetch.StatusError
		require.ErrorAs(t, err, &status)
		require.Equal(t, code, status.Code)
		require.Len(t, m.Requests, 1, "it is permanent")
	}

	unknownEnd := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = buf.WriteString("HTTP/1.0 200 OK\r\n\r\nall of it") // the client may hang up
		_ = buf.Flush()
		_ = c.Close()
	})
	_, _, err := open(t, unknownEnd, false)
	require.ErrorContains(t, err, "does not send the image's length")
	_, b, err := open(t, unknownEnd, true)
	require.NoError(t, err)
	require.Equal(t, "all of it", string(b))
}

func TestSourceEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer web.Close()
	_, err := fetch.Opener{Server: ingot{}, Log: t.Logf, Backoff: time.Hour}.OpenAddress(ctx, web.URL, false)
	require.ErrorIs(t, err, context.Canceled)
}

// The Ingot server gets the agent's token, and no other server does. S22: what leads to another server does not get the address.
func TestS22SourceSendsTheTokenToIngotOnly(t *testing.T) {
	var tokens, referrers atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			tokens.Add(1)
		}
		if r.Header.Get("Referer") != "" {
			referrers.Add(1)
		}
		if r.URL.Path == "/moved" {
			http.Redirect(w, r, "/image", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("image")) // the agent may hang up
	}))
	defer web.Close()
	get := func(server ingot, path string) {
		o := fetch.Opener{Server: server, Log: t.Logf, Backoff: time.Millisecond}
		s, err := o.OpenAddress(t.Context(), web.URL+path, false)
		require.NoError(t, err)
		s.Close()
	}
	get(ingot{}, "/image")
	get(ingot{}, "/moved?key=geheim")
	require.Zero(t, tokens.Load())
	require.Zero(t, referrers.Load())
	get(ingot{owned: web.URL}, "/image")
	require.EqualValues(t, 1, tokens.Load())

	for _, invalid := range []string{"ftp://192.0.2.1/x", "/x", "http://", "http://[::1/x", ""} {
		_, err := fetch.Opener{Server: ingot{}}.OpenAddress(t.Context(), invalid, false)
		require.ErrorContains(t, err, "invalid", invalid)
	}
}
