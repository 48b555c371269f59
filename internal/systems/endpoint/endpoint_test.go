package endpoint

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// serve starts a TLS server and returns how to reach it by its fingerprint.
func serve(t *testing.T, h http.HandlerFunc) (inventory.Endpoint, *httptest.Server) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return inventory.Endpoint{URL: s.URL, Fingerprint: fmt.Sprintf("sha256:%x", sha256.Sum256(s.Certificate().RawSubjectPublicKeyInfo))}, s
}

func caOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

func say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// otherCA returns an authority that no server here belongs to.
func otherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// ask sends a request and returns what its answer means.
func ask(ctx context.Context, e inventory.Endpoint) error {
	a, err := Ask(ctx, e, Request{Method: http.MethodGet, Path: "/ping"})
	if err != nil {
		return err
	}
	return a.Err()
}

// TestTrust: only the endpoint that was meant is trusted.
func TestTrust(t *testing.T) {
	e, s := serve(t, say(200, "pong"))
	for name, c := range map[string]struct {
		e    inventory.Endpoint
		want error
	}{
		"pinned":        {e, nil},
		"by CA":         {inventory.Endpoint{URL: s.URL, CA: caOf(s)}, nil},
		"insecure":      {inventory.Endpoint{URL: s.URL, Insecure: true}, nil},
		"another pin":   {inventory.Endpoint{URL: s.URL, Fingerprint: fmt.Sprintf("sha256:%064d", 1)}, inventory.ErrRefused},
		"another CA":    {inventory.Endpoint{URL: s.URL, CA: otherCA(t)}, inventory.ErrRefused},
		"nothing said":  {inventory.Endpoint{URL: s.URL}, inventory.ErrRefused},
		"too much said": {inventory.Endpoint{URL: s.URL, Insecure: true, CA: caOf(s)}, inventory.ErrInvalid},
		"half a pin":    {inventory.Endpoint{URL: s.URL, Fingerprint: "sha256:00"}, inventory.ErrInvalid},
		"no CA":         {inventory.Endpoint{URL: s.URL, CA: "x"}, inventory.ErrInvalid},
		"plain":         {inventory.Endpoint{URL: "http://127.0.0.1:1"}, inventory.ErrInvalid},
		"not there":     {inventory.Endpoint{URL: "https://127.0.0.1:1", Insecure: true}, inventory.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask(t.Context(), c.e)
			if c.want == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.want)
			}
		})
	}
}

// TestS17ANameGainsNothing: a name that leads to this host reaches nothing of it.
func TestS17ANameGainsNothing(t *testing.T) {
	asked := false
	e, _ := serve(t, func(http.ResponseWriter, *http.Request) { asked = true })
	e.URL = strings.Replace(e.URL, "127.0.0.1", "localhost", 1)
	require.ErrorContains(t, ask(t.Context(), e), "is this host itself")
	require.False(t, asked)
}

// TestS17NoRedirectIsFollowed: a redirect could lead to any host, with the credentials of the request.
func TestS17NoRedirectIsFollowed(t *testing.T) {
	asked := 0
	e, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked++
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	})
	require.ErrorIs(t, ask(t.Context(), e), inventory.ErrUnreachable)
	require.Equal(t, 1, asked)
}

func TestStatuses(t *testing.T) {
	for status, want := range map[int]error{
		401: inventory.ErrRefused, 403: inventory.ErrRefused, 400: inventory.ErrInvalid, 404: inventory.ErrNotFound,
		409: inventory.ErrConflict, 302: inventory.ErrUnreachable, 429: inventory.ErrUnreachable,
		500: inventory.ErrUnreachable, 503: inventory.ErrUnreachable,
	} {
		e, _ := serve(t, say(status, "no"))
		require.ErrorIs(t, ask(t.Context(), e), want, "%d", status)
	}
	e, _ := serve(t, say(200, "pong"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ask(ctx, e), context.Canceled)
}
