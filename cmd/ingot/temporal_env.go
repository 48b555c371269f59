package main

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/server"
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
			env, err := server.TemporalEnv(cfg, certificate)
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
