package template

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// Every function that a template can call has an example that runs, and there are no other
// examples.
func TestEveryFunctionHasAnExample(t *testing.T) {
	examples, err := FunctionReference(t.Context())
	require.NoError(t, err)
	described := map[string]bool{}
	for _, x := range examples {
		require.False(t, described[x.Name], "two examples of %s", x.Name)
		described[x.Name] = true
	}

	builtin := []string{"and", "or", "not", "eq", "ne", "lt", "le", "gt", "ge", "index", "len"} // of text/template
	callable := maps.Clone(functions(newGuard(t.Context())))
	for _, name := range builtin {
		require.True(t, described[name], name)
		delete(described, name)
	}
	for name := range callable {
		if base, ok := strings.CutPrefix(name, "must"); ok {
			name = strings.ToLower(base[:1]) + base[1:]
		}
		require.True(t, described[name], "no example of %s", name)
	}
	for name := range described {
		require.Contains(t, callable, name)
	}
	require.True(t, slices.IsSorted(MustFunctions()))
}

// Every name in the data is described, and each described expression gives its example.
func TestEveryDatumIsDescribed(t *testing.T) {
	d := referenceData()
	values, err := d.values()
	require.NoError(t, err)
	described := map[string]bool{}
	for _, x := range DataReference() {
		require.NotEmpty(t, x.Text, x.Go)
		for _, expression := range []string{x.Go, x.JSON} {
			if expression == "" {
				continue
			}
			out, err := execute(t.Context(), "t", "{{ "+expression+" | toJson }}", values)
			require.NoError(t, err, expression)
			want, err := execute(t.Context(), "t", "{{ .x | toJson }}", map[string]any{"x": x.Example})
			require.NoError(t, err)
			require.Equal(t, want.text, out.text, expression)
			described[strings.NewReplacer("(index ", "", " 0)", "").Replace(expression)] = true
		}
	}

	var leaves func(path string, v any) []string
	leaves = func(path string, v any) (out []string) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				out = append(out, leaves(path+"."+k, x)...)
			}
			return out
		case []any:
			if m, ok := v[0].(map[string]any); ok {
				return leaves(path, m)
			}
		}
		return []string{path}
	}
	short := strings.NewReplacer( // the same values at other places in .hardware
		".hardware.spec.interfaces", ".hardware.interfaces")
	for _, path := range leaves("", values) {
		require.True(t, described[short.Replace(path)], path)
	}
}

var writeDocs = flag.Bool("write", false, `write the generated parts of documents ("make docs")`)

// A generated part is between these lines.
var generated = regexp.MustCompile(`(?s)<!-- generated: (limits|data|functions) -->\n.*?<!-- end -->\n`)

// TestReferenceIsDocumented holds docs/templates.md against limits, data and functions.
func TestReferenceIsDocumented(t *testing.T) {
	const file = "../docs/templates.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	parts := map[string]string{"limits": limitTable(), "data": dataTable(), "functions": functionTables(t)}
	found := 0
	want := generated.ReplaceAllStringFunc(string(text), func(old string) string {
		found++
		name := generated.FindStringSubmatch(old)[1]
		return fmt.Sprintf("<!-- generated: %s -->\n%s<!-- end -->\n", name, parts[name])
	})
	require.Equal(t, len(parts), found, "parts of %s", file)

	if *writeDocs {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "%s differs from the code: run make docs", file)
}

// limitTable has a row for each limit and default.
func limitTable() string {
	var b strings.Builder
	b.WriteString("| what | limit or default |\n|---|---|\n")
	for _, l := range Limits() {
		fmt.Fprintf(&b, "| %s | %s |\n", l.Text, l.Value)
	}
	return b.String()
}

