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

// routers holds the activities that read and change the router of a lab.
type routers struct{ *shared }

// RelayRequest names a server that is to be added to the DHCP relay of the lab's router, or removed from it.
type RelayRequest struct {
	Genesis string     `json:"genesis"` // name of the lab file with the router's address and key
	Server  netip.Addr `json:"server"`
}

// labWithRouter returns the lab file called name, or an error if the file has no router.
func (a *routers) labWithRouter(ctx context.Context, name string) (genesis.Lab, error) {
	lab, _, err := a.lab(ctx, name)
	if err == nil {
		_, err = section(lab.Router, "router")
	}
	return lab, err
}

// newEndpoint returns the endpoint of an API that a lab file names. If the lab file gives no fingerprint, any
// certificate is accepted, as the documentation of the lab file says.
func newEndpoint(url, fingerprint string) inventory.Endpoint {
	return inventory.Endpoint{URL: url, Fingerprint: fingerprint, Insecure: fingerprint == ""}
}

// RouterReady waits until the router's API shows that the router relays DHCP to this server.
func (a *routers) RouterReady(ctx context.Context, q LabRequest) error {
	lab, err := a.labWithRouter(ctx, q.Name)
	if err != nil {
		return err
	}

	want := []netip.Addr{lab.Seed.Address}
	if lab.Migrate != nil { // the server may already have moved to the target
		want = append(want, lab.Migrate.Address)
	}
	return a.until(ctx, func(ctx context.Context) error {
		list, err := a.relayServers(ctx, lab.Router)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(want, func(w netip.Addr) bool { return slices.Contains(list, w.String()) }) {
			return fmt.Errorf("the router's DHCP relay lists %v, but not %s: correct service dhcp-relay in the router's config.boot: %w",
				list, lab.Seed.Address, inventory.ErrInvalid)
		}
		return nil
	})
}

// relayTo adds a server to the lab's DHCP relay, or removes it if listed is false. It refuses to remove the only
// server, because machines behind the relay would then get no answer.
//
// It reads the list before the change, so that relayTo may be repeated. It reads the list again after the change,
// because the router's answer confirms only that the change was committed, not that it has taken effect.
func (a *routers) relayTo(ctx context.Context, q RelayRequest, listed bool) error {
	defer heartbeat(ctx)()
	lab, err := a.labWithRouter(ctx, q.Genesis)
	if err != nil {
		return err
	}

	r, server := lab.Router, q.Server.String()
	for range 2 {
		list, err := a.relayServers(ctx, r)
		if err != nil {
			return err
		}
		if slices.Contains(list, server) == listed {
			return nil
		}
		if !listed && len(list) == 1 {
			return fmt.Errorf("%s is the only server in the router's DHCP relay: %w", server, inventory.ErrConflict)
		}

		refused := a.Routers.SetRelayServer(ctx, newEndpoint(r.API, r.Fingerprint), r.Key, server, listed)
		if errors.Is(refused, inventory.ErrInvalid) {
			// Another client may have made the same change in the meantime.
			if list, err := a.relayServers(ctx, r); err == nil && slices.Contains(list, server) == listed {
				return nil
			}
		}
		if refused != nil {
			return refused
		}
	}
	return fmt.Errorf("the router accepted the change of its DHCP relay, but its configuration does not show the change: %w",
		inventory.ErrUnreachable)
}
