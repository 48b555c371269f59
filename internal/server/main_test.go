package server

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/lab/freeport"
)

// TestMain starts the embedded Temporal where the server executes itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == temporalchild.Subcommand {
		execProgram()
	}
	os.Exit(m.Run())
}

// execProgram becomes bin/ingot, which has the embedded Temporal. The test binary has not: with the race detector the
// Temporal server would have to be compiled a second time.
func execProgram() {
	_, here, _, _ := runtime.Caller(0)
	program := filepath.Join(filepath.Dir(here), "../../bin/ingot")
	err := syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "starting %s (make build makes it): %v\n", program, err)
	os.Exit(1)
}

type sitePorts struct{ listen, temporal, ui int }

// freePorts finds unused ports; Temporal takes four in a row.
func freePorts() (sitePorts, error) {
	port, err := freeport.Find(6)
	return sitePorts{listen: port, ui: port + 1, temporal: port + 2}, err
}
