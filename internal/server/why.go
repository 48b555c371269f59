package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// whyOff explains that no machine is answered while DHCP is off, and adds how the machine would be answered with DHCP on.
func whyOff(ctx context.Context, store sqlite.Machines, mac string) (inventory.Explanation, error) {
	e := inventory.Explanation{MAC: mac, Verdict: string(bootsvc.Unknown), Reasons: []string{
		"DHCP is off, because neither an interface nor relay_only is configured: no machine is answered (run ingot init)",
	}}
	m, g, err := store.MachineByMAC(ctx, mac)
	if err != nil && !errors.Is(err, inventory.ErrNotFound) {
		return e, fmt.Errorf("looking up the machine with MAC address %q: %w", mac, err)
	}

	d := bootsvc.Decide(m, g, bootsvc.Request{MAC: mac, Arch: wire.ArchUnknown}, time.Now())
	e.Machine, e.Verdict, e.Reasons = d.Machine, string(d.Verdict), append(e.Reasons, d.Reasons...)
	if g.Run != "" {
		e.Run, e.Epoch, e.Boot, e.Spent, e.Until = g.Run, g.Epoch, g.Boot, g.Spent, g.NetbootUntil
	}

	return e, nil
}
