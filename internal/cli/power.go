package cli

import (
	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
)

func machinePowerCommand(o *Options) *cobra.Command {
	actions := [][2]string{
		{"on", "Switch a machine on"},
		{"off", "Switch a machine off without a shutdown"},
		{"soft", "Ask a machine's system to shut down"},
		{"cycle", "Switch a machine off and on"},
		{"reset", "Reset a machine"},
		{"status", "Read a machine's power state"},
	}

	var subs []*cobra.Command
	for _, a := range actions {
		subs = append(subs, powerActionCommand(o, a[0], a[1]))
	}

	return Group("power {on | off | soft | cycle | reset | status} NAME", "Switch a machine's power, or read the power state",
		"  ingot machine power status node-1\n  ingot machine power cycle node-1", subs...)
}

func powerActionCommand(o *Options, action, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use: action + " NAME", Short: short, Example: "  ingot machine power " + action + " node-1",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
	}

	route := func(c *Call) string { return client.Path("machines", c.Args[0], "power") }
	if action == "status" {
		return o.NewCommand(cmd, func(c *Call) error {
			return runJob(c, c.Args[0], route(c), map[string]any{"action": action})
		})
	}
	force, confirm := forceFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if err := confirm(c); err != nil {
			return err
		}
		return runJob(c, c.Args[0], route(c), map[string]any{"action": action, "force": *force})
	})
}

func machineBootDeviceCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "boot-device NAME DEVICE", Short: "Set a machine's next boot device: pxe, disk, cdrom, bios or none",
		Example: "  ingot machine boot-device node-1 disk\n  ingot machine boot-device node-1 pxe --efi --persistent",
		Args:    cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, to string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"pxe", "disk", "cdrom", "bios", "none"}, NoFiles
			}
			return firstArg(o.machines())(cmd, args, to)
		},
	}

	var in struct {
		inventory.BootDevice
		Force bool `json:"force,omitempty"`
	}

	cmd.Flags().BoolVar(&in.Persistent, "persistent", false, "set the device for every later boot, not only for the next one")
	cmd.Flags().BoolVar(&in.EFI, "efi", false, "boot in UEFI mode")
	force, confirm := forceFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if err := confirm(c); err != nil {
			return err
		}

		in.Device, in.Force = c.Args[1], *force
		return runJob(c, c.Args[0], client.Path("machines", c.Args[0], "boot-device"), in)
	})
}

// forceFlags adds the flags --force and --yes. The flag --force takes a machine away from the run that holds it. If
// --force is given without --yes, confirm asks the operator for confirmation.
func forceFlags(cmd *cobra.Command) (force *bool, confirm func(c *Call) error) {
	force = cmd.Flags().Bool("force", false, "take the machine away from an open run; the run then asks the operator")
	yes := YesFlag(cmd)
	return force, func(c *Call) error {
		if !*force {
			return nil
		}
		what := "takes machine " + c.Args[0] + " away from the run that holds it, which then asks the operator"
		return c.Confirm(*yes, what, c.Args[0])
	}
}
