// Package importfile reads documents of other programs as machines, templates and commands of
// Ingot, and writes machines and templates as documents that it reads to the same state:
// Tinkerbell (v1alpha1, v1alpha2), EKS Anywhere (CSV and configurations).
// It changes nothing and starts nothing; a machine that it returns never has network boot open.
package importfile

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// A File is one file as the operator gave it.
type File struct {
	Name    string // for messages
	Content []byte
}

// A Place is where something was written.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
}

// String returns "FILE:LINE".
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

func (p Place) compare(q Place) int { return cmp.Or(strings.Compare(p.File, q.File), p.Line-q.Line) }

// A Machine is a machine that a file describes.
type Machine struct {
	inventory.Machine
	Place
	// Own is set for Ingot's own form, which describes all of a machine. The other formats
	// have no word for some fields; what is stored in those stays.
	Own bool
	// says reports whether the document says what a field of inventory.Machine is, even if the
	// field is empty.
	says func(field string) bool
	// lineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac", or 0.
	lineOf func(field string) int
	// fieldOf translates such a field to the words of the document.
	fieldOf func(field string) string
}

// LineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac".
func (m Machine) LineOf(field string) int { return cmp.Or(m.lineOf(field), m.Line) }

// A Template is a template that a file contains.
type Template struct {
	inventory.Template
	Place
}

// A Start is a document that starts something elsewhere. Here an operator starts it.
type Start struct {
	Place
	Object  string `json:"object"`  // such as "Workflow node-1"
	Command string `json:"command"` // that does the same
}

// An Ignored is a key that was not imported.
type Ignored struct {
	Place
	Object string `json:"object"` // such as "Hardware node-1"
	Key    string `json:"key"`    // path in the document, or the column
	Why    string `json:"why"`
}

// An Import is what files contain.
type Import struct {
	Machines  []Machine
	Templates []Template
	Starts    []Start
	Ignored   []Ignored
}

// Known reports whether a file is in a format of another program that Read reads.
func Known(f File) bool {
	if isCSV(f.Content) {
		return true
	}
	docs, err := strictyaml.Documents(f.Name, f.Content)
	return err == nil && slices.ContainsFunc(docs, func(d strictyaml.Document) bool {
		return d.Text("kind") != "" && d.Text("apiVersion") != ""
	})
}

// Read reads all files. Its error is an inventory.Problems with everything that is wrong in
// any of them; then nothing is returned.
func Read(files []File) (Import, error) {
	r := newReader()
	for _, f := range files {
		r.readFile(f)
	}
	if len(files) > 0 && len(r.found.problems) == 0 && r.documents == 0 {
		r.found.problems = append(r.found.problems, inventory.Problem{
			File: files[0].Name, What: "holds nothing", Remedy: "ingot import --help",
		})
	}

	r.join()
	if err := r.found.problems.Err(); err != nil {
		return Import{}, err
	}
	return Import{Machines: r.machines, Templates: r.templates.all, Starts: r.starts.commands, Ignored: r.found.ignored}, nil
}

// A reader collects what files contain.
type reader struct {
	found     *findings
	templates *templates
	bmcs      *bmcs
	starts    *starts

	documents int
	keys      int // of all documents, see tooLarge
	taken     machinefile.Claims
	machines  []Machine
	hardware  []hardware
	configs   []machineConfig
	// configured has the TinkerbellMachineConfig that matches a machine, by the machine's name.
	configured map[string]string
}

func newReader() *reader {
	found, taken := &findings{}, machinefile.Claims{}
	return &reader{
		found: found, taken: taken, configured: map[string]string{},
		templates: &templates{found: found, taken: taken},
		bmcs: &bmcs{
			found: found, controllers: map[string]controller{}, secrets: map[string]secret{}, wrongSecrets: map[string]bool{},
		},
		starts: &starts{found: found},
	}
}

// readFile reads the documents of a file. References between documents are left to join.
func (r *reader) readFile(f File) {
	if isCSV(f.Content) {
		ms, ignored, ps := readCSV(f.Name, f.Content)
		r.documents += len(ms)
		r.found.problems = append(r.found.problems, ps...)
		r.found.ignored = append(r.found.ignored, ignored...)
		for _, m := range ms {
			r.addMachine(m)
		}
		return
	}

	if bytes.ContainsRune(f.Content, 0) {
		r.found.problems = append(r.found.problems, inventory.Problem{
			File: f.Name, What: "is not text", Remedy: "give a CSV, YAML or JSON file",
		})
		return
	}

	docs, err := strictyaml.Documents(f.Name, f.Content)
	r.found.report(err)
	for _, d := range docs {
		r.readDocument(d)
	}
}

// addMachine checks a machine against those before it.
func (r *reader) addMachine(m Machine) {
	var ps inventory.Problems
	at := func(field string) string { return Place{m.File, m.LineOf(field)}.String() }
	r.taken.Machine(&ps, "", m.Machine, at)
	if !m.Own {
		r.claimHostnames(&ps, m, at)
	}
	if b := m.BMC; b != nil && b.Host != "" && b.Capabilities().NeedsHost {
		r.taken.Add(&ps, "bmc.host", "BMC", fmt.Sprintf("%s:%d", b.Host, b.OwnPort()), at("bmc.host"))
	}
	for i := range ps {
		ps[i].File, ps[i].Line = m.File, m.LineOf(ps[i].Field)
		if m.fieldOf != nil {
			ps[i].Field = m.fieldOf(ps[i].Field)
		}
	}
	r.found.problems = append(r.found.problems, ps...)
	r.machines = append(r.machines, m)
}

// claimHostnames claims the host names that DHCP gives to m. Several interfaces may have one.
func (r *reader) claimHostnames(ps *inventory.Problems, m Machine, at func(field string) string) {
	var own []string
	for n, i := range m.Interfaces {
		if i.Hostname != "" && !slices.Contains(own, i.Hostname) {
			own = append(own, i.Hostname)
			field := fmt.Sprintf("interfaces[%d].hostname", n)
			r.taken.Add(ps, field, "host name", i.Hostname, at(field))
		}
	}
}

// join resolves references between documents, and makes machines of what needs them.
func (r *reader) join() {
	r.bmcs.joinLogins()
	for _, h := range r.hardware {
		r.addHardware(h)
	}
	r.bmcs.noteUnused()
	for _, c := range r.configs {
		r.applyConfig(c)
	}
	for _, w := range r.starts.workflows {
		r.starts.startWorkflow(w, r.machines)
	}
	for _, j := range r.starts.jobs {
		r.starts.startJob(j, r.machineOf(j))
	}

	slices.SortStableFunc(r.machines, func(a, b Machine) int { return a.compare(b.Place) })
	slices.SortStableFunc(r.found.problems, func(a, b inventory.Problem) int {
		return cmp.Or(Place{a.File, a.Line}.compare(Place{b.File, b.Line}), strings.Compare(a.Field, b.Field))
	})
	slices.SortStableFunc(r.found.ignored, func(a, b Ignored) int {
		return cmp.Or(a.compare(b.Place), strings.Compare(a.Key, b.Key), strings.Compare(a.Why, b.Why))
	})
}
