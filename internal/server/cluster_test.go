package server

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

func TestClusterOptions(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("first\n"), 0o600))

	for name, c := range map[string]struct {
		config config.Temporal
		fails  string // "": works
		server string // the name that TLS expects; "": without TLS
	}{
		"loopback":               {config: config.Temporal{Address: "127.0.0.1:7233"}},
		"beyond loopback":        {config: config.Temporal{Address: "192.0.2.1:7233"}, fails: "is not a loopback address"},
		"with an API key":        {config: config.Temporal{Address: "192.0.2.1:7233", APIKeyFile: key}, server: "192.0.2.1"},
		"API key on loopback":    {config: config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: key}},
		"another name":           {config: config.Temporal{Address: "192.0.2.1:7233", TLSServerName: "t.example"}, server: "t.example"},
		"no such key":            {config: config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: key + "x"}, fails: "temporal.api_key_file"},
		"no such certificate":    {config: config.Temporal{Address: "192.0.2.1:7233", TLSCert: key, TLSKey: key}, fails: "temporal.tls_cert"},
		"an authority of no use": {config: config.Temporal{Address: "192.0.2.1:7233", TLSCA: key}, fails: "contains no PEM certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := ClusterOptions(c.config)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.server == "", o.ConnectionOptions.TLSDisabled)
			if c.server != "" {
				require.Equal(t, c.server, o.ConnectionOptions.TLS.ServerName)
			}
			require.Equal(t, c.config.APIKeyFile != "", o.Credentials != nil)
		})
	}
}

// TestAPIKeyIsReadAgain: a key can be replaced while the server runs; an empty file is refused.
func TestAPIKeyIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for _, key := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(file, []byte(key+"\n"), 0o600))
		got, err := readAPIKey(file)
		require.NoError(t, err)
		require.Equal(t, key, got)
	}
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err := readAPIKey(file)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}

func TestRetentionText(t *testing.T) {
	for text, d := range map[string]time.Duration{"720h": 30 * 24 * time.Hour, "36h30m0s": 36*time.Hour + 30*time.Minute} {
		require.Equal(t, text, retentionText(d))
	}
}

func TestSetupOfTheEmbeddedServerIsRefused(t *testing.T) {
	_, err := SetUpCluster(t.Context(), config.Temporal{}, false)
	require.ErrorContains(t, err, "the embedded server needs no setup")
}

// TestCertificateIsReadAgain: the certificate for the cluster can be replaced while the server runs.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := config.Temporal{Address: "192.0.2.1:7233", TLSCert: filepath.Join(dir, "pem"), TLSKey: filepath.Join(dir, "pem")}
	shown := func(o client.Options) []byte {
		t.Helper()
		pair, err := o.ConnectionOptions.TLS.GetClientCertificate(nil)
		require.NoError(t, err)
		return pair.Certificate[0]
	}
	_, err := identity.LoadCertificate(c.TLSCert) // makes one
	require.NoError(t, err)
	o, err := ClusterOptions(c)
	require.NoError(t, err)
	first := shown(o)
	require.NoError(t, os.Remove(c.TLSCert))
	_, err = identity.LoadCertificate(c.TLSCert)
	require.NoError(t, err)
	require.NotEqual(t, first, shown(o))
}

// TestClusterIsAway: the state tells since when and why a cluster does not work, and recovers with it. After a minute this server
// stops working.
func TestClusterIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &temporal{log: slog.New(slog.DiscardHandler)}
		c := newPollers()
		s.set(c, nil)
		var answer atomic.Pointer[error]
		answers := func(err error) { answer.Store(&err) }
		answers(nil)
		var watching sync.WaitGroup
		watching.Go(func() {
			require.ErrorIs(t, s.watch(t.Context(), c, func(context.Context) error { return *answer.Load() }), errOtherCluster)
		})
		check := func(up bool, problem string) {
			t.Helper()
			time.Sleep(2*checkInterval + time.Second)
			require.Equal(t, up, s.metrics().Up)
			require.Equal(t, problem, s.status().Error)
		}
		check(true, "")
		away := time.Now()
		answers(serviceerror.NewUnavailable("connection refused"))
		check(false, "connection refused")
		require.WithinRange(t, s.status().Since, away.Add(-checkInterval), away.Add(2*checkInterval))
		since := s.status().Since
		check(false, "connection refused")
		require.Equal(t, since, s.status().Since)
		answers(nil)
		check(true, "")
		answers(serviceerror.NewResourceExhausted(0, "too many requests"))
		check(true, "")
		answers(serviceerror.NewPermissionDenied("the key has expired", ""))
		check(false, "the key has expired")
		answers(errOtherCluster)
		watching.Wait()
		answers(serviceerror.NewUnavailable("connection refused"))
		away = time.Now()
		require.ErrorContains(t, s.watch(t.Context(), c, func(context.Context) error { return *answer.Load() }), "connection refused")
		require.WithinRange(t, time.Now(), away.Add(lease), away.Add(lease+2*checkInterval))
	})
}
