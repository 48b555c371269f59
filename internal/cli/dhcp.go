package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func dhcpCommand(o *Options) *cobra.Command {
	return Group("dhcp", "List leases, and configure DHCP servers next to Ingot", "  ingot dhcp leases\n  ingot dhcp snippet isc",
		dhcpLeasesCommand(o))
}

func dhcpLeasesCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "leases", Short: "List the DHCP leases since the server started", Args: cobra.NoArgs,
		Long: `List the DHCP leases since the server started. A lease does not reserve an address; the
address in the machine's inventory entry does. In the state conflict, another host
answers at the address, and Ingot does not offer the address for 5 minutes. In the state
discovery, the lease belongs to an unknown machine and is short (netboot.discovery).`,
		Example: "  ingot dhcp leases",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("dhcp", "leases"), func(w io.Writer, l client.List[inventory.DHCPLease]) error {
			if len(l.Items) == 0 {
				c.Note("no machine has asked for an address since the server started")
				return nil
			}
			return printLeases(w, l.Items)
		})
	})
}

func printLeases(w io.Writer, all []inventory.DHCPLease) error {
	head := []string{"ADDRESS", "MACHINE", "MAC", "STATE", "SINCE", "EXPIRES", "BY"}
	return PrintTable(w, head, all, func(x inventory.DHCPLease) []any {
		return []any{x.Address.String(), x.Machine, x.MAC, leaseState(x), human.Ago(x.At), human.Time(x.Expires), x.Where}
	})
}

// leaseState returns the state of a lease, and for an address conflict also the other host.
func leaseState(x inventory.DHCPLease) string {
	if x.Other == "" {
		return x.State
	}
	return x.State + " with " + x.Other
}
