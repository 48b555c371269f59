// Command ingot installs operating systems on bare metal: the server (ingot
// serve) and everything that talks to it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by -ldflags; see the Makefile.
var version string

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := rootCmd()
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ingot: "+err.Error())
		return exitCode(err)
	}
	return 0
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
	root := &cobra.Command{
		Use: "ingot", Short: "Install operating systems on bare metal, durably", Version: build(),
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(serveCmd(), temporalChildCmd())
	return root
}
