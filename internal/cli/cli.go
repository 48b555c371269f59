// Package cli is the ingot command. Every subcommand is a client of a server's REST API,
// except those that work on this host's files.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
)

// Main runs the command with the arguments of the process and returns its exit code. version
// is the version of the build, or "" for the version of the module.
func Main(version string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	return run(ctx, newRoot(version), &terminal{file: os.Stdout}, &terminal{file: os.Stderr})
}

// Root returns the whole command line, of which manual pages and completions are made.
func Root(version string) *cobra.Command { return newRoot(version) }

// run executes the command line of root and returns the exit code.
func run(ctx context.Context, root *cobra.Command, out, errs io.Writer) int {
	root.SetOut(out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		report(cmd, err)
	}
	return exitCode(err)
}

// moduleVersion is the version in the build information of the program.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

func newRoot(version string) *cobra.Command {
	if version == "" {
		version = moduleVersion()
	}

	o := &options{pollEvery: 300 * time.Millisecond, version: version}
	root := &cobra.Command{
		Use: "ingot", Short: "Install operating systems on bare metal, durably", Version: version,
		Long: `Install operating systems on bare metal, durably.

"ingot serve" is the server; everything else talks to one: by default to the
one that this host's configuration describes, or with --server or after
"ingot login URL" to another.

Exit codes: 0 done, 1 failed, 2 wrong usage or invalid input, 3 not found,
4 conflict with the present state or a running workflow, 5 the server or a part
of it does not answer now, 6 another server works for the site, 7 with
--require-evidence: the evidence is weak, or nothing was installed.`,
		Example: `  ingot init                                        # once: configuration, keys, token
  ingot serve                                       # the server
  ingot machine add node-1 --mac 02:00:00:00:00:01 --address 10.0.0.11/24
  ingot image add debian-12 debian-12.raw.zst
  ingot machine provision node-1 --image debian-12 --wait`,
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return o.checkOutput(cmd) },
	}

	f := root.PersistentFlags()
	f.StringVar(&o.ServerURL, "server", "",
		"the server's URL (or INGOT_SERVER; default: where this host logged in, or its own configuration)")
	f.StringVar(&o.TokenFile, "token-file", "", "file with the admin token (or the token itself in INGOT_TOKEN)")
	f.StringVar(&o.ConfigFile, "config", config.DefaultFile(), "configuration file of this host")
	f.StringVarP(&o.output, "output", "o", "table", "table, json or yaml; also of errors")
	completeWords(root, "output", "table", "json", "yaml")

	root.AddCommand(
		serveCommand(o), initCommand(o), doctorCommand(o), statusCommand(o),
		machineCommand(o), templateCommand(o), imageCommand(o), workflowCommand(o), operationCommand(o),
		genesisCommand(o), recoverCommand(o), bmcCommand(o), netbootCommand(o), dhcpCommand(o), whyCommand(o),
		configCommand(o), secretCommand(o), notifyCommand(o), metricsCommand(o), backupCommand(o), restoreCommand(o),
		standbyCommand(o), peerCommand(o), migrateCommand(o), handoverCommand(o),
		loginCommand(o), loginLinkCommand(o), temporalCommand(o), schemaCommand(o), importCommand(o), exportCommand(o), versionCommand(o),
	)
	return root
}

func versionCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "version", Short: "Print this program's version", Args: cobra.NoArgs, Example: "  ingot version",
	}, func(c *call) error {
		return showText(c, map[string]string{"version": c.version}, c.version)
	})
}
