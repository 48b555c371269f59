package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/machinefile"
	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

func workflowCmd(o *options) *cobra.Command {
	return group("workflow", "Workflows: runs that go on, wait or are over",
		"  ingot workflow list --open\n  ingot workflow get node-1            # the machine's latest run\n  ingot workflow retry node-1 --from failed-step",
		workflowCreateCmd(o), workflowListCmd(o), workflowGetCmd(o), workflowEventsCmd(o), workflowLogsCmd(o), workflowRetryCmd(o),
		workflowDecideCmd(o), workflowCancelCmd(o), workflowPoweredOnCmd(o), workflowDeleteCmd(o))
}

var runID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// run finds the run that an argument names: a run id, or a machine, which
// means its latest run.
func (o *options) run(cmd *cobra.Command, c *remote, arg string) (answer[inventory.Workflow], error) {
	name := strings.TrimPrefix(arg, "machine/")
	if runID.MatchString(arg) {
		a, err := ask[inventory.Workflow](cmd.Context(), c, "GET", path("workflows", arg), nil)
		if !errors.Is(err, inventory.ErrNotFound) {
			return a, err
		}
		// A machine's name may look like a run id, too.
		if b, e := ask[inventory.Workflow](cmd.Context(), c, "GET", path("machines", name, "workflow"), nil); e == nil {
			return b, nil
		}
		return a, err
	}
	return ask[inventory.Workflow](cmd.Context(), c, "GET", path("machines", name, "workflow"), nil)
}

// machineOf finds the machine that a name or a MAC means.
func (o *options) machineOf(cmd *cobra.Command, c *remote, arg string) (string, error) {
	mac, err := inventory.ParseMAC(arg)
	if err != nil {
		return arg, nil
	}
	a, err := ask[list[inventory.Machine]](cmd.Context(), c, "GET", path("machines"), nil)
	if err != nil {
		return "", err
	}
	for _, m := range a.v.Items {
		if _, ok := m.InterfaceByMAC(mac); ok || m.Name == arg {
			return m.Name, nil
		}
	}
	return "", advice{fmt.Errorf("machine with MAC %s: %w", mac, inventory.ErrNotFound), "ingot machine list"}
}

func workflowCreateCmd(o *options) *cobra.Command {
	var file, template, hardware, image string
	var data map[string]string
	var wait bool
	c := &cobra.Command{
		Use: "create {--template T --hardware M | -f FILE}", Short: "Start a workflow", Args: cobra.NoArgs,
		Long: `Start a workflow: a provisioning of a machine (its name or MAC) by a template, or
what a file describes: a YAML or JSON document with type (Provision, Inspect or
BMCJob) and input.

The content of the disk that a provisioning chooses is lost.`,
		Example: "  ingot workflow create --template my-template --hardware node-1\n  ingot workflow create -f workflow.yaml --wait",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			var in struct {
				Type  string         `json:"type"`
				Input map[string]any `json:"input"`
			}
			switch {
			case file != "" && (template != "" || hardware != "" || image != "" || len(data) > 0):
				return usage("give --file, or --template and --hardware")
			case file != "":
				body, err := workflowFile(cmd, file)
				if err != nil {
					return err
				}
				return o.begin(cmd, c, path("workflows"), body, wait)
			case hardware == "":
				return usage("give --template and --hardware, or --file")
			}
			name, err := o.machineOf(cmd, c, hardware)
			if err != nil {
				return err
			}
			in.Type = workflows.ProvisionType
			return o.begin(cmd, c, path("workflows"), workflowBody{in.Type, workflows.ProvisionInput{Machine: name, Template: template, Image: image, HardwareMap: data}}, wait)
		},
	}
	x := c.Flags()
	x.StringVarP(&file, "file", "f", "", "YAML or JSON file, - for standard input")
	x.StringVar(&template, "template", "", "template (default: the machine's)")
	x.StringVar(&hardware, "hardware", "", "machine, by name or MAC")
	x.StringVar(&image, "image", "", "image (default: the machine's)")
	x.StringToStringVar(&data, "hardware-map", nil, "further data for the template, key=value; repeatable")
	waitFlag(c, &wait)
	completeFlag(c, "template", o.templateNames)
	completeFlag(c, "image", o.imageNames)
	completeFlag(c, "hardware", o.machineNames)
	return c
}

