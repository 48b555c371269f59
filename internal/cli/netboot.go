package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
)

func netbootCommand(o *Options) *cobra.Command {
	return Group("netboot", "Open and close netboot windows by hand",
		"  ingot netboot arm node-1 --for 1h\n  ingot netboot disarm node-1",
		netbootArmCommand(o), netbootDisarmCommand(o))
}

type netbootBody struct {
	Arm   bool   `json:"arm"`
	For   string `json:"for,omitempty"`
	Force bool   `json:"force,omitempty"`
}

func netbootArmCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "arm NAME", Short: "Let a machine boot the agent's OS for a limited time, for rescue",
		Long: `Let a machine boot the agent's OS for a limited time, so that an operator can inspect or
repair the machine. An installation does this automatically and does not need the
command.`,
		Example: "  ingot netboot arm node-1 --for 1h",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
	}

	d := cmd.Flags().Duration("for", time.Hour, "how long the netboot window stays open, at most 24h")

	return o.NewCommand(cmd, func(c *Call) error {
		a, err := post[inventory.Netboot](c, client.Path("machines", c.Args[0], "netboot"), netbootBody{Arm: true, For: d.String()})
		if err != nil {
			return err
		}

		// The server opens the netboot window even if it answers no machines yet. Warn the operator, who would otherwise wait
		// at the machine for nothing.
		if s, err := get[apitypes.Status](c, client.Path("status")); err == nil && s.Value.Netboot.Off {
			c.Note("warn: this server answers no machine: %s", s.Value.Netboot.Message)
		}

		return show(c, a, netbootText(c.Args[0]))
	})
}

func netbootDisarmCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "disarm NAME", Short: "Close a machine's netboot window",
		Long: `Close a machine's netboot window if an operator has opened it. With --force, also close
the window if a run has opened it: the run then loses the machine, and asks the
operator.`,
		Example: "  ingot netboot disarm node-1\n  ingot netboot disarm node-1 --force --yes",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
	}

	force, confirm := forceFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if err := confirm(c); err != nil {
			return err
		}

		a, err := post[inventory.Netboot](c, client.Path("machines", c.Args[0], "netboot"), netbootBody{Force: *force})
		if err != nil {
			return err
		}

		return show(c, a, netbootText(c.Args[0]))
	})
}

func netbootText(machine string) func(w io.Writer, n inventory.Netboot) error {
	return text(func(n inventory.Netboot) string {
		return fmt.Sprintf("netboot of %s: %s", machine, netbootState(n))
	})
}
