package host

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/inventory"
)

func dhcpSnippetCommand(o *cli.Options) *cobra.Command {
	servers := neighbours.SnippetServers()
	cmd := &cobra.Command{
		Use:   "snippet {" + strings.Join(servers, " | ") + "}",
		Short: "Print settings for another DHCP server that make machines boot from Ingot",
		Long: `Print the settings that make machines boot from Ingot when another DHCP server gives
them their addresses, on interfaces with "dhcp: off" in Ingot's configuration. The
settings name the same boot files for every machine, at all times: Ingot refuses the
files to a machine whose netboot window is closed, and that machine then boots from its
disk.

By default, address, port and loader are those in this host's configuration.`,
		Example: "  ingot dhcp snippet isc\n  ingot dhcp snippet kea --address 10.0.20.2 --loader shim",
		Args:    cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: servers,
	}
	var address, loader string
	var port int
	var secureBoot bool
	cmd.Flags().StringVar(&loader, "loader", "",
		"boot loader for UEFI machines: shim or ipxe-shim (default: netboot.loader in the configuration)")
	cmd.Flags().BoolVar(&secureBoot, "secure-boot", false, "same as --loader shim; --secure-boot=false selects iPXE")
	cmd.MarkFlagsMutuallyExclusive("loader", "secure-boot")
	cmd.Flags().StringVar(&address, "address", "", "Ingot's IPv4 address on the machines' network")
	cmd.Flags().IntVar(&port, "port", 0, "Ingot's HTTP port for machines")

	return o.NewCommand(cmd, withConfig(func(c *cli.Call, cfg config.Config) error {
		n := cfg.Netboot
		at, err := netip.ParseAddr(address)
		switch {
		case address == "" && !n.On():
			return inventory.Invalid("--address", "give --address",
				"netboot is off in this host's configuration, which therefore has no address for machines")
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
		text, err := neighbours.Snippet(c.Args[0], at, base, files[0])
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(c.OutOrStdout(), text)
		return err
	}))
}
