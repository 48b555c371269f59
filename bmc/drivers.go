package bmc

import (
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// newProvider makes the provider that speaks to dialled: a BMC whose host is an
// address that may be dialled. name is the host as the inventory has it.
type newProvider func(d *Driver, l link, name string, dialled inventory.BMC,
	password inventory.Secret) (provider, error)

// providers has the constructor of each driver that reads the power state. The
// others are switched by hand, or woken.
var providers = map[string]newProvider{
	inventory.DriverIPMI: newIPMI,
	inventory.DriverAMT:  newAMT,
	inventory.DriverExec: newCommand,
}

// check refuses what cannot or must not be tried.
func check(b inventory.BMC) error {
	can := b.Capabilities()
	switch {
	case can.Wakes:
		return fmt.Errorf("wake-on-LAN only switches on: an operator switches off and looks: %w", inventory.ErrUnsupported)
	case can.Manual:
		return fmt.Errorf("the machine has no BMC: an operator presses its button: %w", inventory.ErrUnsupported)
	case can.Missing != "":
		return fmt.Errorf("%s: %w", can.Missing, inventory.ErrUnsupported)
	case providers[b.Driver] == nil:
		return fmt.Errorf("unknown BMC driver %q: %w", b.Driver, inventory.ErrUnsupported)
	case b.Host == "" && !can.NeedsHost:
		return nil
	}

	if b.Host == "" || strings.HasPrefix(b.Host, "-") ||
		strings.ContainsFunc(b.Host, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("invalid BMC host %q; must be an address or a name: %w", b.Host, inventory.ErrInvalid)
	}
	if b.Port < 0 || b.Port > 65535 {
		return fmt.Errorf("invalid BMC port %d: %w", b.Port, inventory.ErrInvalid)
	}
	return nil
}
