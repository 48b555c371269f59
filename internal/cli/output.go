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

// show prints a in the format of --output.
func show[T any](c *call, a client.Answer[T], table func(w io.Writer, v T) error) error {
	return c.print(c.OutOrStdout(), a.Raw, func(w io.Writer) error { return table(w, a.Value) })
}

// showValue is show for a value that this program created.
func showValue(c *call, v any, table func(w io.Writer) error) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.print(c.OutOrStdout(), raw, table)
}

// showText is showValue with the text for table output.
func showText(c *call, v any, text string) error {
	return showValue(c, v, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, text)
		return err
	})
}

// text returns a table function that prints the given text.
func text[T any](write func(v T) string) func(w io.Writer, v T) error {
	return func(w io.Writer, v T) error {
		_, err := fmt.Fprintln(w, write(v))
		return err
	}
}

// checkOutput refuses an unknown --output before the command starts.
func (o *options) checkOutput(cmd *cobra.Command) error {
	switch o.output {
	case "", "table", "json", "yaml", cmd.Annotations[extraOutput]:
		return nil
	}
	return usage("invalid --output %q; must be one of table, json, yaml", o.output)
}

// extraOutput is the annotation of a command with an additional output format.
const extraOutput = "output"

// forPeople reports whether the output format is a table.
func (o *options) forPeople() bool { return o.output == "" || o.output == "table" }

// print writes raw as JSON or YAML, or calls table, according to --output.
func (o *options) print(w io.Writer, raw json.RawMessage, table func(w io.Writer) error) error {
	switch o.output {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		_, err := fmt.Fprintln(w, human.Escape(b.String()))
		return err
	case "yaml":
		b, err := strictyaml.FromJSON(raw)
		if err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		_, err = w.Write(b)
		return err
	}

	return table(w)
}

// table aligns columns of sanitized text.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, head ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)}
	if len(head) > 0 {
		cells := make([]any, len(head))
		for i, h := range head {
			cells[i] = h
		}
		t.row(cells...)
	}

	return t
}

// row adds a row; an empty cell is printed as –.
func (t *table) row(cells ...any) {
	for i, c := range cells {
		text := inert(fmt.Sprint(c))
		if text == "" {
			text = "–"
		}
		if i > 0 {
			text = "\t" + text
		}
		_, _ = io.WriteString(t.w, text) // buffered: flush returns the error
	}

	_, _ = io.WriteString(t.w, "\n")
}

// field adds a line "name: value"; an empty value is left out.
func (t *table) field(name string, value any) {
	if v := fmt.Sprint(value); v != "" {
		t.row(name+":", v)
	}
}

func (t *table) flush() error { return t.w.Flush() }

// note writes a message to standard error.
func (c *call) note(format string, args ...any) {
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
