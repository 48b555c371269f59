package host

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
)

func configCommand(o *cli.Options) *cobra.Command {
	return cli.Group("config", "The server's configuration", "  ingot config check\n  ingot config example",
		configCheckCommand(o), configExampleCommand(o), cli.Instead("view show get", "ingot config check --output yaml"))
}

func configCheckCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "check [FILE]", Short: "Report all problems in a configuration file", Args: cobra.MaximumNArgs(1),
		Example: "  ingot config check\n  ingot config check /etc/ingot/ingot.yaml",
	}, func(c *cli.Call) error {
		file, named := c.ConfigFile, c.Flags().Changed("config")
		if len(c.Args) > 0 {
			file, named = c.Args[0], true
		}

		cfg, err := config.Load(file, named)
		if err != nil {
			return err
		}

		return cli.ShowText(c, cfg, file+" is valid; ingot doctor checks whether the files and interfaces in it exist")
	})
}

func configExampleCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "example", Short: "Print an example configuration with comments", Args: cobra.NoArgs,
		Example: "  ingot config example > ingot.yaml",
	}, func(c *cli.Call) error {
		_, err := io.WriteString(c.OutOrStdout(), configExample{}.text())
		return err
	})
}

// configExample holds the values that "ingot init" puts into the commented configuration.
type configExample struct {
	settings  []setting
	mutualTLS bool
}

// text returns the commented configuration with these values and this user's paths.
func (e configExample) text() string {
	lines := ""
	if !slices.ContainsFunc(e.settings, func(s setting) bool { return s.key == "interfaces" }) {
		lines = "  #interfaces: [eth1]             # where machines are answered; none: DHCP is off\n"
	}
	for _, s := range e.settings {
		lines += "  " + s.key + ": " + s.value + "\n"
	}

	text := fmt.Sprintf(config.Example, lines)
	if e.mutualTLS {
		text = strings.Replace(text, "\n#temporal:\n", "\ntemporal:\n"+
			"  mutual_tls: true               # ingot temporal env prints what the temporal command needs\n", 1)
	}

	etc, state := config.Paths()
	return strings.NewReplacer("/var/lib/ingot", state, "/etc/ingot", etc).Replace(text)
}
