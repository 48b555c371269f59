package bmc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/bmc-toolbox/bmclib/v2"
	bmclibproviders "github.com/bmc-toolbox/bmclib/v2/providers"
	"github.com/jacobweinstock/registrar"

	"github.com/ingotmetal/ingot/inventory"
)

// features are the bmclib features that are registered for every provider.
var features = registrar.Features{
	bmclibproviders.FeaturePowerState, bmclibproviders.FeaturePowerSet, bmclibproviders.FeatureBootDeviceSet,
	bmclibproviders.FeatureBmcReset, bmclibproviders.FeatureVirtualMedia,
}

// with runs one operation while no other operation uses the BMC. The operation gets
// its own client, which is always closed.
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
	l := link{target: t, admit: func(ctx context.Context) error { return d.admit(ctx, t, b.Machine, who) }}
	if !password.IsZero() { // without a password nothing is sent
		l.settle = func(err error) { d.settle(ctx, t, err) }
	}

	p, err := providers[b.Driver](d, l, b.Host, dialed, password)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, err)
	}

	// bmclib's client does not get the password; only the provider has it.
	registry := registrar.NewRegistry()
	registry.Register(p.Name(), b.Driver, features, nil, p)
	client := bmclib.NewClient(b.Host, b.User, "", bmclib.WithRegistry(registry),
		bmclib.WithPerProviderTimeout(operationTime))
	if err := client.Open(ctx); err != nil {
		return describeFailure(what, name, p.cause(err))
	}
	defer func() {
		if err := client.Close(context.WithoutCancel(ctx)); err != nil {
			d.cfg.Log.Warn("closing a BMC session", "host", b.Host, "error", err)
		}
	}()

	err = do(&session{d: d, client: client, provider: p})
	d.cfg.Log.Debug("bmc", "host", b.Host, "what", what, "took", time.Since(began), "error", err)
	if err != nil {
		var s silentError
		if errors.As(err, &s) {
			d.cfg.Log.Debug("a BMC does not answer", "host", b.Host, "cause", s.cause)
		}
		return describeFailure(what, name, err)
	}
	return nil
}

// nameOf returns how errors name a BMC.
func nameOf(b inventory.BMC) string {
	if b.Capabilities().Shared {
		return fmt.Sprintf("power command %q", b.Command)
	}
	return "BMC " + b.Host
}

// acquire returns b with the address to dial as its host, and its target, locked; see lock.
func (d *Driver) acquire(ctx context.Context, b inventory.BMC) (dialed inventory.BMC, t *target, err error) {
	dialed = b
	if b.Host != "" && !b.Capabilities().Relayed {
		if dialed.Host, err = d.resolve(ctx, b.Host); err != nil {
			return dialed, nil, fmt.Errorf("BMC %s: %w", b.Host, err)
		}
	}
	// Lock by address: two names of one BMC must not open two sessions.
	key := net.JoinHostPort(dialed.Host, strconv.Itoa(dialed.OwnPort()))
	if b.Capabilities().Shared {
		key = b.Driver + "/" + b.Machine
	}
	if t, err = d.lock(ctx, key); err != nil {
		return dialed, nil, fmt.Errorf("waiting for %s, which is in use: %w", nameOf(b), err)
	}
	return dialed, t, nil
}

// lock waits until no other operation uses the BMC at address. To unlock it, the
// caller receives from the target's token.
func (d *Driver) lock(ctx context.Context, address string) (*target, error) {
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

// session is one operation on one BMC.
type session struct {
	d        *Driver
	client   *bmclib.Client
	provider provider
	fence    func(context.Context) error
}

// write calls the fence and then do, or lets do call the fence. The fence's error becomes a
// fenceError, and nothing is written.
func (s *session) write(ctx context.Context, do func() (bool, error)) error {
	if p, ok := s.provider.(fencedProvider); ok {
		p.guard(s.fence)
		defer p.guard(nil)
	} else if s.fence != nil {
		if err := s.fence(ctx); err != nil {
			return fenceError{err}
		}
	}

	ok, err := do()
	if err != nil {
		return s.provider.cause(err)
	}
	if !ok {
		return errors.New("the BMC did not confirm the command")
	}
	return nil
}

// fenceError is an error of the fence, as opposed to one of the BMC.
type fenceError struct{ error }

func (e fenceError) Unwrap() error { return e.error }

// final reports whether a write's error ends the operation. After any other error,
// the write may have had an effect, and a read finds out.
func final(err error) bool {
	var fenced fenceError
	return errors.As(err, &fenced) || errors.Is(err, inventory.ErrRefused) || errors.Is(err, inventory.ErrUnsupported) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
