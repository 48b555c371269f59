package server

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporalchild"
)

// TestMain: the server starts its Temporal by executing itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == temporalchild.Subcommand {
		if err := RunTemporalChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
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
