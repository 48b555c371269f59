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

// terminal writes text to a terminal without control sequences and marks that reorder text,
// originText names, logs and messages come from machines (security S47).
type terminal struct {
	file *os.File
	rest []byte // start of a character that was split between writes
}

// Write writes p; dangerous characters become U+FFFD.
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

// Inert returns s as one line of safe text.
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

// terminalOf returns the terminal behind w, if there is one.
func terminalOf(w io.Writer) (*os.File, bool) {
	if t, ok := w.(*terminal); ok && term.IsTerminal(int(t.file.Fd())) {
		return t.file, true
	}
	return nil, false
}

// Interactive reports whether the operator can be prompted.
func Interactive(cmd *cobra.Command) bool {
	f, ok := cmd.InOrStdin().(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// BinaryOutput returns standard output for data that is not text. A terminal is refused: flag names a file.
func (c *Call) BinaryOutput(what, flag string) (io.Writer, error) {
	out := c.OutOrStdout()
	if _, ok := terminalOf(out); ok {
		return nil, UsageError("%s is not for the terminal: give %s FILE, or pipe it", what, flag)
	}
	if t, ok := out.(*terminal); ok {
		return t.file, nil // terminal would change binary data
	}
	return out, nil
}

// Confirm asks before a destructive command: the operator must type word. Without a terminal
// only --yes confirms.
func (c *Call) Confirm(yes bool, what, word string) error {
	if yes {
		return nil
	}
	if !Interactive(c.Command) {
		return UsageError("this %s: give --yes, standard input is not a terminal", what)
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

// Prompt reads a line, or returns when the command's context ends.
func Prompt(cmd *cobra.Command, text string) (string, error) {
	cmd.PrintErr(text)
	return readInterruptibly(cmd.Context(), func() (string, error) {
		var b strings.Builder
		one := make([]byte, 1) // byte by byte: text after the line belongs to the next prompt
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
				return "", fmt.Errorf("reading the answer: %w", err)
			}
		}
	})
}

// PromptSecret reads a line without showing it. Without a terminal it is an
// inventory.ErrInvalid.
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

// readInterruptibly waits for read or the end of ctx. After the end of ctx the
// read continues until the process exits.
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
