// Package talos reads machine configurations of Talos Linux with Talos' own
// machinery package (v1.13): what passes here is what a Talos of that version
// accepts on bare metal. It is a package of its own because of what the
// machinery brings along.
package talos

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/inventory"
)

// metal is the mode of a machine that installs itself to a disk.
type metal struct{}

func (metal) String() string        { return "metal" }
func (metal) RequiresInstall() bool { return true }
func (metal) InContainer() bool     { return false }

// Check returns everything for which Talos would refuse a machine
// configuration, and what it would warn of. The problems lack their file;
// their texts may repeat values of the document.
func Check(file string, contents []byte) (problems, warnings inventory.Problems) {
	docs, problems := documents(contents)
	if len(problems) > 0 {
		return problems, nil
	}
	for _, d := range docs {
		problems = append(problems, unknownKeys(d)...)
	}
	if len(problems) > 0 {
		return problems, nil // the loader would stop at the first, and show its value
	}
	provider, err := configloader.NewFromBytes(contents)
	if err != nil {
		return loadProblems(err), nil
	}
	main := slices.IndexFunc(docs, func(n *yaml.Node) bool { return lookup(n, "machine") != nil })
	if main < 0 || provider.RawV1Alpha1() == nil {
		problems.Add("machine", "make one with: talosctl gen config", "there is no machine configuration, only documents beside it")
		return problems, nil
	}
	said, err := provider.Validate(metal{}, validation.WithLocal())
	problems = append(problems, validationProblems(docs[main], err)...)
	for _, s := range said {
		warnings = append(warnings, problem(docs[main], s))
	}
	if in := provider.RawV1Alpha1().MachineConfig.MachineInstall; in != nil {
		if disk := in.InstallDisk; movingDisk.MatchString(disk) && in.InstallDiskSelector == nil {
			warnings = append(warnings, at(docs[main], inventory.Problem{
				Field: "machine.install.disk", What: fmt.Sprintf("%s may be another disk at the next start", disk),
				Remedy: "write /dev/disk/by-id/…, or machine.install.diskSelector",
			}))
		}
		if in.InstallImage == "" {
			warnings = append(warnings, at(docs[main], inventory.Problem{
				Field: "machine.install.image", What: "is missing: Talos installs the version that it was booted with, without extensions",
				Remedy: "name the installer image of your schematic",
			}))
		}
	}
	return problems, warnings
}

var movingDisk = regexp.MustCompile(`^/dev/(sd[a-z]+|nvme[0-9]+n[0-9]+)$`)

// documents splits the stream, as far as it is YAML.
func documents(contents []byte) (docs []*yaml.Node, problems inventory.Problems) {
	defer func() {
		if r := recover(); r != nil {
			docs, problems = nil, inventory.Problems{{What: "is no YAML"}}
		}
	}()
	for dec := yaml.NewDecoder(strings.NewReader(string(contents))); ; {
		var n yaml.Node
		err := dec.Decode(&n)
		if err != nil && err.Error() == "EOF" {
			break
		}
		if err != nil {
			return nil, inventory.Problems{syntax(err)}
		}
		if n.Kind == yaml.DocumentNode && len(n.Content) == 1 && n.Content[0].ShortTag() != "!!null" {
			if n.Content[0].Kind != yaml.MappingNode {
				problems = append(problems, inventory.Problem{Line: n.Content[0].Line, What: "is no mapping of keys to values"})
				continue
			}
			docs = append(docs, n.Content[0])
		}
	}
	if len(docs) == 0 && len(problems) == 0 {
		problems.Add("machine", "make one with: talosctl gen config", "there is no document")
	}
	return docs, problems
}

var lineOf = regexp.MustCompile(`line (\d+)`)

func syntax(err error) inventory.Problem {
	p := inventory.Problem{Line: 1, What: "not valid YAML: " + firstLine(strings.TrimPrefix(err.Error(), "yaml: "))}
	if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		p.Line, _ = strconv.Atoi(m[1]) // digits: cannot fail but by their number
	}
	return p
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

var (
	wrongType = regexp.MustCompile(`(?m)line (\d+)(?::| \(.*?\):)? ?(cannot (?:construct|unmarshal).*)$`)
	quoted    = regexp.MustCompile("`[^`]*`")
)

