package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// show prints the answer a in the format that --output selects. For the format table, it calls the function table.
func show[T any](c *Call, a client.Answer[T], table func(w io.Writer, v T) error) error {
	return c.print(c.OutOrStdout(), a.Raw, func(w io.Writer) error { return table(w, a.Value) })
}

// ShowValue prints v in the format that --output selects, as show does. v was created by this program, not received from the server.
func ShowValue(c *Call, v any, table func(w io.Writer) error) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.print(c.OutOrStdout(), raw, table)
}

// ShowText prints v as ShowValue does. If the format is a table, it prints text.
func ShowText(c *Call, v any, text string) error {
	return ShowValue(c, v, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, text)
		return err
	})
}

// text returns a function for the argument table of show. That function prints the text that write returns.
func text[T any](write func(v T) string) func(w io.Writer, v T) error {
	return func(w io.Writer, v T) error {
		_, err := fmt.Fprintln(w, write(v))
		return err
	}
}

// checkOutput returns an error for an unknown value of --output. It is called before the command starts.
func (o *Options) checkOutput(cmd *cobra.Command) error {
	switch o.output {
	case "", "table", "json", "yaml", cmd.Annotations[extraOutput]:
		return nil
	}
	return UsageError("invalid --output %q; must be one of table, json, yaml", o.output)
}

// extraOutput is the key of a command's annotation. The annotation holds a further output format, which only this command has.
const extraOutput = "output"

// forPeople reports whether the output format is a table, and not a format for programs.
func (o *Options) forPeople() bool { return o.output == "" || o.output == "table" }

// print writes raw as JSON or YAML if --output selects one of these formats. Otherwise it calls the function table.
func (o *Options) print(w io.Writer, raw json.RawMessage, table func(w io.Writer) error) error {
	switch o.output {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("reading the server's answer: %w", err)
		}
		_, err := fmt.Fprintln(w, human.Escape(b.String()))
		return err
	case "yaml":
		b, err := strictyaml.FromJSON(raw)
		if err != nil {
			return fmt.Errorf("reading the server's answer: %w", err)
		}
		_, err = w.Write(b)
		return err
	}

	return table(w)
}

// A Table aligns text in columns. It makes each cell safe for a terminal, with Inert.
type Table struct{ w *tabwriter.Writer }

// PrintTable prints a table with a row for each item.
func PrintTable[T any](w io.Writer, head []string, items []T, row func(item T) []any) error {
	t := NewTable(w, head...)
	for _, item := range items {
		t.Row(row(item)...)
	}
	return t.Flush()
}

// NewTable returns a table that Flush writes to w.
func NewTable(w io.Writer, head ...string) *Table {
	t := &Table{tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)}
	if len(head) > 0 {
		cells := make([]any, len(head))
		for i, h := range head {
			cells[i] = h
		}
		t.Row(cells...)
	}

	return t
}

// Row adds a row; an empty cell is printed as –.
func (t *Table) Row(cells ...any) {
	for i, c := range cells {
		text := Inert(fmt.Sprint(c))
		if text == "" {
			text = "–"
		}
		if i > 0 {
			text = "\t" + text
		}
		_, _ = io.WriteString(t.w, text) // this only fills a buffer; Flush returns the errors
	}

	_, _ = io.WriteString(t.w, "\n")
}

// Field adds a line "name: value"; an empty value is left out.
func (t *Table) Field(name string, value any) {
	if v := fmt.Sprint(value); v != "" {
		t.Row(name+":", v)
	}
}

// Flush writes the table.
func (t *Table) Flush() error { return t.w.Flush() }

// Note writes a message to standard error.
func (c *Call) Note(format string, args ...any) {
	c.PrintErrln(fmt.Sprintf(format, args...))
}

// shorten truncates s to n characters.
func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// firstLine returns the first line of s.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
