package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

func operationCmd(o *options) *cobra.Command {
	return group("operation", "Operations: bootstraps, migrations, recoveries",
		"  ingot operation list --open\n  ingot operation get genesis/lab\n  ingot operation decide genesis/lab --choice retry",
		operationListCmd(o), operationGetCmd(o), operationDecideCmd(o), operationCancelCmd(o))
}

// operationPath is the route of an operation: of a run, or of the newest one
// under a workflow id such as genesis/lab.
func operationPath(arg string, more ...string) string {
	return path(append([]string{"operations", strings.Replace(arg, "/", ".", 1)}, more...)...)
}

func (o *options) operation(cmd *cobra.Command, c *remote, arg string) (answer[inventory.Operation], error) {
	a, err := ask[inventory.Operation](cmd.Context(), c, "GET", operationPath(arg), nil)
	if errors.Is(err, inventory.ErrNotFound) {
		err = advice{err, "ingot operation list"}
	}
	return a, err
}

// operationNames completes the ids of operations.
func (o *options) operationNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := o.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a, err := ask[list[inventory.Operation]](cmd.Context(), c, "GET", path("operations"), nil)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, x := range a.v.Items {
		names = append(names, x.ID)
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

func operationListCmd(o *options) *cobra.Command {
	var kind string
	var open bool
	c := &cobra.Command{
		Use: "list", Short: "List operations, the newest first", Args: cobra.NoArgs, Aliases: []string{"ls"},
		Example: "  ingot operation list\n  ingot operation list --open --type Genesis",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			q := url.Values{}
			if kind != "" {
				q.Set("type", kind)
			}
			if open {
				q.Set("open", "true")
			}
			a, err := ask[list[inventory.Operation]](cmd.Context(), c, "GET", path("operations")+"?"+q.Encode(), nil)
			if err != nil {
				return err
			}
			return show(cmd, o, a, func(w io.Writer, l list[inventory.Operation]) error {
				if len(l.Items) == 0 {
					say(cmd, "no operations")
					return nil
				}
				t := newTable(w, "OPERATION", "STATE", "STEP", "BEGAN", "TOOK", "RUN", "MESSAGE")
				for _, x := range l.Items {
					message, _, _ := strings.Cut(x.Message, "\n")
					t.row(x.ID, x.State, x.Step, when(x.Started), lasted(x.Started, x.Ended), x.Run, shorten(message, 60))
				}
				return t.flush()
			})
		},
	}
	c.Flags().StringVar(&kind, "type", "", "only of this type: Genesis, Migrate or Recover")
	c.Flags().BoolVar(&open, "open", false, "only those that are not over")
	return c
}

func operationGetCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "get {ID | RUN}", Short: "Show an operation: its steps, what it waits for, why it failed", Args: cobra.ExactArgs(1), ValidArgsFunction: o.operationNames,
		Example: "  ingot operation get genesis/lab\n  ingot operation get recover/rack-1 --output json",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.operation(cmd, c, args[0])
			if err != nil {
				return err
			}
			return show(cmd, o, a, printOperation)
		},
	}
}

