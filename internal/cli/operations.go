package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func operationCommand(o *Options) *cobra.Command {
	return Group(
		"operation",
		"Operations: Genesis runs, migrations, recoveries, machines installed together",
		"  ingot operation list --open\n  ingot operation get genesis/lab\n"+
			"  ingot operation decide genesis/lab --choice retry",
		operationListCommand(o),
		operationGetCommand(o),
		operationDecideCommand(o),
		operationPauseCommand(o, true),
		operationPauseCommand(o, false),
		operationCancelCommand(o),
	)
}

// operationPath returns the route of an operation. id is a run id or a workflow id, such as genesis/lab. A workflow id
// means the newest run of that workflow.
func operationPath(id string, more ...string) string {
	return client.Path(append([]string{"operations", strings.Replace(id, "/", ".", 1)}, more...)...)
}

// getOperation returns the operation with this run or workflow id.
func getOperation(c *Call, id string) (client.Answer[inventory.Operation], error) {
	a, err := get[inventory.Operation](c, operationPath(id))
	if errors.Is(err, inventory.ErrNotFound) {
		err = human.Advise(err, "ingot operation list")
	}
	return a, err
}

// startOperation starts an operation by a POST request. If wait is true, it waits for the end of the operation,
// otherwise it prints that the operation has begun, followed by text.
func startOperation(c *Call, route string, in any, wait bool, text string) error {
	a, err := postOnce(c, route, in)
	if err != nil {
		return err
	}
	if wait {
		return waitForOperation(c, a.Value.Workflow)
	}

	return show(c, a, func(w io.Writer, s apitypes.Started) error {
		_, err := fmt.Fprintf(w, "%s has begun as run %s%s\n", s.Workflow, s.Run, text)
		return err
	})
}

// cancelOperation requests the cancellation of an operation, and prints next, a command that shows the progress. If the
// operation has already ended, cancelOperation prints its state instead.
func cancelOperation(c *Call, id, next string) error {
	before, err := getOperation(c, id)
	if err != nil {
		return err
	}
	return postAndShow(c, operationPath(before.Value.Run, "cancel"), nil, text(func(s apitypes.Started) string {
		if inventory.Final(before.Value.State) {
			return fmt.Sprintf("%s had already ended: %s", s.Workflow, before.Value.State)
		}
		return fmt.Sprintf("%s: cancellation requested\nnext: %s", s.Workflow, next)
	}))
}

func operationListCommand(o *Options) *cobra.Command {
	return listCommand(o, listing[inventory.Operation]{
		cmd: &cobra.Command{
			Short:   "List operations, the newest first",
			Example: "  ingot operation list\n  ingot operation list --open --type Genesis",
		},
		route: client.Path("operations"),
		filters: []filter{
			{name: "type", usage: "only operations of this type: Genesis, Migrate, Recover or ProvisionTogether"},
			stateFilter("only operations in this state"),
			{name: "open", usage: "only operations that have not ended", set: true},
		},
		sort:  "started",
		empty: "no operations",
		head:  []string{"OPERATION", "STATE", "STEP", "BEGAN", "TOOK", "RUN", "MESSAGE"},
		wide:  []string{"RUN"},
		fit:   true,
		row: func(x inventory.Operation) []any {
			return []any{
				x.ID, State(x.State), x.Step, human.Time(x.Started), duration(x.Started, x.Ended), x.Run, firstLine(x.Message),
			}
		},
	})
}

func operationGetCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "get {ID | RUN}", Aliases: []string{"show", "describe"}, Short: "Show an operation: its steps, what it waits for, why it failed",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operations()),
		Example: "  ingot operation get genesis/lab\n  ingot operation get recover/rack-1 --output json",
	}, func(c *Call) error {
		a, err := getOperation(c, c.Args[0])
		if err != nil {
			return err
		}

		return show(c, a, printOperation)
	})
}

