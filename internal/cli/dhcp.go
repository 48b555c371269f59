package cli

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func dhcpCommand(o *options) *cobra.Command {
	return group("dhcp", "List leases, and configure DHCP servers beside Ingot", "  ingot dhcp leases\n  ingot dhcp snippet isc",
		dhcpLeasesCommand(o), dhcpSnippetCommand(o))
}

func dhcpLeasesCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "leases", Short: "List what DHCP agreed with machines since the server started", Args: cobra.NoArgs,
		Long: `List what DHCP agreed with machines since the server started. An address is reserved
in the machine's document, with or without a lease. In conflict is an address at which
another host answers: it is not offered for 5 minutes. The state discovery is a short
lease of an unknown machine (netboot.discovery).`,
		Example: "  ingot dhcp leases",
	}, func(c *call) error {
		return getAndShow(c, client.Path("dhcp", "leases"), func(w io.Writer, l client.List[inventory.DHCPLease]) error {
			if len(l.Items) == 0 {
				c.note("no machine has asked for an address since the server started")
				return nil
			}
			return printLeases(w, l.Items)
		})
	})
}

func printLeases(w io.Writer, all []inventory.DHCPLease) error {
	t := newTable(w, "ADDRESS", "MACHINE", "MAC", "STATE", "SINCE", "EXPIRES", "BY")
	for _, x := range all {
		t.row(x.Address.String(), x.Machine, x.MAC, leaseState(x), human.Ago(x.At), human.Time(x.Expires), x.Where)
	}
	return t.flush()
}

// leaseState returns the state of a lease, with the other host of a conflict.
func leaseState(x inventory.DHCPLease) string {
	if x.Other == "" {
		return x.State
	}
	return x.State + " with " + x.Other
}

func dhcpSnippetCommand(o *options) *cobra.Command {
	servers := neighbours.SnippetServers()
	cmd := &cobra.Command{
		Use:   "snippet {" + strings.Join(servers, " | ") + "}",
		Short: "Print what sends machines from another DHCP server to Ingot",
		Long: `Print what sends machines from another DHCP server to Ingot, for interfaces with
"dhcp: off" in the configuration. The boot files are the same for every machine and
at all times: Ingot refuses them to a machine that is not armed, and the machine
boots from its disk.

Without flags, the address, the port and the loader are those of this host's
configuration.`,
		Example: "  ingot dhcp snippet isc\n  ingot dhcp snippet kea --address 10.0.20.2 --loader shim",
		Args:    cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: servers,
	}
	var address, loader string
	var port int
	var secureBoot bool
	cmd.Flags().StringVar(&loader, "loader", "", "shim or ipxe-shim, for UEFI machines (default: netboot.loader)")
	cmd.Flags().BoolVar(&secureBoot, "secure-boot", false, "short for --loader shim; =false: iPXE")
	cmd.MarkFlagsMutuallyExclusive("loader", "secure-boot")
	cmd.Flags().StringVar(&address, "address", "", "Ingot's IPv4 address on the machines' network")
	cmd.Flags().IntVar(&port, "port", 0, "Ingot's HTTP port for machines")

	return o.command(cmd, func(c *call) error {
		cfg, err := c.loadConfig()
		if err != nil {
			return err
		}
		n := cfg.Netboot
		at, err := netip.ParseAddr(address)
		switch {
		case address == "" && !n.On():
			return inventory.Invalid("--address", "give --address", "this host's configuration answers no machines")
		case address == "":
			if at, err = hostnet.ProvisioningAddress(n); err != nil {
				return err
			}
		case err != nil || !at.Is4():
			return inventory.Invalid("--address", "write an IPv4 address, for example 10.0.20.2", "invalid IPv4 address %q", address)
		}
		switch changed := c.Flags().Changed; {
		case secureBoot:
			loader = inventory.LoaderShim
		case !changed("loader") && !changed("secure-boot"):
			loader = n.Loader
		}
		if port == 0 {
			port = n.HTTP[0]
		}
		base := "http://" + at.String()
		if port != 80 {
			base = "http://" + config.Join(at.String(), port)
		}
		files, err := bootsvc.SnippetFiles(loader)
		if err != nil {
			return err
		}
		text, err := neighbours.Snippet(c.args[0], at, base, files[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(c.OutOrStdout(), text)
		return err
	})
}
