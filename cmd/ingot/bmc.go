package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

func bmcCmd(o *options) *cobra.Command {
	job := group("job", "BMC jobs: ordered lists of tasks", "  ingot bmc job list",
		bmcJobCreateCmd(o), bmcJobListCmd(o), bmcJobGetCmd(o))
	return group("bmc", "Management controllers", "  ingot bmc check node-1\n  ingot bmc job create node-1 --task power:off --task boot:pxe --task power:on",
		bmcCheckCmd(o), job)
}

func bmcCheckCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "check NAME", Short: "Log in to a machine's BMC and read its power state", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot bmc check node-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := checkBMC(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := show(cmd, o, a, func(w io.Writer, v bmcChecked) error {
				if !v.OK {
					return nil
				}
				_, err := fmt.Fprintf(w, "the BMC of %s lets Ingot in; power is %s\n", args[0], v.Power)
				return err
			}); err != nil {
				return err
			}
			if !a.v.OK {
				return advice{fmt.Errorf("checking the BMC of %s: %s", args[0], a.v.Message), "ingot machine get " + args[0] + " (address and user), ingot machine push --replace (password)"}
			}
			return nil
		},
	}
}

type bmcChecked struct {
	OK      bool   `json:"ok"`
	Power   string `json:"power"`
	Message string `json:"message"`
}

func checkBMC(ctx context.Context, c *remote, machine string) (answer[bmcChecked], error) {
	return ask[bmcChecked](ctx, c, "POST", path("bmc", "check"), map[string]string{"machine": machine})
}

func machinePowerCmd(o *options) *cobra.Command {
	words := []struct{ word, short string }{
		{"on", "Switch a machine on"},
		{"off", "Switch a machine off, hard"},
		{"soft", "Ask a machine's system to shut down"},
		{"cycle", "Switch a machine off and on"},
		{"reset", "Reset a machine"},
		{"status", "Read a machine's power state"},
	}
	var subs []*cobra.Command
	for _, x := range words {
		var force, yes bool
		c := &cobra.Command{
			Use: x.word + " NAME", Short: x.short, Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
			Example: "  ingot machine power " + x.word + " node-1",
			RunE: func(cmd *cobra.Command, args []string) error {
				c, err := o.client()
				if err != nil {
					return err
				}
				if force {
					if err := confirm(cmd, yes, "takes machine "+args[0]+" away from the run that holds it, which then asks a person", args[0]); err != nil {
						return err
					}
				}
				in := map[string]any{"action": x.word}
				if force {
					in["force"] = true
				}
				return o.job(cmd, c, args[0], path("machines", args[0], "power"), in)
			},
		}
		if x.word != "status" {
			c.Flags().BoolVar(&force, "force", false, "also while a run holds the machine, which then asks a person")
			yesFlag(c, &yes)
		}
		subs = append(subs, c)
	}
	return group("power {on | off | soft | cycle | reset | status} NAME", "Switch a machine by its BMC",
		"  ingot machine power status node-1\n  ingot machine power cycle node-1", subs...)
}

func machineBootDeviceCmd(o *options) *cobra.Command {
	var d inventory.BootDevice
	var force, yes bool
	c := &cobra.Command{
		Use: "boot-device NAME DEVICE", Short: "Say what a machine boots next: pxe, disk, cdrom, bios or none", Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"pxe", "disk", "cdrom", "bios", "none"}, cobra.ShellCompDirectiveNoFileComp
			}
			return o.machineNames(cmd, args, toComplete)
		},
		Example: "  ingot machine boot-device node-1 disk\n  ingot machine boot-device node-1 pxe --efi --persistent",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if force {
				if err := confirm(cmd, yes, "takes machine "+args[0]+" away from the run that holds it, which then asks a person", args[0]); err != nil {
					return err
				}
			}
			d.Device = args[1]
			in := struct {
				inventory.BootDevice
				Force bool `json:"force,omitempty"`
			}{d, force}
			return o.job(cmd, c, args[0], path("machines", args[0], "boot-device"), in)
		},
	}
	c.Flags().BoolVar(&d.Persistent, "persistent", false, "from now on, not only once")
	c.Flags().BoolVar(&d.EFI, "efi", false, "by UEFI")
	c.Flags().BoolVar(&force, "force", false, "also while a run holds the machine, which then asks a person")
	yesFlag(c, &yes)
	return c
}

// job starts a BMC job and waits for its end.
func (o *options) job(cmd *cobra.Command, c *remote, machine, to string, in any) error {
	st, err := ask[api.Started](cmd.Context(), c, "POST", to, in)
	if err != nil {
		return err
	}
	a, err := o.waitForJob(cmd, c, machine, st.v.Job)
	if err != nil {
		return err
	}
	if err := show(cmd, o, a, printJob); err != nil {
		return err
	}
	if a.v.State != inventory.StateSuccess {
		return advice{fmt.Errorf("job %s of %s ended as %s", a.v.Name, machine, a.v.State), "ingot bmc check " + machine}
	}
	return nil
}

