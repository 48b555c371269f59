package main

import (
	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/site"
)

func standbyCmd(o *options) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "standby", Short: "Make this host one to which a site can be moved", Args: cobra.NoArgs,
		Long: `Make this host one to which a site can be moved: in an empty data directory it
makes the key by which the source knows this server, the admin token, and a
token that is good for one source. "ingot serve" then stands by: no DHCP, no
workflows, no power; it answers its source alone (site.listen, TLS).

Where a standby was made already, it says so and changes nothing, so that it may
be run before each start; one with another token in its place awaits another
source, once "ingot serve" is stopped. A token or key that lies in its place is taken:
"ingot standby files" makes them elsewhere, for a Kubernetes Secret.`,
		Example: "  ingot standby && ingot serve\n  ingot peer add um760 https://10.10.20.5:7444 --fingerprint sha256:… --peer-token-file standby.token   # at the source",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			s, err := site.MakeStandby(cmd.Context(), cfg, name)
			if err != nil {
				return err
			}
			printStandby(cmd, s)
			return nil
		},
	}
	c.Flags().StringVar(&name, "name", "", "this server among its peers (default: site.name, then the host's name)")
	c.AddCommand(&cobra.Command{
		Use: "files DIR", Short: "Make the key and the token of a standby elsewhere", Args: cobra.ExactArgs(1),
		Long: `Make site.pem (the key by which the source knows the standby) and standby.token
in DIR. Put them beside the key_file of the standby, from a Kubernetes Secret for
example, before "ingot standby" is run there.`,
		Example: "  ingot standby files ./secret",
		RunE: func(cmd *cobra.Command, args []string) error {
			certFile, token, fingerprint, err := site.MakeStandbyFiles(args[0])
			if err != nil {
				return err
			}
			cmd.Printf("wrote %s and %s\nfingerprint: %s\n", certFile, token, fingerprint)
			return nil
		},
	})
	return c
}

func printStandby(cmd *cobra.Command, s site.StandbyResult) {
	switch s.Outcome {
	case site.StandbyReassigned:
		cmd.Printf("this server was made a standby already; it has another token now, for another source\n")
	case site.StandbyUnchanged:
		cmd.Printf("this server was made a standby already, and is %s now; nothing was changed\n", s.Role)
	}
	if s.Role != site.Standby {
		return
	}
	cmd.Printf("name:        %s\nURL:         %s\nfingerprint: %s\ntoken:       in %s\n", s.Name, s.URL, s.Fingerprint, s.TokenFile)
	cmd.Printf("next: ingot serve; and at the source, with a copy of the token: ingot peer add %s %s --fingerprint %s --peer-token-file FILE\n", s.Name, s.URL, s.Fingerprint)
}