// dataTable has a row for each value that a template reads.
func dataTable() string {
	var b strings.Builder
	b.WriteString("| in a template | example | what |\n|---|---|---|\n")
	above := ""
	for _, d := range DataReference() {
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
	all, err := FunctionReference(t.Context())
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
	fmt.Fprintf(&b, "\nThe same, but a wrong argument is an error and not an empty result: %s.\n", codes(MustFunctions()))
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

// A Datum is one value that templates can read.
type Datum struct {
	Go, JSON string // expressions; JSON is "" at the top level of the data
	Type     string
	Text     string
	Example  any // value in referenceData; Go's value if the two differ
}

// referenceData returns the data for the examples in docs/templates.md.
func referenceData() Data {
	m := inventory.Machine{
		Name: "node-1", Labels: map[string]string{"rack": "a1"}, SSHKeys: []string{"ssh-ed25519 AAAA… me"},
		Disks: []inventory.DeclaredDisk{{Device: "/dev/nvme0n1"}},
		Interfaces: []inventory.Interface{{
			MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("10.0.0.11"), Netmask: "255.255.255.0",
			Gateway: netip.MustParseAddr("10.0.0.1"), Hostname: "node-1", Domain: "example.com", UEFI: true, VLAN: 20,
			Nameservers: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, TimeServers: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			LeaseTime: inventory.Lease(24 * time.Hour),
		}},
	}
	return Data{
		Machine:     m,
		HardwareMap: map[string]string{"version": "1.4"},
		Image:       &inventory.Image{Name: "debian-12", SHA256: strings.Repeat("0a", 32), Format: "zst"},
		ImageURL:    "http://10.0.0.2/images/debian-12",
		ImagesURL:   "http://10.0.0.2/images",
	}
}

// DataReference returns everything that templates can read.
func DataReference() []Datum {
	d := referenceData()
	m, nic := d.Machine, d.Machine.Interfaces[0]
	out := []Datum{{Go: ".device_1", Text: "MAC address of the first interface for netboot; .device_2 of the second …", Example: nic.MAC}}
	out = append(out, describe(".", "", top, d)...)
	out = append(out, Datum{
		Go: ".version", Text: "a value of the run's hardware map, here of --hardware-map version=1.4", Example: d.HardwareMap["version"],
	})
	out = append(out, describe(".image.", "", imageFields, d)...)

	const instance, instanceJSON = ".Hardware.Metadata.Instance.", ".hardware.spec.metadata.instance."
	out = append(out, describe(instance, instanceJSON, instanceFields, m)...)
	out = append(out,
		Datum{Go: ".Hardware.Hostname", JSON: ".hardware.hostname", Text: "the same host name", Example: hostname(m)},
		Datum{Go: ".Hardware.Labels.rack", JSON: ".hardware.labels.rack", Text: "a label of the machine", Example: m.Labels["rack"]},
		Datum{Go: ".hardware.metadata.labels.rack", Text: "the same label", Example: m.Labels["rack"]},
		Datum{Go: ".hardware.metadata.name", Text: "name of the machine", Example: m.Name},
		Datum{Go: "(index .hardware.disks 0).device", Text: "path of the first disk that the machine declares", Example: m.Disks[0].Device},
		Datum{Go: "(index .hardware.spec.disks 0).device", Text: "the same path", Example: m.Disks[0].Device},
	)
	out = append(out, describe(".Hardware.", ".hardware.spec.", hardwareFields, view{m, true})...)

	const dhcp, dhcpJSON = "(index .Hardware.Interfaces 0).DHCP.", "(index .hardware.interfaces 0).dhcp."
	out = append(out, describe(dhcp, dhcpJSON, dhcpFields, nic)...)
	out = append(out, describe(dhcp+"IP.", dhcpJSON+"ip.", ipFields, nic)...)
	for i := range out {
		if out[i].Go == ".Hardware.Disks" {
			out[i].JSON = "" // each disk is a mapping there
		}
		out[i].Type = typeName(out[i].Example)
	}
	return out
}

// describe returns the rows that have a value, and not those that only contain other rows.
func describe[T any](inGo, inJSON string, rows []field[T], from T) (out []Datum) {
	for _, f := range rows {
		if f.text == "" {
			continue
		}
		d := Datum{Go: inGo + f.goName, Text: f.text, Example: f.value(from)}
		if inJSON != "" {
			d.JSON = inJSON + f.jsonName
		}
		out = append(out, d)
	}
	return out
}

func typeName(v any) string {
	switch reflect.ValueOf(v).Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "number"
	case reflect.Slice:
		return "list of texts"
	}
	return "text"
}

// A Limit is a number that bounds a template, or a default.
type Limit struct {
	Text  string // what it is about
	Value string
}

// Limits returns the limits and defaults of templates.
func Limits() []Limit {
	number := func(n int) string { return fmt.Sprint(n) }
	kib := func(n int) string { return fmt.Sprintf("%d KiB", n>>10) }
	seconds := func(s action.Seconds) string { return fmt.Sprintf("%d s", s) }
	return []Limit{
		{"timeout of an action that has none", seconds(DefaultActionTimeout)},
		{"global_timeout of a template that has none", seconds(DefaultGlobalTimeout)},
		{"timeout of an installer that has none; added to the default of global_timeout", seconds(DefaultInstallerTimeout)},
		{"path of the disk, where neither the template nor the machine names one", DefaultDisk},
		{"time of on-failure and of on-timeout, each", seconds(action.HandlerTime)},
		{"actions of a template", number(maxActions)},
		{"characters of a name", number(maxName)},
		{"documents", number(maxDocuments)},
		{"size of a document", kib(maxDocument)},
		{"entries of installer.initrd", number(maxInitrds)},
		{"entries of installer.parameters", number(maxParameters)},
		{"size of a template", kib(maxSource)},
		{"size of a rendered template", kib(maxOutput)},
		{"time of a rendering", fmt.Sprintf("%.0f s", renderTime.Seconds())},
		{"passes of loops, pieces of text and function calls in a rendering", number(maxSteps)},
		{"calls of named templates", number(maxCalls)},
		{"size of a value", kib(maxWeight)},
		{"elements of a list or mapping", number(maxLength)},
		{"depth of lists and mappings in each other", number(maxNested)},
		{"arguments of a function call", number(maxArgs)},
	}
}

// A FunctionExample is a function of templates with an example call and its result.
type FunctionExample struct {
	Group, Name, Call string
	Result            string
}

// FunctionReference returns an example of every function that templates can call.
func FunctionReference(ctx context.Context) ([]FunctionExample, error) {
	var out []FunctionExample
	for _, g := range functionGroups {
		for _, call := range g.examples {
			name, _, _ := strings.Cut(call, " ")
			x := FunctionExample{Group: g.title, Name: name, Call: call}
			result, err := execute(ctx, name, "{{ "+call+" }}", nil)
			var failed inventory.Problems
			switch {
			case name == "fail" && errors.As(err, &failed):
				x.Result = "an error: " + failed[0].What
			case err != nil:
				return nil, fmt.Errorf("calling %s: %w", call, err)
			default:
				x.Result = result.text
			}
			out = append(out, x)
		}
	}
	return out, nil
}

// MustFunctions returns the functions that fail where the variant without must returns an empty
// value.
func MustFunctions() (names []string) {
	for name := range functions(newGuard(context.Background())) {
		if strings.HasPrefix(name, "must") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