type workflowBody struct {
	Type  string `json:"type"`
	Input any    `json:"input"`
}

// workflowFile reads a workflow as strictly as the server, but knows lines.
func workflowFile(cmd *cobra.Command, file string) (workflowBody, error) {
	var out workflowBody
	name, b, err := readInput(cmd, file)
	if err != nil {
		return out, err
	}
	if err := machinefile.Foreign(name, b); err != nil {
		return out, err
	}
	docs, err := strictyaml.Documents(name, b)
	if err != nil {
		return out, err
	}
	if len(docs) != 1 {
		return out, inventory.Problems{{File: name, What: fmt.Sprintf("holds %d documents where one is expected", len(docs))}}
	}
	switch kind := docs[0].Text("type"); kind {
	case workflows.ProvisionType:
		return workflowOf[workflows.ProvisionInput](docs[0])
	case workflows.ReprovisionType:
		return workflowOf[workflows.ProvisionInput](docs[0])
	case workflows.DecommissionType:
		return workflowOf[workflows.DecommissionInput](docs[0])
	case workflows.RecoverType:
		return workflowOf[workflows.RecoverInput](docs[0])
	case workflows.InspectType:
		return workflowOf[workflows.InspectInput](docs[0])
	case workflows.BMCJobType:
		return workflowOf[workflows.BMCJobInput](docs[0])
	default:
		return out, docs[0].Locate(inventory.Problems{{Field: "type", What: fmt.Sprintf("there is no workflow type %q", kind), Remedy: "write Provision, Reprovision, Decommission, Inspect, BMCJob or Recover"}})
	}
}

func workflowOf[T any](d strictyaml.Document) (workflowBody, error) {
	var in struct {
		Type  string `json:"type"`
		Input T      `json:"input"`
	}
	err := d.Decode(&in)
	return workflowBody{in.Type, in.Input}, err
}

func workflowListCmd(o *options) *cobra.Command {
	var machine, state string
	var open bool
	c := &cobra.Command{
		Use: "list", Short: "List runs, the newest first", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example: "  ingot workflow list\n  ingot workflow list --machine node-1 --state FAILED\n  ingot workflow list --open",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			q := url.Values{}
			for k, v := range map[string]string{"machine": machine, "state": strings.ToUpper(state)} {
				if v != "" {
					q.Set(k, v)
				}
			}
			if open {
				q.Set("open", "true")
			}
			a, err := ask[list[inventory.Workflow]](cmd.Context(), c, "GET", path("workflows")+"?"+q.Encode(), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, l list[inventory.Workflow]) error {
				if len(l.Items) == 0 {
					say(cmd, "no runs")
					return nil
				}
				t := newTable(w, "MACHINE", "TYPE", "STATE", "PHASE", "BEGAN", "TOOK", "RUN", "MESSAGE")
				for _, x := range l.Items {
					message, _, _ := strings.Cut(x.Message, "\n")
					t.row(x.Machine, x.Type, x.State, x.Phase, when(x.Started), took(x), x.Run, shorten(message, 60))
				}
				return t.flush()
			})
		},
	}
	c.Flags().StringVar(&machine, "machine", "", "only of this machine")
	c.Flags().StringVar(&state, "state", "", "only in this state: PREPARING PENDING RUNNING POST SUCCESS FAILED TIMEOUT CANCELLED")
	c.Flags().BoolVar(&open, "open", false, "only those that are not over")
	completeFlag(c, "machine", o.machineNames)
	return c
}

func took(w inventory.Workflow) string { return lasted(w.Started, w.Ended) }

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func workflowGetCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "get {MACHINE | RUN}", Short: "Show a run: what it does, what it waits for, why it failed", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot workflow get node-1\n  ingot workflow get node-1 --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, x inventory.Workflow) error { return o.printRun(cmd, c, w, x) })
		},
	}
}

