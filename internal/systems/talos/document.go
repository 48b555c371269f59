// Package talos supports Talos Linux: it checks machine configurations and calls the Talos API of a node. The
// checks are those of Talos' machinery package (v1.13), so they accept what Talos v1.13 accepts on bare metal.
package talos

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-multierror"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/config/validation"
	"go.yaml.in/yaml/v4"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Document checks and reads machine configurations: one or more YAML documents.
type Document struct{}

// metal is the validation mode for a machine that installs itself to a disk.
type metal struct{}

func (metal) String() string        { return "metal" }
func (metal) RequiresInstall() bool { return true }
func (metal) InContainer() bool     { return false }

// reference tells the user what to do about a key that Talos does not know.
const reference = "look it up in the reference of Talos 1.13"

// Check returns as problems why Talos would refuse a machine configuration, and as warnings what Talos would warn of. The texts may repeat
// values, also secret ones.
func (Document) Check(file string, contents []byte) (problems, warnings inventory.Problems) {
	docs, err := strictyaml.Documents(file, contents)
	if errors.As(err, &problems) {
		return problems, nil
	}
	if problems = unknownKeys(contents); len(problems) > 0 {
		return problems, nil // the loader would report only the first unknown key, and repeat its value
	}
	provider, err := configloader.NewFromBytes(contents)
	if err != nil {
		return loadProblems(err), nil
	}
	n := slices.IndexFunc(docs, func(d strictyaml.Document) bool { return d.Has("machine") })
	if n < 0 || provider.RawV1Alpha1() == nil {
		problems.Add("machine", "make one with: talosctl gen config", "there is no machine configuration, only other documents")
		return problems, nil
	}

	texts, err := provider.Validate(metal{}, validation.WithLocal())
	for _, text := range validationTexts(err) {
		problems = append(problems, problemOf(text))
	}
	for _, text := range texts {
		warnings = append(warnings, problemOf(text))
	}
	warnings = append(warnings, installWarnings(provider)...)
	return docs[n].Locate(problems), docs[n].Locate(warnings)
}

// movingDisk matches disk names that depend on the order in which the kernel finds disks.
var movingDisk = regexp.MustCompile(`^/dev/(sd[a-z]+|nvme[0-9]+n[0-9]+)$`)

// installWarnings warns of settings that Talos accepts although they may cause a wrong installation.
func installWarnings(c config.Provider) (warnings inventory.Problems) {
	install := c.RawV1Alpha1().MachineConfig.MachineInstall
	if install == nil {
		return nil
	}
	if movingDisk.MatchString(install.InstallDisk) && install.InstallDiskSelector == nil {
		warnings.Add("machine.install.disk", "write /dev/disk/by-id/…, or machine.install.diskSelector",
			"%s may name another disk at the next start", install.InstallDisk)
	}
	if install.InstallImage == "" {
		warnings.Add("machine.install.image", "name the installer image of your schematic",
			"is missing: Talos installs the version that it was booted with, without extensions")
	}
	return warnings
}

// unknownKeys returns a problem for each key, in any of the documents, for which Talos has no field. The loader refuses unknown keys, too,
// but it reports only those of the first document, without lines, and repeats their values.
func unknownKeys(contents []byte) (problems inventory.Problems) {
	for dec := yaml.NewDecoder(bytes.NewReader(contents)); ; {
		var doc yaml.Node
		if dec.Decode(&doc) != nil {
			return problems // the loader will report the syntax error
		}
		var wrong *yaml.LoadErrors
		target := emptyDocument(&doc)
		if target == nil || !errors.As(doc.Load(target, yaml.WithKnownFields()), &wrong) {
			continue
		}
		for _, e := range wrong.Errors {
			if !strings.Contains(e.Err.Error(), "not found in type") {
				continue // the loader will report the value of the wrong type
			}
			field, _ := pathOf(&doc, e.Line, e.Column)
			problems = append(problems, inventory.Problem{
				Line: e.Line, Field: field, What: "Talos does not know this key", Remedy: reference,
			})
		}
	}
}

// emptyDocument returns a pointer to an empty document of the kind that doc names, or nil for a kind that Talos
// does not know.
func emptyDocument(doc *yaml.Node) any {
	var header struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
	}
	if doc.Decode(&header) != nil {
		return nil
	}
	if header.Kind == "" {
		return &v1alpha1.Config{}
	}
	empty, err := configloader.NewFromBytes(fmt.Appendf(nil, "apiVersion: %q\nkind: %q\n", header.APIVersion, header.Kind))
	if err != nil || len(empty.Documents()) != 1 {
		return nil
	}
	return empty.Documents()[0]
}

