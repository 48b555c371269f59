package host

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/temporal/payloadcodec"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func temporalNewKeyCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "new-key", Short: "Add a new key to temporal.encryption_key_file", Args: cobra.NoArgs,
		Long: `Add a new random key at the beginning of temporal.encryption_key_file; if the file is
missing, it is created. Data is encrypted with the first key, and decrypted with any key
in the file. A running "ingot serve" uses the new key after its next start. Remove an
old key when Temporal has deleted every run that was encrypted with it:
temporal.retention after the last of these runs ended.

Keep a copy of the file elsewhere: no backup contains it, and data that was encrypted
with a lost key cannot be read.`,
		Example: "  ingot temporal new-key && systemctl restart ingot",
	}, withConfig(func(c *cli.Call, cfg config.Config) error {
		file := cfg.Temporal.EncryptionKeyFile
		if file == "" {
			return human.Advise(fmt.Errorf("temporal.encryption_key_file is not set in the configuration: %w", inventory.ErrInvalid),
				"set it in "+c.ConfigFile)
		}
		id, err := payloadcodec.NewKey(file)
		if err != nil {
			return err
		}
		return cli.ShowText(c, map[string]string{"file": file, "key": id},
			fmt.Sprintf("key %s is in %s; ingot serve encrypts with it after the next start", id, file))
	}))
}

func temporalSetupCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "setup", Short: "Create this site's namespace and search attributes in Temporal", Args: cobra.NoArgs,
		Long: `Create the namespace and the search attributes that this site needs in the cluster at
temporal.address. Existing ones are kept. The namespace's retention is set to
temporal.retention.

If the cluster does not permit this, the command prints what is missing, with the
command line of the temporal CLI with which an administrator creates it, and the exit
code is 4. The command connects to the cluster, and not to "ingot serve". The embedded
Temporal server needs no setup.`,
		Example: `  ingot temporal setup --check
  ingot temporal setup
  ingot temporal setup --output json`,
	}
	check := cmd.Flags().Bool("check", false, "report what is missing, and create nothing")

	return o.NewCommand(cmd, withConfig(func(c *cli.Call, cfg config.Config) error {
		steps, err := server.SetUpCluster(c.Context(), cfg.Temporal, *check)
		if err != nil {
			return err
		}
		absent := 0
		err = cli.ShowValue(c, steps, func(w io.Writer) error {
			for _, s := range steps {
				line := s.What + ": " + s.State
				if s.Why != "" {
					line += ": " + s.Why
				}
				fmt.Fprintln(w, cli.Inert(line))
				if s.Remedy != "" {
					fmt.Fprintln(w, "  create it with: "+cli.Inert(s.Remedy))
				}
			}
			return nil
		})
		for _, s := range steps {
			if s.State == server.SetupMissing {
				absent++
			}
		}
		if err != nil || absent == 0 {
			return err
		}

		return fmt.Errorf("the cluster lacks %s: %w", human.Count(absent, "thing"), inventory.ErrConflict)
	}))
}

func temporalEnvCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "env", Short: "Print environment variables for the temporal CLI", Args: cobra.NoArgs,
		Long: `Print the environment variables with which the temporal CLI, or any other program that
uses Temporal's environment configuration, connects to this site's Temporal: address,
namespace and TLS files. A shell can evaluate the output.

The command reads the configuration of this host and asks no server. With
temporal.mutual_tls, the output names the client certificate that "ingot serve" creates
at its first start. Any process that can read the certificate's file can start and end
every workflow.

With --certificate, the output names a copy of that certificate instead, for a shell
outside the container of "ingot serve".`,
		Example: `  eval "$(ingot temporal env)" && temporal workflow list
  docker compose cp ingot:/var/lib/ingot/temporal/identity.pem .
  eval "$(docker compose exec -T ingot /usr/bin/ingot temporal env --certificate "$PWD/identity.pem")"
  ingot temporal env --output json`,
	}

	certificate := cmd.Flags().String("certificate", "",
		"with temporal.mutual_tls: path of a copy of the certificate, which the output names instead")

	return o.NewCommand(cmd, withConfig(func(c *cli.Call, cfg config.Config) error {
		env, err := server.TemporalEnv(cfg, *certificate)
		if err != nil {
			return err
		}

		return cli.ShowValue(c, env, func(w io.Writer) error {
			for _, name := range slices.Sorted(maps.Keys(env)) {
				if _, err := fmt.Fprintf(w, "export %s=%s\n", name, cli.ShellWord(env[name])); err != nil {
					return err
				}
			}
			// Print commands that read the secrets, instead of the secrets themselves.
			if key := cfg.Temporal.APIKeyFile; key != "" {
				if _, err := fmt.Fprintf(w, "export TEMPORAL_API_KEY=\"$(cat %s)\"\n", cli.ShellWord(key)); err != nil {
					return err
				}
			}
			if cfg.Temporal.EncryptionKeyFile != "" {
				_, err := fmt.Fprintln(w, "export TEMPORAL_CODEC_AUTH=\"Bearer $(ingot temporal token)\"")
				return err
			}
			return nil
		})
	}))
}
