package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func workflowCommand(o *Options) *cobra.Command {
	return addHabits(Group("workflow", "Workflows: runs that are open or have ended",
		"  ingot workflow list --open\n  ingot workflow get node-1            # the machine's open run, or its last installation or wipe\n"+
			"  ingot workflow retry node-1 --from failed-step",
		workflowCreateCommand(o), workflowListCommand(o), workflowGetCommand(o), workflowEventsCommand(o),
		workflowLogsCommand(o), workflowWaitCommand(o), workflowRetryCommand(o), workflowDecideCommand(o), workflowCancelCommand(o),
		workflowPoweredOnCommand(o), workflowDeleteCommand(o)), workflowHabits())
}

// runCommand completes cmd: it finds the run that its argument names, and calls the function run with this run.
func runCommand(o *Options, cmd *cobra.Command, run func(c *Call, a client.Answer[inventory.Workflow]) error) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), firstArg(o.machines())
	return o.NewCommand(cmd, func(c *Call) error {
		a, err := findRun(c, c.Args[0])
		if err != nil {
			return err
		}

		return run(c, a)
	})
}

var runID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// findRun returns the run that arg names. arg is a run id or the name of a machine. For a machine, the server chooses
// the run: the open one, otherwise the newest.
func findRun(c *Call, arg string) (client.Answer[inventory.Workflow], error) {
	ofMachine := client.Path("machines", strings.TrimPrefix(arg, "machine/"), "workflow")
	if !runID.MatchString(arg) {
		return get[inventory.Workflow](c, ofMachine)
	}

	a, err := get[inventory.Workflow](c, client.Path("workflows", arg))
	if errors.Is(err, inventory.ErrNotFound) { // the name of a machine may have the form of a run id
		if b, e := get[inventory.Workflow](c, ofMachine); e == nil {
			return b, nil
		}
	}

	return a, err
}

func workflowListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.Workflow]{
		cmd: &cobra.Command{
			Short: "List runs, the newest first",
			Long: "List the newest 100 runs, the newest first; --limit sets another number. With --output\n" +
				"wide, also show the id of each run.",
			Example: "  ingot workflow list\n  ingot workflow list --machine node-1 --state FAILED\n" +
				"  ingot workflow list --state waiting\n" +
				"  ingot workflow list --open --watch\n  ingot workflow list -l 'rack in (a1,a2)' --output wide\n" +
				"  ingot workflow list --limit 1000 --sort started",
		},
		route: client.Path("workflows"),
		filters: []filter{
			{name: "machine", usage: "only runs of this machine", complete: o.machines()},
			stateFilter("only runs in this state"),
			machineFilter(o),
			{name: "open", usage: "only runs that have not ended", set: true},
		},
		sort:  "started",
		empty: "no runs",
		head:  []string{"MACHINE", "TYPE", "STATE", "PHASE", "BEGAN", "TOOK", "RUN", "MESSAGE"},
		wide:  []string{"RUN"},
		fit:   true,
		row: func(x inventory.Workflow) []any {
			return []any{
				x.Machine, x.Type, State(x.State), x.Phase, human.Time(x.Started), duration(x.Started, x.Ended), x.Run,
				firstLine(x.Message),
			}
		},
	})
}

func workflowGetCommand(o *Options) *cobra.Command {
	return runCommand(o, &cobra.Command{
		Use: "get {MACHINE | RUN}", Aliases: []string{"show", "describe"}, Short: "Show a run: what it does, what it waits for, why it failed",
		Long: `Show a run: what it does, what it waits for, why it failed. With --output
tinkerbell, print JSON with the field names and units of Tinkerbell before v0.25.`,
		Example:     "  ingot workflow get node-1\n  ingot workflow get node-1 --output json",
		Annotations: map[string]string{extraOutput: outputTinkerbell},
	}, func(c *Call, a client.Answer[inventory.Workflow]) error {
		if c.output == outputTinkerbell {
			return printTinkerbell(c, a.Value)
		}

		return show(c, a, func(w io.Writer, x inventory.Workflow) error { return printRun(c, w, x) })
	})
}

func workflowLogsCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "logs {MACHINE | RUN}", Short: "Print the log of an action",
		Long: `Print the log of an action of a run. Without --action, this is the first action that did
not succeed or, if all actions succeeded, the last action.`,
		Example: "  ingot workflow logs node-1\n  ingot workflow logs node-1 --action write-image --attempt 1",
	}

	action := cmd.Flags().String("action", "", "name or number of the action")
	attempt := cmd.Flags().Int("attempt", 0, "number of the attempt, from 1 (default: the last attempt)")

	return runCommand(o, cmd, func(c *Call, a client.Answer[inventory.Workflow]) error {
		log, err := readLog(c, a.Value.Run, *action, *attempt)
		if err != nil {
			return err
		}
		if log == "" && c.forPeople() {
			c.Note("the log is empty")
			return nil
		}

		return ShowText(c, map[string]string{"run": a.Value.Run, "log": log}, strings.TrimRight(log, "\n"))
	})
}

