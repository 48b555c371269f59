package host

import (
	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/siterole"
)

func standbyCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "standby", Short: "Set up this host as a standby, to which a site can be moved", Args: cobra.NoArgs,
		Long: `Set up this host as a standby: a server to which a site can be moved from another
server, the source. In an empty data directory, the command creates the key by which the
source recognizes this server, the admin token, and a token for one source. "ingot
serve" then waits for that source: it runs no DHCP and no workflows, switches no power,
and answers only the source (site.listen, TLS).

If this host is already a standby, the command changes nothing, so it can run before
each start. The only exception: if the token file contains a new token, the standby
waits for another source from then on; stop "ingot serve" for this. Existing token and
key files are used; to create them on another host, for example for a Kubernetes Secret,
run "ingot standby files" there.`,
		Example: "  ingot standby && ingot serve\n" +
			"  # at the source:\n" +
			"  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token",
	}

	name := cmd.Flags().String("name", "",
		"name of this server among its peers (default: site.name in the configuration, else the host name)")
	cmd.AddCommand(standbyFilesCommand(o))

	return o.NewCommand(cmd, withConfig(func(c *cli.Call, cfg config.Config) error {
		s, err := siterole.MakeStandby(c.Context(), cfg, *name)
		if err != nil {
			return err
		}

		switch s.Outcome {
		case siterole.StandbyReassigned:
			c.Printf("this server was already a standby; it now has a new token, for another source\n")
		case siterole.StandbyUnchanged:
			c.Printf("this server was set up as a standby earlier; its role is now %s; nothing was changed\n", s.Role)
			if s.Role != siterole.Standby {
				return nil
			}
		}

		c.Printf("name:        %s\nURL:         %s\nfingerprint: %s\ntoken:       in %s\n",
			s.Name, s.URL, s.Fingerprint, s.TokenFile)
		c.Printf("next: ingot serve; and at the source, with a copy of the token: "+
			"ingot peer add %s %s --fingerprint %s --peer-token-file FILE\n", s.Name, s.URL, s.Fingerprint)
		return nil
	}))
}

func standbyFilesCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "files DIR", Short: "Create key and token files for a standby on another host", Args: cobra.ExactArgs(1),
		Long: `Create two files in DIR for a standby on another host: site.pem, the key by which the
source recognizes the standby, and standby.token. Before "ingot standby" runs on that
host, put both files next to the key_file in the host's configuration, for example from
a Kubernetes Secret.`,
		Example: "  ingot standby files ./secret",
	}, func(c *cli.Call) error {
		certificate, token, fingerprint, err := siterole.MakeStandbyFiles(c.Args[0])
		if err != nil {
			return err
		}

		c.Printf("wrote %s and %s\nfingerprint: %s\n", certificate, token, fingerprint)
		return nil
	})
}
