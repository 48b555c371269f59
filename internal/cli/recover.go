package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func recoverCommand(o *Options) *cobra.Command {
	return Group("recover", "Recoveries: wipe and reinstall many machines after a disaster, or show the installation of many",
		"  ingot recover start flood --selector rack=a1 --abort-after 3\n  ingot recover status flood",
		recoverStartCommand(o), recoverStatusCommand(o), recoverCancelCommand(o))
}

func recoverStartCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "start NAME {--machine M… | --selector LABELS}", Args: cobra.ExactArgs(1),
		Short: "Wipe and reinstall many machines, each with its own template",
		Long: `Wipe machines and install them again, a few at a time. Each machine has its own run, as
with "ingot machine reprovision".

The machines of the first --order are installed first, then the machines of the second
--order, and so on; machines in no --order are installed last. While a machine waits for
an operator, the next machine starts; the waiting machine continues when the operator
has answered. The recovery ends when each machine is installed or has failed.

With --abort-after N, no more machines are started once N machines have failed or wait
for an operator; open runs continue.`,
		Example: `  ingot recover start flood --machine node-1,node-2,node-3
  ingot recover start rack-a1 --selector 'rack=a1,role!=db' --order router,storage-1 --order storage-2 \
    --concurrency 4 --abort-after 3 --yes --wait
  temporal workflow start --type Recover --task-queue ingot --workflow-id recover/flood \
    --input '{"name":"flood","machines":["node-1"]}'`,
	}

	var in contract.RecoverInput
	x := cmd.Flags()
	x.StringSliceVar(&in.Machines, "machine", nil, "machine to install, or several as a,b,c; repeatable")
	wanted := addSelectorFlag(cmd, "install all machines with these labels")
	order := x.StringArray("order", nil,
		"machines to install before the others, as a,b,c; repeatable, the groups are installed in this order")
	x.IntVar(&in.Concurrency, "concurrency", 0, "number of machines to install at the same time (default 2)")
	x.IntVar(&in.AbortAfter, "abort-after", 0,
		"start no more machines when this many have failed or wait for an operator (default: no limit)")
	x.StringVar(&in.Template, "template", "", "template for all machines, instead of each machine's own template")
	wait, yes := waitFlags(cmd), YesFlag(cmd)
	CompleteFlag(cmd, "machine", o.machines())
	CompleteFlag(cmd, selectorName, o.labels())
	CompleteFlag(cmd, "template", o.templates())

	return o.NewCommand(cmd, func(c *Call) error {
		in.Name, in.Selector, in.Order = c.Args[0], *wanted, nil
		for _, names := range *order {
			isSeparator := func(r rune) bool { return r == ',' || r == ' ' }
			in.Order = append(in.Order, strings.FieldsFunc(names, isSeparator))
		}

		names, err := findRecoveredMachines(c, in)
		if err != nil {
			return err
		}

		what := fmt.Sprintf("wipes %s and installs them again: %s", human.Count(len(names), "machine"), strings.Join(names, ", "))
		if err := c.Confirm(*yes, what, in.Name); err != nil {
			return err
		}

		in.Machines, in.Selector = names, nil // those that were confirmed
		text := fmt.Sprintf(", with %s\nnext: ingot recover status %s --wait", human.Count(len(names), "machine"), in.Name)
		return startOperation(c, client.Path("recover"), in, *wait, text)
	})
}

// findRecoveredMachines returns the names of the machines that a recovery would start, in the order of their start.
func findRecoveredMachines(c *Call, in contract.RecoverInput) ([]string, error) {
	all, err := findMachines(c)
	if err != nil {
		return nil, err
	}
	groups, err := inventory.RecoverOrder(all, in.Machines, in.Selector, in.Order)
	return slices.Concat(groups...), err
}

func recoverStatusCommand(o *Options) *cobra.Command {
	return statusCommandOf(o, inventory.TypeRecover, contract.RecoverID, &cobra.Command{
		Use: "status NAME", Short: "Show the outcome of each machine of a recovery",
		Example: "  ingot recover status flood\n  ingot recover status flood --wait\n" +
			"  ingot recover status flood --output json",
	})
}

// statusCommandOf completes a command that shows the operation with the name in its argument. idOf returns the workflow id for a name.
func statusCommandOf(o *Options, kind string, idOf func(string) string, cmd *cobra.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), firstArg(o.operationsOf(kind))
	wait := waitFlags(cmd)

	return o.NewCommand(cmd, func(c *Call) error {
		id := idOf(c.Args[0])
		if *wait {
			return waitForOperation(c, id)
		}

		a, err := getOperation(c, id)
		if err != nil {
			return err
		}

		return show(c, a, func(w io.Writer, x inventory.Operation) error {
			if err := printOperation(w, x); err != nil {
				return err
			}
			for _, s := range x.Steps {
				if s.State == inventory.StepWaiting {
					printWaiting(c, w, s)
				}
			}
			return nil
		})
	})
}

// printWaiting prints whether the run of step s still waits for the operator. It reads the run again, because the
// operator may have answered since the operation recorded the step.
func printWaiting(c *Call, w io.Writer, s inventory.OperationStep) {
	now, err := get[inventory.Workflow](c, client.Path("workflows", s.Run))
	if err != nil || now.Value.AwaitsOperator() {
		fmt.Fprintf(w, "\n%s waits for the operator: ingot workflow get %s\n", s.Machine, s.Machine)
		return
	}
	fmt.Fprintf(w, "\n%s no longer waits for the operator; it is now: %s\n", s.Machine, runState(&now.Value))
}

func recoverCancelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "cancel NAME", Short: "Cancel a recovery and its open runs",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeRecover)),
		Long: `Cancel a recovery. Its open runs are cancelled too, except the runs that wait for the
operator.`,
		Example: "  ingot recover cancel flood",
	}, func(c *Call) error {
		return cancelOperation(c, contract.RecoverID(c.Args[0]), "ingot recover status "+c.Args[0])
	})
}
