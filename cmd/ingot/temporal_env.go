package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporalchild"
)

func temporalCmd(o *options) *cobra.Command {
	return group("temporal", "The temporal command beside this one", "  eval \"$(ingot temporal env)\"", temporalEnvCmd(o))
}

func temporalEnvCmd(o *options) *cobra.Command {
	var certificate string
	c := &cobra.Command{
		Use: "env", Short: "Print what the temporal command needs to reach this site", Args: cobra.NoArgs,
		Long: `Print what the unmodified temporal command, or any other program that reads the
environment of Temporal's clients, needs to reach the Temporal of this host's
server: address, namespace, and TLS files. A shell can evaluate it.

It reads the configuration of this host and asks no server. With
temporal.mutual_tls it names the certificate that "ingot serve" makes at its
first start. Whoever can read that file can start and end every workflow.

--certificate names a copy of it, for a shell that does not see the file system
of "ingot serve": outside its container.`,
		Example: "  eval \"$(ingot temporal env)\" && temporal workflow list\n" +
			"  docker compose cp ingot:/var/lib/ingot/temporal/identity.pem .\n" +
			"  eval \"$(docker compose exec -T ingot /usr/bin/ingot temporal env --certificate \"$PWD/identity.pem\")\"\n" +
			"  ingot temporal env --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			env, err := temporalEnv(cfg, certificate)
			if err != nil {
				return err
			}
			return showValue(cmd, o, env, func(w io.Writer) error {
				for _, name := range slices.Sorted(maps.Keys(env)) {
					if _, err := fmt.Fprintf(w, "export %s=%s\n", name, shellWord(env[name])); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&certificate, "certificate", "", "with temporal.mutual_tls: a copy of the certificate, to be named in its place")
	return c
}

// temporalEnv returns the variables by which Temporal's own clients find the
// Temporal of a site. certificate is named in place of that in the data
// directory; "": that one, which must be there.
func temporalEnv(cfg config.Config, certificate string) (map[string]string, error) {
	t := cfg.Temporal
	env := map[string]string{"TEMPORAL_ADDRESS": t.Address, "TEMPORAL_NAMESPACE": t.Namespace}
	cert, key, ca := t.TLSCert, t.TLSKey, t.TLSCA
	if t.Address == "" {
		env["TEMPORAL_ADDRESS"] = config.Join("127.0.0.1", t.Port)
	}

	identity := cfg.TemporalIdentity()
	switch {
	case identity == "" && certificate != "":
		return nil, usage("--certificate belongs to temporal.mutual_tls, which is off")
	case identity != "":
		if certificate == "" {
			certificate = identity
			if _, err := os.Stat(identity); err != nil {
				return nil, advice{fmt.Errorf("looking for the certificate of Temporal: %w", err), "ingot serve makes it at its first start"}
			}
		}
		cert, key, ca = certificate, certificate, certificate
		env["TEMPORAL_TLS_SERVER_NAME"] = temporalchild.ServerName
	}

	if cert != "" || ca != "" {
		env["TEMPORAL_TLS"] = "true"
	}
	for name, file := range map[string]string{"CLIENT_CERT": cert, "CLIENT_KEY": key, "SERVER_CA_CERT": ca} {
		if file != "" {
			env["TEMPORAL_TLS_"+name+"_PATH"] = file
		}
	}
	return env, nil
}