// printRun writes all that there is to know about a run.
func (o *options) printRun(cmd *cobra.Command, c *remote, w io.Writer, x inventory.Workflow) error {
	t := newTable(w)
	t.field("run", x.Run)
	t.field("workflow", x.ID)
	t.field("type", x.Type)
	t.field("machine", x.Machine)
	t.field("template", x.Template)
	t.field("image", x.Image)
	t.field("state", x.State)
	t.field("phase", x.Phase)
	t.field("began", when(x.Started)+"  ("+took(x)+")")
	if x.Disk != nil {
		t.field("disk", strings.TrimSpace(fmt.Sprintf("%s  %s  %s", x.Disk.Path, x.Disk.Serial, size(x.Disk.Size))))
	}
	t.field("evidence", x.Evidence)
	if err := t.flush(); err != nil {
		return err
	}
	if len(x.Actions) > 0 {
		fmt.Fprintln(w)
		t = newTable(w, "#", "TASK", "ACTION", "STATE", "ATTEMPT", "BEGAN", "SECONDS", "PROGRESS")
		for i, a := range x.Actions {
			t.row(i, a.Task, a.Name, a.State, attemptOf(a), when(a.StartedAt), secondsOf(a), progressOf(a))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	return o.printTrouble(cmd, c, w, x)
}

func attemptOf(a inventory.ActionRecord) string {
	if a.Attempt == 0 {
		return ""
	}
	return strconv.Itoa(a.Attempt)
}

func secondsOf(a inventory.ActionRecord) string {
	switch {
	case a.State == action.Running && !a.StartedAt.IsZero():
		return fmt.Sprintf("%.0f", time.Since(a.StartedAt).Seconds())
	case a.Seconds == 0 && a.StartedAt.IsZero():
		return ""
	}
	return fmt.Sprintf("%.1f", a.Seconds)
}

func progressOf(a inventory.ActionRecord) string {
	switch {
	case a.State != action.Running || a.Done == 0:
		return ""
	case a.Total > 0:
		return fmt.Sprintf("%s of %s, %d %%", size(a.Done), size(a.Total), min(a.Done*100/a.Total, 100))
	}
	return size(a.Done)
}

// printTrouble writes what a run waits for or failed by: what was seen, what
// is missing, and what to do next.
func (o *options) printTrouble(cmd *cobra.Command, c *remote, w io.Writer, x inventory.Workflow) error {
	if x.Message != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(x.Message))
	}
	if x.State == inventory.StateSuccess {
		return nil
	}
	if text := o.seenAndMissing(cmd, c, x); text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	if inventory.Final(x.State) && x.State != inventory.StateCancelled {
		for i, a := range x.Actions {
			if a.State != action.Failed && a.State != action.Timeout && a.State != action.Stopped {
				continue
			}
			fmt.Fprintf(w, "\naction %d %s: %s", i, a.Name, a.State)
			if a.Message != "" {
				fmt.Fprintf(w, ": %s", strings.TrimSpace(a.Message))
			}
			fmt.Fprintln(w)
			if tail := o.logTail(cmd, c, x, i, a); tail != "" {
				fmt.Fprintf(w, "its log ends with:\n%s\n", tail)
			}
			break
		}
	}
	if err := printQuestion(w, x); err != nil {
		return err
	}
	for _, r := range x.Retrying {
		fmt.Fprintf(w, "retrying: %s\n", r)
	}
	if x.Next != "" && x.Question == nil {
		fmt.Fprintf(w, "next: %s\n", x.Next)
	}
	return nil
}

// maxTail is how many lines of a log are shown with a failure.
const maxTail = 15

func (o *options) logTail(cmd *cobra.Command, c *remote, x inventory.Workflow, i int, a inventory.ActionRecord) string {
	text := a.Log
	if text == "" {
		var err error
		if text, err = readLog(cmd, c, x.Run, strconv.Itoa(i), 0); err != nil {
			return "" // the log is a courtesy here; ingot workflow logs tells why there is none
		}
	}
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) > maxTail {
		lines = lines[len(lines)-maxTail:]
	}
	for i, l := range lines {
		lines[i] = "  | " + inert(l)
	}
	if text = strings.TrimSpace(strings.Join(lines, "\n")); text == "|" {
		return ""
	}
	return strings.Join(lines, "\n")
}

// rung is a step of a network boot as an event tells it.
type rung struct{ kind, text string }

// ladder is what a network boot shows on the wire, in order: the agent's, or
// that of another installer.
func ladder(installer bool) []rung {
	last := rung{inventory.EventHello, "its agent said hello"}
	if installer {
		last = rung{inventory.EventPayload, "fetched all of its installer"}
	}
	return []rung{
		{inventory.EventDHCP, "asked for an address and a boot file"},
		{inventory.EventLoader, "fetched the boot loader"},
		{inventory.EventScript, "fetched the boot script"},
		{inventory.EventKernel, "fetched the kernel"},
		{inventory.EventInitrd, "fetched the initramfs"},
		last,
	}
}

