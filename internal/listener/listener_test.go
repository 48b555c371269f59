package listener

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/internal/identity"
)

// TestListenersOutlivePanics: whatever a request to operators, agents or peers
// makes panic, it costs that connection and is counted (security S35).
func TestListenersOutlivePanics(t *testing.T) {
	cert, err := identity.LoadCertificate(filepath.Join(t.TempDir(), "test.pem"))
	require.NoError(t, err)
	for name, pair := range map[string]*tls.Config{
		"operators on loopback": nil,
		"agents":                ServerTLS(cert),
		"peers":                 {Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert},
	} {
		t.Run(name, func(t *testing.T) {
			g := guard.New(slog.New(slog.DiscardHandler))
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/panic" {
					panic("a test's")
				}
				_, _ = io.WriteString(w, "well")
			})
			l, err := Bind(Socket{Name: "a test", Addr: "127.0.0.1:0", Key: "listen", Handler: handler, TLS: pair}, g, slog.New(slog.DiscardHandler))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- l.Run(ctx) }()
			defer func() {
				cancel()
				require.NoError(t, <-done)
			}()
			scheme := "http://"
			if pair != nil {
				scheme = "https://"
			}
			client := &http.Client{Transport: &http.Transport{
				DisableKeepAlives: true,
				TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}}, //nolint:gosec // a test's own server
			}}
			for range 3 {
				res, err := client.Get(scheme + l.Addr().String() + "/panic")
				if err == nil {
					_ = res.Body.Close()
				}
				require.Error(t, err)
			}
			require.EqualValues(t, 3, g.Panics())
			res, err := client.Get(scheme + l.Addr().String())
			require.NoError(t, err)
			body, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, "well", strings.TrimSpace(string(body)))
		})
	}
}
