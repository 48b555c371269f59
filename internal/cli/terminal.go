package cli

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// terminal writes text to a terminal without control sequences and marks that reorder text,
// because names, logs and messages come from machines (security S47).
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