// pathOf returns the path of the key at a line and column, such as machine.network.interfaces[0].mtu.
func pathOf(n *yaml.Node, line, column int) (path string, found bool) {
	for i, c := range n.Content {
		name := ""
		switch n.Kind {
		case yaml.MappingNode:
			if i%2 == 0 {
				if c.Line == line && c.Column == column {
					return c.Value, true
				}
				continue
			}
			name = n.Content[i-1].Value
		case yaml.SequenceNode:
			name = fmt.Sprintf("[%d]", i)
		}

		below, found := pathOf(c, line, column)
		if !found {
			continue
		}
		if name != "" && !strings.HasPrefix(below, "[") {
			name += "."
		}
		return name + below, true
	}
	return "", false
}

var (
	lineOf = regexp.MustCompile(`line (\d+)`)
	quoted = regexp.MustCompile("`[^`]*`") // values in messages of the YAML parser
)

// loadHints gives clearer texts and remedies for errors of the loader. Each hint applies to errors that contain its text.
var loadHints = []struct{ text, what, remedy string }{
	{"expected a YAML document", "is not a mapping of keys to values", "make one with: talosctl gen config"},
	{"unknown keys found", "has a key that Talos does not know", reference},
	{"missing kind", "a document has no kind", "add apiVersion and kind, or machine and cluster"},
	{"missing apiVersion", "a document has no apiVersion", "write apiVersion: v1alpha1"},
	{"not registered", "", reference},
}

// loadProblems converts an error of the loader to problems.
func loadProblems(err error) (problems inventory.Problems) {
	if wrong, ok := errors.AsType[*yaml.LoadErrors](err); ok {
		for _, e := range wrong.Errors {
			problems = append(problems, inventory.Problem{
				Line: e.Line, What: "has the wrong type: " + quoted.ReplaceAllString(e.Err.Error(), "this"),
			})
		}
		return problems
	}

	first, _, _ := strings.Cut(err.Error(), "\n")
	p := inventory.Problem{What: quoted.ReplaceAllString(first, "this")}
	if m := lineOf.FindStringSubmatch(first); m != nil {
		p.Line, _ = strconv.Atoi(m[1]) // cannot fail: the text is digits
	}
	for _, h := range loadHints {
		if !strings.Contains(err.Error(), h.text) {
			continue
		}
		if p.Remedy = h.remedy; h.what != "" {
			p.What = h.what
		}
		break
	}
	return inventory.Problems{p}
}

// validationTexts returns the texts of the errors that are joined in an error of the validation.
func validationTexts(err error) []string {
	if err == nil {
		return nil
	}
	var many *multierror.Error
	if !errors.As(err, &many) {
		return []string{err.Error()}
	}
	var texts []string
	for _, e := range many.Errors {
		texts = append(texts, validationTexts(e)...)
	}
	return texts
}

var fieldName = regexp.MustCompile(`\.?((?:machine|cluster)(?:\.[A-Za-z0-9]+(?:\[\d+\])?)+)`)

// fieldHints gives the field and the remedy for errors of the validation that do not name the field. Each hint applies to errors that
// contain its text.
var fieldHints = []struct{ text, field, remedy string }{
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

// problemOf converts a text of the validation to a problem.
func problemOf(text string) inventory.Problem {
	text = strings.TrimPrefix(strings.Join(strings.Fields(text), " "), "v1alpha1.Config: ")
	p := inventory.Problem{What: quoted.ReplaceAllString(text, "this")}
	if m := fieldName.FindStringSubmatch(text); m != nil {
		p.Field = m[1]
	}
	for _, h := range fieldHints {
		if strings.Contains(text, h.text) {
			p.Field, p.Remedy = h.field, h.remedy
			break
		}
	}
	return p
}

// Disks describes each disk that the configuration may install to, by its path or by a value of its selector.
func (Document) Disks(contents []byte) (disks []string) {
	docs, _ := strictyaml.Documents("", contents) // none if they cannot be read
	for _, d := range docs {
		if v := d.Text("machine.install.disk"); v != "" {
			disks = append(disks, v)
		}
		for _, field := range []string{"serial", "wwid", "model", "uuid", "name", "type", "busPath", "size"} {
			if v := d.Text("machine.install.diskSelector." + field); v != "" {
				disks = append(disks, "the disk of "+field+" "+v)
			}
		}
	}
	return disks
}
