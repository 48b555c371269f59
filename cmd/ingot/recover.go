package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

func machineReprovisionCmd(o *options) *cobra.Command {
	var in api.Installation
	var wait, yes bool
	c := &cobra.Command{
		Use: "reprovision NAME", Short: "Wipe a machine's disk and install it anew", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Wipe the disk that a machine is installed on, and install its template on it,
in one boot. It is "ingot machine provision" with a wipe before it: a disk that
Ingot has not written is not touched before a person has said so.`,
		Example: `  ingot machine reprovision node-1
  ingot machine reprovision node-1 --template my-template --yes --wait`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			m, disks, err := o.disksOf(cmd, c, args[0])
			if err != nil {
				return err
			}
			what := firstWord(in.Template, m.Template, "image")
			if image := firstWord(in.Image, m.Image); image != "" {
				what += " with " + image
			}
			if err := confirm(cmd, yes, fmt.Sprintf("wipes %s of machine %s, and installs template %s", bound(m, disks), m.Name, what), m.Name); err != nil {
				return err
			}
			return o.begin(cmd, c, path("machines", m.Name, "reprovision"), in, wait)
		},
	}
	installationFlags(c, o, &in)
	waitFlag(c, &wait)
	yesFlag(c, &yes)
	return c
}

// disksOf returns a machine, and the disks that an agent found there last: none
// when none has looked.
func (o *options) disksOf(cmd *cobra.Command, c *remote, name string) (inventory.Machine, []action.Disk, error) {
	a, err := ask[api.MachineView](cmd.Context(), c, "GET", path("machines", name), nil)
	if err != nil {
		return inventory.Machine{}, nil, err
	}
	d, err := ask[list[action.Disk]](cmd.Context(), c, "GET", path("machines", name, "disks"), nil)
	if errors.Is(err, inventory.ErrNotFound) {
		err = nil
	}
	return a.v.Machine, d.v.Items, err
}

func firstWord(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

// bound says which disk a run would write to, as far as it is known.
func bound(m inventory.Machine, disks []action.Disk) string {
	free := slices.DeleteFunc(slices.Clone(disks), m.Protects)
	if d, _ := activities.Choose(free, m.DiskSelector); d != nil {
		return diskText(*d)
	}
	switch {
	case m.DiskSelector != nil:
		return "the disk of its disk selector (" + selectorText(*m.DiskSelector) + ")"
	case len(disks) == 0:
		return "its disk, which no agent has looked at yet,"
	}
	return "the disk that a person will choose"
}

// diskText says which disk it is, and what is lost with it.
func diskText(d action.Disk) string {
	text := d.Path
	for _, x := range []struct{ what, v string }{{"", d.Model}, {"serial ", d.Serial}, {"wwn ", d.WWN}} {
		if x.v != "" {
			text += " " + x.what + x.v
		}
	}
	text += ", " + size(d.Size)
	switch {
	case d.Blank:
		text += ", blank"
	case len(d.Signatures) > 0:
		text += ", which holds " + strings.Join(d.Signatures, ", ")
	}
	return inert(text + ",")
}

func machineDecommissionCmd(o *options) *cobra.Command {
	var in struct {
		Wipe        string `json:"wipe,omitempty"`
		KeepAddress bool   `json:"keepAddress,omitempty"`
	}
	var wait, yes bool
	c := &cobra.Command{
		Use: "decommission NAME", Short: "Wipe all disks of a machine, purge its secrets, switch it off", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `End a machine's service. Its agent is booted and wipes every fixed disk that is
not protected, verified by reading back, and deletes the firmware's entries of
what was there. The power is switched off, verified; user data, vendor data and
the plans of its runs are purged; its addresses are released. The BMC's password
stays: it belongs to the hardware.

The machine is then "available". Where anything of the wipe or the power could
not be verified it is "quarantined" instead: no run writes to it before a person
has released it, or another decommissioning has verified everything. Until then
it keeps its addresses.

Whoever is asked on the way can skip: the machine is dead, or gone. Then the rest
is done, and it is quarantined.`,
		Example: `  ingot machine decommission node-1
  ingot machine decommission node-1 --wipe metadata --keep-address --yes --wait`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			m, disks, err := o.disksOf(cmd, c, args[0])
			if err != nil {
				return err
			}
			var all []string
			for _, d := range disks {
				if !d.Removable && !m.Protects(d) {
					all = append(all, diskText(d))
				}
			}
			what := "all fixed disks"
			if len(all) > 0 {
				what += " (" + strings.TrimSuffix(strings.Join(all, " "), ",") + ")"
			}
			if n := len(m.ProtectedDisks); n > 0 {
				what += fmt.Sprintf(", but not the %d protected", n)
			}
			lost := ", purges its user data and vendor data"
			if !in.KeepAddress {
				lost += ", releases its addresses"
			}
			if err := confirm(cmd, yes, fmt.Sprintf("wipes %s of machine %s%s and switches it off", what, m.Name, lost), m.Name); err != nil {
				return err
			}
			return o.begin(cmd, c, path("machines", m.Name, "decommission"), in, wait)
		},
	}
	x := c.Flags()
	x.StringVar(&in.Wipe, "wipe", "", "quick (default) zeroes the whole of each disk, metadata only what makes it recognised")
	x.BoolVar(&in.KeepAddress, "keep-address", false, "keep the addresses of its interfaces")
	waitFlag(c, &wait)
	yesFlag(c, &yes)
	completeFlag(c, "wipe", cobra.FixedCompletions([]string{"quick", "metadata"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func machineReleaseCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "release NAME", Short: "Put a quarantined machine back into service", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Say that a quarantined machine is in order: what a decommissioning could not
verify, you have seen to. Runs may write to it again.`,
		Example: "  ingot machine release node-1\n  ingot machine release node-1 --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := ask[api.MachineView](cmd.Context(), c, "GET", path("machines", args[0]), nil)
			if err != nil {
				return err
			}
			if m := a.v.Machine; m.Quarantined() {
				if err := confirm(cmd, yes, inert(fmt.Sprintf("ends the quarantine of machine %s: %s", m.Name, m.Standing.Reason)), m.Name); err != nil {
					return err
				}
			}
			a, err = ask[api.MachineView](cmd.Context(), c, "POST", path("machines", args[0], "release"), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, m api.MachineView) error {
				_, err := fmt.Fprintf(w, "machine %s is in service\n", m.Name)
				return err
			})
		},
	}
	yesFlag(c, &yes)
	return c
}