// readLog returns the log of an attempt of an action. action is a name or an index; if it is "", the server selects the
// action. If attempt is 0, the server selects the attempt.
func readLog(c *Call, run, action string, attempt int) (string, error) {
	q := url.Values{}
	if action != "" {
		q.Set("action", action)
	}
	if attempt > 0 {
		q.Set("attempt", strconv.Itoa(attempt))
	}

	resp, err := c.Request(http.MethodGet, client.WithQuery(client.Path("workflows", run, "logs"), q), nil, 0)
	if err != nil {
		return "", err
	}

	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func workflowWaitCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "wait {MACHINE | RUN}", Aliases: []string{"watch"}, Short: "Show the progress of a run until it ends",
		Long: `Show the progress of a run until the run ends, and exit with the run's result. Ctrl-C
does not stop the run.`,
		Example: "  ingot workflow wait node-1",
	}

	evidenceFlag(cmd, "")

	return runCommand(o, cmd, func(c *Call, a client.Answer[inventory.Workflow]) error { return waitForRun(c, a.Value.Run) })
}

func workflowRetryCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "retry {MACHINE | RUN}", Short: "Repeat a run, from the failed step or from the start",
		Long: `Start a new run with the input of a run that has ended. With --from failed-step, the new
run begins at the failed step, with the plan of the ended run. With --from start, it
begins at the start, with a new plan. A decommissioning or an inspection always begins
at the start.

No retry is possible after a later run has installed or wiped the machine. --from
failed-step is also refused if another run has written to the machine since then, or if
the plan is no longer stored.

A retry that would overwrite an installed system or wipe the machine asks for
confirmation, unless --yes is given.`,
		Example: "  ingot workflow retry node-1 --from failed-step --wait\n  ingot workflow retry node-1 --from start",
	}

	from := cmd.Flags().String("from", "failed-step", "where the new run begins: failed-step or start")
	completeWords(cmd, "from", "failed-step", "start")
	wait, yes := waitFlags(cmd), YesFlag(cmd)

	return runCommand(o, cmd, func(c *Call, a client.Answer[inventory.Workflow]) error {
		if *from != "failed-step" && *from != "start" {
			return UsageError("invalid --from %q; must be one of failed-step, start", *from)
		}
		switch w := a.Value; w.Type {
		case inventory.TypeDecommission:
			var in contract.DecommissionInput
			if len(w.Input) > 0 {
				if err := json.Unmarshal(w.Input, &in); err != nil {
					return fmt.Errorf("reading the input of run %q: %w", w.Run, err)
				}
			}
			if err := confirmDecommission(c, *yes, w.Machine, in.KeepAddress); err != nil {
				return err
			}
		case inventory.TypeProvision, inventory.TypeReprovision:
			if err := confirmOverInstalled(c, *yes, w.Machine); err != nil {
				return err
			}
		}

		return startRun(c, client.Path("workflows", a.Value.Run, "retry"), map[string]string{"from": *from}, *wait)
	})
}

func workflowDecideCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "decide {MACHINE | RUN} --choice CHOICE", Short: "Answer the open question of a run",
		Long: `Answer the open question of a run. "ingot workflow get" shows the question and its
choices. With --question, the answer is refused if another question is open.`,
		Example: `  ingot workflow decide node-1 --question 3.bind.1 --choice retry --disk-serial S3Z9NX0M
  ingot workflow decide node-1 --choice abort`,
	}

	d := decisionFlags(o, cmd, func(c *Call) (*inventory.Question, error) {
		a, err := findRun(c, c.Args[0])
		return a.Value.Question, err
	})

	var disk inventory.DiskSelector
	cmd.Flags().StringVar(&disk.Serial, "disk-serial", "", "serial number of the disk to write")
	cmd.Flags().StringVar(&disk.WWN, "disk-wwn", "", "WWN of the disk to write")
	cmd.Flags().StringVar(&disk.ByID, "disk-by-id", "", "name of the disk to write, as in /dev/disk/by-id")
	wait := waitFlags(cmd)

	return runCommand(o, cmd, func(c *Call, a client.Answer[inventory.Workflow]) error {
		run := a.Value.Run
		if err := checkDecision(d, a.Value.Question, "run "+run, "ingot workflow get "+c.Args[0]); err != nil {
			return err
		}
		if disk != (inventory.DiskSelector{}) {
			d.DiskSelector = &disk
		}

		x, err := post[map[string]string](c, client.Path("workflows", run, "decide"), d)
		if err != nil {
			return err
		}
		if *wait {
			return waitForRun(c, run)
		}

		return show(c, x, text(decisionText(d)))
	})
}

func workflowCancelCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "cancel {MACHINE | RUN}", Short: "Cancel a run; its netboot window closes",
		Long: `Cancel a run. Its agent stops and its netboot window closes. A disk that is being
written is left incomplete, and does not boot.`,
		Example: "  ingot workflow cancel node-1 --reason 'wrong image' --wait",
	}

	reason := cmd.Flags().String("reason", "", "reason for the cancellation, to be recorded")
	wait := waitFlag(cmd)

	return runCommand(o, cmd, func(c *Call, a client.Answer[inventory.Workflow]) error {
		run := a.Value
		x, err := post[apitypes.Started](c, client.Path("workflows", run.Run, "cancel"), map[string]string{"reason": *reason})
		if err != nil {
			return err
		}
		if *wait && !inventory.Final(run.State) {
			err := waitForRun(c, run.Run)
			var ended endedError
			if errors.As(err, &ended) && ended.state == inventory.StateCancelled {
				return nil // the cancellation was requested, so it is no error
			}
			return err
		}

		return show(c, x, text(func(apitypes.Started) string {
			if inventory.Final(run.State) {
				return fmt.Sprintf("run %s had already ended: %s", run.Run, run.State)
			}
			return fmt.Sprintf("run %s: cancellation requested\nnext: ingot workflow get %s", run.Run, run.Machine)
		}))
	})
}

func workflowPoweredOnCommand(o *Options) *cobra.Command {
	return runCommand(o, &cobra.Command{
		Use: "powered-on {MACHINE | RUN}", Short: "Report that you have switched on the machine of a run",
		Example: "  ingot workflow powered-on node-1",
	}, func(c *Call, a client.Answer[inventory.Workflow]) error {
		return postAndShow(c, client.Path("workflows", a.Value.Run, "powered-on"), nil, text(func(apitypes.Started) string {
			return "run " + a.Value.Run + " was informed that its machine is on"
		}))
	})
}

func workflowDeleteCommand(o *Options) *cobra.Command {
	return deleteCommand(o, &cobra.Command{
		Use: "delete {MACHINE | RUN}", Short: "Delete the record of a run that has ended",
		Long: `Delete the record of a run that has ended, with its events and logs. The machine
is not touched.`,
		Example: "  ingot workflow delete 3f2c… --yes", ValidArgsFunction: firstArg(o.machines()),
	}, func(c *Call) (deletion, error) {
		a, err := findRun(c, c.Args[0])
		lost := fmt.Sprintf(" of %s (%s, %s) with its events and logs", a.Value.Machine, a.Value.State, human.Time(a.Value.Started))
		return deletion{what: "the record of run " + a.Value.Run, lost: lost, route: client.Path("workflows", a.Value.Run)}, err
	})
}

func workflowCreateCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "create {--template T --hardware M | -f FILE}", Short: "Start a workflow", Args: cobra.NoArgs,
		Long: `Start a workflow. With --hardware, the workflow provisions this machine. With --file,
the workflow is described by a YAML or JSON document with the fields type (Provision,
Reprovision, Decommission, Inspect, BMCJob, Recover or ProvisionTogether) and input.

Provisioning destroys all data on the chosen disk.`,
		Example: "  ingot workflow create --template my-template --hardware node-1\n" +
			"  ingot workflow create -f workflow.yaml --wait",
	}

	var in contract.ProvisionInput
	file := fileFlag(cmd, "YAML or JSON file, - for standard input")
	hardware := cmd.Flags().String("hardware", "", "machine, by name or MAC")
	addTemplateFlags(o, cmd, &in.Template, &in.Image, &in.HardwareMap)
	wait := waitFlags(cmd)
	CompleteFlag(cmd, "hardware", o.machines())
	for _, flag := range []string{"template", "image", "hardware", "hardware-map"} {
		cmd.MarkFlagsMutuallyExclusive("file", flag)
	}

	cmd.MarkFlagsOneRequired("file", "hardware")

	return o.NewCommand(cmd, func(c *Call) (err error) {
		body := workflowBody{Type: inventory.TypeProvision}
		if *file != "" {
			body, err = readWorkflow(c, *file)
		} else {
			in.Machine, err = findMachine(c, *hardware)
			body.Input = in
		}
		if err != nil {
			return err
		}

		if body.Type == inventory.TypeRecover || body.Type == inventory.TypeTogether {
			return startOperation(c, client.Path("workflows"), body, *wait, "")
		}
		return startRun(c, client.Path("workflows"), body, *wait)
	})
}
