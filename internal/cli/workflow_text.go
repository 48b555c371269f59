package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// printRun prints a run with its actions, its problems and its open question.
func printRun(c *Call, w io.Writer, x inventory.Workflow) error {
	t := NewTable(w)
	t.Field("run", x.Run)
	t.Field("workflow", x.ID)
	t.Field("type", x.Type)
	t.Field("machine", x.Machine)
	t.Field("template", x.Template)
	t.Field("image", x.Image)
	t.Field("state", State(x.State))
	t.Field("phase", x.Phase)
	t.Field("began", human.Time(x.Started)+"  ("+duration(x.Started, x.Ended)+")")
	t.Field("by", x.By)
	if d := x.Disk; d != nil {
		t.Field("disk", strings.TrimSpace(fmt.Sprintf("%s  %s  %s", d.Path, d.Serial, human.Size(d.Size))))
	}

	t.Field("evidence", x.Evidence)
	if err := t.Flush(); err != nil {
		return err
	}

	if len(x.Actions) > 0 {
		fmt.Fprintln(w)
		t = NewTable(w, "#", "TASK", "ACTION", "STATE", "ATTEMPT", "BEGAN", "SECONDS", "PROGRESS")
		for i, a := range x.Actions {
			t.Row(i, a.Task, a.Name, State(a.State), orNone(a.Attempt), human.Time(a.StartedAt), actionSeconds(a), progressText(a))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}

	return printTrouble(c, w, x)
}

// actionSeconds returns how many seconds an action took, or has taken so far. It returns "" if the action has not begun.
func actionSeconds(a inventory.ActionRecord) string {
	switch {
	case a.State == action.Running && !a.StartedAt.IsZero():
		return fmt.Sprintf("%.0f", time.Since(a.StartedAt).Seconds())
	case a.Seconds == 0 && a.StartedAt.IsZero():
		return ""
	}
	return fmt.Sprintf("%.1f", a.Seconds)
}

// progressText describes the progress of a running action. It returns "" if the action is not running or has reported no progress.
func progressText(a inventory.ActionRecord) string {
	switch {
	case a.State != action.Running || a.Done == 0:
		return ""
	case a.Total > 0:
		percent := min(a.Done*100/a.Total, 100)
		return fmt.Sprintf("%s of %s, %d %%", human.Size(a.Done), human.Size(a.Total), percent)
	}

	return human.Size(a.Done)
}

// printTrouble prints what a run waits for or why it failed: its message, the steps of the network boot,
// the failed action, the open question, and what to do next. For a run that succeeded, it prints only the message.
func printTrouble(c *Call, w io.Writer, x inventory.Workflow) error {
	if x.Message != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(x.Message))
	}
	if x.State == inventory.StateSuccess {
		return nil
	}

	if text := bootProgress(c, x); text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	if inventory.Final(x.State) && x.State != inventory.StateCancelled {
		printFailedAction(c, w, x)
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

// printFailedAction prints the first failed action with the end of its log.
func printFailedAction(c *Call, w io.Writer, x inventory.Workflow) {
	i := slices.IndexFunc(x.Actions, func(a inventory.ActionRecord) bool {
		return a.State == action.Failed || a.State == action.Timeout || a.State == action.Stopped
	})
	if i < 0 {
		return
	}

	a := x.Actions[i]
	fmt.Fprintf(w, "\naction %d %s: %s", i, a.Name, a.State)
	if a.Message != "" {
		fmt.Fprintf(w, ": %s", strings.TrimSpace(a.Message))
	}

	fmt.Fprintln(w)

	log := a.Log
	if log == "" {
		// Ignore the error: without a log there is nothing to print, and "ingot workflow logs" shows the error.
		log, _ = readLog(c, x.Run, strconv.Itoa(i), 0)
	}
	if log = strings.TrimRight(log, "\n"); log != "" {
		fmt.Fprintf(w, "its log ends with:\n%s\n", logTail(log))
	}
}

// maxTail is how many lines are printed from the end of a failed action's log.
const maxTail = 15

func logTail(log string) string {
	lines := strings.Split(log, "\n")
	lines = lines[max(0, len(lines)-maxTail):]
	for i, l := range lines {
		lines[i] = "  | " + Inert(l)
	}
	return strings.Join(lines, "\n")
}

// bootStep is a step of a network boot: the kind of event that proves the step, and a description of the step.
type bootStep struct{ kind, text string }

// bootSteps returns the steps of a network boot in order. The last step depends on what is booted: the agent or, if
// installer is true, another installer.
func bootSteps(installer bool) []bootStep {
	last := bootStep{inventory.EventHello, "reached the server with its agent"}
	if installer {
		last = bootStep{inventory.EventPayload, "fetched all of its installer"}
	}

	return []bootStep{
		{inventory.EventDHCP, "asked for an address and a boot file"},
		{inventory.EventLoader, "fetched the boot loader"},
		{inventory.EventScript, "fetched the boot script"},
		{inventory.EventKernel, "fetched the kernel"},
		{inventory.EventInitrd, "fetched the initramfs"},
		last,
	}
}

// bootProgress describes which steps of the network boot were observed and which are missing. It returns "" if none is
// missing, or if the run does not wait for the boot.
func bootProgress(c *Call, x inventory.Workflow) string {
	if !isBooting(x) {
		return ""
	}

	a, err := getAll[inventory.Event](c, client.Path("workflows", x.Run, "events"))
	if err != nil {
		return ""
	}

	counts, installer := countLastBoot(a.Value.Items)

	var seen, missing []string
	for _, s := range bootSteps(installer) {
		switch n := counts[s.kind]; n {
		case 0:
			missing = append(missing, s.text)
		case 1:
			seen = append(seen, s.text+" (once)")
		default:
			seen = append(seen, fmt.Sprintf("%s (%d times)", s.text, n))
		}
	}
	if len(missing) == 0 {
		return ""
	}
	if len(seen) == 0 {
		seen = []string{"nothing from this machine"}
	}

	return "seen:    " + strings.Join(seen, ", ") + "\nmissing: " + strings.Join(missing, ", ")
}

// isBooting reports whether a run waits for its machine to boot, or for the operator's answer about the boot.
func isBooting(x inventory.Workflow) bool {
	switch x.Phase {
	case inventory.PhasePower, inventory.PhaseDHCP, inventory.PhaseLoader, inventory.PhaseAgent:
		return true
	case inventory.PhaseInstall:
		if x.State == inventory.StatePending {
			return true
		}
	}

	return x.Question != nil && len(x.Question.Disks) == 0 &&
		len(x.Actions) > 0 && x.Actions[0].State == action.Pending
}

// countLastBoot counts the events of a run's last boot, by the kind of event. installer is true if the last boot was
// armed for an installer other than the agent.
func countLastBoot(events []inventory.Event) (counts map[string]int64, installer bool) {
	last := 0
	for _, e := range events {
		last = max(last, e.Boot)
	}

	counts = map[string]int64{}
	for _, e := range events {
		if e.Boot == last {
			installer = installer || e.Kind == inventory.EventArmed && e.Message == inventory.ArmedForInstaller
			counts[e.Kind] += max(e.Count, 1)
		}
	}

	return counts, installer
}

// printQuestion prints the open question of a run, and the commands that answer it.
func printQuestion(w io.Writer, x inventory.Workflow) error {
	q := x.Question
	if q == nil {
		return nil
	}

	printQuestionText(w, q, x.Message)
	if len(q.Disks) > 0 {
		fmt.Fprintln(w)
		if err := printDisks(w, q.Disks); err != nil {
			return err
		}
	}

	printChoices(w, q, func(choice string) []string {
		line := fmt.Sprintf("ingot workflow decide %s --question %s --choice %s", x.Machine, q.ID, choice)
		if choice == contract.Retry && len(q.Disks) > 0 {
			return diskChoices(line, q.Disks)
		}
		return []string{line}
	})

	return nil
}

// maxDiskChoices is the number of writable disks up to which one command per disk is printed.
const maxDiskChoices = 8

// diskChoices returns a command for each writable disk: line, followed by the flag that selects the
// disk. If no disk is writable, or too many are, it returns one command with a placeholder for the disk.
func diskChoices(line string, disks []action.Disk) []string {
	var lines []string
	for _, d := range disks {
		if flag := diskFlag(d); flag != "" && !d.ReadOnly {
			lines = append(lines, line+" "+flag)
		}
	}
	if len(lines) == 0 || len(lines) > maxDiskChoices {
		return []string{line + " --disk-serial SERIAL   # serial number of the disk to write"}
	}
	return lines
}

// printQuestionText prints the text of a question, unless it equals message, which the caller has printed already.
func printQuestionText(w io.Writer, q *inventory.Question, message string) {
	if q.Text != message {
		fmt.Fprintf(w, "\n%s\n", q.Text)
	}
}

// printChoices prints the commands that answer a question. The function commands returns the commands for one choice.
func printChoices(w io.Writer, q *inventory.Question, commands func(choice string) []string) {
	fmt.Fprintf(w, "\nopen since %s; answer with one of\n", human.Time(q.Since))
	for _, choice := range q.Choices {
		for _, command := range commands(choice) {
			fmt.Fprintf(w, "  %s\n", command)
		}
	}
}

// outputTinkerbell is the value of --output that selects JSON with the field names that Tinkerbell had before v0.25.
const outputTinkerbell = "tinkerbell"

// printTinkerbell prints a run in the format outputTinkerbell.
func printTinkerbell(c *Call, w inventory.Workflow) error {
	b, err := json.MarshalIndent(w.Tinkerbell(), "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), human.Escape(string(b)))
	return err
}
