package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// Exit codes; the root command's help documents them.
const (
	exitOK           = 0
	exitFailure      = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitConflict     = 4
	exitUnavailable  = 5
	exitSecondServer = 6 // the systemd unit lists this code, so that systemd does not restart the server
	exitWeak         = 7
)

// commandError is an error that the body of a command returned. The errors of cobra itself (unknown
// commands, wrong flags) are not commandErrors.
type commandError struct{ error }

func (e commandError) Unwrap() error { return e.error }

// exitCode returns the exit code for an error. No other code maps errors to exit codes.
func exitCode(err error) int {
	var ran commandError
	switch {
	case err == nil:
		return exitOK
	case !errors.As(err, &ran), errors.Is(err, inventory.ErrInvalid):
		return exitUsage
	case errors.Is(err, inventory.ErrNotFound):
		return exitNotFound
	case errors.As(err, new(weakError)):
		return exitWeak
	case errors.Is(err, inventory.ErrSecondServer):
		return exitSecondServer
	case errors.Is(err, inventory.ErrConflict), errors.Is(err, inventory.ErrFenced):
		return exitConflict
	case errors.Is(err, client.ErrUnavailable):
		return exitUnavailable
	}

	return exitFailure
}

// codeName returns the error code of the REST API that corresponds to an exit code.
func codeName(code int) string {
	names := map[int]string{
		exitFailure: "failed", exitUsage: "invalid", exitNotFound: "not_found",
		exitConflict: "conflict", exitUnavailable: "unavailable", exitSecondServer: "conflict",
		exitWeak: "weak_evidence",
	}
	return names[code]
}

// UsageError returns an error about wrong flags, arguments or input. Its kind is inventory.ErrInvalid.
func UsageError(format string, args ...any) error {
	return human.WithKind(fmt.Errorf(format, args...), inventory.ErrInvalid)
}

// reported is an error whose text has been printed already.
type reported struct{ error }

func (r reported) Unwrap() error { return r.error }

// report writes err to standard error. Each problem is one line that begins with the place of the problem, so that an
// editor can jump there; the last line is a command that helps. With --output json or yaml it writes the error in the
// form that the REST API uses.
func report(cmd *cobra.Command, err error) {
	var done reported
	if errors.As(err, &done) {
		return
	}

	e := describeError(cmd, err)
	o := Options{}
	if f := cmd.Flag("output"); f != nil && (f.Value.String() == "json" || f.Value.String() == "yaml") {
		o.output = f.Value.String()
	}
	if raw, err := json.Marshal(e); err == nil {
		// If writing to standard error fails, that cannot be reported anywhere else.
		_ = o.print(cmd.ErrOrStderr(), raw, func(w io.Writer) error { return writeError(w, e) })
	}
}

// describeError converts err to the form that the REST API uses for errors.
func describeError(cmd *cobra.Command, err error) client.Error {
	e := client.Error{Text: inventory.TextOf(err), Code: codeName(exitCode(err))}
	var answer *client.Error
	if errors.As(err, &answer) {
		e.Code, e.Problems, e.Next = answer.Code, answer.Problems, answer.Next
	}
	if len(e.Problems) == 0 {
		errors.As(err, &e.Problems)
	}

	var hint interface{ Next() string }
	var ran commandError
	if errors.As(err, &hint) && hint.Next() != "" {
		e.Next = hint.Next()
	} else if !errors.As(err, &ran) {
		e.Next = cmd.CommandPath() + " --help"
	}

	return e
}

// maxShownProblems limits the problems that are printed as text. A long CSV with an error in each row has thousands.
const maxShownProblems = 100

// writeError prints e as text.
func writeError(w io.Writer, e client.Error) error {
	var b strings.Builder
	if len(e.Problems) == 0 {
		fmt.Fprintf(&b, "ingot: %s\n", e.Text)
	} else {
		for _, p := range e.Problems[:min(len(e.Problems), maxShownProblems)] {
			fmt.Fprintln(&b, Inert(p.String()))
		}
		if more := len(e.Problems) - maxShownProblems; more > 0 {
			fmt.Fprintf(&b, "… and %s more; --output json shows all\n", human.Count(more, "problem"))
		}
		fmt.Fprintf(&b, "ingot: %s; nothing was changed\n", human.Count(len(e.Problems), "problem"))
	}
	if e.Next != "" {
		fmt.Fprintf(&b, "next: %s\n", e.Next)
	}

	_, err := io.WriteString(w, b.String())
	return err
}
