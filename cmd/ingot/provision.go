package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
)

func machineProvisionCmd(o *options) *cobra.Command {
	var in api.Installation
	var wait, yes bool
	c := &cobra.Command{
		Use: "provision NAME", Short: "Install a machine: what is on its disk is lost", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Install a machine. The content of the disk that is chosen is lost; without a
disk selector only a single disk is chosen, and only if it is blank or was
written by Ingot. Otherwise a person is asked.

A machine that Ingot has installed already is installed again only after it is
confirmed, or with --yes.

With --wait the run is shown as it goes, and the exit code says how it ended.
Without, and after Ctrl-C, it goes on by itself.`,
		Example: `  ingot machine provision node-1 --image debian-12 --wait
  ingot machine provision node-1 --template my-template --retries 1 --from failed-step`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if in.Retries.From != "" && in.Retries.Count == 0 {
				return usage("--from says where a retry begins, but --retries is 0")
			}
			a, err := ask[api.MachineView](cmd.Context(), c, "GET", path("machines", args[0]), nil)
			if err != nil {
				return err
			}
			if m := a.v; m.Installed.System() {
				what := fmt.Sprintf("installs machine %s again, over %s, which run %s has installed", m.Name, installedWord(m.Installed), m.Installed.Run)
				if err := confirm(cmd, yes, what, m.Name); err != nil {
					return err
				}
			}
			return o.begin(cmd, c, path("machines", args[0], "provision"), in, wait)
		},
	}
	installationFlags(c, o, &in)
	c.Flags().StringVar(&in.Retries.From, "from", "", "where a retry begins: failed-step (default) or start")
	waitFlag(c, &wait)
	yesFlag(c, &yes)
	completeFlag(c, "from", cobra.FixedCompletions([]string{"failed-step", "start"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// installationFlags are those of all commands that install a machine.
func installationFlags(c *cobra.Command, o *options, in *api.Installation) {
	x := c.Flags()
	x.StringVar(&in.Template, "template", "", "template (default: the machine's, or image)")
	x.StringVar(&in.Image, "image", "", "image (default: the machine's)")
	x.StringToStringVar(&in.HardwareMap, "hardware-map", nil, "further data for the template, key=value; repeatable")
	x.IntVar(&in.Retries.Count, "retries", 0, "how often failed actions begin again inside this run")
	x.StringVar(&in.Policy, "policy", "", "after a failed action without retries left: fail (default), or pause, which asks a person")
	completeFlag(c, "template", o.templateNames)
	completeFlag(c, "image", o.imageNames)
}

func waitFlag(c *cobra.Command, wait *bool) {
	c.Flags().BoolVarP(wait, "wait", "w", false, "show the run until it ends")
}

func machineInspectCmd(o *options) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "inspect NAME", Short: "Boot the agent to look at a machine's disks and interfaces; nothing is written", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot machine inspect node-1 --wait && ingot machine disks node-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			return o.begin(cmd, c, path("machines", args[0], "inspect"), nil, wait)
		},
	}
	waitFlag(c, &wait)
	return c
}

// begin starts a run by a POST and says how to look at it, or waits for it.
func (o *options) begin(cmd *cobra.Command, c *remote, path string, in any, wait bool) error {
	a, err := ask[api.Started](cmd.Context(), c, "POST", path, in)
	if err != nil {
		return err
	}
	if wait {
		return o.wait(cmd, c, a.v.Run)
	}
	return show(cmd, o, a, func(w io.Writer, s api.Started) error {
		name := strings.TrimPrefix(s.Workflow, "machine/")
		if strings.Contains(name, "/") {
			name = s.Run
		}
		fmt.Fprintf(w, "run %s of %s has begun\nnext: ingot workflow get %s\n", s.Run, s.Workflow, name)
		return nil
	})
}
