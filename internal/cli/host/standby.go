package host

import (
	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/siterole"
)

func standbyCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "standby", Short: "Set this host up as one to which a site can be moved", Args: cobra.NoArgs,
		Long: `Set this host up as one to which a site can be moved: in an empty data directory it
makes the key by which the source knows this server, the admin token, and a token
that is good for one source. "ingot serve" then waits for it: no DHCP, no workflows,
no power; it answers only its source (site.listen, TLS).

Where a standby was set up already, it says so and changes nothing, so that it may
be run before each start; a standby whose token file has another token waits for
another source, once "ingot serve" is stopped. An existing token or key file is
used: "ingot standby files" makes them elsewhere, for a Kubernetes Secret.`,
		Example: "  ingot standby && ingot serve\n" +
			"  # at the source:\n" +
			"  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token",
	}

	name := cmd.Flags().String("name", "",
		"name of this server among its peers (default: site.name, then the host's name)")
	cmd.AddCommand(standbyFilesCommand(o))

	return o.NewCommand(cmd, func(c *cli.Call) error {
		cfg, err := c.LoadConfig()
		if err != nil {
			return err
		}

		s, err := siterole.MakeStandby(c.Context(), cfg, *name)
		if err != nil {
			return err
		}

		switch s.Outcome {
		case siterole.StandbyReassigned:
			c.Printf("this server was a standby already; it has another token now, for another source\n")
		case siterole.StandbyUnchanged:
			c.Printf("this server was made a standby already, and is %s now; nothing was changed\n", s.Role)
			if s.Role != siterole.Standby {
				return nil
			}
		}

		c.Printf("name:        %s\nURL:         %s\nfingerprint: %s\ntoken:       in %s\n",
			s.Name, s.URL, s.Fingerprint, s.TokenFile)
		c.Printf("next: ingot serve; and at the source, with a copy of the token: "+
			"ingot peer add %s %s --fingerprint %s --peer-token-file FILE\n", s.Name, s.URL, s.Fingerprint)
		return nil
	})
}

func standbyFilesCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "files DIR", Short: "Make the key and the token of a standby elsewhere", Args: cobra.ExactArgs(1),
		Long: `Make site.pem (the key by which the source knows the standby) and standby.token in
DIR. Put them next to the key_file of the standby, from a Kubernetes Secret for
example, before "ingot standby" is run there.`,
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
