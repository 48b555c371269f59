// Command ingot installs operating systems on bare metal: the server (ingot
// serve) and its command line.
package main

import (
	"os"

	"github.com/ingotmetal/ingot/internal/cli"
)

// version is set by -ldflags; see the Makefile.
var version string

func main() { os.Exit(cli.Main(version)) }
