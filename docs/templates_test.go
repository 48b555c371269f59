package docs_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/template"
)

const templatesFile = "templates.md"

var writeDocs = flag.Bool("write", false, `write the generated parts of documents ("make docs")`)

// A generated part stands between these lines.
var generated = regexp.MustCompile(`(?s)<!-- generated: ([^\n]+) -->\n.*?<!-- end -->\n`)

// TestTemplatesAreDocumented holds templates.md against the rows of the code: data, functions and actions.
func TestTemplatesAreDocumented(t *testing.T) {
	parts := map[string]string{
		"keys": keyTable(t), "limits": limitTable(), "data": dataTable(), "functions": functionTables(t), "handlers": handlerText(),
		"shared": sharedTable(),
		"repositories": "Repositories of publishers: " + codes(action.Repositories()) + ".\n\nPublic registries, with the hosts below them: " +
			codes(action.PublicRegistries()) + ".\n",
	}
	for _, name := range action.Natives() {
		parts["action "+name] = actionText(action.Describe(name))
	}

	writeParts(t, templatesFile, parts)
}

// keyTable has a row for each key of a template that holds a value, in the order of the source.
func keyTable(t *testing.T) string {
	t.Helper()
	c := commentReader{t: t, packages: map[string]map[string]structType{}}
	var b strings.Builder
	b.WriteString("| key | value | what |\n|---|---|---|\n")
	var unused []string
	for _, path := range c.keys("template.document", "") {
		p, required := lookUp(t, template.Schema(), path)
		value := valueText(p)
		if required {
			value += ", **required**"
		}
		text, _ := p["description"].(string)
		if text == "kept and not used" || text == "not read" {
			unused = append(unused, path)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", code(path), value, text)
	}
	fmt.Fprintf(&b, "\nKept and not used: %s.\n", codes(unused))
	return b.String()
}

// lookUp returns the schema of the key at path, and whether it is required.
func lookUp(t *testing.T, s strictyaml.Schema, path string) (_ strictyaml.Schema, required bool) {
	t.Helper()
	for _, name := range strings.Split(path, ".") {
		if items, ok := s["items"].(strictyaml.Schema); ok {
			s = items
		}
		names, _ := s["required"].([]any)
		required = slices.Contains(names, any(name))
		properties, _ := s["properties"].(strictyaml.Schema)
		next, ok := properties[name].(strictyaml.Schema)
		if !ok {
			t.Fatalf("the schema has no key %s", path)
		}
		s = next
	}
	return s, required
}

// valueText says what the value of a key is.
func valueText(s strictyaml.Schema) string {
	if either, ok := s["anyOf"].([]any); ok {
		if words, ok := either[0].(strictyaml.Schema)["enum"].([]any); ok && len(words) < 8 {
			return codes(slices.Compact(strings.Fields(strings.Trim(fmt.Sprint(words), "[]"))))
		}
	}
	switch types := fmt.Sprint(s["type"]); {
	case strings.Contains(types, "array"):
		return "list of texts"
	case strings.Contains(types, "object"):
		return "mapping of texts"
	case strings.Contains(types, "string"):
		return "text"
	}
	return "number"
}

// limitTable has a row for each limit and default.
func limitTable() string {
	var b strings.Builder
	b.WriteString("| what | limit or default |\n|---|---|\n")
	for _, l := range template.Limits() {
		fmt.Fprintf(&b, "| %s | %s |\n", l.Text, l.Value)
	}
	return b.String()
}

// dataTable has a row for each value that a template reads.
func dataTable() string {
	var b strings.Builder
	b.WriteString("| in a template | example | what |\n|---|---|---|\n")
	above := ""
	for _, d := range template.DataReference() {
		inGo, inJSON := d.Go, d.JSON
		// The fields of an interface stand without what they have in common.
		if ofGo, name, ok := strings.Cut(d.Go, ".DHCP."); ok {
			ofJSON, short, _ := strings.Cut(d.JSON, ".dhcp.")
			if above != ofGo {
				fmt.Fprintf(&b, "| %s<br>%s | | an interface, with |\n", code(ofGo+".DHCP"), code(ofJSON+".dhcp"))
			}
			above, inGo, inJSON = ofGo, "….DHCP."+name, "….dhcp."+short
		}
		name := code(inGo)
		if inJSON != "" {
			name += "<br>" + code(inJSON)
		}
		text := d.Text
		if d.Type != "text" {
			text += " (" + d.Type + ")"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, code(shorten(asJSON(d.Example))), text)
	}
	return b.String()
}

// functionTables has the functions that only Ingot has with an example, and the names of all others by group.
func functionTables(t *testing.T) string {
	t.Helper()
	all, err := template.FunctionReference(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	const own = "Of machines"
	var b strings.Builder
	b.WriteString("| call | result |\n|---|---|\n")
	names := map[string][]string{}
	var groups []string
	for _, f := range all {
		if f.Group == own {
			fmt.Fprintf(&b, "| %s | %s |\n", code("{{ "+f.Call+" }}"), code(f.Result))
			continue
		}
		if names[f.Group] == nil {
			groups = append(groups, f.Group)
		}
		name, _, _ := strings.Cut(f.Call, " ")
		names[f.Group] = append(names[f.Group], name)
	}
	b.WriteString("\n")
	for _, group := range groups {
		fmt.Fprintf(&b, "- %s: %s\n", group, codes(names[group]))
	}
	fmt.Fprintf(&b, "\nThe same, but a wrong argument is an error and not an empty result: %s.\n", codes(template.MustFunctions()))
	return b.String()
}

// sharedVariables are variables that mean the same in at least three actions.
func sharedVariables() (shared []action.Variable) {
	count := map[string]int{}
	for _, name := range action.Natives() {
		for _, v := range action.Describe(name).Variables {
			row := variableRow(v)
			if count[row]++; count[row] == 3 && !hasNoEffect(v) {
				shared = append(shared, v)
			}
		}
	}
	return shared
}

// hasNoEffect reports whether an action only allows a variable.
func hasNoEffect(v action.Variable) bool {
	return strings.HasPrefix(v.Text, "not needed") || strings.HasPrefix(v.Text, "not read")
}

// sharedTable has a row for each of sharedVariables.
func sharedTable() string {
	var b strings.Builder
	variableTable(&b, sharedVariables())
	return b.String()
}

// handlerText lists the actions that may follow a failed one.
func handlerText() string {
	return fmt.Sprintf(
		"Allowed are %s, and `%s`; others leave the agent, write an image, send the disk, or need what only the server adds. Each may take %d s beside the "+
			"timeout of the action.\n",
		codes(action.Handlers()),
		action.Echo,
		action.HandlerTime,
	)
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
	case d.Reads:
		b.WriteString(" Reads the run's disk, and writes to none.")
	case d.Writes: // that it needs the run's disk is said above all actions
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

	var own []action.Variable
	var common, unread []string
	shared := sharedTable()
	for _, v := range d.Variables {
		switch {
		case strings.Contains(shared, variableRow(v)):
			common = append(common, v.Name)
		case hasNoEffect(v):
			unread = append(unread, v.Name)
		default:
			own = append(own, v)
		}
	}
	if len(own) > 0 {
		b.WriteString("\n")
		variableTable(&b, own)
	}
	if len(common) > 0 {
		fmt.Fprintf(&b, "\n[Common](#common-variables): %s.\n", codes(common))
	}
	if len(unread) > 0 {
		fmt.Fprintf(&b, "\nAllowed and without effect: %s.\n", codes(unread))
	}
	if len(d.Output) > 0 {
		fmt.Fprintf(&b, "\nReports %s.\n", codes(d.Output))
	}
	if d.Adds != "" {
		fmt.Fprintf(&b, "\nIngot adds: %s\n", d.Adds)
	}
	return b.String()
}

// variableTable has a row for each variable of an action's environment.
func variableTable(b *strings.Builder, variables []action.Variable) {
	b.WriteString("| environment | default | what |\n|---|---|---|\n")
	for _, v := range variables {
		b.WriteString(variableRow(v))
	}
}

func variableRow(v action.Variable) string {
	without := v.Default
	if v.Required {
		without = "**required**"
	}
	return fmt.Sprintf("| %s | %s | %s |\n", code(v.Name), without, v.Text)
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

// shorten cuts a long example.
func shorten(text string) string {
	const most = 60
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

func asJSON(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
