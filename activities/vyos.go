package activities

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/inventory"
)

// Routers drives VyOS by its HTTP API. Errors are inventory.ErrUnreachable,
// ErrRefused or ErrInvalid, wrapped.
type Routers interface {
	Configuration(ctx context.Context, e inventory.Endpoint, key inventory.Secret, path ...string) (map[string]any, error)
	Configure(ctx context.Context, e inventory.Endpoint, key inventory.Secret, changes ...inventory.RouterCommand) error
}

// relayPath is where VyOS keeps its DHCP relay.
var relayPath = []string{"service", "dhcp-relay"}

// RelayRequest is about one server in the list of the lab's relay.
type RelayRequest struct {
	Genesis string     `json:"genesis"` // name of the lab file, which has the router's address and key
	Server  netip.Addr `json:"server"`
}

var errNoRouter = fmt.Errorf("the lab file has no router: %w", inventory.ErrInvalid)

func (a *Activities) router(ctx context.Context, name string) (genesis.Router, inventory.Endpoint, error) {
	lab, _, err := a.lab(ctx, name)
	if err != nil {
		return genesis.Router{}, inventory.Endpoint{}, err
	}
	if lab.Router == nil {
		return genesis.Router{}, inventory.Endpoint{}, errNoRouter
	}
	return *lab.Router, pinned(lab.Router.API, lab.Router.Fingerprint), nil
}

// pinned is an endpoint of a lab file: without a fingerprint anybody who
// answers there is believed, as the file's documentation says.
func pinned(url, fingerprint string) inventory.Endpoint {
	return inventory.Endpoint{URL: url, Fingerprint: fingerprint, Insecure: fingerprint == ""}
}

// RouterReady waits until the router's API shows a relay to this server.
func (a *Activities) RouterReady(ctx context.Context, q LabRequest) error {
	lab, _, err := a.lab(ctx, q.Name)
	if err != nil {
		return fail(err)
	}
	if lab.Router == nil {
		return fail(errNoRouter)
	}
	return a.until(ctx, func(ctx context.Context) error {
		list, err := a.relayServers(ctx, pinned(lab.Router.API, lab.Router.Fingerprint), lab.Router.Key)
		if err != nil {
			return err
		}
		want := []netip.Addr{lab.Seed.Address}
		if lab.Migrate != nil { // it may have moved already
			want = append(want, lab.Migrate.Address)
		}
		for _, w := range want {
			if slices.Contains(list, w.String()) {
				return nil
			}
		}
		return fmt.Errorf("the router relays to %v and not to %s: correct service dhcp-relay in its config.boot: %w", list, lab.Seed.Address, inventory.ErrInvalid)
	})
}

// relayServers reads the list. VyOS shows a value that is set once as a
// string, and more of them as a list.
func (a *Activities) relayServers(ctx context.Context, e inventory.Endpoint, key inventory.Secret) ([]string, error) {
	tree, err := a.Routers.Configuration(ctx, e, key, relayPath...)
	if err != nil {
		return nil, err
	}
	out := []string{}
	switch v := tree["server"].(type) {
	case string:
		out = append(out, v)
	case []any:
		for _, x := range v {
			if s, ok := x.(string); ok {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// relayTo lists a server in the lab's relay, beside those that are there, or
// removes it. The last one is not removed: nobody behind the relay would be
// answered any more.
//
// It looks first, so that repeating it changes nothing, and afterwards,
// because what VyOS answers is about the commit and not about the outcome.
func (a *Activities) relayTo(ctx context.Context, q RelayRequest, listed bool) error {
	defer heartbeat(ctx)()
	r, e, err := a.router(ctx, q.Genesis)
	if err != nil {
		return fail(err)
	}
	server := q.Server.String()
	for range 2 {
		list, err := a.relayServers(ctx, e, r.Key)
		if err != nil {
			return fail(err)
		}
		if slices.Contains(list, server) == listed {
			return nil
		}
		if !listed && len(list) == 1 {
			return fail(fmt.Errorf("%s is the only server in the relay: %w", server, inventory.ErrConflict))
		}
		change := inventory.RouterCommand{Delete: !listed, Path: append(slices.Clone(relayPath), "server", server)}
		if err := a.Routers.Configure(ctx, e, r.Key, change); err != nil && !errors.Is(err, inventory.ErrInvalid) {
			return fail(err)
		} else if err != nil {
			// Somebody else may have made the change meanwhile.
			if list, e := a.relayServers(ctx, e, r.Key); e == nil && slices.Contains(list, server) == listed {
				return nil
			}
			return fail(err)
		}
	}
	return fail(fmt.Errorf("the router accepts the change of its relay and does not show it: %w", inventory.ErrUnreachable))
}
