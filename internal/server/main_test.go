package server

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporalchild"
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

// freePorts finds ports that nobody has now; Temporal takes four in a row.
func freePorts() (p sitePorts, err error) {
	for range 100 {
		var held []net.Listener
		take := func(port int) int {
			l, e := net.Listen("tcp", config.Join("127.0.0.1", port))
			if e != nil {
				err = e
				return 0
			}
			held = append(held, l)
			return l.Addr().(*net.TCPAddr).Port
		}
		err = nil
		p = sitePorts{listen: take(0), ui: take(0), temporal: take(0)}
		for n := 1; n < 4 && err == nil; n++ {
			take(p.temporal + n)
		}
		for _, l := range held {
			if e := l.Close(); err == nil {
				err = e
			}
		}
		if err == nil {
			return p, nil
		}
	}
	return p, fmt.Errorf("finding free ports: %w", err)
}
