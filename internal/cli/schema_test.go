package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/systems"
	"github.com/ingotmetal/ingot/template"
)

// An example is a file, or a part of one, in this repository.
type example struct {
	name string
	text []byte
}

// examples returns all YAML of the repository: files, blocks in the documentation, files in scripts. The Helm chart is left
// out: its files are text for Helm's renderer, and deploy/kubernetes tests them.
func examples(t *testing.T) (all []example) {
	t.Helper()
	root := "../.."
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() &&
			(slices.Contains([]string{"node_modules", "bin", "web", "chart"}, d.Name()) || path != root && d.Name()[0] == '.' && path != "..") {
			return filepath.SkipDir
		}
		switch filepath.Ext(path) {
		case ".yaml", ".yml", ".md", ".txtar":
		default:
			return nil
		}

		b, err := os.ReadFile(path)
		switch filepath.Ext(path) {
		case ".md":
			for n, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(b, -1) {
				all = append(all, example{fmt.Sprintf("%s#%d", path, n), m[1]})
			}
		case ".txtar":
			for _, f := range txtar.Parse(b).Files {
				if filepath.Ext(f.Name) == ".yaml" {
					all = append(all, example{path + "/" + f.Name, f.Data})
				}
			}
		default:
			all = append(all, example{path, bytes.Replace(b, []byte("%s"), nil, 1)}) // the lines of config's example
		}
		return err
	}))
	return all
}

// readers read a kind of file as the commands do.
func readers(t *testing.T) map[string]func(e example) error {
	return map[string]func(e example) error{
		"catalog": func(e example) error {
			file := filepath.Join(t.TempDir(), "catalog.yaml")
			require.NoError(t, os.WriteFile(file, e.text, 0o600))
			_, err := catalog.Read(file)
			return err
		},
		"config": func(e example) error {
			file := filepath.Join(t.TempDir(), "ingot.yaml")
			require.NoError(t, os.WriteFile(file, e.text, 0o600))
			_, err := config.Load(file, true)
			return err
		},
		"lab": func(e example) error {
			_, err := genesis.Load(filepath.Base(e.name), func(name string) ([]byte, error) {
				if name == filepath.Base(e.name) {
					return e.text, nil
				}
				return os.ReadFile(filepath.Join(filepath.Dir(e.name), name))
			}, systems.All{})
			return err
		},
		"machine": func(e example) error {
			docs, err := strictyaml.Documents(e.name, e.text)
			if err == nil {
				_, _, err = machinefile.Read(e.name, docs)
			}
			return err
		},
		"template": func(e example) error {
			_, err := template.Parse(e.name, e.text)
			return err
		},
	}
}

// compiled returns each schema as "ingot schema NAME" prints it.
func compiled(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	out := map[string]*jsonschema.Schema{}
	for _, s := range fileSchemas() {
		text := new(bytes.Buffer)
		root := Root("test")
		root.SetOut(text)
		root.SetArgs([]string{"schema", s.Name})
		require.NoError(t, root.Execute())

		doc, err := jsonschema.UnmarshalJSON(text)
		require.NoError(t, err)
		c := jsonschema.NewCompiler()
		require.NoError(t, c.AddResource(s.Name, doc))
		out[s.Name], err = c.Compile(s.Name)
		require.NoError(t, err)
	}
	return out
}

// documents returns the documents of an example as JSON has them; nil if it is not YAML.
func documents(t *testing.T, e example) (docs []any) {
	t.Helper()
	dec := yaml.NewDecoder(bytes.NewReader(e.text))
	for {
		var v any
		if err := dec.Decode(&v); err != nil {
			return docs
		}
		b, err := json.Marshal(v)
		if err != nil {
			return nil // keys that are not text
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		require.NoError(t, err)
		docs = append(docs, doc)
	}
}

// Every example that a command reads fits the schema of its kind, and the schema refuses it with
// a key that nothing reads.
func TestSchemasAcceptWhatIsRead(t *testing.T) {
	schemas := compiled(t)
	found := map[string][]string{}
	for _, e := range examples(t) {
		for kind, read := range readers(t) {
			if read(e) != nil {
				continue
			}
			found[kind] = append(found[kind], e.name)
			for _, doc := range documents(t, e) {
				require.NoError(t, schemas[kind].Validate(doc), "%s as %s", e.name, kind)
				for _, place := range mappings(doc) {
					place["colour"] = []any{"red"}
					require.Error(t, schemas[kind].Validate(doc), "%s as %s: %v", e.name, kind, place)
					delete(place, "colour")
				}
			}
		}
	}

	t.Log(found)
	for kind, file := range map[string]string{
		"catalog": "internal/images/catalog/catalog.yaml", "config": "internal/config/example.yaml", "lab": "deploy/genesis/lab.yaml", "machine": "docs/configuration.md",
		"template": "template/testdata/eks-a-ubuntu.yaml",
	} {
		require.Contains(t, strings.Join(found[kind], "\n"), file, kind)
	}
	builtins, err := filepath.Glob("../../template/builtin/*.yaml")
	require.NoError(t, err)
	for _, file := range builtins {
		require.Contains(t, found["template"], file)
	}
}

// mappings returns all mappings of a document; their keys are fixed or their values are texts.
func mappings(v any) (out []map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out = append(out, mappings(v[name])...)
		}
		out = append(out, v)
	case []any:
		for _, x := range v {
			out = append(out, mappings(x)...)
		}
	}
	return out
}