// loadProblems takes apart what the loader says.
func loadProblems(err error) inventory.Problems {
	var problems inventory.Problems
	for _, m := range wrongType.FindAllStringSubmatch(err.Error(), -1) {
		line, _ := strconv.Atoi(m[1]) // as above
		problems = append(problems, inventory.Problem{Line: line, What: "has the wrong type: " + quoted.ReplaceAllString(m[2], "this")})
	}
	if len(problems) > 0 {
		return problems
	}
	text := err.Error()
	p := inventory.Problem{What: quoted.ReplaceAllString(firstLine(text), "this")}
	if m := lineOf.FindStringSubmatch(text); m != nil {
		p.Line, _ = strconv.Atoi(m[1]) // as above
	}
	switch {
	case strings.Contains(text, "unknown keys found"):
		p.What, p.Remedy = "has a key that Talos does not know", "look it up in the reference of your version"
	case strings.Contains(text, "missing kind"):
		p.What, p.Remedy = "a document says no kind", "add apiVersion and kind, or machine and cluster"
	case strings.Contains(text, "missing apiVersion"):
		p.What, p.Remedy = "a document says no apiVersion", "write apiVersion: v1alpha1"
	case strings.Contains(text, "not registered"):
		p.Remedy = "look the kind up in the reference of Talos 1.13"
	}
	return inventory.Problems{p}
}

// validationProblems takes apart what the validation says.
func validationProblems(doc *yaml.Node, err error) inventory.Problems {
	if err == nil {
		return nil
	}
	var many *multierror.Error
	if u := errors.Unwrap(err); !errors.As(err, &many) {
		if u != nil {
			return validationProblems(doc, u)
		}
		return inventory.Problems{problem(doc, err.Error())}
	}
	var problems inventory.Problems
	for _, e := range many.Errors {
		var inner *multierror.Error
		if errors.As(e, &inner) {
			problems = append(problems, validationProblems(doc, inner)...)
			continue
		}
		problems = append(problems, problem(doc, e.Error()))
	}
	return problems
}

var fieldName = regexp.MustCompile(`\.?((?:machine|cluster)(?:\.[A-Za-z0-9]+(?:\[\d+\])?)+)`)

// hints say where Talos' messages mean, and what to do: some name no field.
var hints = []struct{ words, field, remedy string }{
	{"either install disk or diskSelector", "machine.install", "write disk: /dev/disk/by-id/…, or a diskSelector"},
	{"install disk selector is invalid", "machine.install.diskSelector", ""},
	{"install instructions are required", "machine", "add machine.install with a disk"},
	{"unknown machine type", "machine.type", "write controlplane, or worker"},
	{"for machine type", "machine.type", ""},
	{"issuing CA", "machine.ca", "take it from: talosctl gen config"},
	{"cluster instructions are required", "cluster", "take it from: talosctl gen config"},
	{"controlplane endpoint", "cluster.controlPlane.endpoint", "write https://ADDRESS:6443"},
	{"trustd token", "machine.token", "take it from: talosctl gen config"},
	{"dns domain", "cluster.network.dnsDomain", ""},
}

func problem(doc *yaml.Node, text string) inventory.Problem {
	text = strings.Join(strings.Fields(text), " ")
	text = strings.TrimPrefix(text, "v1alpha1.Config: ")
	p := inventory.Problem{What: quoted.ReplaceAllString(text, "this")}
	if m := fieldName.FindStringSubmatch(text); m != nil {
		p.Field = m[1]
	}
	for _, h := range hints {
		if strings.Contains(text, h.words) {
			p.Field, p.Remedy = h.field, h.remedy
			break
		}
	}
	return at(doc, p)
}

// at finds the line of the problem's field, or of the deepest part of it that
// exists.
func at(doc *yaml.Node, p inventory.Problem) inventory.Problem {
	p.Line = doc.Line
	n := doc
	for part := range strings.FieldsFuncSeq(p.Field, func(r rune) bool { return r == '.' || r == '[' || r == ']' }) {
		key := lookupKey(n, part)
		if key == nil {
			break
		}
		p.Line, n = key.Line, lookup(n, part)
	}
	return p
}

func lookupKey(n *yaml.Node, key string) *yaml.Node {
	if n.Kind == yaml.SequenceNode {
		if i, err := strconv.Atoi(key); err == nil && i < len(n.Content) {
			return n.Content[i]
		}
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i]
		}
	}
	return nil
}