// seenAndMissing tells how far the boot of a run that has no agent came.
func (o *options) seenAndMissing(cmd *cobra.Command, c *remote, x inventory.Workflow) string {
	asksAboutBoot := x.Question != nil && len(x.Question.Disks) == 0 && len(x.Actions) > 0 && x.Actions[0].State == action.Pending
	early := slices.Contains([]string{inventory.PhasePower, inventory.PhaseDHCP, inventory.PhaseLoader, inventory.PhaseAgent}, x.Phase) ||
		x.Phase == inventory.PhaseInstall && x.State == inventory.StatePending
	if !early && !asksAboutBoot {
		return ""
	}
	a, err := ask[list[inventory.Event]](cmd.Context(), c, "GET", path("workflows", x.Run, "events"), nil)
	if err != nil {
		return ""
	}
	last := 0
	for _, e := range a.v.Items {
		last = max(last, e.Boot)
	}
	counts, installer := map[string]int64{}, false
	for _, e := range a.v.Items {
		if e.Boot == last {
			installer = installer || e.Kind == inventory.EventArmed && e.Message == inventory.ArmedForInstaller
			counts[e.Kind] += max(e.Count, 1)
		}
	}
	var seen, missing []string
	for _, rung := range ladder(installer) {
		if n := counts[rung.kind]; n > 0 {
			seen = append(seen, fmt.Sprintf("%s (%s)", rung.text, times(n)))
		} else {
			missing = append(missing, rung.text)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	if len(seen) == 0 {
		seen = []string{"nothing of this machine"}
	}
	return "seen:    " + strings.Join(seen, ", ") + "\nmissing: " + strings.Join(missing, ", ")
}

func times(n int64) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// printQuestion writes what a person is asked, and the commands that answer.
func printQuestion(w io.Writer, x inventory.Workflow) error {
	q := x.Question
	if q == nil {
		return nil
	}
	if q.Text != x.Message {
		fmt.Fprintf(w, "\n%s\n", q.Text)
	}
	if len(q.Disks) > 0 {
		fmt.Fprintln(w)
		if err := printDisks(w, q.Disks); err != nil {
			return err
		}
	}
	fmt.Fprintf(w, "\nasked since %s; answer with one of\n", when(q.Since))
	for _, choice := range q.Choices {
		line := fmt.Sprintf("  ingot workflow decide %s --question %s --choice %s", x.Machine, q.ID, choice)
		if choice == workflows.Retry && len(q.Disks) > 0 {
			line += " " + orText(diskFlag(q.Disks[0]), "--disk-serial SERIAL") + "   # or another disk of the list"
		}
		fmt.Fprintln(w, line)
	}
	return nil
}

func orText(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}

func workflowEventsCmd(o *options) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "events {MACHINE | RUN}", Short: "Show what happened in a run, in order", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot workflow events node-1\n  ingot workflow events node-1 -f          # as it happens, until the run ends\n  ingot workflow events node-1 -o json     # with follow: one event per line",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			if follow {
				return o.follow(cmd, c, a.v.Run)
			}
			es, err := ask[list[inventory.Event]](cmd.Context(), c, "GET", path("workflows", a.v.Run, "events"), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, es, func(w io.Writer, l list[inventory.Event]) error {
				if len(l.Items) == 0 {
					say(cmd, "nothing was recorded")
					return nil
				}
				t := newTable(w, "SEQ", "AT", "BOOT", "KIND", "COUNT", "BY", "MESSAGE")
				for _, e := range l.Items {
					t.row(e.Seq, when(e.At), e.Boot, e.Kind, e.Count, e.By, eventText(e))
				}
				return t.flush()
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the run ends")
	return c
}

func eventText(e inventory.Event) string {
	if e.Message != "" || e.Kind != inventory.EventActionDone {
		return e.Message
	}
	var r action.Result
	if err := json.Unmarshal(e.Detail, &r); err != nil {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Key, r.State, r.Message))
}

// follow prints events as they come, until the run is over.
func (o *options) follow(cmd *cobra.Command, c *remote, run string) error {
	var after int64
	var w answer[inventory.Workflow]
	for {
		// The state first: what is written after it was read is not missed.
		x, err := ask[inventory.Workflow](cmd.Context(), c, "GET", path("workflows", run), nil)
		if err != nil {
			return leave(cmd, w.v, run, err)
		}
		w = x
		es, err := ask[list[inventory.Event]](cmd.Context(), c, "GET", path("workflows", run, "events")+fmt.Sprintf("?after=%d", after), nil)
		if err != nil {
			return leave(cmd, w.v, run, err)
		}
		for _, e := range es.v.Items {
			after = max(after, e.Seq)
			if o.output == "json" {
				b, err := json.Marshal(e)
				if err != nil {
					return err
				}
				cmd.Println(escape(string(b)))
				continue
			}
			cmd.Println(strings.TrimRight(fmt.Sprintf("%s  %-18s %s", when(e.At), e.Kind, inert(eventText(e))), " "))
		}
		if inventory.Final(w.v.State) && len(es.v.Items) == 0 {
			return nil
		}
		select {
		case <-time.After(o.poll):
		case <-cmd.Context().Done():
			return goesOn(cmd, w.v, run)
		}
	}
}

func readLog(cmd *cobra.Command, c *remote, run, action string, attempt int) (string, error) {
	q := url.Values{}
	if action != "" {
		q.Set("action", action)
	}
	if attempt > 0 {
		q.Set("attempt", strconv.Itoa(attempt))
	}
	resp, err := c.request(cmd.Context(), "GET", path("workflows", run, "logs")+"?"+q.Encode(), nil, 0)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func workflowLogsCmd(o *options) *cobra.Command {
	var action string
	var attempt int
	c := &cobra.Command{
		Use: "logs {MACHINE | RUN}", Short: "Print the log of an action", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long:    "Print the log of an action: of the first that did not succeed, or the last,\nunless --action names one by its name or number.",
		Example: "  ingot workflow logs node-1\n  ingot workflow logs node-1 --action write-image --attempt 1",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			text, err := readLog(cmd, c, a.v.Run, action, attempt)
			if err != nil {
				return err
			}
			return showValue(cmd, o, map[string]string{"run": a.v.Run, "log": text}, func(w io.Writer) error {
				if text == "" {
					say(cmd, "the log is empty")
					return nil
				}
				_, err := fmt.Fprintln(w, strings.TrimRight(text, "\n"))
				return err
			})
		},
	}
	c.Flags().StringVar(&action, "action", "", "name or number of the action")
	c.Flags().IntVar(&attempt, "attempt", 0, "attempt, from 1 (default: the last)")
	return c
}

func workflowRetryCmd(o *options) *cobra.Command {
	var from string
	var wait bool
	c := &cobra.Command{
		Use: "retry {MACHINE | RUN}", Short: "Run again, from the failed step or from the start", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Start a new run with the input of one that is over: from its failed step, with
the plan that it had, or from the start. From the failed step is refused once
another run has written to the machine, or when the plan is not stored.`,
		Example: "  ingot workflow retry node-1 --from failed-step --wait\n  ingot workflow retry node-1 --from start",
		RunE: func(cmd *cobra.Command, args []string) error {
			if from != "failed-step" && from != "start" {
				return usage("--from %q is neither failed-step nor start", from)
			}
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			return o.begin(cmd, c, path("workflows", a.v.Run, "retry"), map[string]string{"from": from}, wait)
		},
	}
	c.Flags().StringVar(&from, "from", "failed-step", "failed-step or start")
	completeFlag(c, "from", cobra.FixedCompletions([]string{"failed-step", "start"}, cobra.ShellCompDirectiveNoFileComp))
	waitFlag(c, &wait)
	return c
}

func workflowDecideCmd(o *options) *cobra.Command {
	var d workflows.Decision
	var s inventory.DiskSelector
	var wait bool
	c := &cobra.Command{
		Use: "decide {MACHINE | RUN} --choice CHOICE", Short: "Answer what a run asks", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long: `Answer what a run asks a person; ingot workflow get shows the question with its
choices. An answer names its question, so that it never answers the next one;
without --question it answers the one that is asked now.`,
		Example: `  ingot workflow decide node-1 --question 3.bind.1 --choice retry --disk-serial S3Z9NX0M
  ingot workflow decide node-1 --choice abort`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			q := a.v.Question
			if q == nil {
				return advice{fmt.Errorf("run %s asks nothing at the moment: %w", a.v.Run, inventory.ErrConflict), "ingot workflow get " + args[0]}
			}
			if d.Question == "" {
				d.Question = q.ID
			}
			if d.Question == q.ID && !slices.Contains(q.Choices, d.Choice) {
				return usage("--choice %q is none of %s", d.Choice, strings.Join(q.Choices, ", "))
			}
			if s != (inventory.DiskSelector{}) {
				d.DiskSelector = &s
			}
			x, err := ask[map[string]string](cmd.Context(), c, "POST", path("workflows", a.v.Run, "decide"), d)
			if err != nil {
				return err
			}
			if wait {
				return o.wait(cmd, c, a.v.Run)
			}
			return show(cmd, o, x, func(w io.Writer, _ map[string]string) error {
				_, err := fmt.Fprintf(w, "decided: %s\n", d.Choice)
				return err
			})
		},
	}
	x := c.Flags()
	x.StringVar(&d.Question, "question", "", "id of the question (default: the one that is asked now)")
	x.StringVar(&d.Choice, "choice", "", "one of the question's choices")
	x.StringVar(&s.Serial, "disk-serial", "", "serial number of the disk to write")
	x.StringVar(&s.WWN, "disk-wwn", "", "WWN of the disk to write")
	x.StringVar(&s.ByID, "disk-by-id", "", "name below /dev/disk/by-id of the disk to write")
	cobra.CheckErr(c.MarkFlagRequired("choice"))
	completeFlag(c, "choice", func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if c, err := o.client(); err == nil && len(args) == 1 {
			if a, err := o.run(cmd, c, args[0]); err == nil && a.v.Question != nil {
				return a.v.Question.Choices, cobra.ShellCompDirectiveNoFileComp
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	})
	waitFlag(c, &wait)
	return c
}

func workflowCancelCmd(o *options) *cobra.Command {
	var reason string
	var wait bool
	c := &cobra.Command{
		Use: "cancel {MACHINE | RUN}", Short: "End a run; its netboot window closes", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long:    "End a run. Its agent stops and its netboot window closes. A disk that was being\nwritten stays as it is then, and does not boot.",
		Example: "  ingot workflow cancel node-1 --reason 'wrong image' --wait",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			x, err := ask[api.Started](cmd.Context(), c, "POST", path("workflows", a.v.Run, "cancel"), map[string]string{"reason": reason})
			if err != nil {
				return err
			}
			if wait && !inventory.Final(a.v.State) {
				err := o.wait(cmd, c, a.v.Run)
				var over endedError
				if errors.As(err, &over) && over.state == inventory.StateCancelled {
					return nil // which is what was asked for
				}
				return err
			}
			return show(cmd, o, x, func(w io.Writer, _ api.Started) error {
				if inventory.Final(a.v.State) {
					_, err := fmt.Fprintf(w, "run %s was over: %s\n", a.v.Run, a.v.State)
					return err
				}
				_, err := fmt.Fprintf(w, "run %s was asked to end\nnext: ingot workflow get %s\n", a.v.Run, a.v.Machine)
				return err
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why; it is recorded")
	waitFlag(c, &wait)
	return c
}

func workflowPoweredOnCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "powered-on {MACHINE | RUN}", Short: "Say that a person has switched the machine on", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Example: "  ingot workflow powered-on node-1",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			x, err := ask[api.Started](cmd.Context(), c, "POST", path("workflows", a.v.Run, "powered-on"), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, x, func(w io.Writer, _ api.Started) error {
				_, err := fmt.Fprintf(w, "run %s was told\n", a.v.Run)
				return err
			})
		},
	}
}

func workflowDeleteCmd(o *options) *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete {MACHINE | RUN}", Short: "Delete the record of a run that is over", Args: cobra.ExactArgs(1), ValidArgsFunction: o.machineNames,
		Long:    "Delete the record of a run that is over, with its events and logs. The machine\nis not touched.",
		Example: "  ingot workflow delete 3f2c… --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.run(cmd, c, args[0])
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("deletes the record of run %s of %s (%s, %s) with its events and logs", a.v.Run, a.v.Machine, a.v.State, when(a.v.Started)), args[0]); err != nil {
				return err
			}
			if _, err := ask[struct{}](cmd.Context(), c, "DELETE", path("workflows", a.v.Run), nil); err != nil {
				return err
			}
			say(cmd, "record of run %s deleted", a.v.Run)
			return nil
		},
	}
	yesFlag(c, &yes)
	return c
}
