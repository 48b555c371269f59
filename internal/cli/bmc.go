package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func bmcCommand(o *Options) *cobra.Command {
	job := Group("job", "BMC jobs: ordered lists of tasks", "  ingot bmc job list",
		jobCreateCommand(o), jobListCommand(o), jobGetCommand(o))
	return Group("bmc", "BMCs, the machines' management controllers",
		"  ingot bmc check node-1\n  ingot bmc job create node-1 --task power:off --task boot:pxe --task power:on",
		bmcCheckCommand(o), bmcForgetKeyCommand(o), bmcRotateCommand(o), job)
}

func bmcCheckCommand(o *Options) *cobra.Command {
	var retry bool
	cmd := o.NewCommand(&cobra.Command{
		Use: "check NAME", Short: "Log in to a machine's BMC and read its power state",
		Long: `Log in to a machine's BMC and read its power state.

When a BMC has refused the same credentials three times in a row, Ingot waits before it
uses these credentials again, longer after each refusal, so that the BMC does not lock
the user out. New credentials are used at once. If you have corrected the user account
on the BMC instead, --retry logs in once without waiting. A successful log-in ends the
waiting.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()), Example: "  ingot bmc check node-1",
	}, func(c *Call) error {
		a, err := post[apitypes.BMCCheck](c, client.Path("bmc", "check"), map[string]any{"machine": c.Args[0], "retry": retry})
		if err != nil {
			return err
		}

		err = show(c, a, func(w io.Writer, v apitypes.BMCCheck) error {
			if v.OK {
				printReport(w, c.Args[0], *v.BMCReport)
			}
			return nil
		})
		if err != nil || a.Value.OK {
			return err
		}

		return human.Advise(
			fmt.Errorf("checking the BMC of %s: %s", c.Args[0], a.Value.Message),
			"ingot machine get "+c.Args[0]+" (address and user), ingot machine push --replace (password)")
	})
	cmd.Flags().BoolVar(&retry, "retry", false, "log in once now, even if the BMC has refused these credentials repeatedly")
	return cmd
}

// printReport prints the report of a BMC after a successful log-in.
func printReport(w io.Writer, machine string, r inventory.BMCReport) {
	fmt.Fprintf(w, "logged in to the BMC of %s; power is %s\n", machine, r.Power)
	for _, x := range []struct{ name, value string }{
		{"asked at", r.Endpoint},
		{"boots next", r.Boot},
		{"machine", strings.TrimSpace(r.Maker + " " + r.Model)},
		{"firmware", r.Firmware},
		{"BMC's firmware", r.Controller},
		{"Secure Boot", r.SecureBoot},
		{"virtual media", strings.Join(r.Media, ", ")},
	} {
		if x.value != "" && x.value != "none" && x.value != "unknown" {
			fmt.Fprintln(w, Inert(x.name+": "+x.value))
		}
	}
	for _, s := range r.Sensors {
		fmt.Fprintln(w, Inert(fmt.Sprintf("%s: %g %s %s", s.Name, s.Value, s.Unit, s.Health)))
	}
	for _, text := range r.Odd {
		fmt.Fprintln(w, Inert("odd: "+text))
	}
}

func bmcForgetKeyCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "forget-key NAME", Short: "Forget the stored key of a BMC whose certificate was replaced",
		Long: `Forget the stored public key of a BMC's TLS certificate, for example after the
certificate was replaced. Ingot stores the key at the first log-in; from then on, it
sends the password only to a BMC that presents this key. After this command, Ingot
trusts the key that the BMC presents at the next log-in. If another host could answer at
the BMC's address, do not run this command: set the machine's bmc.fingerprint to the
fingerprint of the new key instead.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()), Example: "  ingot bmc forget-key node-1",
	}, func(c *Call) error {
		_, err := post[struct{}](c, client.Path("bmc", "forget-key"), map[string]string{"machine": c.Args[0]})
		if err != nil {
			return err
		}
		c.Note("The key is forgotten. Store the new key with:  ingot bmc check %s", c.Args[0])
		return nil
	})
}

func bmcRotateCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rotate NAME", Short: "Change the password of a BMC's user",
		Long: `Change the password of the BMC user with which Ingot logs in. The server generates the
new password, tests it with a log-in and stores it encrypted; the password is never
shown. If the change is interrupted, the server still has the password that the BMC
accepts. Only the driver redfish supports this command.`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()), Example: "  ingot bmc rotate node-1",
	}
	force, confirm := forceFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		if err := confirm(c); err != nil {
			return err
		}
		in := contract.BMCJobInput{Machine: c.Args[0], Tasks: []inventory.BMCTask{{RotatePassword: true}}, Force: *force}
		return runJob(c, c.Args[0], client.Path("bmc", "jobs"), in)
	})
}

// runJob starts a BMC job by a POST request, waits for its end and shows it. If the job fails, runJob returns an
// error.
func runJob(c *Call, machine, route string, in any) error {
	st, err := postOnce(c, route, in)
	if err != nil {
		return err
	}

	a, err := waitForJob(c, machine, st.Value.Job)
	if err != nil {
		return err
	}
	if st.Value.Existing {
		c.Note("Job %s of %s was already started at %s, and was not started again.", a.Value.Name, machine, human.Time(a.Value.Started))
	}
	if err := show(c, a, printJob); err != nil {
		return err
	}
	if a.Value.State != inventory.StateSuccess {
		err := fmt.Errorf("job %s of %s ended as %s", a.Value.Name, machine, a.Value.State)
		return human.Advise(err, "ingot bmc check "+machine)
	}

	return nil
}

