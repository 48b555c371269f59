package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
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
	case "", outputTable, outputWide, outputJSON, outputYAML, outputName, cmd.Annotations[extraOutput]:
		return nil
	}
	if strings.HasPrefix(o.output, outputJSONPath) {
		_, err := parsePath(o.output)
		return err
	}
	return UsageError("invalid --output %q; must be one of %s", o.output, strings.Join(outputs(), ", "))
}

// extraOutput is the key of a command's annotation. The annotation holds a further output format, which only this command has.
const extraOutput = "output"

// forPeople reports whether the output format is a table, and not a format for programs.
func (o *Options) forPeople() bool {
	return o.output == "" || o.output == outputTable || o.output == outputWide
}

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
