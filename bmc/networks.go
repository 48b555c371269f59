package bmc

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// lookupTime limits the look-up of a BMC's name.
const lookupTime = 10 * time.Second

// DefaultNetworks returns the networks in which BMCs may be if the configuration sets none: the private ranges (RFC
// 1918, RFC 4193). If BMCs have public addresses, the configuration must set the networks.
func DefaultNetworks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("fc00::/7"),
	}
}

// CheckHost returns inventory.ErrInvalid if host is an address outside the configured networks. It accepts every host
// name, because each connection checks the address of the name.
func (d *Driver) CheckHost(host string) error {
	a, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return d.checkAddr(a)
}

func (d *Driver) checkAddr(a netip.Addr) error {
	a = a.Unmap()
	if slices.ContainsFunc(d.cfg.Networks, func(p netip.Prefix) bool { return p.Contains(a.WithZone("")) }) {
		return nil
	}
	return fmt.Errorf("%s is outside the networks that BMCs may be in (bmc.networks): %w", a, inventory.ErrInvalid)
}

// resolve returns an address of host that is in the configured networks. Callers must connect to this address, not to
// the name: the next look-up of the name could return another address (security S17).
func (d *Driver) resolve(ctx context.Context, host string) (string, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().String(), d.checkAddr(a)
	}
	limited, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addrs, err := d.cfg.Resolver.LookupNetIP(limited, "ip", host)

	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return "", fmt.Errorf("looking up the BMC's host name: %w: %w", inventory.ErrUnreachable, err)
	}

	var refused error
	for _, a := range addrs {
		if refused = d.checkAddr(a); refused == nil {
			return a.Unmap().String(), nil
		}
	}
	if refused == nil {
		refused = fmt.Errorf("the BMC's host name has no address: %w", inventory.ErrUnreachable)
	}
	return "", refused
}
