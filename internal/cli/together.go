package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func togetherCommand(o *Options) *cobra.Command {
	return Group("together", "Install several machines by the tasks of one template, in its order",
		"  ingot together start k3s --template cluster --hardware-map device_1=node-1,device_2=node-2\n  ingot together status k3s --wait",
		togetherStartCommand(o), togetherStatusCommand(o), togetherRetryCommand(o), togetherCancelCommand(o))
}

func togetherStartCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "start NAME --template T --hardware-map device_1=M1,device_2=M2", Args: cobra.ExactArgs(1),
		Short: "Install several machines by one template; the data on the chosen disks is lost",
		Long: `Have several machines carry out the tasks of one template, in the order of the template.
The worker of a task, such as {{.device_1}}, says which machine carries it out. Each
machine has its own run, and waits in the agent until it is the turn of its task.

All machines are planned first. Then all of them are booted, or none. If a machine
fails, the machines that wait for its tasks fail too; the others finish their tasks.`,
		Example: `  ingot together start k3s --template cluster --hardware-map device_1=node-1,device_2=node-2 --wait
  ingot together start k3s --template cluster --image debian-12 --yes \
    --hardware-map device_1=node-1 --hardware-map device_2=node-2 --hardware-map version=1.30
  temporal workflow start --type ProvisionTogether --task-queue ingot --workflow-id together/k3s \
    --input '{"name":"k3s","template":"cluster","hardwareMap":{"device_1":"node-1","device_2":"node-2"}}'`,
	}

	one := installationFlags(o, cmd)
	x := cmd.Flags()
	x.StringVar(&one.Retries.From, "from", "", "where each retry of --retries begins: failed-step (default) or start")
	x.Lookup("template").Usage = "template"
	x.Lookup("image").Usage = "image (default: the image of each machine)"
	x.Lookup("hardware-map").Usage = "device_N=MACHINE names a machine, by name or MAC; other keys are values for the template; repeatable"
	x.Lookup("retries").Usage = "how many retries of failed actions each machine's run may make, in total"
	x.Lookup("policy").Usage = "what a run does if an action fails and no retry is left: fail (default), or pause to ask the operator"
	completeWords(cmd, "from", "failed-step", "start")
	completeWords(cmd, "policy", contract.Fail, contract.Pause)
	requireFlags(cmd, "template", "hardware-map")
	wait, yes := waitFlags(cmd), YesFlag(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		in := contract.TogetherInput{
			Name: c.Args[0], Template: one.Template, Image: one.Image, HardwareMap: one.HardwareMap, Retries: one.Retries, Policy: one.Policy,
		}
		names, err := findMachinesOfMap(c, in.HardwareMap)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("installs %s by template %s: %s; the content of the disks is lost", human.Count(len(names), "machine"), in.Template,
			strings.Join(names, ", "))
		if err := c.Confirm(*yes, what, in.Name); err != nil {
			return err
		}
		text := fmt.Sprintf(", with %s\nnext: ingot together status %s --wait", human.Count(len(names), "machine"), in.Name)
		return startOperation(c, client.Path("together"), in, *wait, text)
	})
}

// findMachinesOfMap returns the names of the machines that a hardware map names.
func findMachinesOfMap(c *Call, hardwareMap map[string]string) (names []string, err error) {
	all, err := findMachines(c)
	if err != nil {
		return nil, err
	}
	ms, err := inventory.MachinesOfMap(all, hardwareMap)
	for _, m := range ms {
		names = append(names, m.Name)
	}
	return names, err
}

func togetherStatusCommand(o *Options) *cobra.Command {
	return statusCommandOf(o, inventory.TypeTogether, contract.TogetherID, &cobra.Command{
		Use: "status NAME", Short: "Show the outcome of each machine",
		Example: "  ingot together status k3s\n  ingot together status k3s --wait\n  ingot together status k3s --output json",
	})
}

func togetherRetryCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "retry NAME", Short: "Start the operation again for the machines that are not installed",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeTogether)),
		Long: `Start the operation again, after it has failed or was cancelled. Machines that it has
installed stay as they are. The other machines continue from their failed step, with the
plan of their last run; a machine that was not planned begins at its first task.`,
		Example: "  ingot together retry k3s --wait",
	}
	wait := waitFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		name := c.Args[0]
		before, err := getOperation(c, contract.TogetherID(name))
		if err != nil {
			return err
		}
		return startOperation(c, operationPath(before.Value.Run, "retry"), nil, *wait, "\nnext: ingot together status "+name+" --wait")
	})
}

func togetherCancelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "cancel NAME", Short: "Cancel the runs of all machines",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeTogether)),
		Example: "  ingot together cancel k3s",
	}, func(c *Call) error {
		return cancelOperation(c, contract.TogetherID(c.Args[0]), "ingot together status "+c.Args[0])
	})
}

// findMachines returns all machines.
func findMachines(c *Call) ([]inventory.Machine, error) {
	all, err := getAll[apitypes.MachineView](c, client.Path("machines"))
	if err != nil {
		return nil, err
	}
	ms := make([]inventory.Machine, 0, len(all.Value.Items))
	for _, m := range all.Value.Items {
		ms = append(ms, m.Machine)
	}
	return ms, nil
}
