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

// Preflight checks everything that can be checked before a machine is powered on, reports all problems at once, and
// stores the machines of the lab file. It may be repeated. If this run, or the run that it resumes, has already
// stored a machine, the stored machine is not replaced and keeps the operator's changes.
func (a *labs) Preflight(ctx context.Context, q LabRequest) error {
	defer heartbeat(ctx)()
	lab, b, err := a.lab(ctx, q.Name)
	if err != nil {
		return err
	}

	if err := a.Keys.KeyCheck(ctx); err != nil {
		return err
	}

	if off := a.Site.bootable(); off != nil {
		return off
	}

	var ps inventory.Problems
	if err := a.checkImages(ctx, lab, &ps); err != nil {
		return err
	}

	given := lab.Inventory(b.Replace)
	given.Run, given.SHA256, given.Resume = q.Run, b.SHA256, q.Resume
	merged, err := a.Genesis.MergeLabMachines(ctx, given)
	if err != nil {
		return err
	}
	ps = append(ps, given.Differing(merged)...)
	lab = lab.With(merged)
	if err := a.checkMachines(ctx, lab, &ps); err != nil {
		return err
	}

	if err := a.checkFree(ctx, lab, q.Installed, q.Ours, &ps); err != nil {
		return err
	}

	a.checkBMCs(ctx, lab, &ps, func(m genesis.Machine) bool {
		return !behind(lab, m.BMC) || lab.Router == nil || slices.Contains(q.Installed, lab.Router.Machine)
	})

	if len(ps) == 0 {
		// PutLabMachines also finds names, MACs, addresses and BMCs that other machines in the inventory have.
		err := a.Genesis.PutLabMachines(ctx, given, "genesis "+q.Name)
		if !errors.As(err, &ps) {
			return err
		}
	}

	return lab.Locate(ps).Err()
}

func (a *labs) checkImages(ctx context.Context, lab genesis.Lab, ps *inventory.Problems) error {
	images, err := a.Images.Images(ctx)
	if err != nil {
		return err
	}

	stored := inventory.ImagesByName(images)
	*ps = append(*ps, lab.CheckImages(stored, nil)...)
	if a.Site.ProbeImage != nil {
		*ps = append(*ps, lab.CheckSources(stored, func(address string) error { return a.Site.ProbeImage(ctx, address) })...)
	}
	return nil
}

