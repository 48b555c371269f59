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

// amtPort is a port of AMT: its URL without a path, and whether it speaks TLS.
type amtPort struct {
	url    string
	port   int
	secure bool
}

// String returns the port as an error names it.
func (p amtPort) String() string {
	if p.secure {
		return fmt.Sprintf("port %d (TLS)", p.port)
	}
	return fmt.Sprintf("port %d (without TLS)", p.port)
}

// clearFor is how long AMT is asked first at its port without TLS after it has answered there and not by TLS, so
// that a closed port that gives no answer costs its time once.
const clearFor = time.Hour

// amtPorts returns the ports to try. Without a port, that is the one with TLS and then the one without, which
// version 16.1 and later has off. With a fingerprint, every port speaks TLS.
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

// findPort gets a challenge from the first port that answers. An answer by TLS, or a key that is known from an
// earlier one, is never followed by a request without TLS: otherwise a client that blocks a port could make Ingot use the other one.
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

// checkClear returns an error if w.port has no TLS, and is one of several ports of a BMC that has used TLS.
func (w *wsman) checkClear(ctx context.Context) error {
	switch {
	case w.port.secure || w.mayBeClear == nil:
		return nil
	case w.spokeTLS.Load():
		return fmt.Errorf("it is not used, because AMT has answered by TLS: %w", inventory.ErrUnreachable)
	}
	return w.mayBeClear(ctx)
}

// mayBeClear returns a function that returns an error if the BMC b, whose host in the inventory is name, may not be asked
// without TLS: its key is known, or the configuration names the authorities of all BMCs.
func (d *Driver) mayBeClear(name string, b inventory.BMC) func(context.Context) error {
	b.Host = name
	return func(ctx context.Context) error {
		if d.cfg.Authorities != nil {
			return fmt.Errorf("it is not used, because bmc.ca_file is given; to use it all the same, give it as bmc.port: %w",
				inventory.ErrUnreachable)
		}
		if d.cfg.Keys == nil {
			return nil
		}
		known, err := d.cfg.Keys.HasBMCKey(ctx, b.KeyAddress())
		if err == nil && known {
			err = fmt.Errorf("it is not used, because the key of its TLS is known (ingot bmc forget-key): %w", inventory.ErrUnreachable)
		}
		return err
	}
}
