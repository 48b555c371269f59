package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/inventory"
)

func whyCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "why {MAC | NAME}", Short: "Tell what a machine would be answered if it booted now, and why", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Tell what a machine would be answered if it booted now, and why. The same
function answers here and on the wire.`,
		Example: "  ingot why 02:00:00:00:00:01\n  ingot why node-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			to := path("machines", args[0], "why")
			if mac, err := inventory.ParseMAC(args[0]); err == nil {
				to = path("why", mac)
			}
			a, err := ask[bootsvc.Explanation](cmd.Context(), c, "GET", to, nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, printWhy)
		},
	}
}

func printWhy(w io.Writer, e bootsvc.Explanation) error {
	who := e.MAC
	if e.Machine != "" {
		who += ", machine " + e.Machine
	}
	verdict := map[bootsvc.Verdict]string{
		bootsvc.Unknown:   "not answered: nobody knows it",
		bootsvc.Agent:     "boots the agent's OS for its run",
		bootsvc.Installer: "boots the installer of its run",
		bootsvc.Rescue:    "boots the agent's OS for a person",
		bootsvc.Disk:      "boots from its disk",
		bootsvc.Hold:      "waits at its loader until its run goes on",
		bootsvc.Never:     "never boots from the network",
	}[e.Verdict]
	if verdict == "" {
		verdict = string(e.Verdict)
	}
	fmt.Fprintf(w, "%s: %s\n", inert(who), verdict)
	for _, r := range e.Reasons {
		fmt.Fprintf(w, "  – %s\n", inert(r))
	}
	if len(e.Answers) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := newTable(w, "A CLIENT THAT IS", "GETS", "BECAUSE")
	for _, a := range e.Answers {
		t.row(a.Client, a.BootFile, a.Reason)
	}
	return t.flush()
}
