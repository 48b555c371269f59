package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
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
		if r != '\n' && r != '\t' && dangerous(r) {
			r = utf8.RuneError
		}
		out.WriteRune(r)
	}

	if _, err := t.file.Write(out.Bytes()); err != nil {
		return 0, err
	}

	return len(p), nil
}

// dangerous reports whether a terminal could interpret r.
func dangerous(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0: // C0, DEL, C1
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // text direction
		return true
	}
	return false
}

// inert returns s as one line of safe text.
func inert(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t', r == '\r':
			return ' '
		case dangerous(r):
			return -1
		}
		return r
	}, s)
}

// escape writes characters that a terminal could interpret as JSON's \u escapes, which keeps
// the value.
func escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		if dangerous(r) && r != '\n' {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}

	return b.String()
}

// terminalOf returns the terminal behind w, if there is one.
func terminalOf(w io.Writer) (*os.File, bool) {
	if t, ok := w.(*terminal); ok && term.IsTerminal(int(t.file.Fd())) {
		return t.file, true
	}
	return nil, false
}

// interactive reports whether the operator can be prompted.
func interactive(cmd *cobra.Command) bool {
	f, ok := cmd.InOrStdin().(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
