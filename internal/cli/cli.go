// Package cli holds the commands of ingot that are clients of a server's REST API, and the code that all commands share.
// Package host adds the commands that work on files of the server's host.
package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
)

// An Extension adds commands to the command line.
type Extension func(root *cobra.Command, o *Options)

// Main runs ingot with the arguments of the process and returns the exit code. version
// is the version of the build, or "" for the version of the Go module.
func Main(version string, more ...Extension) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	return Run(ctx, Root(version, more...), &terminal{file: os.Stdout}, &terminal{file: os.Stderr})
}

// Run executes the command line of root and returns the exit code.
func Run(ctx context.Context, root *cobra.Command, out, errs io.Writer) int {
	root.SetOut(out)
	root.SetErr(errs)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		report(cmd, err)
	}
	return exitCode(err)
}

// serveHelp begins the help about servers.
const serveHelp = `"ingot serve" runs the server. Most other commands send requests to a server`

// moduleVersion returns the version of the Go module in the program's build information.
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

// Root returns the root command, with all commands of this package and of the extensions.
func Root(version string, more ...Extension) *cobra.Command {
	if version == "" {
		version = moduleVersion()
	}

	o := &Options{pollEvery: 300 * time.Millisecond, watchEvery: 2 * time.Second, ProgramVersion: version}
	root := &cobra.Command{
		Use: "ingot", Short: "Install operating systems on bare metal", Version: version,
		Long: `Install operating systems on bare metal, by workflows that continue after a restart.

` + serveHelp + `.
The URL of the server is taken from --server, else from INGOT_SERVER, else from the
stored login ("ingot login URL"), else from this host's configuration.

Exit codes:
  0  success
  1  failure
  2  wrong usage or invalid input
  3  not found
  4  conflict with the current state or with a running workflow
  5  the server, or a part of it, does not answer
  6  another server is active for the site
  7  with --require-evidence: nothing was installed, or no evidence that the system is up`,
		Example: `  ingot init                                        # once: configuration, keys, token
  ingot serve                                       # the server
  ingot machine add node-1 --mac 02:00:00:00:00:01 --address 10.0.0.11/24
  ingot image add debian-12 debian-12.raw.zst
  ingot machine provision node-1 --image debian-12 --wait`,
		SilenceUsage: true, SilenceErrors: true, Args: cobra.ArbitraryArgs, RunE: runGroup,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return o.checkOutput(cmd) },
	}

	f := root.PersistentFlags()
	f.StringVar(&o.ServerURL, "server", "",
		"URL of the server (default: INGOT_SERVER, else the stored login, else this host's configuration)")
	f.StringVar(&o.TokenFile, "token-file", "", "file with the token; alternatively, INGOT_TOKEN contains the token itself")
	f.StringVar(&o.ConfigFile, "config", config.DefaultFile(), "configuration file of this host's server")
	f.StringVarP(&o.output, "output", "o", outputTable, "format of output and errors: "+strings.Join(outputs(), ", "))
	completeWords(root, "output", outputs()...)

	root.AddCommand(
		statusCommand(o),
		machineCommand(o),
		templateCommand(o),
		imageCommand(o),
		workflowCommand(o),
		operationCommand(o),
		genesisCommand(o),
		recoverCommand(o), togetherCommand(o),
		bmcCommand(o),
		netbootCommand(o),
		dhcpCommand(o),
		temporalCommand(o),
		whyCommand(o),
		secretCommand(o),
		notifyCommand(o),
		metricsCommand(o),
		peerCommand(o),
		migrateCommand(o),
		handoverCommand(o),
		loginCommand(o),
		loginLinkCommand(o),
		whoamiCommand(o),
		tokenCommand(o),
		schemaCommand(o),
		applyCommand(o),
		diffCommand(o),
		importCommand(o),
		exportCommand(o),
		versionCommand(o),
	)
	for _, add := range more {
		add(root, o)
	}
	groupCommands(root)
	addShortCommands(root, o)
	addHabits(root, rootHabits())
	root.SetFlagErrorFunc(explainFlagError)
	return root
}

// groupCommands divides the help of root into its commands and their second names.
func groupCommands(root *cobra.Command) {
	root.AddGroup(&cobra.Group{ID: groupMain, Title: "Commands:"}, &cobra.Group{ID: groupShort, Title: "Second names:"})
	root.SetHelpCommandGroupID(groupMain)
	root.SetCompletionCommandGroupID(groupMain)
	for _, c := range root.Commands() {
		c.GroupID = groupMain
	}
}

func versionCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "version", Short: "Print this program's version", Args: cobra.NoArgs, Example: "  ingot version\n  ingot version --client",
	}
	cmd.Flags().Bool("client", true, "accepted for compatibility with kubectl; has no effect")
	return o.NewCommand(cmd, func(c *Call) error {
		return ShowText(c, map[string]string{"version": c.ProgramVersion}, c.ProgramVersion)
	})
}