// jobStart is how long the record of a new job may be missing, because a worker writes the record only when it starts
// the job.
const jobStart = time.Minute

// waitForJob waits until a job has ended, and returns its last record.
func waitForJob(c *Call, machine, job string) (last client.Answer[inventory.BMCJob], err error) {
	begun := time.Now()
	err = c.poll(c.pollEvery/4, func() (bool, error) {
		a, err := get[inventory.BMCJob](c, client.Path("bmc", "jobs", machine, job))
		if errors.Is(err, inventory.ErrNotFound) && time.Since(begun) < jobStart {
			return false, nil
		}
		last = a
		return inventory.Final(a.Value.State), err
	}, func() error {
		c.Note("\nThe job goes on. Look at it with:  ingot bmc job get %s %s", machine, job)
		return reported{context.Canceled}
	})

	return last, err
}

func printJob(w io.Writer, j inventory.BMCJob) error {
	for _, t := range j.Tasks {
		line := taskText(t) + ": " + t.State
		if t.Message != "" {
			line += "  " + t.Message
		}
		fmt.Fprintln(w, Inert(line))
	}
	if j.Message != "" {
		fmt.Fprintln(w, Inert(j.Message))
	}

	return nil
}

func taskText(t inventory.BMCTask) string {
	switch {
	case t.RotatePassword:
		return "new password"
	case t.Media != nil && t.Media.MediaURL == "":
		return "eject virtual media"
	case t.Media != nil:
		return "insert virtual media " + t.Media.MediaURL
	case t.BootDevice == nil:
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

func jobCreateCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create MACHINE --task TASK…", Short: "Run tasks on a machine's BMC, in order",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.machines()),
		Long: `Run tasks on a machine's BMC, in order. TASK is one of

  power:ACTION   ACTION is on, off, soft, cycle, reset or status
  boot:DEVICE    DEVICE is pxe, http, disk, cdrom, bios or none, with the suffix
                 ,efi and/or ,persistent if needed
  media:URL      insert the image at URL into the virtual CD drive
  media:         eject the image from the virtual CD drive

If the machine already has a job with the same --name and the same tasks, the command
shows that job and starts no new one. A command with --name is therefore safe to repeat.`,
		Example: "  ingot bmc job create node-1 --task power:off --task boot:pxe,efi --task power:on",
	}

	tasks := cmd.Flags().StringArray("task", nil, "task to run; repeatable, the tasks run in the given order")
	name := cmd.Flags().String("name", "", "name of the job, unique for the machine (default: generated)")
	force, confirm := forceFlags(cmd)
	requireFlags(cmd, "task")

	return o.NewCommand(cmd, func(c *Call) error {
		in := contract.BMCJobInput{Machine: c.Args[0], Job: *name, Force: *force}
		var ps inventory.Problems
		for _, t := range *tasks {
			in.Tasks = append(in.Tasks, parseTask(&ps, t))
		}
		if err := ps.Err(); err != nil {
			return err
		}
		if err := confirm(c); err != nil {
			return err
		}

		return runJob(c, c.Args[0], client.Path("bmc", "jobs"), in)
	})
}

func parseTask(ps *inventory.Problems, text string) inventory.BMCTask {
	kind, rest, _ := strings.Cut(text, ":")
	switch kind {
	case "power":
		return inventory.BMCTask{Power: rest}
	case "media":
		return inventory.BMCTask{Media: &inventory.VirtualMedia{MediaURL: rest}}
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
				ps.Add("--task", "must be efi or persistent", "invalid option %q in %q", w, text)
			}
		}
		return inventory.BMCTask{BootDevice: &d}
	}

	ps.Add("--task", "write a task such as power:on, boot:pxe or media:URL", "invalid task %q", text)
	return inventory.BMCTask{}
}

func jobListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.BMCJob]{
		cmd:     &cobra.Command{Short: "List BMC jobs", Example: "  ingot bmc job list --machine node-1"},
		route:   client.Path("bmc", "jobs"),
		filters: []filter{{name: "machine", usage: "only jobs of this machine", complete: o.machines()}},
		empty:   "no BMC jobs",
		head:    []string{"MACHINE", "JOB", "STATE", "STARTED BY", "BEGAN", "TASKS"},
		wide:    []string{"STARTED BY"},
		fit:     true,
		row: func(j inventory.BMCJob) []any {
			by := "the operator"
			if j.Inline {
				by = "run " + j.Run
			}
			var tasks []string
			for _, t := range j.Tasks {
				tasks = append(tasks, taskText(t))
			}
			return []any{j.Machine, j.Name, State(j.State), by, human.Time(j.Started), strings.Join(tasks, ", ")}
		},
	})
}

func jobGetCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "get MACHINE JOB", Short: "Show a BMC job", Args: cobra.ExactArgs(2),
		ValidArgsFunction: firstArg(o.machines()), Example: "  ingot bmc job get node-1 power-on-1a2b3c4d",
	}, func(c *Call) error {
		return getAndShow(c, client.Path("bmc", "jobs", c.Args[0], c.Args[1]), func(w io.Writer, j inventory.BMCJob) error {
			fmt.Fprintf(w, "job %s of %s: %s\n", j.Name, j.Machine, j.State)
			return printJob(w, j)
		})
	})
}
