package server

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/agentapi"
	"github.com/ingotmetal/ingot/inventory"
)

// discovery receives the reports of unknown machines, if they are discovered.
func (s *server) discovery() agentapi.Discovery {
	if !s.cfg.Netboot.Discovery.On() {
		return agentapi.Discovery{}
	}
	return agentapi.Discovery{
		Guest: func(ctx context.Context, mac string, a netip.Addr) bool {
			return s.netboot.on() && s.netboot.boot.Guest(ctx, mac, a)
		},
		Report: func(ctx context.Context, mac string, facts action.Facts) (string, error) {
			machine, err := s.records.store.Seen.PutDiscovered(ctx, mac, facts, time.Now())
			if err != nil || machine != "" {
				return machine, err
			}
			return s.acceptByRule(ctx, mac, facts), nil
		},
	}
}

// acceptByRule adds a discovered machine to the inventory if a rule of the configuration matches,
// and returns its name, or "". A machine that a rule cannot add waits for an operator.
func (s *server) acceptByRule(ctx context.Context, mac string, facts action.Facts) string {
	for i, r := range s.cfg.Netboot.Discovery.Accept {
		if !r.Matches(mac, facts) {
			continue
		}
		log := s.log.With("mac", mac, "rule", i+1)
		name, err := s.applyRule(ctx, r, mac, facts)
		if err != nil {
			log.Warn("a rule cannot accept a discovered machine: accept it with ingot machine accept", "error", err)
			return ""
		}
		log.Info("a discovered machine was accepted by a rule", "machine", name)
		return name
	}
	return ""
}

// applyRule stores the machine that a rule makes of a discovered one, with the first free address.
func (s *server) applyRule(ctx context.Context, r inventory.AcceptRule, mac string, facts action.Facts) (name string, err error) {
	network := NetworkOf(s.cfg.Netboot)
	var address netip.Addr // none where another DHCP server gives it
	if r.Addresses != (inventory.Range{}) {
		address, err = r.Addresses.FirstFree(func(a netip.Addr) (bool, error) {
			_, _, err := s.records.store.Machines.MachineByAddress(ctx, a)
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
	return m.Name, s.records.store.Machines.PutMachines(ctx, []inventory.Machine{m}, false, "discovery")
}