// standingText says what a decommissioning has left of a machine.
func standingText(s *inventory.Standing) string {
	if s == nil {
		return ""
	}
	text := s.State + " since " + when(s.Since)
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}

func recoverCmd(o *options) *cobra.Command {
	return group("recover", "Recover: wipe and install many machines after a disaster",
		"  ingot recover start flood --selector rack=a1 --abort-after 3\n  ingot recover status flood",
		recoverStartCmd(o), recoverStatusCmd(o), recoverCancelCmd(o))
}

func recoverStartCmd(o *options) *cobra.Command {
	var in workflows.RecoverInput
	var order []string
	var yes, wait bool
	c := &cobra.Command{
		Use: "start NAME {--machine M… | --selector KEY=VALUE…}", Short: "Wipe and install many machines, each by its own template", Args: cobra.ExactArgs(1),
		Long: `Wipe and install machines, a few at a time. Each is a run of its own, as by
"ingot machine reprovision".

Machines of one --order come before those of the next, and machines that none
names come last. A machine that waits for an operator gives its place to the next
one, and goes on when it is answered. The recovery ends when each machine is
installed or has failed.

With --abort-after N nothing more is begun once N machines have failed or wait
for an operator; what is under way goes on.`,
		Example: `  ingot recover start flood --machine node-1,node-2,node-3
  ingot recover start rack-a1 --selector rack=a1 --order router,storage-1 --order storage-2 --concurrency 4 --abort-after 3 --yes --wait
  temporal workflow start --type Recover --task-queue ingot --workflow-id recover/flood --input '{"name":"flood","machines":["node-1"]}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in.Name, in.Order = args[0], nil
			for _, group := range order {
				in.Order = append(in.Order, strings.FieldsFunc(group, func(r rune) bool { return r == ',' || r == ' ' }))
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			all, err := ask[list[api.MachineView]](cmd.Context(), c, "GET", path("machines"), nil)
			if err != nil {
				return err
			}
			ms := make([]inventory.Machine, 0, len(all.v.Items))
			for _, m := range all.v.Items {
				ms = append(ms, m.Machine)
			}
			groups, err := inventory.RecoverOrder(ms, in.Machines, in.Selector, in.Order)
			if err != nil {
				return err
			}
			names := slices.Concat(groups...)
			if err := confirm(cmd, yes, fmt.Sprintf("wipes %d machines and installs them anew: %s", len(names), strings.Join(names, ", ")), in.Name); err != nil {
				return err
			}
			a, err := ask[api.Started](cmd.Context(), c, "POST", path("recover"), in)
			if err != nil {
				return err
			}
			if wait {
				return o.waitOperation(cmd, c, a.v.Workflow)
			}
			return show(cmd, o, a, func(w io.Writer, x api.Started) error {
				_, err := fmt.Fprintf(w, "%s has begun as run %s, with %d machines\nnext: ingot recover status %s --wait\n", x.Workflow, x.Run, len(names), in.Name)
				return err
			})
		},
	}
	x := c.Flags()
	x.StringSliceVar(&in.Machines, "machine", nil, "machine; repeatable, or a list a,b,c")
	x.StringToStringVar(&in.Selector, "selector", nil, "label key=value that all machines carry; repeatable")
	x.StringArrayVar(&order, "order", nil, "machines a,b,c that come before the others; repeatable: one group after another")
	x.IntVar(&in.Concurrency, "concurrency", 0, "how many machines at a time (default 2)")
	x.IntVar(&in.AbortAfter, "abort-after", 0, "begin no more once so many have failed or wait for a person (default: never)")
	x.StringVar(&in.Template, "template", "", "template instead of each machine's own")
	waitFlag(c, &wait)
	yesFlag(c, &yes)
	completeFlag(c, "machine", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return o.names(cmd, "machines")
	})
	completeFlag(c, "template", o.templateNames)
	return c
}

// recoverNames completes the names of recoveries.
func (o *options) recoverNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := o.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	a, err := ask[list[inventory.Operation]](cmd.Context(), c, "GET", path("operations")+"?type="+workflows.RecoverType, nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	names := map[string]bool{}
	for _, x := range a.v.Items {
		names[x.Name] = true
	}
	return slices.Sorted(maps.Keys(names)), cobra.ShellCompDirectiveNoFileComp
}

func recoverStatusCmd(o *options) *cobra.Command {
	var wait bool
	c := &cobra.Command{
		Use: "status NAME", Short: "Show the outcome of each machine of a recovery", Args: cobra.ExactArgs(1), ValidArgsFunction: o.recoverNames,
		Example: "  ingot recover status flood\n  ingot recover status flood --wait\n  ingot recover status flood --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			id := workflows.RecoverID(args[0])
			if wait {
				return o.waitOperation(cmd, c, id)
			}
			a, err := o.operation(cmd, c, id)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, x inventory.Operation) error {
				if err := printOperation(w, x); err != nil {
					return err
				}
				for _, s := range x.Steps {
					if s.State != inventory.StepWaiting {
						continue
					}
					// The recovery may be over, and its run have been answered since.
					now, err := ask[inventory.Workflow](cmd.Context(), c, "GET", path("workflows", s.Run), nil)
					if err != nil || now.v.AwaitsPerson() {
						fmt.Fprintf(w, "\n%s waits for a person: ingot workflow get %s\n", s.Machine, s.Machine)
						continue
					}
					fmt.Fprintf(w, "\n%s has waited for a person; now: %s\n", s.Machine, runWord(&now.v))
				}
				return nil
			})
		},
	}
	waitFlag(c, &wait)
	return c
}

func recoverCancelCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME", Short: "Cancel a recovery, and the runs that it has under way", Args: cobra.ExactArgs(1), ValidArgsFunction: o.recoverNames,
		Long:    "Cancel a recovery. Its runs that are under way are cancelled, too; those that\nwait for a person are left as they are.",
		Example: "  ingot recover cancel flood",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "POST", operationPath(workflows.RecoverID(args[0]), "cancel"), nil, func(w io.Writer, x api.Started) error {
				_, err := fmt.Fprintf(w, "%s was asked to end\nnext: ingot recover status %s\n", x.Workflow, args[0])
				return err
			})
		},
	}
}
