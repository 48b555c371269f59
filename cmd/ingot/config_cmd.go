package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
)

func configCmd(o *options) *cobra.Command {
	check := &cobra.Command{
		Use: "check [FILE]", Short: "Tell everything that is wrong with a configuration", Args: cobra.MaximumNArgs(1),
		Example: "  ingot config check\n  ingot config check /etc/ingot/ingot.yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			file, named := o.config, cmd.Flags().Changed("config")
			if len(args) > 0 {
				file, named = args[0], true
			}
			c, err := config.Load(file, named)
			if err != nil {
				return err
			}
			return showValue(cmd, o, c, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s is right; ingot doctor tells whether what it names is there\n", file)
				return err
			})
		},
	}
	example := &cobra.Command{
		Use: "example", Short: "Print a commented configuration", Args: cobra.NoArgs, Example: "  ingot config example > ingot.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), exampleConfig(nil, "", ""))
			return err
		},
	}
	return group("config", "The server's configuration", "  ingot config check\n  ingot config example", check, example)
}

// exampleConfig is the commented configuration with this user's paths, the
// chosen interfaces, and the directories of boot files that were found ("" =
// not found).
func exampleConfig(interfaces []string, loaders, agentOS string, more ...string) string {
	line := "  #interfaces: [eth1]             # where machines are answered; none: DHCP is off\n"
	if len(interfaces) > 0 {
		line = "  interfaces: [" + strings.Join(interfaces, ", ") + "]\n"
	}
	for _, x := range []struct{ key, dir string }{{"loaders", loaders}, {"agent_os", agentOS}} {
		if x.dir != "" {
			line += fmt.Sprintf("  %s: %q\n", x.key, x.dir)
		}
	}
	for _, m := range more {
		line += "  " + m + "\n"
	}
	etc, state := config.Paths()
	text := fmt.Sprintf(config.Example, line)
	return strings.NewReplacer("/var/lib/ingot", state, "/etc/ingot", etc).Replace(text)
}