func (a *labs) checkMachines(ctx context.Context, lab genesis.Lab, ps *inventory.Problems) error {
	for n, m := range lab.Machines {
		field := fmt.Sprintf("machines[%d]", n)
		if m.Template != "" {
			_, err := a.template(ctx, m.Template)
			if errors.Is(err, inventory.ErrNotFound) {
				ps.Add(field+".template", "ingot template list", "there is no template %q", m.Template)
			} else if err != nil {
				return err
			}
		}
		stored, err := a.Machines.Machine(ctx, m.Name)
		if errors.Is(err, inventory.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if stored.Quarantined() {
			ps.Add(field+".name", "ingot machine release "+m.Name, "machine %q is quarantined: %s", m.Name, stored.Standing.Reason)
		}
	}
	return nil
}

// checkFree adds a problem for each address of the lab that another host uses. It skips the machines in installed:
// these use their own addresses, possibly with the MAC of a bond or bridge, which the lab file does not list. Some
// other machines may also use their own addresses: those in ours, and those that still run their previous system.
// For their addresses, an answer whose MAC is not visible is not a problem.
func (a *labs) checkFree(ctx context.Context, lab genesis.Lab, installed, ours []string, ps *inventory.Problems) error {
	type wanted struct {
		field, what string
		addr        netip.Addr
		macs        []string
		taken       bool // the machine itself may use the address
	}

	var all []wanted
	begun := false // the cluster's first node was installed, so the cluster may use its address
	for n, m := range lab.Machines {
		written, err := a.Disks.DisksWritten(ctx, m.Name)
		if err != nil && !errors.Is(err, inventory.ErrNotFound) {
			return err
		}
		given, err := a.gaveAddress(ctx, m.Name)
		if err != nil {
			return err
		}
		done := slices.Contains(installed, m.Name)
		made := done || slices.Contains(ours, m.Name) || len(written) > 0
		begun = begun || made && lab.Cluster != nil && m.Name == lab.Cluster.Create
		if done {
			continue
		}
		taken := made || given
		var macs []string
		for _, i := range m.Interfaces {
			macs = append(macs, i.MAC)
		}
		for k, i := range m.Interfaces {
			// With Intel AMT, the BMC has the address of its machine.
			if i.Address.IsValid() && (m.BMC == nil || m.BMC.Host != i.Address.String()) {
				all = append(all, wanted{
					fmt.Sprintf("machines[%d].interfaces[%d].address", n, k), "machine " + m.Name,
					i.Address, macs, taken,
				})
			}
		}
	}

	if c := lab.Cluster; c != nil && !begun {
		all = append(all, wanted{field: "cluster.vip", what: "the cluster", addr: c.VIP})
	}

	for _, w := range all {
		found, mac, err := a.Presence.Answers(ctx, w.addr)
		if err != nil {
			return err
		}
		if !found || mac != "" && slices.Contains(w.macs, mac) || mac == "" && w.taken {
			continue
		}
		who := "another host"
		if mac != "" {
			who = mac
		}
		ps.Add(w.field, "choose another address, or take the device that answers off the network",
			"%s already answers at %s, the address for %s", who, w.addr, w.what)
	}
	return nil
}

// gaveAddress reports whether this server's DHCP may have given the machine its address, for example because the
// machine was switched on to prove the relay and still runs its previous system. It also returns true after a
// forged PXE request with the machine's MAC. If a router hides the MAC, another host at that address then passes
// for the machine: this check finds mistakes, not attackers.
func (a *labs) gaveAddress(ctx context.Context, machine string) (bool, error) {
	list, err := a.Events.Events(ctx, inventory.EventFilter{Machine: machine})
	return slices.ContainsFunc(list, func(e inventory.Event) bool {
		return slices.Contains([]string{
			inventory.EventDHCP, inventory.EventRebooted, inventory.EventDisk,
			inventory.EventOS,
		}, e.Kind)
	}), err
}

// behind reports whether the BMC is outside the server's network and therefore reached through the router.
func behind(lab genesis.Lab, b *inventory.BMC) bool {
	if b == nil {
		return false
	}
	at, err := netip.ParseAddr(b.Host)
	return err == nil && !lab.Seed.Segment.Contains(at)
}

// checkBMCs reads the power state of each BMC for which the function reachable returns true. It adds a problem for
// each BMC that fails. BMCs behind the router are reachable only when the router is running.
func (a *labs) checkBMCs(ctx context.Context, lab genesis.Lab, ps *inventory.Problems, reachable func(genesis.Machine) bool) {
	for n, m := range lab.Machines {
		if m.BMC.Manual() || !reachable(m) {
			continue
		}
		if err := a.checkBMC(ctx, m.Machine); err != nil {
			ps.Add(fmt.Sprintf("machines[%d].bmc", n), "run ingot bmc check "+m.Name,
				"the BMC of %q does not report the power state: %v", m.Name, err)
		}
	}
}

// checkBMC reads the power state of m. It uses the password in m or, if there is none, the stored one.
func (a *labs) checkBMC(ctx context.Context, m inventory.Machine) error {
	password := m.BMC.Password
	if password.IsZero() && m.BMC.HasPassword {
		var err error
		if password, err = a.Passwords.BMCPassword(ctx, m.Name); err != nil {
			return err
		}
	}
	_, err := a.BMC.State(ctx, m.Controller(), password)
	return err
}

// RelayProven waits until the router has relayed a DHCP packet from the machines' network, and then checks the BMCs
// in that network. An old packet is sufficient if it came after the latest installation of the router, because
// machines that have their addresses do not ask again.
func (a *labs) RelayProven(ctx context.Context, q LabRequest) error {
	lab, _, err := a.lab(ctx, q.Name)
	if err != nil {
		return err
	}

	run, err := a.latestInstallation(ctx, q.Machine)
	if err != nil {
		return err
	}

	err = a.until(ctx, func(ctx context.Context) error {
		at, err := a.Relays.Relayed(ctx, lab.Network.Gateway)
		if err != nil {
			return err
		}
		// A packet from the time before the router's latest installation proves nothing.
		if at.Before(run.Started) {
			return fmt.Errorf("no DHCP packet with giaddr %s has come: check that a machine on that network is switched on, "+
				"and that the router relays to %s: %w",
				lab.Network.Gateway, lab.Seed.Address, inventory.ErrUnreachable)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.checkBehind(ctx, lab)
}

// checkBehind checks the BMCs behind the router, with the settings in the inventory.
func (a *labs) checkBehind(ctx context.Context, lab genesis.Lab) error {
	defer heartbeat(ctx)()
	lab.Machines = slices.Clone(lab.Machines)
	for n, m := range lab.Machines {
		stored, err := a.Machines.Machine(ctx, m.Name)
		if err != nil {
			return err
		}
		lab.Machines[n].Machine = stored
	}
	var ps inventory.Problems
	a.checkBMCs(ctx, lab, &ps, func(m genesis.Machine) bool { return behind(lab, m.BMC) })
	return lab.Locate(ps).Err()
}
