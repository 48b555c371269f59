// Package host holds the commands of ingot that work on files of the server's host, including "ingot serve".
package host

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/systems"
)

// AddCommands adds the commands of this package to root, some of them to command groups of package cli. They and the others can
// check lab files and templates without a server.
func AddCommands(root *cobra.Command, o *cli.Options) {
	o.Systems = systems.All{}
	root.AddCommand(
		serveCommand(o), initCommand(o), doctorCommand(o), configCommand(o), backupCommand(o), restoreCommand(o),
		standbyCommand(o),
	)
	groupOf(root, "secret").AddCommand(secretResetCommand(o))
	groupOf(root, "dhcp").AddCommand(dhcpSnippetCommand(o))
	groupOf(root, "temporal").AddCommand(temporalSetupCommand(o), temporalEnvCommand(o), temporalNewKeyCommand(o))
}

// groupOf returns the command group with this name, which package cli must have added to root.
func groupOf(root *cobra.Command, name string) *cobra.Command {
	all := root.Commands()
	return all[slices.IndexFunc(all, func(c *cobra.Command) bool { return c.Name() == name })]
}
