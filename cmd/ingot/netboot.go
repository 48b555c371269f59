package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/inventory"
)

func netbootCmd(o *options) *cobra.Command {
	return group("netboot", "Who may boot from the network, by hand", "  ingot netboot arm node-1 --for 1h\n  ingot netboot disarm node-1",
		netbootArmCmd(o), netbootDisarmCmd(o))
}

type netbootBody struct {
	Arm   bool   `json:"arm"`
	For   string `json:"for,omitempty"`
	Force bool   `json:"force,omitempty"`
}

func netbootArmCmd(o *options) *cobra.Command {
	var d time.Duration
	c := &cobra.Command{
		Use: "arm NAME", Short: "Let a machine boot the agent's OS for a while, for rescue", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long:    "Let a machine boot the agent's OS for a while, for a person who looks into it.\nA provisioning arms its machine by itself and needs nothing of this.",
		Example: "  ingot netboot arm node-1 --for 1h",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.setNetboot(cmd, args[0], netbootBody{Arm: true, For: d.String()})
		},
	}
	c.Flags().DurationVar(&d, "for", time.Hour, "how long; at most 24h")
	return c
}

func netbootDisarmCmd(o *options) *cobra.Command {
	var force, yes bool
	c := &cobra.Command{
		Use: "disarm NAME", Short: "Close a machine's netboot window", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Close the netboot window that a person has opened. With --force also that of a
run, which loses the machine and then asks a person.`,
		Example: "  ingot netboot disarm node-1\n  ingot netboot disarm node-1 --force --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			if force {
				if err := confirm(cmd, yes, "takes machine "+args[0]+" away from the run that holds it; its installation does not go on", args[0]); err != nil {
					return err
				}
			}
			return o.setNetboot(cmd, args[0], netbootBody{Force: force})
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also when a run holds it")
	yesFlag(c, &yes)
	return c
}

func (o *options) setNetboot(cmd *cobra.Command, name string, in netbootBody) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	a, err := ask[inventory.Netboot](cmd.Context(), c, "POST", path("machines", name, "netboot"), in)
	if err != nil {
		return err
	}
	if in.Arm {
		// Armed all the same: the window may be opened before the server is
		// set up, but nobody should wait for the machine.
		if s, err := ask[api.Status](cmd.Context(), c, "GET", path("status"), nil); err == nil && s.v.Netboot.Off {
			say(cmd, "warn: this server answers no machine: %s", s.v.Netboot.Message)
		}
	}
	return show(cmd, o, a, func(w io.Writer, n inventory.Netboot) error {
		_, err := fmt.Fprintf(w, "netboot of %s: %s\n", name, netbootWord(n))
		return err
	})
}
