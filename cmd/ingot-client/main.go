// Command ingot-client is the command line of Ingot without the server: a small program named ingot, for the computers of
// operators.
package main

import (
	"os"

	"github.com/ingotmetal/ingot/internal/cli"
)

// version is set by -ldflags; see deploy/release/release.sh.
var version string

func main() { os.Exit(cli.Main(version, cli.ClientOnly)) }
