package docs_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/template"
)

const templatesFile = "templates.md"

var writeDocs = flag.Bool("write", false, `write the generated parts of `+templatesFile+` ("make docs")`)

// A generated part stands between these lines.
var generated = regexp.MustCompile(`(?s)<!-- generated: ([^\n]+) -->\n.*?<!-- end -->\n`)

// TestTemplatesAreDocumented holds templates.md against the rows of the code: data, functions and actions.
func TestTemplatesAreDocumented(t *testing.T) {
	parts := map[string]string{"data": dataTable(), "functions": functionTables(t), "handlers": handlerText()}
	for _, name := range action.Natives() {
		parts["action "+name] = actionText(action.Describe(name))
	}

	text := read(t, templatesFile)
	want := generated.ReplaceAllStringFunc(text, func(old string) string {
		name := generated.FindStringSubmatch(old)[1]
		part, ok := parts[name]
		if !ok {
			t.Errorf("%s has a generated part %q, which nothing makes", templatesFile, name)
		}
		delete(parts, name)
		return fmt.Sprintf("<!-- generated: %s -->\n%s<!-- end -->\n", name, part)
	})
	for name := range parts {
		t.Errorf("%s lacks the lines <!-- generated: %s --> and <!-- end -->", templatesFile, name)
	}

	switch {
	case text == want || t.Failed():
	case *writeDocs:
		if err := os.WriteFile(templatesFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the code: run make docs", templatesFile)
	}
}

// dataTable has a row for each value that a template reads.
func dataTable() string {
	var b strings.Builder
	b.WriteString("| in a template | type | example | what |\n|---|---|---|---|\n")
	for _, d := range template.DataReference() {
		name := code(d.Go)
		if d.JSON != "" {
			name += "<br>" + code(d.JSON)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, d.Type, code(inJSON(d.Example)), d.Text)
	}
	return b.String()
}

// functionTables has a table for each group of functions.
func functionTables(t *testing.T) string {
	t.Helper()
	all, err := template.FunctionReference(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	var b strings.Builder
	group := ""
	for _, f := range all {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(&b, "\n**%s**\n\n| call | result |\n|---|---|\n", group)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", code("{{ "+f.Call+" }}"), code(f.Result))
	}
	var must []string
	for _, name := range template.MustFunctions() {
		must = append(must, code(name))
	}
	fmt.Fprintf(&b, "\nThe same, but a wrong argument is an error and not an empty result: %s.\n", strings.Join(must, ", "))
	return b.String()[1:]
}

// handlerText lists the actions that may follow a failed one.
func handlerText() string {
	return fmt.Sprintf("Allowed are %s, and `%s`; others leave the agent, or need what only the server adds. Each may take %d s beside the "+
		"timeout of the action.\n", codes(action.Handlers()), action.Echo, action.HandlerTime)
}

// actionText describes an action.
func actionText(d action.Description) string {
	var b strings.Builder
	b.WriteString(d.Text)
	if len(d.Aliases) > 0 {
		b.WriteString(" Also: " + codes(d.Aliases) + ".")
	}
	switch {
	case d.AllDisks:
		fmt.Fprintf(&b, " Needs the run's disk, unless %s is true.", code(action.AllDisksVariable))
	case d.Writes:
		b.WriteString(" Needs the run's disk.")
	default:
		b.WriteString(" Writes to no disk.")
	}
	if d.Leaves {
		b.WriteString(" Leaves the agent: it can only be the last action.")
	}
	if d.Limits != "" {
		b.WriteString(" " + d.Limits)
	}
	b.WriteString("\n")

	if len(d.Variables) > 0 {
		b.WriteString("\n| environment | default | what |\n|---|---|---|\n")
	}
	for _, v := range d.Variables {
		without := v.Default
		if v.Required {
			without = "**required**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", code(v.Name), without, v.Text)
	}
	if len(d.Output) > 0 {
		fmt.Fprintf(&b, "\nReports %s.\n", codes(d.Output))
	}
	if d.Adds != "" {
		fmt.Fprintf(&b, "\nIngot adds: %s\n", d.Adds)
	}
	return b.String()
}

func codes(words []string) string { return "`" + strings.Join(words, "`, `") + "`" }

// code is text in a cell of a table.
func code(text string) string {
	if strings.ContainsAny(text, "\n\t") || strings.HasPrefix(text, " ") || text == "" {
		text = fmt.Sprintf("%q", text)
	}
	fence := "`"
	if strings.Contains(text, "`") {
		fence = "``"
	}
	return fence + strings.ReplaceAll(text, "|", "\\|") + fence
}

func inJSON(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestTemplatesNameEveryKey holds the table of keys against the schema of templates.
func TestTemplatesNameEveryKey(t *testing.T) {
	_, table, _ := strings.Cut(read(t, templatesFile), "## Keys")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, key := range keysOfSchema(template.Schema(), "") {
		short := key[strings.LastIndexByte(key, '.')+1:]
		if !strings.Contains(table, "`"+key+"`") && !strings.Contains(table, "`, `"+short+"`") &&
			!strings.Contains(table, "`, `"+strings.TrimPrefix(key, "tasks.actions.")+"`") {
			t.Errorf("%s does not name the key %s", templatesFile, key)
		}
	}
}

// keysOfSchema lists the keys of a schema that hold no further keys.
func keysOfSchema(s strictyaml.Schema, prefix string) (keys []string) {
	if items, ok := s["items"].(strictyaml.Schema); ok {
		s = items
	}
	properties, _ := s["properties"].(strictyaml.Schema)
	if _, open := s["additionalProperties"].(strictyaml.Schema); open || properties == nil {
		return []string{prefix}
	}
	for name, p := range properties {
		keys = append(keys, keysOfSchema(p.(strictyaml.Schema), strings.TrimPrefix(prefix+"."+name, "."))...)
	}
	return keys
}
