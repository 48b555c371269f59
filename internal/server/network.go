package server

import (
	"net/netip"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/inventory"
)

// NetworkOf returns the machines' network as this host currently sees it.
func NetworkOf(n config.Netboot) inventory.Network {
	out := inventory.Network{On: n.On(), Subnets: bootsvc.Subnets(n.Interfaces)}
	if a, err := netip.ParseAddr(n.Address); err == nil {
		out.Own = append(out.Own, a) // in a container, the address of the container's host
	}
	out.Own = append(out.Own, hostnet.Addresses()...)
	out.Relays, _ = config.Prefixes(n.Relays) // checked when the configuration was read
	for _, r := range n.Discovery.Ranges {
		out.Guests = append(out.Guests, r)
	}
	out.Gateways = hostnet.Gateways(hostnet.Routes())
	return out
}