// Editors show what each key means.
func TestSchemasDescribeEveryKey(t *testing.T) {
	goNames := regexp.MustCompile(`\b[A-Z][a-z0-9]+[A-Z]\w*`)
	for _, s := range fileSchemas() {
		named := properties(s.schema(), s.Name)
		require.NotEmpty(t, named, s.Name)
		for path, p := range named {
			text, _ := p["description"].(string)
			require.NotEmpty(t, text, path)
			for _, word := range goNames.FindAllString(text, -1) {
				require.Contains(t, []string{"VyOS", "MiB", "TiB", "SubjectPublicKeyInfo"}, word, "%s: a name of the code: %s", path, text)
			}
		}
	}
}

// properties returns all properties of a schema by their paths below path.
func properties(s strictyaml.Schema, path string) map[string]strictyaml.Schema {
	out := map[string]strictyaml.Schema{}
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := s[key].(strictyaml.Schema); ok {
			maps.Copy(out, properties(below, path+"[]"))
		}
	}
	of, _ := s["properties"].(strictyaml.Schema)
	for name, p := range of {
		out[path+"."+name] = p.(strictyaml.Schema)
		maps.Copy(out, properties(p.(strictyaml.Schema), path+"."+name))
	}
	return out
}

// What the schema of a kind accepts, the reader can read: it finds only what depends on several values.
func TestSchemasRefuseWhatIsNotRead(t *testing.T) {
	schemas := compiled(t)
	for kind, wrong := range map[string]map[string]string{
		"catalog": {
			"images: [{name: a}]": "no URL", "images: [{name: a, url: b, use: floppy}]": "unknown use",
			"images: {a: b}": "no list", "{images: [], name: a}": "unknown key",
		},
		"config": {
			"lisen: x": "unknown key", "netboot: {tftp: 99999}": "port", "netboot: {interfaces: eth0}": "no list",
			"reserve_mib: -1": "negative", "records: {retention: soon}": "no duration", "notify: {events: [nothing]}": "unknown event",
			"power: {commands: {plug: {on: [/x]}}}": "off and status are missing",
		},
		"machine": {
			"interfaces: []": "no name", "name: a": "no interfaces", "{name: a, interfaces: [{}]}": "no MAC",
			"{name: a, interfaces: [{mac: x, vlan: 5000}]}":           "no VLAN",
			"{name: a, interfaces: [{mac: x, arch: sparc}]}":          "no architecture",
			"{name: a, interfaces: [{mac: x, address: 10.0.0.1/x}]}":  "no address",
			"{name: a, interfaces: [{mac: x, leaseTime: 1 day}]}":     "no duration",
			"{name: a, interfaces: [], diskSelector: {minSize: 5 G}}": "no size",
			"{name: a, interfaces: [], bmc: {driver: serial}}":        "no driver",
			"{name: a, interfaces: [], bootFromDisk: floppy}":         "unknown way",
			"{name: [a], interfaces: []}":                             "no text",
		},
		"lab": {
			"name: a": "no machines", "{name: a, seed: {address: x, segment: y}, network: {prefix: 1, gateway: 2}, machines: []}": "no addresses",
		},
		"template": {
			"name: a": "no version", `{version: "0.2"}`: "another version", `{version: "0.1", tasks: [{name: a}]}`: "no actions",
			`{version: "0.1", tasks: [{name: a, actions: [{name: b, image: kexex}]}]}`:                 "no such action",
			`{version: "0.1", tasks: [{name: a, actions: [{name: b, image: noop, timeout: 1m}]}]}`:     "no number",
			`{version: "0.1", tasks: [{name: a, actions: [{name: b, image: noop, environment: []}]}]}`: "no mapping",
			`{version: "0.1", documents: [{name: a, kind: solaris}]}`:                                  "unknown kind",
			`{version: "0.1", installer: {kernel: a, initrd: [b], complete: soon}}`:                    "unknown end",
		},
	} {
		for text, why := range wrong {
			docs := documents(t, example{kind, []byte(text)})
			require.Len(t, docs, 1, text)
			require.Error(t, schemas[kind].Validate(docs[0]), "%s: %s: %s", kind, why, text)
			require.Error(t, readers(t)[kind](example{"x.yaml", []byte(text)}), "%s: %s: %s", kind, why, text)
		}
	}
}
