package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
)

// startRun starts a run by a POST request. If wait is true, it waits for the end of the run, otherwise it prints the
// command that shows the run.
func startRun(c *Call, route string, in any, wait bool) error {
	a, err := postOnce(c, route, in)
	if err != nil {
		return err
	}
	if wait {
		return waitForRun(c, a.Value.Run)
	}

	return show(c, a, text(func(s apitypes.Started) string {
		name := strings.TrimPrefix(s.Workflow, "machine/")
		if strings.Contains(name, "/") {
			name = s.Run
		}
		return fmt.Sprintf("run %s of %s has begun\nnext: ingot workflow get %s", s.Run, s.Workflow, name)
	}))
}

// installationFlags adds the flags of all commands that install a machine. It returns the struct that the flags set.
func installationFlags(o *Options, cmd *cobra.Command) *apitypes.Installation {
	var in apitypes.Installation
	addTemplateFlags(o, cmd, &in.Template, &in.Image, &in.HardwareMap)
	x := cmd.Flags()
	x.IntVar(&in.Retries.Count, "retries", 0, "how many retries of failed actions the run may make, in total")
	x.StringVar(&in.Policy, "policy", "",
		"what the run does if an action fails and no retry is left: fail (default), or pause to ask the operator")
	return &in
}

// addTemplateFlags adds the flags that select template, image and hardware map.
func addTemplateFlags(o *Options, cmd *cobra.Command, template, image *string, hardwareMap *map[string]string) {
	x := cmd.Flags()
	x.StringVar(template, "template", "", `template (default: the machine's template, else the built-in template "image")`)
	x.StringVar(image, "image", "", "image (default: the machine's image)")
	x.StringToStringVar(hardwareMap, "hardware-map", nil, "additional value for the template, key=value; repeatable")
	CompleteFlag(cmd, "template", o.templates())
	CompleteFlag(cmd, "image", o.images())
}

func machineProvisionCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "provision {NAME… | --selector LABELS}", Short: "Install machines; the data on the chosen disks is lost",
		Args: cobra.ArbitraryArgs, ValidArgsFunction: o.machines(),
		Long: `Install a machine. All data on the chosen disk is lost. If the machine has no disk
selector, the run chooses the machine's only unprotected fixed disk, if that disk is
blank or was written by Ingot. In any other case, the run asks the operator.

If Ingot has already installed the machine, the command asks for confirmation, unless
--yes is given.

Several machines, or the machines that --selector selects, are installed by one
operation, a few at a time, after you have confirmed the list of machines. None of them
may already have been installed by Ingot. With --canary N, the first N machines are
installed first; the others are started only when all of these are installed. "ingot
operation pause" pauses the operation, "ingot operation resume" resumes it, and "ingot
recover status NAME" shows the outcome of each machine.

With --wait, the command shows the progress of the run, and exits with the run's result.
With --wait and --require-evidence, it exits with 7 if nothing was installed, or if
there is no evidence that the installed system is up. Ctrl-C does not stop the run.`,
		Example: `  ingot machine provision node-1 --image debian-12 --wait
  ingot machine provision node-1 --template my-template --retries 1 --from failed-step
  ingot machine provision --selector rack=a1 --image debian-12 --canary 1 --concurrency 4 --abort-after 2`,
	}

	in := installationFlags(o, cmd)
	cmd.Flags().StringVar(&in.Retries.From, "from", "", "where each retry of --retries begins: failed-step (default) or start")
	completeWords(cmd, "from", "failed-step", "start")
	many := addManyFlags(o, cmd)
	wait, yes := waitFlags(cmd), YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		switch {
		case len(c.Args) > 1 || len(*many.selector) > 0:
			return many.start(c, in, *yes, *wait)
		case len(c.Args) == 0:
			return UsageError("name a machine, or give --selector")
		}
		if err := c.refuseFlags("works only with several machines or --selector", manyFlags...); err != nil {
			return err
		}
		if in.Retries.From != "" && in.Retries.Count == 0 {
			return UsageError("--from needs --retries of at least 1: it says where a retry begins")
		}

		if err := confirmOverInstalled(c, *yes, c.Args[0]); err != nil {
			return err
		}
		return startRun(c, client.Path("machines", c.Args[0], "provision"), in, *wait)
	})
}