func lookup(n *yaml.Node, key string) *yaml.Node {
	if n.Kind == yaml.SequenceNode {
		return lookupKey(n, key)
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// unknownKeys finds the keys of a document that its kind does not have. The
// loader refuses them, too, but names the first document alone, without lines
// and with the values.
func unknownKeys(doc *yaml.Node) inventory.Problems {
	target := reflect.TypeFor[v1alpha1.Config]()
	if kind := lookup(doc, "kind"); kind != nil && kind.Value != "" {
		version := lookup(doc, "apiVersion")
		if version == nil {
			return nil // the loader says so
		}
		empty, err := configloader.NewFromBytes(fmt.Appendf(nil, "apiVersion: %q\nkind: %q\n", version.Value, kind.Value))
		if err != nil || len(empty.Documents()) != 1 {
			return nil // as above
		}
		target = reflect.TypeOf(empty.Documents()[0])
	}
	var problems inventory.Problems
	walkKeys(doc, target, "", 0, &problems)
	return problems
}

func walkKeys(n *yaml.Node, t reflect.Type, path string, depth int, problems *inventory.Problems) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if depth > 100 || len(*problems) > 50 {
		return
	}
	switch {
	case n.Kind == yaml.SequenceNode && t.Kind() == reflect.Slice:
		for i, c := range n.Content {
			walkKeys(c, t.Elem(), fmt.Sprintf("%s[%d]", path, i), depth+1, problems)
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Map:
		for i := 0; i+1 < len(n.Content); i += 2 {
			walkKeys(n.Content[i+1], t.Elem(), join(path, n.Content[i].Value), depth+1, problems)
		}
	case n.Kind == yaml.MappingNode && t.Kind() == reflect.Struct:
		fields, any := keysOf(t)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			field, ok := fields[key.Value]
			switch {
			case ok:
				walkKeys(n.Content[i+1], field, join(path, key.Value), depth+1, problems)
			case !any:
				*problems = append(*problems, inventory.Problem{
					Line: key.Line, Field: join(path, key.Value), What: "Talos does not know this key", Remedy: remedyFor(key.Value, fields),
				})
			}
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func remedyFor(key string, fields map[string]reflect.Type) string {
	for f := range fields {
		if strings.EqualFold(strings.NewReplacer("_", "", "-", "").Replace(key), f) {
			return "write " + f
		}
	}
	return "look it up in the reference of Talos 1.13"
}

// keysOf returns the keys of a struct, and whether any key will do, as the
// loader itself reads the tags.
func keysOf(t reflect.Type) (map[string]reflect.Type, bool) {
	out := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-":
		case strings.Contains(options, "inline") && f.Type.Kind() == reflect.Map:
			return nil, true
		case f.Tag.Get("yaml") == "":
			out[strings.ToLower(f.Name)] = f.Type
		case name != "":
			out[name] = f.Type
		}
	}
	return out, false
}

// An Identity is what proves that a machine was installed with a given
// configuration, and what it is reached by.
type Identity struct {
	Type     string // controlplane | worker
	Hostname string // "" when the configuration does not say
	Endpoint string // the URL of the Kubernetes API of its cluster
	Disk     string // machine.install.disk, "" with a selector
	Image    string // machine.install.image
	// CA is the certificate authority of the machine's Talos API, in PEM. A
	// worker's configuration may have none.
	CA []byte
}

// Identify returns what a configuration says of its machine.
func Identify(contents []byte) (Identity, error) {
	c, err := load(contents)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{Type: c.Machine().Type().String()}
	if h := c.NetworkHostnameConfig(); h != nil {
		id.Hostname = h.Hostname()
	}
	if u := c.Cluster().Endpoint(); u != nil {
		id.Endpoint = (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
	}
	if in := c.RawV1Alpha1().MachineConfig.MachineInstall; in != nil {
		id.Disk, id.Image = in.InstallDisk, in.InstallImage
	}
	if ca := c.Machine().Security().IssuingCA(); ca != nil {
		id.CA = ca.Crt
	}
	return id, nil
}

// load reads a configuration that was checked before.
func load(contents []byte) (config.Provider, error) {
	c, err := configloader.NewFromBytes(contents)
	if err != nil {
		return nil, fmt.Errorf("reading the Talos machine configuration: %w", loadProblems(err))
	}
	if raw := c.RawV1Alpha1(); raw == nil || raw.MachineConfig == nil || raw.ClusterConfig == nil {
		return nil, fmt.Errorf("reading the Talos machine configuration: %w", inventory.Problems{{What: "there is no machine configuration"}})
	}
	return c, nil
}
