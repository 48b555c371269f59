package bmc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// amtPort is a port on which AMT may listen. url has no path. secure reports whether the port uses TLS.
type amtPort struct {
	url    string
	port   int
	secure bool
}

// String describes the port for error messages.
func (p amtPort) String() string {
	if p.secure {
		return fmt.Sprintf("port %d (TLS)", p.port)
	}
	return fmt.Sprintf("port %d (without TLS)", p.port)
}

// clearFor is how long operations try the port without TLS first, after only that port has answered. A closed TLS port
// that drops packets thus delays only the first operation.
const clearFor = time.Hour

// amtPorts returns the ports of AMT in the order in which to try them: first the port with TLS, then the port without
// TLS, which AMT 16.1 and later disable. If clearFirst is set, the port without TLS is first. If b sets a port, only
// that port is returned. If b has a fingerprint, only a port with TLS is returned.
func amtPorts(b inventory.BMC, clearFirst bool) []amtPort {
	can := b.Capabilities()
	at := func(port int) amtPort {
		p := amtPort{port: port, secure: port == can.Port || b.Fingerprint != ""}
		scheme := "http://"
		if p.secure {
			scheme = "https://"
		}
		p.url = scheme + net.JoinHostPort(b.Host, strconv.Itoa(port))
		return p
	}
	ports := []amtPort{at(b.ListenPort())}
	if b.Port == 0 && b.Fingerprint == "" {
		ports = append(ports, at(can.ClearPort))
	}
	if clearFirst {
		slices.Reverse(ports)
	}
	return ports
}

// findPort sends an empty request to each port until one answers with a challenge, and keeps only that port. It does
// not try the port without TLS if the port with TLS has answered before, or if the BMC's TLS key is known: otherwise an
// attacker who blocks the TLS port could force a connection without TLS.
func (w *wsman) findPort(ctx context.Context) error {
	var failed error
	for i, p := range w.ports {
		w.port = p
		err := w.checkClear(ctx)
		if err == nil {
			err = w.requestChallenge(ctx)
		}
		if err == nil {
			w.ports = []amtPort{p}
			return nil
		}
		if len(w.ports) == 1 || ctx.Err() != nil {
			return err
		}
		if err = fmt.Errorf("%s: %w", p, err); i > 0 {
			err = fmt.Errorf("%w; %w", failed, err)
		}
		if failed = err; !errors.Is(err, inventory.ErrUnreachable) {
			return err
		}
	}
	return failed
}

// checkClear returns an error if w.port has no TLS although the BMC is known to use TLS. If no other port was to be
// tried, it returns nil.
func (w *wsman) checkClear(ctx context.Context) error {
	switch {
	case w.port.secure || w.mayBeClear == nil:
		return nil
	case w.spokeTLS.Load():
		return fmt.Errorf("this port is not used, because AMT has answered on the port with TLS: %w", inventory.ErrUnreachable)
	}
	return w.mayBeClear(ctx)
}

// mayBeClear returns a function that checks whether Ingot may connect to b without TLS. The function returns an error
// if the TLS key of b is known, or if the configuration sets the authorities of all BMCs. name is b's host in the
// inventory.
func (d *Driver) mayBeClear(name string, b inventory.BMC) func(context.Context) error {
	b.Host = name
	return func(ctx context.Context) error {
		if d.cfg.Authorities != nil {
			return fmt.Errorf("this port is not used, because the server's configuration sets bmc.ca_file; to use the port, "+
				"set bmc.port of the machine: %w", inventory.ErrUnreachable)
		}
		if d.cfg.Keys == nil {
			return nil
		}
		known, err := d.cfg.Keys.HasBMCKey(ctx, b.KeyAddress())
		if err == nil && known {
			err = fmt.Errorf("this port is not used, because the TLS key of this BMC is stored; to delete that key: "+
				"ingot bmc forget-key: %w", inventory.ErrUnreachable)
		}
		return err
	}
}
