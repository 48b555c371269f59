package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/ingotmetal/ingot/internal/server"
	"github.com/spf13/cobra"
)

func temporalCommand(o *options) *cobra.Command {
	return group("temporal", "Use Temporal's own command with this site", "  eval \"$(ingot temporal env)\"",
		temporalEnvCommand(o))
}

func temporalEnvCommand(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "env", Short: "Print the environment that the temporal command needs for this site", Args: cobra.NoArgs,
		Long: `Print what the unmodified temporal command, or any other program that reads the
environment of Temporal's clients, needs to reach the Temporal of this host's
server: address, namespace, and TLS files. A shell can evaluate it.

It reads the configuration of this host and asks no server. With
temporal.mutual_tls it names the certificate that "ingot serve" makes at its
first start. Any process that can read that file can start and end every
workflow.

--certificate names a copy of it, for a shell that does not see the file system
of "ingot serve": outside its container.`,
		Example: `  eval "$(ingot temporal env)" && temporal workflow list
  docker compose cp ingot:/var/lib/ingot/temporal/identity.pem .
  eval "$(docker compose exec -T ingot /usr/bin/ingot temporal env --certificate "$PWD/identity.pem")"
  ingot temporal env --output json`,
	}

	certificate := cmd.Flags().String("certificate", "",
		"with temporal.mutual_tls: a copy of the certificate, to be named in its place")

	return o.command(cmd, func(c *call) error {
		cfg, err := c.loadConfig()
		if err != nil {
			return err
		}

		env, err := server.TemporalEnv(cfg, *certificate)
		if err != nil {
			return err
		}

		return showValue(c, env, func(w io.Writer) error {
			for _, name := range slices.Sorted(maps.Keys(env)) {
				if _, err := fmt.Fprintf(w, "export %s=%s\n", name, shellWord(env[name])); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
