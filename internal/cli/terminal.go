package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// terminal writes text to a terminal, and replaces control characters and marks that reorder text. They may occur
// because names, logs and messages come from machines (security S47).
type terminal struct {
	file *os.File
	rest []byte // first bytes of a character that the next write completes
}

// Write writes p, but U+FFFD in place of each character that human.Dangerous reports. It keeps line feeds and tabs.
func (t *terminal) Write(p []byte) (int, error) {
	b := append(t.rest, p...)
	t.rest = nil

	var out bytes.Buffer
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 && !utf8.FullRune(b) {
			t.rest = append([]byte{}, b...)
			break
		}
		b = b[n:]
		if r != '\n' && r != '\t' && human.Dangerous(r) {
			r = utf8.RuneError
		}
		out.WriteRune(r)
	}

	if _, err := t.file.Write(out.Bytes()); err != nil {
		return 0, err
	}

	return len(p), nil
}

// Inert returns s as one line that is safe for a terminal: line ends and tabs become spaces, other dangerous characters are
// removed.
func Inert(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\r':
			return ' '
		case human.Dangerous(r):
			return -1
		}
		return r
	}, s)
}

// terminalOf returns the terminal to which w writes, or false if w does not write to a terminal that reads escape sequences.
func terminalOf(w io.Writer) (*os.File, bool) {
	if t, ok := w.(*terminal); ok && term.IsTerminal(int(t.file.Fd())) && readsEscapes(t.file) {
		return t.file, true
	}
	return nil, false
}

// Interactive reports whether standard input is a terminal, so that the operator can be prompted.
func Interactive(cmd *cobra.Command) bool {
	f, ok := cmd.InOrStdin().(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// BinaryOutput returns standard output for data that is not text. If standard output is a terminal, it returns an error
// that names the flag for an output file.
func (c *Call) BinaryOutput(what, flag string) (io.Writer, error) {
	out := c.OutOrStdout()
	if _, ok := terminalOf(out); ok {
		return nil, UsageError("%s cannot be written to a terminal: give %s FILE, or pipe the output", what, flag)
	}
	if t, ok := out.(*terminal); ok {
		return t.file, nil // terminal.Write would change binary data
	}
	return out, nil
}

// Confirm returns nil if the operator confirms a destructive command: by --yes (yes is true), or by
// typing word. what says what the command does. If standard input is not a terminal, only --yes confirms.
func (c *Call) Confirm(yes bool, what, word string) error {
	if yes {
		return nil
	}
	if !Interactive(c.Command) {
		return UsageError("this %s: give --yes, because standard input is not a terminal", what)
	}

	got, err := Prompt(c.Command, fmt.Sprintf("This %s.\nType %s to continue: ", what, word))
	if err != nil {
		return err
	}
	if got != word {
		return errors.New("not confirmed; nothing was changed")
	}

	return nil
}

// Prompt prints text and reads a line from standard input. It returns an error when the command's context ends.
func Prompt(cmd *cobra.Command, text string) (string, error) {
	cmd.PrintErr(text)
	return readInterruptibly(cmd.Context(), func() (string, error) {
		var b strings.Builder
		one := make([]byte, 1) // read single bytes: what follows the line feed is for the next prompt
		for {
			n, err := cmd.InOrStdin().Read(one)
			if n == 1 && one[0] == '\n' {
				return strings.TrimSpace(b.String()), nil
			}
			b.Write(one[:n])
			if errors.Is(err, io.EOF) && b.Len() > 0 {
				return strings.TrimSpace(b.String()), nil
			}
			if err != nil {
				return "", fmt.Errorf("reading standard input: %w", err)
			}
		}
	})
}

// PromptSecret prints text and reads a line without echo. If standard input is not a terminal, it returns an inventory.ErrInvalid.
func PromptSecret(cmd *cobra.Command, text string) (inventory.Secret, error) {
	f, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return inventory.Secret{}, UsageError("%s: standard input is not a terminal", strings.TrimRight(text, ": "))
	}

	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("asking for a secret: %w", err)
	}

	cmd.PrintErr(text)
	s, err := readInterruptibly(cmd.Context(), func() (string, error) {
		b, err := term.ReadPassword(int(f.Fd()))
		return string(b), err
	})

	cmd.PrintErrln()
	if cmd.Context().Err() != nil {
		err = errors.Join(err, term.Restore(int(f.Fd()), before))
	}

	return inventory.NewSecret(s), err
}

// readInterruptibly returns the result of read, or the error of ctx if ctx ends first. In the latter case the goroutine
// of read goes on until the process exits.
func readInterruptibly(ctx context.Context, read func() (string, error)) (string, error) {
	type result struct {
		text string
		err  error
	}

	done := make(chan result, 1)
	go func() {
		text, err := read()
		done <- result{text, err}
	}()

	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
