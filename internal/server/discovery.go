package server

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/agentapi"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// newcomers handles the reports of machines that are not in the inventory.
type newcomers struct {
	cfg     config.Netboot
	netboot netboot
	store   *sqlite.Store
	log     *slog.Logger
}

// discovery returns the functions that receive reports of unknown machines, or the zero Discovery if discovery is off.
func (n newcomers) discovery() agentapi.Discovery {
	if !n.cfg.Discovery.On() {
		return agentapi.Discovery{}
	}
	return agentapi.Discovery{
		Guest: func(ctx context.Context, mac string, a netip.Addr) bool {
			return n.netboot.on() && n.netboot.boot.Guest(ctx, mac, a)
		},
		Report: func(ctx context.Context, mac string, facts action.Facts) (string, error) {
			machine, err := n.store.Seen.PutDiscovered(ctx, mac, facts, time.Now())
			if err != nil || machine != "" {
				return machine, err
			}
			return n.acceptByRule(ctx, mac, facts), nil
		},
	}
}

// acceptByRule adds a discovered machine to the inventory if a rule of the configuration matches it, and returns the machine's
// name. It returns "" if no rule matches, or if the matching rule fails: the machine then waits for an operator.
func (n newcomers) acceptByRule(ctx context.Context, mac string, facts action.Facts) string {
	for i, r := range n.cfg.Discovery.Accept {
		if !r.Matches(mac, facts) {
			continue
		}
		log := n.log.With("mac", mac, "rule", i+1)
		name, err := n.applyRule(ctx, r, mac, facts)
		if err != nil {
			log.Warn("a rule could not accept a discovered machine: accept the machine with ingot machine accept", "error", err)
			return ""
		}
		log.Info("a discovered machine was accepted by a rule", "machine", name)
		return name
	}
	return ""
}

// applyRule adds a discovered machine to the inventory as r describes it, with the first free address of r, and returns its name.
func (n newcomers) applyRule(ctx context.Context, r inventory.AcceptRule, mac string, facts action.Facts) (name string, err error) {
	network := NetworkOf(n.cfg)
	var address netip.Addr // zero if another DHCP server assigns the address
	if r.Addresses != (inventory.Range{}) {
		address, err = r.Addresses.FirstFree(func(a netip.Addr) (bool, error) {
			_, _, err := n.store.Machines.MachineByAddress(ctx, a)
			if errors.Is(err, inventory.ErrNotFound) {
				return network.Taken(a) != "", nil
			}
			return true, err
		})
	}
	if err != nil {
		return "", err
	}
	m, err := r.Machine(mac, facts, address)
	if err != nil {
		return "", err
	}
	m = inventory.Canonical(m)
	if found := inventory.Validate(m); len(found) > 0 {
		return "", found
	}
	return m.Name, n.store.Machines.PutMachines(ctx, []inventory.Machine{m}, false, "discovery")
}
