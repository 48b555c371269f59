package host

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/server"
)

// TestTemporalEnvOfAnotherCluster: what the configuration says of a cluster by
// address, in words that a shell leaves as they are.
func TestTemporalEnvOfAnotherCluster(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	env, err := server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"TEMPORAL_ADDRESS": "127.0.0.1:7233", "TEMPORAL_NAMESPACE": "default"}, env)

	ca := filepath.Join(t.TempDir(), "it's a CA.pem")
	require.NoError(t, os.WriteFile(ca, []byte("CA"), 0o600))
	cfg.Temporal.Address, cfg.Temporal.TLSCA = "temporal.example:7233", ca
	env, err = server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS":                 "temporal.example:7233",
		"TEMPORAL_NAMESPACE":               "default",
		"TEMPORAL_TLS":                     "true",
		"TEMPORAL_TLS_SERVER_CA_CERT_PATH": ca,
	}, env)

	cfg.Temporal.EncryptionKeyFile = filepath.Join(t.TempDir(), "keys")
	encrypted, err := server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, "http://127.0.0.1:8080/codec", encrypted["TEMPORAL_CODEC_ENDPOINT"])

	byKey := cfg
	byKey.Temporal = config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: ca}
	env, err = server.TemporalEnv(byKey, "")
	require.NoError(t, err)
	require.Equal(t, "false", env["TEMPORAL_TLS"], "the server does not use TLS there")

	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "X="+cli.ShellWord(ca)+"; printf %s \"$X\"").Output()
	require.NoError(t, err)
	require.Equal(t, ca, string(out))

	cfg.Temporal.Address, cfg.Temporal.MutualTLS = "", true
	_, err = server.TemporalEnv(cfg, "")
	require.ErrorContains(t, err, "no such file")
	_, err = identity.LoadCertificate(cfg.TemporalIdentity())
	require.NoError(t, err)
	env, err = server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, cfg.TemporalIdentity(), env["TEMPORAL_TLS_CLIENT_KEY_PATH"])
}
