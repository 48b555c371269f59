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

// features are those of bmclib that all our providers have.
var features = registrar.Features{
	bmclibproviders.FeaturePowerState, bmclibproviders.FeaturePowerSet, bmclibproviders.FeatureBootDeviceSet,
	bmclibproviders.FeatureBmcReset,
}

// with runs one operation: alone on its BMC, with a client of its own that is
// always closed.
func (d *Driver) with(ctx context.Context, b inventory.BMC, password inventory.Secret, what string,
	do func(*session) error,
) error {
	if err := check(b); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}

	dialled := b
	if b.Host != "" {
		var err error
		if dialled.Host, err = d.resolve(ctx, b.Host); err != nil {
			return fmt.Errorf("%s: BMC %s: %w", what, b.Host, err)
		}
	}

	// By address: two names of one BMC must not open two sessions.
	key, name := net.JoinHostPort(dialled.Host, strconv.Itoa(dialled.ListenPort())), "BMC "+b.Host
	if b.Capabilities().Shared {
		key, name = b.Driver+"/"+b.Machine, fmt.Sprintf("power command %q", b.Command)
	}

	t, err := d.lock(ctx, key)
	if err != nil {
		return fmt.Errorf("%s: waiting for %s, which is in use: %w", what, name, err)
	}
	defer func() { <-t.token }()

	began := time.Now()
	who := credentials(b, password)
	l := link{admit: func(ctx context.Context) error { return d.admit(ctx, t, who) }}
	if !password.IsZero() { // without one nothing is sent
		l.settle = func(err error) { d.settle(t, err) }
	}

	p, err := providers[b.Driver](d, l, b.Host, dialled, password)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, err)
	}

	// The password stays out of bmclib's client: the provider has it.
	registry := registrar.NewRegistry()
	registry.Register(p.Name(), b.Driver, features, nil, p)
	client := bmclib.NewClient(b.Host, b.User, "", bmclib.WithRegistry(registry),
		bmclib.WithPerProviderTimeout(operationTime))
	if err := client.Open(ctx); err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, p.cause(err))
	}
	defer func() {
		if err := client.Close(context.WithoutCancel(ctx)); err != nil {
			d.cfg.Log.Warn("closing a BMC session", "host", b.Host, "error", err)
		}
	}()

	err = do(&session{d: d, client: client, provider: p})
	d.cfg.Log.Debug("bmc", "host", b.Host, "what", what, "took", time.Since(began), "error", err)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, name, err)
	}
	return nil
}

// lock waits until no other operation uses the BMC at address. The caller receives
// from the token when the operation has ended.
func (d *Driver) lock(ctx context.Context, address string) (*target, error) {
	address = strings.ToLower(address)
	d.mu.Lock()
	t, ok := d.targets[address]
	if !ok {
		t = &target{token: make(chan struct{}, 1)}
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

// write asks the fence, and writes.
func (s *session) write(ctx context.Context, do func() (bool, error)) error {
	if s.fence != nil {
		if err := s.fence(ctx); err != nil {
			return fenceError{err}
		}
	}

	ok, err := do()
	if err != nil {
		return s.provider.cause(err)
	}
	if !ok {
		return errors.New("the BMC did not do it")
	}
	return nil
}

// fenceError is an error of the fence, and not of the BMC.
type fenceError struct{ error }

func (e fenceError) Unwrap() error { return e.error }

// final reports whether an error of a write ends the operation: a read could not
// show that the write had an effect.
func final(err error) bool {
	var fenced fenceError
	return errors.As(err, &fenced) || errors.Is(err, inventory.ErrRefused) || errors.Is(err, inventory.ErrUnsupported) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
