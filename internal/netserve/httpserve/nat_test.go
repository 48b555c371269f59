package httpserve

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestS35ThousandMachinesBehindOneAddress: 1,000 machines behind one relay, proxy or NAT address boot
// at once. Each keeps the connection of its first request open, and all of them are in the middle of
// the second one at the same time. Only idle connections are closed for them.
func TestS35ThousandMachinesBehindOneAddress(t *testing.T) {
	const machines, limit = 1000, 1024
	var booting sync.WaitGroup
	booting.Add(machines)
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/kernel" {
			booting.Done()
			booting.Wait()
		}
	})}
	Limit(srv, limit, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var served errgroup.Group
	served.Go(func() error { return srv.Serve(Track(l)) })

	fetch := func(path string) error {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() }) // the server may have closed it
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: m\r\n\r\n", path); err != nil {
			return err
		}
		status := make([]byte, len("HTTP/1.1 200 OK"))
		if _, err := io.ReadFull(c, status); err != nil || string(status) != "HTTP/1.1 200 OK" {
			return fmt.Errorf("%s: %q: %w", path, status, err)
		}
		return nil
	}
	for _, path := range []string{"/script", "/kernel"} {
		var all errgroup.Group
		for range machines {
			all.Go(func() error { return fetch(path) })
		}
		require.NoError(t, all.Wait())
	}
	require.NoError(t, srv.Close())
	require.ErrorIs(t, served.Wait(), http.ErrServerClosed)
}
