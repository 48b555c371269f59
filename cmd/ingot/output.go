package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/ingotmetal/ingot/inventory"
)

// terminal writes text to a person's terminal without what could command it:
// control sequences, and marks that reorder text. Names, logs and messages
// come from machines (security S47).
type terminal struct {
	file *os.File
	rest []byte // of a character that a write has cut
}

// Write writes p; what is dangerous becomes U+FFFD.
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
		switch {
		case r == '\n' || r == '\t' || !dangerous(r):
			out.WriteRune(r)
		default:
			out.WriteRune(utf8.RuneError)
		}
	}
	if _, err := t.file.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// dangerous tells whether a terminal could obey r.
func dangerous(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0, // C0, DEL, C1
		r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // order of writing
		return true
	}
	return false
}

// inert returns s as one line of harmless text.
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

// tty returns the terminal behind w, if it is one.
func tty(w io.Writer) (*os.File, bool) {
	if t, ok := w.(*terminal); ok && term.IsTerminal(int(t.file.Fd())) {
		return t.file, true
	}
	return nil, false
}

// interactive tells whether a person can be asked.
func interactive(cmd *cobra.Command) bool {
	f, ok := cmd.InOrStdin().(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// An answer is what the server said: decoded for the table, and whole for
// JSON and YAML, which show fields that this program does not know, too.
type answer[T any] struct {
	v   T
	raw json.RawMessage
}

// show prints a in the form that --output names.
func show[T any](cmd *cobra.Command, o *options, a answer[T], table func(w io.Writer, v T) error) error {
	return o.print(cmd.OutOrStdout(), a.raw, func(w io.Writer) error { return table(w, a.v) })
}

// askAndShow is what most commands do: one request, and its answer shown.
func askAndShow[T any](cmd *cobra.Command, o *options, method, path string, in any, table func(w io.Writer, v T) error) error {
	c, err := o.client()
	if err != nil {
		return err
	}
	a, err := ask[T](cmd.Context(), c, method, path, in)
	if err != nil {
		return err
	}
	return show(cmd, o, a, table)
}

// showValue is show for what this program made itself.
func showValue(cmd *cobra.Command, o *options, v any, table func(w io.Writer) error) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return o.print(cmd.OutOrStdout(), raw, table)
}

// check refuses flags that no command could follow.
func (o *options) check() error {
	switch o.output {
	case "", "table", "json", "yaml":
		return nil
	}
	return usage("--output %q is none of table, json, yaml", o.output)
}

func (o *options) print(w io.Writer, raw json.RawMessage, table func(w io.Writer) error) error {
	switch o.output {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		_, err := fmt.Fprintln(w, escape(b.String()))
		return err
	case "yaml":
		b, err := asYAML(raw)
		if err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		_, err = w.Write(b)
		return err
	}
	return table(w)
}

// escape writes what a terminal could obey as JSON's \u escapes: the value
// stays the same.
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

// asYAML keeps the order of the keys.
func asYAML(raw json.RawMessage) ([]byte, error) {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte(escape(string(raw))), &n); err != nil {
		return nil, err
	}
	plain(&n)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&n); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return []byte(escape(b.String())), nil // YAML calls marks printable that reorder text
}

func plain(n *yaml.Node) {
	n.Style = 0
	if strings.ContainsFunc(n.Value, func(r rune) bool { return dangerous(r) && r != '\n' }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		plain(c)
	}
}

// table aligns columns of harmless text.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, head ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)}
	if len(head) > 0 {
		t.row(toAny(head)...)
	}
	return t
}

func toAny(ss []string) []any {
	out := make([]any, len(ss))
	for i, s := range ss {
		out[i] = s
	}
	return out
}

// row adds a row; an empty cell is shown as –.
func (t *table) row(cells ...any) {
	for i, c := range cells {
		text := inert(fmt.Sprint(c))
		if text == "" {
			text = "–"
		}
		if i > 0 {
			text = "\t" + text
		}
		_, _ = io.WriteString(t.w, text) // buffered: flush tells
	}
	_, _ = io.WriteString(t.w, "\n")
}

// field adds a line "name: value" unless the value is empty.
func (t *table) field(name string, value any) {
	if v := fmt.Sprint(value); v != "" {
		t.row(name+":", v)
	}
}

func (t *table) flush() error { return t.w.Flush() }

// say writes a line for the person to standard error.
func say(cmd *cobra.Command, format string, args ...any) {
	cmd.PrintErrln(fmt.Sprintf(format, args...))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// size writes bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, units[i])
}

func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// ago writes how long ago t was.
func ago(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return span(time.Since(t)) + " ago"
}

func span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// confirm asks for a deed that destroys something. Without a person to ask it
// takes --yes.
func confirm(cmd *cobra.Command, yes bool, what, word string) error {
	if yes {
		return nil
	}
	if !interactive(cmd) {
		return usage("this %s: give --yes, nobody can be asked here", what)
	}
	got, err := prompt(cmd, fmt.Sprintf("This %s.\nType %s to go on: ", what, word))
	if err != nil {
		return err
	}
	if got != word {
		return errors.New("not confirmed; nothing was changed")
	}
	return nil
}

// prompt reads a line, or ends with the command's context.
func prompt(cmd *cobra.Command, text string) (string, error) {
	cmd.PrintErr(text)
	return interruptibly(cmd.Context(), func() (string, error) {
		var b strings.Builder
		one := make([]byte, 1) // no more than the line: the rest belongs to the next prompt
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

// promptSecret reads a line without showing it.
func promptSecret(cmd *cobra.Command, text string) (inventory.Secret, error) {
	f, ok := cmd.InOrStdin().(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return inventory.Secret{}, usage("%s: nobody can be asked here", strings.TrimRight(text, ": "))
	}
	before, err := term.GetState(int(f.Fd()))
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("asking for a secret: %w", err)
	}
	cmd.PrintErr(text)
	s, err := interruptibly(cmd.Context(), func() (string, error) {
		b, err := term.ReadPassword(int(f.Fd()))
		return string(b), err
	})
	cmd.PrintErrln()
	if cmd.Context().Err() != nil {
		err = errors.Join(err, term.Restore(int(f.Fd()), before))
	}
	return inventory.NewSecret(s), err
}

// interruptibly waits for read or the end of ctx. A read that nobody waits
// for ends with the process.
func interruptibly(ctx context.Context, read func() (string, error)) (string, error) {
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