// printOperation prints an operation with the table of its steps and its open question.
func printOperation(w io.Writer, x inventory.Operation) error {
	t := NewTable(w)
	t.Field("operation", x.ID)
	t.Field("run", x.Run)
	t.Field("state", State(x.State))
	t.Field("step", x.Step)
	t.Field("began", human.Time(x.Started)+"  ("+duration(x.Started, x.Ended)+")")
	if err := t.Flush(); err != nil {
		return err
	}

	if len(x.Steps) > 0 {
		fmt.Fprintln(w)
		t = NewTable(w, "#", "STEP", "MACHINE", "STATE", "TOOK", "MESSAGE")
		for i, s := range x.Steps {
			t.Row(i+1, s.Name, s.Machine, State(s.State), stepTime(s), shorten(firstLine(stepText(s)), 90))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if x.Message != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(x.Message))
	}
	if q := x.Question; q != nil {
		printQuestionText(w, q, x.Message)
		printChoices(w, q, func(choice string) []string {
			return []string{fmt.Sprintf("ingot operation decide %s --question %s --choice %s", x.ID, q.ID, choice)}
		})
	}

	return nil
}

// stepText returns the message of a step. For a step without a message it returns what the step does and what it waits
// for, or "" if the step is done.
func stepText(s inventory.OperationStep) string {
	switch {
	case s.Message != "":
		return s.Message
	case s.State == inventory.StepRunning && s.Waits != "":
		return strings.TrimSuffix(s.Does, ".") + "; then: " + s.Waits
	case s.State == inventory.StepDone:
		return ""
	}

	return s.Does
}

// stepTime returns how long a step has run, not counting the time in which the step waited for the operator. It returns
// "" if the step has not begun.
func stepTime(s inventory.OperationStep) string {
	if s.Since.IsZero() {
		return ""
	}
	return human.Span(s.Worked(time.Now()))
}

func operationDecideCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "decide {ID | RUN} --choice CHOICE", Short: "Answer the open question of an operation",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operations()),
		Long: `Answer the open question of an operation. "ingot operation get" shows the question and
its choices. With --question, the answer is refused if another question is open.

  retry   repeat the step
  undo    undo what the step did, and then ask again
  skip    continue as if the step had succeeded
  abort   end the operation as failed`,
		Example: "  ingot operation decide genesis/lab --choice retry\n" +
			"  ingot operation decide migrate/um760 --question relay.1 --choice undo",
	}

	d := decisionFlags(o, cmd, func(c *Call) (*inventory.Question, error) {
		a, err := getOperation(c, c.Args[0])
		return a.Value.Question, err
	})

	return o.NewCommand(cmd, func(c *Call) error {
		a, err := getOperation(c, c.Args[0])
		if err != nil {
			return err
		}
		if err := checkDecision(d, a.Value.Question, a.Value.ID, "ingot operation get "+a.Value.ID); err != nil {
			return err
		}

		return postAndShow(c, operationPath(a.Value.Run, "decide"), d, text(decisionText(d)))
	})
}

// decisionFlags adds the flags of a command that answers a question, and returns the decision that the flags set. The
// function open returns the open question, or nil if there is none; the choices of that question complete the flag --choice.
func decisionFlags(
	o *Options, cmd *cobra.Command, open func(c *Call) (*inventory.Question, error),
) *contract.Decision {
	var d contract.Decision
	cmd.Flags().StringVar(&d.Question, "question", "", "id of the question to answer (default: the open question)")
	cmd.Flags().StringVar(&d.Choice, "choice", "", "answer: one of the question's choices")
	requireFlags(cmd, "choice")
	CompleteFlag(cmd, "choice", o.complete(func(c *Call) ([]string, error) {
		if len(c.Args) != 1 {
			return nil, nil
		}
		q, err := open(c)
		if q == nil {
			return nil, err
		}
		return q.Choices, nil
	}))
	return &d
}

// checkDecision returns an error if subject has no open question (q is nil), or if d answers q with a choice that q
// does not offer. If d names no question, checkDecision makes it an answer to q.
func checkDecision(d *contract.Decision, q *inventory.Question, subject, next string) error {
	if q == nil {
		return human.Advise(fmt.Errorf("%s has no open question: %w", subject, inventory.ErrConflict), next)
	}
	if d.Question == "" {
		d.Question = q.ID
	}
	if d.Question == q.ID && !slices.Contains(q.Choices, d.Choice) {
		return UsageError("invalid --choice %q; must be one of %s", d.Choice, strings.Join(q.Choices, ", "))
	}

	return nil
}

func decisionText(d *contract.Decision) func(map[string]string) string {
	return func(map[string]string) string { return "decided: " + d.Choice }
}

