package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// hostProgram says which program has the commands that a client-only program lacks.
const hostProgram = "install the package ingot"

// hostCommands are the commands of package host, by the group that they belong to; "" is the root.
func hostCommands() map[string][]string {
	return map[string][]string{
		"":         {"serve", "init", "doctor", "config", "backup", "restore", "standby"},
		"secret":   {"reset"},
		"dhcp":     {"snippet"},
		"temporal": {"setup", "env", "new-key"},
	}
}

// ClientOnly makes root a program that is a client of a server, and nothing else. A command that works on the server's host
// returns a usage error that says so.
func ClientOnly(root *cobra.Command, _ *Options) {
	root.Long = strings.Replace(root.Long, serveHelp, `This program is a client: its commands send requests to a server`, 1)
	root.Example = `  ingot login https://ingot.example.com:8443 --fingerprint sha256:9f86d08…   # once
  ingot machine list
  ingot machine provision node-1 --image debian-12 --wait`
	groups := map[string]*cobra.Command{"": root}
	for _, c := range root.Commands() {
		groups[c.Name()] = c
	}
	for group, names := range hostCommands() {
		for _, name := range names {
			groups[group].AddCommand(hostOnly(name))
		}
	}
}

// hostOnly returns a hidden command in place of one that works on the server's host.
func hostOnly(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return commandError{UsageError("%q runs on the server's host: %s", cmd.CommandPath(), hostProgram)}
		},
	}
}
