// Package importfile converts documents of Tinkerbell (v1alpha1, v1alpha2) and EKS Anywhere (CSV and configurations) to
// machines, templates and commands of Ingot. It also writes machines and templates as documents, from which it can read
// the same state. It stores nothing and starts nothing. No machine that it returns is allowed to boot from the network.
package importfile

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// Known reports whether f is in a format of another program: a hardware CSV, or YAML with kind and apiVersion.
func Known(f File) bool {
	if isCSV(f.Content) {
		return true
	}
	docs, err := strictyaml.Documents(f.Name, f.Content)
	return err == nil && slices.ContainsFunc(docs, func(d strictyaml.Document) bool {
		return d.Text("kind") != "" && d.Text("apiVersion") != ""
	})
}

// Read reads all files. If there are problems, the error is an inventory.Problems with all problems of all files,
// and the Import is empty.
func Read(files []File) (Import, error) { return newReader().read(files) }

// ReadTemplates does what Read does, but a file is a template unless it is in the format of another program. name, if not "", is the name
// of that template, whatever the file says.
func ReadTemplates(files []File, name string) (Import, error) {
	r := newReader()
	r.wantTemplates, r.templates.name = true, name
	return r.read(files)
}

func (r *reader) read(files []File) (Import, error) {
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
	return Import{
		Machines: r.machines.all, Templates: r.templates.all, Starts: r.starts.commands, Ignored: r.found.ignored, Warnings: r.found.warnings,
	}, nil
}

// A reader collects the content of all files.
type reader struct {
	found     *findings
	bmcs      *bmcs
	machines  *machines
	templates *templates
	starts    *starts

	wantTemplates bool // see ReadTemplates

	documents int
	alone     bool // the file that is read has one document, and can be read again
	keys      int  // number of keys in all documents, see tooLarge
}

func newReader() *reader {
	found, taken := &findings{}, machinefile.Claims{}
	bmcs := &bmcs{
		found: found, controllers: map[string]controller{}, secrets: map[string]secret{}, wrongSecrets: map[string]bool{},
	}
	machines := &machines{found: found, bmcs: bmcs, taken: taken, configured: map[string]string{}}
	return &reader{
		found: found, bmcs: bmcs, machines: machines, templates: &templates{found: found, taken: taken},
		starts: &starts{found: found, machines: machines},
	}
}

// readFile reads the documents of a file. It leaves references between documents unresolved: see join.
func (r *reader) readFile(f File) {
	if isCSV(f.Content) {
		ms, ignored, ps := readCSV(f.Name, f.Content)
		r.documents += len(ms)
		r.found.problems = append(r.found.problems, ps...)
		r.found.ignored = append(r.found.ignored, ignored...)
		for _, m := range ms {
			r.machines.add(m)
		}
		return
	}

	if bytes.ContainsRune(f.Content, 0) {
		r.found.problems = append(r.found.problems, inventory.Problem{
			File: f.Name, What: "is not text", Remedy: "give a CSV, YAML or JSON file",
		})
		return
	}

	if isTemplate(f.Content) || r.wantTemplates && !Known(f) {
		r.documents++
		r.templates.readOwn(f)
		return
	}
	docs, err := strictyaml.Documents(f.Name, f.Content)
	r.found.report(err)
	r.alone = len(docs) == 1 && f.Name != Stdin
	for _, d := range docs {
		r.readDocument(d)
	}
}

// join resolves references between documents, once all files are read.
func (r *reader) join() {
	r.bmcs.joinLogins()
	for _, h := range r.machines.hardware {
		r.machines.addHardware(h)
	}
	r.bmcs.noteUnused()
	for _, c := range r.machines.configs {
		r.machines.applyConfig(c)
	}
	for _, w := range r.starts.workflows {
		r.starts.startWorkflow(w)
	}
	for _, j := range r.starts.jobs {
		r.starts.startJob(j)
	}

	slices.SortStableFunc(r.machines.all, func(a, b Machine) int { return a.compare(b.Place) })
	slices.SortStableFunc(r.found.problems, func(a, b inventory.Problem) int {
		return cmp.Or(Place{a.File, a.Line}.compare(Place{b.File, b.Line}), strings.Compare(a.Field, b.Field))
	})
	slices.SortStableFunc(r.found.ignored, func(a, b Ignored) int {
		return cmp.Or(a.compare(b.Place), strings.Compare(a.Key, b.Key), strings.Compare(a.Why, b.Why))
	})
}
