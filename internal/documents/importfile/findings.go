package importfile

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// findings are what is reported about documents: what is wrong with them, and what is not imported.
type findings struct {
	problems inventory.Problems
	ignored  []Ignored
}

// report adds the problems of an error of this package's readers.
func (r *findings) report(err error) {
	if err == nil {
		return
	}
	ps, ok := err.(inventory.Problems) //nolint:errorlint // the readers return it bare
	if !ok {
		ps = inventory.Problems{{What: err.Error()}}
	}
	r.problems = append(r.problems, ps...)
}

// add adds a problem of a document.
func (r *findings) add(d strictyaml.Document, field, remedy, format string, args ...any) {
	ps := inventory.Problems{}
	ps.Add(field, remedy, format, args...)
	r.problems = append(r.problems, d.Locate(ps)...)
}

// ignore notes a key that is not imported.
func (r *findings) ignore(o object, key, why string) {
	r.ignored = append(r.ignored, Ignored{Place{o.doc.File, cmp.Or(o.doc.LineOf(key), o.doc.FirstLine())}, o.String(), key, why})
}

// decode reads a document strictly, notes the keys of table that it has, and reports whether
// it could be read. table maps patterns of paths (a[].b) to the reason.
func (r *findings) decode(o object, into any, table map[string]string) bool {
	err := o.doc.Decode(into)
	r.report(err)
	if err == nil && o.name == "" {
		r.add(o.doc, "metadata.name", "name the object", "there is no name")
		err = inventory.ErrInvalid
	}
	r.note(o, table)
	return err == nil
}

// note notes the keys of a document that table names.
func (r *findings) note(o object, table map[string]string) {
	ignored := "" // the last one; what is below it needs no line of its own
	o.doc.Each(func(path string, line int) {
		if rest, below := strings.CutPrefix(path, ignored); below && ignored != "" && rest != "" && strings.ContainsRune(".[", rune(rest[0])) {
			return
		}
		pattern := macKey.ReplaceAllString(index.ReplaceAllString(path, "[]"), "[]")
		why, ok := table[pattern]
		if !ok {
			if why, ok = ofKubernetes[pattern]; ok && why == "" {
				return
			}
		}
		if ok {
			ignored = path
			r.ignored = append(r.ignored, Ignored{Place{o.doc.File, line}, o.String(), path, why})
		}
	})
}

var index = regexp.MustCompile(`\[\d+\]`)

// ofKubernetes are keys of every document. Those without a reason are what Kubernetes adds,
// and not worth a line.
var ofKubernetes = map[string]string{
	"metadata.generateName": "", "metadata.creationTimestamp": "", "metadata.deletionTimestamp": "", "metadata.finalizers": "",
	"metadata.generation": "", "metadata.managedFields": "", "metadata.resourceVersion": "", "metadata.selfLink": "", "metadata.uid": "",
	"status": "it is the state in another program", "metadata.annotations": "a machine has labels only",
	"metadata.ownerReferences": "the object is owned by another program; Ingot does not take part in that",
}

// macKey is a MAC address as a key in a path.
var macKey = regexp.MustCompile(`\.[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}`)