// operationPauseCommand returns the command "pause", or "resume".
func operationPauseCommand(o *Options, pause bool) *cobra.Command {
	verb, short, done := "resume", "Resume a paused operation", "goes on"
	if pause {
		verb, short = "pause", "Pause an operation; machines already started continue"
		done = "is paused; the machines that it has started go on"
	}

	return o.NewCommand(&cobra.Command{
		Use: verb + " {ID | RUN}", Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operations()),
		Long: `Only operations that install many machines ("ingot machine provision", "ingot recover
start") can be paused.`,
		Example: "  ingot operation " + verb + " recover/flood",
	}, func(c *Call) error {
		return postAndShow(c, operationPath(c.Args[0], verb), nil, text(func(s apitypes.Started) string {
			return s.Workflow + " " + done
		}))
	})
}

func operationCancelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "cancel {ID | RUN}", Short: "Cancel an operation",
		Args: cobra.ExactArgs(1), ValidArgsFunction: firstArg(o.operations()),
		Long: `Cancel an operation. The current step is cancelled too, with the runs that it has
started, and undone if the step supports this. A migration also undoes its completed
steps; other operations do not.`,
		Example: "  ingot operation cancel genesis/lab",
	}, func(c *Call) error {
		return cancelOperation(c, c.Args[0], "ingot operation get "+c.Args[0])
	})
}

// waitForOperation prints one line for each change in the steps of an operation, until the operation ends. While
// the server does not answer, waitForOperation keeps asking, because the server may be moving to another host.
func waitForOperation(c *Call, run string) error {
	w := operationWatcher{c: c, run: run}
	return c.poll(c.pollEvery, w.look, func() error {
		c.Note("\nThe operation goes on. Look at it with:  ingot operation get %s\n"+
			"End it with:                             ingot operation cancel %s", run, run)
		return reported{context.Canceled}
	})
}

// operationWatcher prints the changes of an operation.
type operationWatcher struct {
	c    *Call
	run  string
	line string // last line printed
	away bool   // the server did not answer the last request
}

func (w *operationWatcher) look() (over bool, err error) {
	a, err := getWithin[inventory.Operation](w.c, operationPath(w.run))
	switch {
	case errors.Is(err, client.ErrUnavailable):
		if !w.away {
			w.c.Note("the server does not answer; waiting: %v", err)
		}
		w.away = true
		return false, nil
	case err != nil:
		return false, err
	}

	w.away = false
	w.print(a.Value)
	if !inventory.Final(a.Value.State) {
		return false, nil
	}
	if err := show(w.c, a, printOperation); err != nil {
		return true, err
	}

	if err := checkOutcome(a.Value.Run, a.Value.State); err != nil || !w.c.requiresEvidence() {
		return true, err
	}
	return true, w.c.checkSteps(a.Value.Steps)
}

// checkSteps checks the runs that steps name. It returns a weakError if one of them succeeded without evidence that the
// installed system is up, or if the record of one was deleted.
func (c *Call) checkSteps(steps []inventory.OperationStep) error {
	var weak weakError
	for _, s := range steps {
		if s.Run == "" {
			continue
		}
		a, err := getWithin[inventory.Workflow](c, client.Path("workflows", s.Run))
		switch {
		case errors.Is(err, inventory.ErrNotFound):
			weak.runs = append(weak.runs, fmt.Sprintf("run %s (its record was deleted)", s.Run))
		case err != nil:
			return err
		case a.Value.State == inventory.StateSuccess && !a.Value.Proven():
			weak.runs = append(weak.runs, fmt.Sprintf("run %s of %s", s.Run, a.Value.Machine))
		}
	}
	if len(weak.runs) > 0 {
		return weak
	}
	return nil
}

func (w *operationWatcher) print(x inventory.Operation) {
	line := fmt.Sprintf("%s: %s", x.Step, x.Message)
	if line == w.line {
		return
	}

	w.line = line
	if !w.c.forPeople() {
		return
	}

	w.c.Note("%s  %s", time.Now().Format(time.TimeOnly), line)
	if q := x.Question; q != nil {
		w.c.Note("answer with: ingot operation decide %s --question %s --choice {%s}",
			x.ID, q.ID, strings.Join(q.Choices, "|"))
	}
}