// printOperation writes the table of steps, and what a person is asked.
func printOperation(w io.Writer, x inventory.Operation) error {
	t := newTable(w)
	t.field("operation", x.ID)
	t.field("run", x.Run)
	t.field("state", x.State)
	t.field("step", x.Step)
	t.field("began", when(x.Started)+"  ("+lasted(x.Started, x.Ended)+")")
	if err := t.flush(); err != nil {
		return err
	}
	if len(x.Steps) > 0 {
		fmt.Fprintln(w)
		t = newTable(w, "#", "STEP", "MACHINE", "STATE", "TOOK", "MESSAGE")
		for i, s := range x.Steps {
			message, _, _ := strings.Cut(stepMessage(s), "\n")
			t.row(i+1, s.Name, s.Machine, s.State, worked(s), shorten(message, 90))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if x.Message != "" {
		fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(x.Message))
	}
	q := x.Question
	if q == nil {
		return nil
	}
	if q.Text != x.Message {
		fmt.Fprintf(w, "\n%s\n", q.Text)
	}
	fmt.Fprintf(w, "\nasked since %s; answer with one of\n", when(q.Since))
	for _, choice := range q.Choices {
		fmt.Fprintf(w, "  ingot operation decide %s --question %s --choice %s\n", x.ID, q.ID, choice)
	}
	return nil
}

// stepMessage is what is to be said of a step: what went wrong, or what it does
// or waits for while it is under way.
func stepMessage(s inventory.OperationStep) string {
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

// worked is how long a step was at work, without the time in which an operator was
// awaited.
func worked(s inventory.OperationStep) string {
	if s.Since.IsZero() {
		return ""
	}
	return span(s.Worked(time.Now()))
}

// lasted is how long something took, or takes.
func lasted(began, ended time.Time) string {
	switch {
	case began.IsZero():
		return ""
	case ended.IsZero():
		return span(time.Since(began))
	}
	return span(ended.Sub(began))
}

func operationDecideCmd(o *options) *cobra.Command {
	var d workflows.Decision
	c := &cobra.Command{
		Use: "decide {ID | RUN} --choice CHOICE", Short: "Answer what an operation asks", Args: cobra.ExactArgs(1), ValidArgsFunction: o.operationNames,
		Long: `Answer what an operation asks a person; ingot operation get shows the question
with its choices. Without --question it answers the one that is asked now.

  retry   the step again
  undo    take back what the step did; then ask again
  skip    go on as if the step had succeeded
  abort   end the operation as failed`,
		Example: "  ingot operation decide genesis/lab --choice retry\n  ingot operation decide migrate/um760 --question relay.1 --choice undo",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			a, err := o.operation(cmd, c, args[0])
			if err != nil {
				return err
			}
			q := a.v.Question
			if q == nil {
				return advice{fmt.Errorf("%s asks nothing at the moment: %w", a.v.ID, inventory.ErrConflict), "ingot operation get " + a.v.ID}
			}
			if d.Question == "" {
				d.Question = q.ID
			}
			if d.Question == q.ID && !slices.Contains(q.Choices, d.Choice) {
				return usage("--choice %q is none of %s", d.Choice, strings.Join(q.Choices, ", "))
			}
			x, err := ask[map[string]string](cmd.Context(), c, "POST", operationPath(a.v.Run, "decide"), d)
			if err != nil {
				return err
			}
			return show(cmd, o, x, func(w io.Writer, _ map[string]string) error {
				_, err := fmt.Fprintf(w, "decided: %s\n", d.Choice)
				return err
			})
		},
	}
	c.Flags().StringVar(&d.Question, "question", "", "id of the question (default: the one that is asked now)")
	c.Flags().StringVar(&d.Choice, "choice", "", "one of the question's choices")
	cobra.CheckErr(c.MarkFlagRequired("choice"))
	completeFlag(c, "choice", func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if c, err := o.client(); err == nil && len(args) == 1 {
			if a, err := o.operation(cmd, c, args[0]); err == nil && a.v.Question != nil {
				return a.v.Question.Choices, cobra.ShellCompDirectiveNoFileComp
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	})
	return c
}

func operationCancelCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "cancel {ID | RUN}", Short: "End an operation", Args: cobra.ExactArgs(1), ValidArgsFunction: o.operationNames,
		Long: `End an operation. What its step has under way on machines is cancelled, too, and
taken back where the step can; steps that are done stay done.`,
		Example: "  ingot operation cancel genesis/lab",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "POST", operationPath(args[0], "cancel"), nil, func(w io.Writer, x api.Started) error {
				_, err := fmt.Fprintf(w, "%s was asked to end\nnext: ingot operation get %s\n", x.Workflow, x.Workflow)
				return err
			})
		},
	}
}

// waitOperation shows an operation until it ends: a line at each change of its
// steps. A server that goes away meanwhile is waited for: it may be the one
// that moves house.
func (o *options) waitOperation(cmd *cobra.Command, c *remote, run string) error {
	var line string
	away := false
	for {
		within, cancel := context.WithTimeout(cmd.Context(), pollWithin)
		a, err := ask[inventory.Operation](within, c, "GET", operationPath(run), nil)
		late := within.Err() != nil
		cancel()
		switch {
		case cmd.Context().Err() != nil:
			say(cmd, "\nThe operation goes on. Look at it with:  ingot operation get %s\nEnd it with:                             ingot operation cancel %s", run, run)
			return said{context.Canceled}
		case err != nil && (late || errors.Is(err, errUnavailable)):
			if !away {
				say(cmd, "the server does not answer; waiting: %v", err)
			}
			away = true
		case err != nil:
			return err
		default:
			away = false
			x := a.v
			if now := fmt.Sprintf("%s: %s", x.Step, x.Message); now != line {
				line = now
				if o.output == "" || o.output == "table" {
					say(cmd, "%s  %s", time.Now().Format(time.TimeOnly), line)
					if q := x.Question; q != nil {
						say(cmd, "answer with: ingot operation decide %s --question %s --choice {%s}", x.ID, q.ID, strings.Join(q.Choices, "|"))
					}
				}
			}
			if inventory.Final(x.State) {
				if err := show(cmd, o, a, printOperation); err != nil {
					return err
				}
				if x.State != inventory.StateSuccess {
					return endedError{x.Run, x.State}
				}
				return nil
			}
		}
		select {
		case <-time.After(o.poll):
		case <-cmd.Context().Done():
		}
	}
}
