package bmc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// with calls the function do for one operation, while no other operation uses the BMC. It creates the operation's
// provider, and always closes it. what is the name of the operation in errors and logs.
func (d *Driver) with(ctx context.Context, b inventory.BMC, password inventory.Secret, what string,
	do func(*session) error,
) (err error) {
	defer d.observe(ctx, b, what, &err)()
	if err := check(b); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}

	dialed, t, err := d.acquire(ctx, b)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { <-t.token }()

	began := time.Now()
	name, who := nameOf(b), d.credentials(b, password)
	l := link{
		target: t,
		admit:  func(ctx context.Context) error { return d.admit(ctx, t, b.Machine, who) },
		settle: func(err error) {
			if !password.IsZero() { // without a password, no log-in was sent
				d.settle(ctx, t, err)
			}
		},
	}
	p, err := providers[b.Driver](d, l, b.Host, dialed, password)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, err)
	}
	defer func() {
		if err := p.close(context.WithoutCancel(ctx)); err != nil {
			d.cfg.Log.Warn("closing the connection to a BMC", "host", b.Host, "error", err)
		}
	}()

	err = do(&session{d: d, provider: p})
	d.cfg.Log.Debug("bmc", "host", b.Host, "what", what, "took", time.Since(began), "error", err)
	if err != nil {
		if s, ok := errors.AsType[silentError](err); ok {
			d.cfg.Log.Debug("a BMC does not answer", "host", b.Host, "cause", s.cause)
		}
		return describeFailure(what, name, err)
	}
	return nil
}

// nameOf returns the name of a BMC for errors.
func nameOf(b inventory.BMC) string {
	if b.Capabilities().Shared {
		return fmt.Sprintf("power command %q", b.Command)
	}
	return "BMC " + b.Host
}

// acquire returns a copy of b whose host is the address to connect to, and the target of b, which it has locked by
// lockTarget.
func (d *Driver) acquire(ctx context.Context, b inventory.BMC) (dialed inventory.BMC, t *target, err error) {
	dialed = b
	if b.Host != "" && !b.Capabilities().Relayed {
		if dialed.Host, err = d.resolve(ctx, b.Host); err != nil {
			return dialed, nil, fmt.Errorf("BMC %s: %w", b.Host, err)
		}
	}
	// Lock the address, not the name: a BMC with two names must not have two sessions at once.
	key := net.JoinHostPort(dialed.Host, strconv.Itoa(dialed.OwnPort()))
	if b.Capabilities().Shared {
		key = b.Driver + "/" + b.Machine
	}
	if t, err = d.lockTarget(ctx, key); err != nil {
		return dialed, nil, fmt.Errorf("waiting for %s, which another operation uses: %w", nameOf(b), err)
	}
	return dialed, t, nil
}

// lockTarget waits until no other operation uses the BMC at address, and returns the target of this BMC. To unlock it,
// the caller receives a value from the channel token of the target.
func (d *Driver) lockTarget(ctx context.Context, address string) (*target, error) {
	address = strings.ToLower(address)
	d.mu.Lock()
	t, ok := d.targets[address]
	if !ok {
		t = &target{token: make(chan struct{}, 1), address: address}
		d.targets[address] = t
	}
	d.mu.Unlock()
	select {
	case t.token <- struct{}{}:
		return t, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// session is one operation on one BMC, with its provider.
type session struct {
	d        *Driver
	provider provider
	fence    func(context.Context) error
}

// write calls the fence and then the function do. If the fence returns an error, nothing is written, and write returns
// a fenceError. A fencedProvider calls the fence itself before each of its writes; for such a provider, write only
// passes the fence on.
func (s *session) write(ctx context.Context, do func() error) error {
	if p, ok := s.provider.(fencedProvider); ok {
		p.guard(s.fence)
		defer p.guard(nil)
	} else if s.fence != nil {
		if err := s.fence(ctx); err != nil {
			return fenceError{err}
		}
	}
	return do()
}
