package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
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
		"beyond loopback":        {config: config.Temporal{Address: "192.0.2.1:7233"}, fails: "is beyond loopback"},
		"with an API key":        {config: config.Temporal{Address: "192.0.2.1:7233", APIKeyFile: key}, server: "192.0.2.1"},
		"API key on loopback":    {config: config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: key}},
		"another name":           {config: config.Temporal{Address: "192.0.2.1:7233", TLSServerName: "t.example"}, server: "t.example"},
		"no such key":            {config: config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: key + "x"}, fails: "temporal.api_key_file"},
		"no such certificate":    {config: config.Temporal{Address: "192.0.2.1:7233", TLSCert: key, TLSKey: key}, fails: "temporal.tls_cert"},
		"an authority of no use": {config: config.Temporal{Address: "192.0.2.1:7233", TLSCA: key}, fails: "holds no certificate"},
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

func TestSetupOfTheEmbeddedServerIsRefused(t *testing.T) {
	_, err := SetUpCluster(t.Context(), config.Temporal{}, false)
	require.ErrorContains(t, err, "the embedded server sets itself up")
}

func TestTheLaterWorkerGivesUp(t *testing.T) {
	first := "ingot serve on a (/z)" + since + "2026-01-02T03:04:05.000Z, process 9, AAAAAAAA"
	second := "ingot serve on b (/a)" + since + "2026-01-02T03:04:06.000Z, process 1, AAAAAAAA"
	require.True(t, startedLater(second, first))
	require.False(t, startedLater(first, second))
}
