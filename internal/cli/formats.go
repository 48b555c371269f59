package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"k8s.io/client-go/util/jsonpath"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// The values of --output, and the prefix of one.
const (
	outputTable    = "table"
	outputWide     = "wide" // a table with all columns
	outputJSON     = "json"
	outputYAML     = "yaml"
	outputName     = "name"
	outputJSONPath = "jsonpath=" // an expression of kubectl follows
)

// outputs lists the values of --output, for help, completion and errors.
func outputs() []string {
	return []string{outputTable, outputWide, outputJSON, outputYAML, outputName, outputJSONPath + "EXPRESSION"}
}

// parsePath parses the expression of --output jsonpath=EXPRESSION.
func parsePath(output string) (*jsonpath.JSONPath, error) {
	expression := strings.TrimPrefix(output, outputJSONPath)
	if !strings.Contains(expression, "{") { // without braces it would be text
		expression = "{" + expression + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(expression); err != nil {
		return nil, UsageError("invalid --output %q: %v; write for example jsonpath={.name}", output, err)
	}
	return path, nil
}

// print writes raw in the format that --output selects. For a table, it calls the function table.
func (o *Options) print(w io.Writer, raw json.RawMessage, table func(w io.Writer) error) error {
	switch {
	case o.output == outputJSON:
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return fmt.Errorf("reading the server's answer: %w", err)
		}
		_, err := fmt.Fprintln(w, human.Escape(b.String()))
		return err
	case o.output == outputYAML:
		b, err := strictyaml.FromJSON(raw)
		if err != nil {
			return fmt.Errorf("reading the server's answer: %w", err)
		}
		_, err = w.Write(b)
		return err
	case o.output == outputName:
		return printNames(w, raw)
	case strings.HasPrefix(o.output, outputJSONPath):
		return printPath(w, raw, o.output)
	}
	return table(w)
}

// listItems returns the items of raw, which is a list as the REST API writes it, or raw itself.
func listItems(raw json.RawMessage) ([]json.RawMessage, error) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("reading the server's answer: %w", err)
	}
	if list.Items == nil {
		list.Items = []json.RawMessage{raw}
	}
	return list.Items, nil
}

// nameOf returns what an object is called in commands: its name or, for a run or operation, its run id.
func nameOf(object json.RawMessage) string {
	var x struct {
		Name string `json:"name"`
		Run  string `json:"run"`
	}
	if err := json.Unmarshal(object, &x); err != nil {
		return ""
	}
	return cmp.Or(x.Name, x.Run)
}

// printNames prints the names of the objects in raw, one per line.
func printNames(w io.Writer, raw json.RawMessage) error {
	items, err := listItems(raw)
	if err != nil {
		return err
	}
	for _, item := range items {
		name := nameOf(item)
		if name == "" {
			return UsageError("--output %s: this command shows nothing that has a name", outputName)
		}
		if _, err := fmt.Fprintln(w, Inert(name)); err != nil {
			return err
		}
	}
	return nil
}

// printPath prints what the expression of output selects from raw.
func printPath(w io.Writer, raw json.RawMessage, output string) error {
	path, err := parsePath(output)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // large integers stay as they are
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("reading the server's answer: %w", err)
	}

	var b strings.Builder
	if err := path.Execute(&b, numbers(v)); err != nil {
		return UsageError("invalid --output %q: %v", output, err)
	}
	if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
		b.WriteString("\n")
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// numbers replaces each json.Number in v, which is decoded JSON, by an int64 or a float64: a filter compares no others. It returns v.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key, x := range v {
			v[key] = numbers(x)
		}
	case []any:
		for i, x := range v {
			v[i] = numbers(x)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
	}
	return v
}
