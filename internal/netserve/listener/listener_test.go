package listener

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
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
			l, err := Bind(
				t.Context(),
				Socket{Name: "a test", Addr: "127.0.0.1:0", Key: "listen", Handler: handler, TLS: pair},
				g,
				slog.New(slog.DiscardHandler),
			)
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

// TestS60ClientCertificates: with metrics_ca, a client certificate of that authority is verified, another one is refused,
// and none is needed.
func TestS60ClientCertificates(t *testing.T) {
	dir := t.TempDir()
	load := func(name string) (tls.Certificate, string) {
		file := filepath.Join(dir, name)
		cert, err := identity.LoadCertificate(file)
		require.NoError(t, err)
		return cert, file
	}
	_, own := load("own.pem")
	known, authority := load("known.pem") // a self-signed certificate is its own authority
	strange, _ := load("strange.pem")
	cfg := config.Config{Listen: "127.0.0.1:0", TLSCert: own, TLSKey: own, MetricsCA: authority}
	server, err := OperatorTLS(cfg, slog.New(slog.DiscardHandler))
	require.NoError(t, err)

	verified := make(chan int, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		verified <- len(r.TLS.VerifiedChains)
	}))
	s.TLS, s.Config.ErrorLog = server, slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.StartTLS()
	defer s.Close()
	ask := func(shown ...tls.Certificate) error {
		client := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{
				InsecureSkipVerify: true, //nolint:gosec // a test's own server
				// Also shown where the server names other authorities.
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					if len(shown) == 0 {
						return &tls.Certificate{}, nil
					}
					return &shown[0], nil
				},
			},
		}}
		res, err := client.Get(s.URL)
		if err == nil {
			_ = res.Body.Close()
		}
		return err
	}
	require.NoError(t, ask(known))
	require.Equal(t, 1, <-verified)
	require.NoError(t, ask())
	require.Zero(t, <-verified)
	require.Error(t, ask(strange))
	require.Empty(t, verified)

	cfg.MetricsCA = filepath.Join(dir, "missing.pem")
	_, err = OperatorTLS(cfg, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "metrics_ca")
}