// waitForJob waits until a job is over; its record may be missing until a
// worker has begun.
func (o *options) waitForJob(cmd *cobra.Command, c *remote, machine, job string) (answer[inventory.BMCJob], error) {
	for begun := time.Now(); ; {
		a, err := ask[inventory.BMCJob](cmd.Context(), c, "GET", path("bmc", "jobs", machine, job), nil)
		switch {
		case err == nil && inventory.Final(a.v.State):
			return a, nil
		case errors.Is(err, inventory.ErrNotFound) && time.Since(begun) < time.Minute:
		case err != nil && cmd.Context().Err() == nil:
			return a, err
		}
		select {
		case <-time.After(o.poll / 4):
		case <-cmd.Context().Done():
			say(cmd, "\nThe job goes on. Look at it with:  ingot bmc job get %s %s", machine, job)
			return a, said{cmd.Context().Err()}
		}
	}
}

func printJob(w io.Writer, j inventory.BMCJob) error {
	for _, t := range j.Tasks {
		line := taskText(t) + ": " + t.State
		if t.Message != "" {
			line += "  " + t.Message
		}
		fmt.Fprintln(w, inert(line))
	}
	if j.Message != "" {
		fmt.Fprintln(w, inert(j.Message))
	}
	return nil
}

func taskText(t inventory.BMCTask) string {
	if t.BootDevice == nil {
		return "power " + t.Power
	}
	text := "boot " + t.BootDevice.Device
	if t.BootDevice.EFI {
		text += " by UEFI"
	}
	if t.BootDevice.Persistent {
		return text + " from now on"
	}
	return text + " once"
}

func bmcJobCreateCmd(o *options) *cobra.Command {
	var tasks []string
	var name string
	var force, yes bool
	c := &cobra.Command{
		Use: "create MACHINE --task TASK…", Short: "Make a machine's BMC do tasks in order", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Make a machine's BMC do tasks in order. A task is power:on, power:off,
power:soft, power:cycle, power:reset, power:status, or boot:DEVICE with DEVICE
pxe, disk, cdrom, bios or none, and then ,efi and ,persistent as needed.`,
		Example: "  ingot bmc job create node-1 --task power:off --task boot:pxe,efi --task power:on",
		RunE: func(cmd *cobra.Command, args []string) error {
			in := workflows.BMCJobInput{Machine: args[0], Job: name, Force: force}
			var ps inventory.Problems
			for _, t := range tasks {
				in.Tasks = append(in.Tasks, task(&ps, t))
			}
			if err := ps.Err(); err != nil {
				return err
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			if force {
				if err := confirm(cmd, yes, "takes machine "+args[0]+" away from the run that holds it, which then asks a person", args[0]); err != nil {
					return err
				}
			}
			return o.job(cmd, c, args[0], path("bmc", "jobs"), in)
		},
	}
	c.Flags().StringArrayVar(&tasks, "task", nil, "task; repeatable, in order")
	c.Flags().StringVar(&name, "name", "", "the job's name (default: made up)")
	c.Flags().BoolVar(&force, "force", false, "also while a run holds the machine, which then asks a person")
	yesFlag(c, &yes)
	cobra.CheckErr(c.MarkFlagRequired("task"))
	return c
}

func task(ps *inventory.Problems, text string) inventory.BMCTask {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "power":
		return inventory.BMCTask{Power: rest}
	case "boot":
		words := strings.Split(rest, ",")
		d := inventory.BootDevice{Device: words[0]}
		for _, w := range words[1:] {
			switch w {
			case "efi":
				d.EFI = true
			case "persistent":
				d.Persistent = true
			default:
				ps.Add("--task", "efi and persistent are known", "%q in %q means nothing", w, text)
			}
		}
		return inventory.BMCTask{BootDevice: &d}
	}
	ps.Add("--task", "write power:on or boot:pxe", "%q is no task", text)
	return inventory.BMCTask{}
}

func bmcJobListCmd(o *options) *cobra.Command {
	var machine string
	c := &cobra.Command{
		Use: "list", Short: "List BMC jobs", Args: cobra.NoArgs, Aliases: []string{"ls"}, Example: "  ingot bmc job list --machine node-1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askAndShow(cmd, o, "GET", path("bmc", "jobs")+"?"+url.Values{"machine": {machine}}.Encode(), nil, func(w io.Writer, l list[inventory.BMCJob]) error {
				if len(l.Items) == 0 {
					say(cmd, "no BMC jobs")
					return nil
				}
				t := newTable(w, "MACHINE", "JOB", "STATE", "OF", "BEGAN", "TASKS")
				for _, j := range l.Items {
					of := "a person"
					if j.Inline {
						of = "run " + j.Run
					}
					var ts []string
					for _, x := range j.Tasks {
						ts = append(ts, taskText(x))
					}
					t.row(j.Machine, j.Name, j.State, of, when(j.Started), strings.Join(ts, ", "))
				}
				return t.flush()
			})
		},
	}
	c.Flags().StringVar(&machine, "machine", "", "only of this machine")
	completeFlag(c, "machine", o.machineNames)
	return c
}

func bmcJobGetCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "get MACHINE JOB", Short: "Show a BMC job", Args: cobra.ExactArgs(2), ValidArgsFunction: o.machineNames, Example: "  ingot bmc job get node-1 power-on-1a2b3c4d",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "GET", path("bmc", "jobs", args[0], args[1]), nil, func(w io.Writer, j inventory.BMCJob) error {
				fmt.Fprintf(w, "job %s of %s: %s\n", j.Name, j.Machine, j.State)
				return printJob(w, j)
			})
		},
	}
}
