package docs_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
)

// TestGenesisTellsEveryStep holds genesis.md against the example lab: each kind
// of step has its section, with its budget and its undo.
func TestGenesisTellsEveryStep(t *testing.T) {
	text := read(t, "genesis.md")
	lab, err := genesis.Load(
		"lab.yaml",
		func(name string) ([]byte, error) { return os.ReadFile(filepath.Join("../deploy/genesis", name)) },
		systems.All{},
	)
	if err != nil {
		t.Fatal(err)
	}
	last := -1
	for _, s := range lab.Steps() {
		at := strings.Index(text, "\n### "+s.Kind+"\n")
		if at < 0 {
			t.Errorf("genesis.md does not tell the step %s", s.Kind)
			continue
		}
		if at < last {
			t.Errorf("genesis.md tells %s too early", s.Kind)
		}
		last = at
		section, _, _ := strings.Cut(text[at+5:], "\n##")
		budget := regexp.MustCompile(`\*Budget:\* (\d+) (minutes|hours)`).FindStringSubmatch(section)
		if budget == nil {
			t.Errorf("genesis.md names no budget of %s", s.Kind)
			continue
		}
		if d, err := time.ParseDuration(budget[1] + budget[2][:1]); err != nil || d != s.Budget {
			t.Errorf("genesis.md gives %s %s %s, the table %s", s.Kind, budget[1], budget[2], s.Budget)
		}
		none := strings.Contains(section, "*Undo:* none")
		if want := strings.HasPrefix(s.Undo, "none:"); none != want && s.Kind != genesis.StepMigrate {
			t.Errorf("genesis.md and the table disagree on the undo of %s: %q", s.Kind, s.Undo)
		}
		if s.Machine != "" && !strings.Contains(section, s.Machine) {
			t.Errorf("genesis.md tells %s without %s", s.Kind, s.Machine)
		}
	}
}

// TestGenesisNamesEveryKey holds the table of keys against what the file is
// read into.
func TestGenesisNamesEveryKey(t *testing.T) {
	text := read(t, "genesis.md")
	table := text[strings.Index(text, "## The file"):strings.Index(text, "## NAS settings")]
	for _, k := range labKeys(reflect.TypeFor[genesis.Lab](), "") {
		if !strings.Contains(table, "`"+k+"`") {
			t.Errorf("genesis.md does not name %s", k)
		}
	}
}

// labKeys lists the keys of a struct as the file spells them; those of lists
// without their list.
func labKeys(s reflect.Type, prefix string) []string {
	var out []string
	for i := range s.NumField() {
		f := s.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous {
			continue
		}
		at, below := f.Type, prefix+name+"."
		switch {
		case at.Kind() == reflect.Pointer:
			at = at.Elem()
		case at.Kind() == reflect.Slice:
			at, below = at.Elem(), ""
			out = append(out, prefix+name)
		}
		if at.Kind() == reflect.Struct && strings.HasPrefix(at.PkgPath(), "github.com/ingotmetal/ingot/genesis") {
			out = append(out, labKeys(at, below)...)
		} else if at == f.Type {
			out = append(out, prefix+name)
		}
	}
	return out
}

var quoted = regexp.MustCompile(`'([^']*)'`)

// byHand are parts of config.boot that differ between installations, or
// that VyOS sets automatically: genesis.md does not type them in.
var byHand = regexp.MustCompile(
	`^(system|interfaces loopback|service (ntp server|ssh)|service dhcp-relay relay-options (hop-count|max-size))( |$)| description$`,
)

// TestVyOSSettingsAreThoseOfTheExample follows each "set" of genesis.md into
// config.boot of the example, and back.
func TestVyOSSettingsAreThoseOfTheExample(t *testing.T) {
	const file = "../deploy/genesis/config.boot"
	boot, problems := vyos.Parse([]byte(read(t, file)))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	typed := map[string]bool{} // paths, each with its value if it has one
	for _, line := range strings.Split(read(t, "genesis.md"), "\n") {
		rest, ok := strings.CutPrefix(line, "set ")
		if !ok {
			continue
		}
		value := quoted.FindStringSubmatch(rest)
		path := strings.Fields(quoted.ReplaceAllString(rest, ""))
		typed[strings.Join(path, " ")+strings.Join(value[min(1, len(value)):], "")] = true
		at := boot.At(path...)
		if at == nil {
			t.Errorf("%s has no %v", file, path)
			continue
		}
		if value != nil && !slices.Contains(at.Values, value[1]) {
			t.Errorf("%s: %v is %q, and genesis.md says %q", file, path, at.Values, value[1])
		}
	}
	n := 0
	var back func(n *vyos.Node, path string)
	back = func(at *vyos.Node, path string) {
		for _, c := range at.Children {
			back(c, strings.TrimPrefix(path+" "+c.Name, " "))
		}
		if len(at.Children) > 0 || byHand.MatchString(path) {
			return
		}
		for _, v := range append([]string{""}, at.Values...)[min(1, len(at.Values)):] {
			n++
			if !typed[path+v] {
				t.Errorf("%s has %s %q, and genesis.md does not", file, path, v)
			}
		}
	}
	back(&boot.Node, "")
	if n < 15 {
		t.Fatalf("%s has %d settings", file, n)
	}
}
