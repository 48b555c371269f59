package bmc

import (
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// newProvider creates a provider for a BMC. dialed describes the BMC, with the address to connect to as its Host. name
// is the host that the inventory has for this BMC.
type newProvider func(d *Driver, l link, name string, dialed inventory.BMC,
	password inventory.Secret) (provider, error)

// providers maps each driver that can read the power state to the function that creates its provider. Machines with any
// other driver are switched manually or by wake-on-LAN.
var providers = map[string]newProvider{
	inventory.DriverIPMI:    newIPMI,
	inventory.DriverAMT:     newAMT,
	inventory.DriverRedfish: newRedfish,
	inventory.DriverExec:    newCommand,
	inventory.DriverRPC:     newRPC,
}

// check returns an error if the driver of b cannot read and change the power state, or if b has an invalid host or
// port.
func check(b inventory.BMC) error {
	can := b.Capabilities()
	switch {
	case can.Wakes:
		return fmt.Errorf("wake-on-LAN can only switch a machine on; switch it off and check its power by hand: %w", inventory.ErrUnsupported)
	case can.Manual:
		return fmt.Errorf("the machine has no BMC; press its power button: %w", inventory.ErrUnsupported)
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
		return fmt.Errorf("invalid BMC port %d; must be at most 65535: %w", b.Port, inventory.ErrInvalid)
	}
	return nil
}
