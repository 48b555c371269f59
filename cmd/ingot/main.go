// Command ingot installs operating systems on bare metal. It is the server (ingot
// serve) and the server's command-line client.
package main

import (
	"fmt"
	"os"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/cli/host"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporal/temporalserver"
)

// version is set by -ldflags; see the Makefile.
var version string

func main() {
	// The server starts this program again, as a child process, for the embedded Temporal.
	if len(os.Args) > 1 && os.Args[1] == temporalchild.Subcommand {
		if err := temporalserver.ChildMain(os.Stdin, os.NewFile(temporalchild.ReadyFD, "ready"), os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "ingot:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Main(version, host.AddCommands))
}
