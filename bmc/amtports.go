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

// amtPort is a port of AMT: its URL without a path, and whether it uses TLS.
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

// After only the port without TLS has answered, operations try that port first for the time clearFor: a closed TLS
// port that drops packets then costs its connection time only once.
const clearFor = time.Hour

// amtPorts returns the ports to try, in order. If b sets no port, they are the port with TLS and then the port
// without, which AMT disables from version 16.1 on; clearFirst reverses this order. If b has a fingerprint, only TLS
// is used.
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

// findPort sends an empty request to each port until one answers with a challenge, and keeps only that port. After an
// answer by TLS, or if the BMC's TLS key is known, it never tries the port without TLS: otherwise an attacker who
// blocks the TLS port could force a connection without TLS.
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

// checkClear returns an error if w.port has no TLS, another port with TLS was to be tried, and the BMC is known to use
// TLS.
func (w *wsman) checkClear(ctx context.Context) error {
	switch {
	case w.port.secure || w.mayBeClear == nil:
		return nil
	case w.spokeTLS.Load():
		return fmt.Errorf("this port is not used, because AMT has answered on the port with TLS: %w", inventory.ErrUnreachable)
	}
	return w.mayBeClear(ctx)
}

// mayBeClear returns a function that returns an error if b must not be asked without TLS: its key is known, or the
// configuration sets the authorities of all BMCs. name is b's host in the inventory.
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
