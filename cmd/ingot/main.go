// Command ingot installs operating systems on bare metal: the server (ingot
// serve) and everything that talks to it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/config"
)

// version is set by -ldflags; see the Makefile.
var version string

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := rootCmd()
	root.SetOut(&terminal{file: os.Stdout})
	root.SetErr(&terminal{file: os.Stderr})
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		report(cmd, err)
	}
	return exitCode(err)
}

func build() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

func rootCmd() *cobra.Command {
	o := &options{poll: 300 * time.Millisecond}
	root := &cobra.Command{
		Use: "ingot", Short: "Install operating systems on bare metal, durably", Version: build(),
		Long: `Install operating systems on bare metal, durably.

"ingot serve" is the server; everything else talks to one: by default to the
one that this host's configuration describes, or with --server or after
"ingot login URL" to another.

Exit codes: 0 done, 1 failed, 2 wrong usage or invalid input, 3 not found,
4 conflict with what is there or going on, 5 the server or a part of it does
not answer now.`,
		Example: `  ingot init                                        # once: configuration, keys, token
  ingot serve                                       # the server
  ingot machine add node-1 --mac 02:00:00:00:00:01 --address 10.0.0.11/24
  ingot image add debian-12 debian-12.raw.zst
  ingot machine provision node-1 --image debian-12 --wait`,
		SilenceUsage: true, SilenceErrors: true,
		// Before anything is done: a form that does not exist must not be found
		// out afterwards.
		PersistentPreRunE: func(*cobra.Command, []string) error { return o.check() },
	}
	f := root.PersistentFlags()
	f.StringVar(&o.server, "server", "", "the server's URL (or INGOT_SERVER; default: where this host logged in, or its own configuration)")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the admin token (or the token itself in INGOT_TOKEN)")
	f.StringVar(&o.config, "config", config.DefaultFile(), "configuration file of this host")
	f.StringVarP(&o.output, "output", "o", "table", "table, json or yaml; of errors, too")
	root.AddCommand(serveCmd(), temporalChildCmd(), initCmd(o), doctorCmd(o), statusCmd(o),
		machineCmd(o), templateCmd(o), imageCmd(o), workflowCmd(o), operationCmd(o), genesisCmd(o), recoverCmd(o), bmcCmd(o), netbootCmd(o), whyCmd(o),
		configCmd(o), secretCmd(o), notifyCmd(o), backupCmd(o), restoreCmd(o), standbyCmd(o), peerCmd(o), migrateCmd(o), handoverCmd(o), loginCmd(o), loginLinkCmd(o), temporalCmd(o), versionCmd(o))
	cobra.CheckErr(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp)))
	markRuns(root)
	return root
}

func versionCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print this program's version", Args: cobra.NoArgs, Example: "  ingot version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return showValue(cmd, o, map[string]string{"version": build()}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, build())
				return err
			})
		},
	}
}
