package main

import (
	"encoding/json"
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

// Next is the command that helps.
func (a advice) Next() string { return a.next }

// said is an error whose text the person has already read.
type said struct{ error }

func (s said) Unwrap() error { return s.error }

// report writes err to standard error. A person reads problems one per line with
// their place first, so that an editor finds it, and what helps last; with
// --output json or yaml it has the form of the API's errors.
func report(cmd *cobra.Command, err error) {
	var ran commandError
	var done said
	if errors.As(err, &done) {
		return
	}
	var answer *apiError
	var hint interface{ Next() string }
	e := apiError{Text: err.Error(), Code: exitWord(exitCode(err))}
	if errors.As(err, &answer) {
		e.Code, e.Problems, e.Next = answer.Code, answer.Problems, answer.Next
	}
	if len(e.Problems) == 0 {
		errors.As(err, &e.Problems)
	}
	if errors.As(err, &hint) && hint.Next() != "" {
		e.Next = hint.Next()
	} else if !errors.As(err, &ran) {
		e.Next = cmd.CommandPath() + " --help"
	}
	o := options{}
	if f := cmd.Flag("output"); f != nil && (f.Value.String() == "json" || f.Value.String() == "yaml") {
		o.output = f.Value.String()
	}
	if raw, err := json.Marshal(e); err == nil {
		_ = o.print(cmd.ErrOrStderr(), raw, func(w io.Writer) error { return e.write(w) }) // standard error is where errors are shown
	}
}

// exitWord is the code of an error, in the words of the API.
func exitWord(code int) string {
	return map[int]string{exitFailure: "failed", exitUsage: "invalid", exitNotFound: "not_found", exitConflict: "conflict", exitUnavailable: "unavailable"}[code]
}

// write prints e for a person.
func (e *apiError) write(w io.Writer) error {
	var b strings.Builder
	if len(e.Problems) == 0 {
		fmt.Fprintf(&b, "ingot: %s\n", e.Text)
	} else {
		for _, p := range e.Problems {
			fmt.Fprintln(&b, inert(p.String()))
		}
		fmt.Fprintf(&b, "ingot: %s; nothing was changed\n", count(len(e.Problems), "problem"))
	}
	if e.Next != "" {
		fmt.Fprintf(&b, "next: %s\n", e.Next)
	}
	_, err := io.WriteString(w, b.String())
	return err
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
