package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/inventory"
)

// Exit codes; the root command's help documents them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnavailable = 5
)

// errUnavailable: the server, or the part of it that was needed, does not
// answer now.
var errUnavailable = errors.New("not available now")

// commandError is an error of a command that ran, which cobra's own errors
// (unknown commands, wrong flags) are not.
type commandError struct{ error }

func (e commandError) Unwrap() error { return e.error }

// markRuns makes errors of commands commandErrors, in c and all below.
func markRuns(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return commandError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		markRuns(sub)
	}
}

// exitCode maps an error to the exit code: the one place where the vocabulary
// of inventory meets the shell.
func exitCode(err error) int {
	var ran commandError
	switch {
	case err == nil:
		return exitOK
	case !errors.As(err, &ran), errors.Is(err, inventory.ErrInvalid):
		return exitUsage
	case errors.Is(err, inventory.ErrNotFound):
		return exitNotFound
	case errors.Is(err, inventory.ErrConflict), errors.Is(err, inventory.ErrFenced):
		return exitConflict
	case errors.Is(err, errUnavailable):
		return exitUnavailable
	}
	return exitFailure
}

// usage is an error about how a command was called.
func usage(format string, args ...any) error {
	return fmt.Errorf(format+"%w", append(args, quietly{inventory.ErrInvalid})...)
}

// quietly is an error that adds no words.
type quietly struct{ error }

func (quietly) Error() string   { return "" }
func (q quietly) Unwrap() error { return q.error }

// advice is an error with the command that helps.
type advice struct {
	error
	next string
}

func (a advice) Unwrap() error { return a.error }

// said is an error whose text the person has already read.
type said struct{ error }

func (s said) Unwrap() error { return s.error }

// report writes err for a person: problems one per line with their place
// first, so that an editor finds it, and what helps last.
func report(cmd *cobra.Command, err error) {
	var ran commandError
	var done said
	if errors.As(err, &done) {
		return
	}
	var problems inventory.Problems
	var answer *apiError
	var hint advice
	var b strings.Builder
	if errors.As(err, &answer) {
		problems = answer.Problems
	}
	if len(problems) == 0 && !errors.As(err, &problems) {
		fmt.Fprintf(&b, "ingot: %s\n", err)
	} else {
		for _, p := range problems {
			fmt.Fprintln(&b, inert(p.String()))
		}
		fmt.Fprintf(&b, "ingot: %s; nothing was changed\n", count(len(problems), "problem"))
	}
	if errors.As(err, &hint) && hint.next != "" {
		fmt.Fprintf(&b, "next: %s\n", hint.next)
	} else if answer != nil && answer.Next != "" {
		fmt.Fprintf(&b, "next: %s\n", answer.Next)
	} else if !errors.As(err, &ran) {
		fmt.Fprintf(&b, "next: %s --help\n", cmd.CommandPath())
	}
	_, _ = io.WriteString(cmd.ErrOrStderr(), b.String()) // there is nobody left to tell
}

// group is a command that only holds others.
func group(use, short, example string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Example: example, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			text := fmt.Sprintf("%q is no command of %q", args[0], cmd.CommandPath())
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				text += "; did you mean " + strings.Join(s, " or ") + "?"
			}
			return advice{usage("%s", text), cmd.CommandPath() + " --help"}
		},
	}
	c.AddCommand(subs...)
	return c
}