// confirmOverInstalled asks for confirmation if the disk of a machine may hold a system that Ingot has installed: a new
// installation would overwrite it.
func confirmOverInstalled(c *Call, yes bool, machine string) error {
	a, err := get[apitypes.MachineView](c, client.Path("machines", machine))
	if err != nil || !a.Value.Installed.MayBeSystem() {
		return err
	}
	m := a.Value
	if m.Installed.NoSystem {
		return c.Confirm(yes, fmt.Sprintf("installs machine %s and overwrites its disk; the last run that wrote to the disk, %s (%s), wrote no "+
			"system, so an earlier system may still be there", m.Name, m.Installed.Run, m.Installed.Template), m.Name)
	}
	what := fmt.Sprintf("installs machine %s again and overwrites %s, which run %s installed",
		m.Name, installedText(m.Installed), m.Installed.Run)
	return c.Confirm(yes, what, m.Name)
}

func machineInspectCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "inspect NAME", Short: "Boot the agent to list a machine's disks and interfaces; nothing is written",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
		Example: "  ingot machine inspect node-1 --wait && ingot machine disks node-1",
	}

	wait := waitFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		return startRun(c, client.Path("machines", c.Args[0], "inspect"), nil, *wait)
	})
}

func machineReprovisionCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "reprovision NAME", Short: "Wipe a machine's disk and reinstall the machine",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
		Long: `Wipe a machine's disk (partition tables and file system signatures) and install the
machine's template on it, in one boot. The disk is chosen as by "ingot machine
provision".`,
		Example: `  ingot machine reprovision node-1
  ingot machine reprovision node-1 --template my-template --yes --wait`,
	}

	in := installationFlags(o, cmd)
	wait, yes := waitFlags(cmd), YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		m, disks, err := machineWithDisks(c, c.Args[0])
		if err != nil {
			return err
		}

		source := cmp.Or(in.Template, m.Template, "image")
		if image := cmp.Or(in.Image, m.Image); image != "" {
			source += " with " + image
		}

		what := fmt.Sprintf("wipes %s of machine %s, and installs template %s", targetDisk(m, disks), m.Name, source)
		if err := c.Confirm(*yes, what, m.Name); err != nil {
			return err
		}

		return startRun(c, client.Path("machines", m.Name, "reprovision"), in, *wait)
	})
}

// machineWithDisks returns a machine and the disks that an agent last found on it. Without a report of an
// agent, it returns no disks.
func machineWithDisks(c *Call, name string) (inventory.Machine, []action.Disk, error) {
	a, err := get[apitypes.MachineView](c, client.Path("machines", name))
	if err != nil {
		return inventory.Machine{}, nil, err
	}

	d, err := get[client.List[action.Disk]](c, client.Path("machines", name, "disks"))
	if errors.Is(err, inventory.ErrNotFound) {
		err = nil
	}

	return a.Value.Machine, d.Value.Items, err
}

// targetDisk describes the disk to which a run would write, as far as it is known before the run.
func targetDisk(m inventory.Machine, disks []action.Disk) string {
	free := slices.DeleteFunc(slices.Clone(disks), m.Protects)
	if d, _ := m.DiskSelector.Choose(free); d != nil {
		return diskText(*d)
	}

	switch {
	case m.DiskSelector != nil:
		return "the disk that matches the disk selector (" + selectorText(*m.DiskSelector) + ")"
	case len(disks) == 0:
		return "the disk (no agent has seen it yet)"
	}

	return "the disk that the operator will choose"
}

func machineDecommissionCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "decommission NAME", Short: "Take a machine out of service: wipe its disks, delete its secrets",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
		Long: `Take a machine out of service. The agent boots, wipes every fixed disk that is not
protected, reads the disks to verify the wipe, and deletes the firmware's boot entries
of the wiped systems. Then the machine is switched off, and its power state is verified.
Its user data, its vendor data and the plans of its runs are deleted, and its addresses
are released. The BMC's password is kept, because it belongs to the hardware.

The machine is then "available". If a part of the wipe or the power state could not be
verified, the machine is "quarantined" instead: it keeps its addresses, and no run
writes to it, until "ingot machine release" or until another decommissioning has
verified everything.

If the run asks the operator because the machine is dead or gone, answer "skip": the
steps that need the machine are left out, the others are done, and the machine is
quarantined.`,
		Example: `  ingot machine decommission node-1
  ingot machine decommission node-1 --wipe metadata --keep-address --yes --wait`,
	}

	var in struct {
		Wipe        string `json:"wipe,omitempty"`
		KeepAddress bool   `json:"keepAddress,omitempty"`
	}

	cmd.Flags().StringVar(&in.Wipe, "wipe", "",
		"quick (default): wipe each whole disk; metadata: wipe only partition tables and signatures of file systems, LVM and RAID")
	cmd.Flags().BoolVar(&in.KeepAddress, "keep-address", false, "keep the machine's addresses reserved")
	completeWords(cmd, "wipe", "quick", "metadata")
	wait, yes := waitFlag(cmd), YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if err := confirmDecommission(c, *yes, c.Args[0], in.KeepAddress); err != nil {
			return err
		}
		return startRun(c, client.Path("machines", c.Args[0], "decommission"), in, *wait)
	})
}

// confirmDecommission asks for confirmation before a machine is decommissioned.
func confirmDecommission(c *Call, yes bool, machine string, keepAddress bool) error {
	m, disks, err := machineWithDisks(c, machine)
	if err != nil {
		return err
	}
	lost := ", deletes its user data and vendor data"
	if !keepAddress {
		lost += ", releases its addresses"
	}
	what := fmt.Sprintf("wipes %s of machine %s%s and switches it off", fixedDisks(m, disks), m.Name, lost)
	return c.Confirm(yes, what, m.Name)
}

// fixedDisks describes the disks that a decommissioning wipes: all disks that are neither removable nor protected.
func fixedDisks(m inventory.Machine, disks []action.Disk) string {
	var wiped []string
	for _, d := range disks {
		if !d.Removable && !m.Protects(d) {
			wiped = append(wiped, diskText(d))
		}
	}

	text := "all fixed disks"
	if len(wiped) > 0 {
		text += " (" + strings.TrimSuffix(strings.Join(wiped, " "), ",") + ")"
	}
	if n := len(m.ProtectedDisks); n > 0 {
		text += fmt.Sprintf(" (except %d protected)", n)
	}

	return text
}

func machineReleaseCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "release NAME", Short: "Put a quarantined machine back into service",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
		Long: `Put a quarantined machine back into service, so that runs may write to it again. First
check yourself what the decommissioning could not verify.`,
		Example: "  ingot machine release node-1\n  ingot machine release node-1 --yes",
	}

	yes := YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		a, err := get[apitypes.MachineView](c, client.Path("machines", c.Args[0]))
		if err != nil {
			return err
		}
		if m := a.Value.Machine; m.Quarantined() {
			what := Inert(fmt.Sprintf("ends the quarantine of machine %s: %s", m.Name, m.Standing.Reason))
			if err := c.Confirm(*yes, what, m.Name); err != nil {
				return err
			}
		}

		return postAndShow(c, client.Path("machines", c.Args[0], "release"), nil, text(func(m apitypes.MachineView) string {
			return "machine " + m.Name + " is in service"
		}))
	})
}
