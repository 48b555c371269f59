package server

import (
	"fmt"
	"os"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// TemporalEnv returns the environment variables by which Temporal's own clients reach the Temporal of a site. With temporal.mutual_tls,
// certificate is the path of the clients' certificate; "" means the file in the data directory, which must then exist.
func TemporalEnv(cfg config.Config, certificate string) (map[string]string, error) {
	t := cfg.Temporal
	env := map[string]string{"TEMPORAL_ADDRESS": t.Address, "TEMPORAL_NAMESPACE": t.Namespace}
	cert, key, ca := t.TLSCert, t.TLSKey, t.TLSCA
	if t.Address == "" {
		env["TEMPORAL_ADDRESS"] = config.Join("127.0.0.1", t.Port)
	}

	identity := cfg.TemporalIdentity()
	switch {
	case identity == "" && certificate != "":
		return nil, fmt.Errorf("--certificate has no use while temporal.mutual_tls is off: %w", inventory.ErrInvalid)
	case identity != "":
		if certificate == "" {
			certificate = identity
			if _, err := os.Stat(identity); err != nil {
				return nil, human.Advise(fmt.Errorf("looking for the certificate of Temporal: %w", err),
					"ingot serve creates the certificate at its first start")
			}
		}
		cert, key, ca = certificate, certificate, certificate
		env["TEMPORAL_TLS_SERVER_NAME"] = temporalchild.ServerName
	}

	if t.Address != "" && t.TLSServerName != "" {
		env["TEMPORAL_TLS_SERVER_NAME"] = t.TLSServerName
	}
	if t.EncryptionKeyFile != "" {
		env["TEMPORAL_CODEC_ENDPOINT"] = hostnet.LocalURL(cfg) + "/codec"
	}
	switch {
	case cert != "" || ca != "" || env["TEMPORAL_TLS_SERVER_NAME"] != "" || t.APIKeyFile != "" && !config.Loopback(t.Address):
		env["TEMPORAL_TLS"] = "true"
	case t.APIKeyFile != "": // without this variable, a client with an API key uses TLS
		env["TEMPORAL_TLS"] = "false"
	}

	for name, file := range map[string]string{"CLIENT_CERT": cert, "CLIENT_KEY": key, "SERVER_CA_CERT": ca} {
		if file != "" {
			env["TEMPORAL_TLS_"+name+"_PATH"] = file
		}
	}

	return env, nil
}
