package docs_test

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

const templatesFile = "templates.md"

var writeDocs = flag.Bool("write", false, `write the generated parts of documents ("make docs")`)

// A generated part is between these lines.
var generated = regexp.MustCompile(`(?s)<!-- generated: ([^\n]+) -->\n(.*?)<!-- end -->\n`)

// TestTemplatesAreDocumented holds templates.md against the keys of the code and its actions.
func TestTemplatesAreDocumented(t *testing.T) {
	parts := map[string]string{
		"keys": keyTable(t), "handlers": handlerText(),
		"shared": sharedTable(),
		"repositories": "Repositories of publishers: " + codes(action.Repositories()) + ".\n\nPublic registries, with the hosts below them: " +
			codes(action.PublicRegistries()) + ".\n",
	}
	for _, name := range action.Natives() {
		parts["action "+name] = actionText(action.Describe(name))
	}

	for _, m := range generated.FindAllStringSubmatch(read(t, templatesFile), -1) {
		if slices.Contains([]string{"limits", "data", "functions"}, m[1]) { // package template has a test of them
			parts[m[1]] = m[2]
		}
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
		"Allowed are %s, and `%s`; others leave the agent, write an image, send the disk, or need what only the server adds. Each may take %d s more than the "+
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

// TestSeveralMachinesExample renders the example of a template for several machines.
func TestSeveralMachinesExample(t *testing.T) {
	_, section, _ := strings.Cut(read(t, templatesFile), "\n### Several machines\n")
	_, source, _ := strings.Cut(section, "```yaml\n")
	source, _, _ = strings.Cut(source, "```\n")
	first := inventory.Machine{Name: "node-1", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:01"}}}
	second := inventory.Machine{Name: "node-2", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:02"}}}
	image := inventory.Image{Name: "debian-12", Format: "raw", SHA256: strings.Repeat("0", 64)}
	d := template.Data{
		Machine:     second,
		Others:      []inventory.Machine{first},
		HardwareMap: map[string]string{"device_1": "node-1", "device_2": "node-2"},
		Image:       &image,
		ImageURL:    "http://192.0.2.1/images/debian-12",
		Images:      map[string]inventory.Image{"http://192.0.2.1/images/debian-12": image},
	}
	r, err := template.Render(t.Context(), "cluster", source, d)
	if err != nil {
		t.Fatal(err)
	}
	if want := []inventory.Turn{{Task: "client", Machine: "node-1", After: "server"}}; !slices.Equal(r.Turns, want) {
		t.Errorf("the second machine waits for %v, not for %v", r.Turns, want)
	}
}
