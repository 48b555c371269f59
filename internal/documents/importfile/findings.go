package importfile

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// findings collects the problems of documents, and the keys that are not imported.
type findings struct {
	problems inventory.Problems
	ignored  []Ignored
	warnings []string
}

// report adds the problems that err holds. If err holds none, report adds err itself as a problem. It does nothing for nil.
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

// add adds a problem with a field of the document d, and the place of the field in its file.
func (r *findings) add(d strictyaml.Document, field, remedy, format string, args ...any) {
	ps := inventory.Problems{}
	ps.Add(field, remedy, format, args...)
	r.problems = append(r.problems, d.Locate(ps)...)
}

// ignore notes that a key of o is not imported, and why.
func (r *findings) ignore(o object, key, why string) {
	r.ignored = append(r.ignored, Ignored{Place{o.doc.File, cmp.Or(o.doc.LineOf(key), o.doc.FirstLine())}, o.String(), key, why})
}

// decode decodes a document strictly, and reports whether the document could be read and has a name. It records
// as ignored the keys of the document that match table, which maps patterns of paths (a[].b) to the reason. Such a key needs no field.
func (r *findings) decode(o object, into any, table map[string]string) bool {
	err := o.doc.DecodeExcept(into, func(path string) bool {
		_, ignored := whyIgnored(path, table)
		return ignored
	})
	r.report(err)
	if err == nil && o.name == "" {
		r.add(o.doc, "metadata.name", "name the object", "there is no name")
		err = inventory.ErrInvalid
	}
	r.note(o, table)
	return err == nil
}

// note records as ignored each key of a document that matches a pattern of table or of ofKubernetes.
func (r *findings) note(o object, table map[string]string) {
	ignored := "" // the last recorded key; keys below it are not recorded separately
	o.doc.Each(func(path string, line int) {
		if rest, below := strings.CutPrefix(path, ignored); below && ignored != "" && rest != "" && strings.ContainsRune(".[", rune(rest[0])) {
			return
		}
		if why, _ := whyIgnored(path, table); why != "" {
			ignored = path
			r.ignored = append(r.ignored, Ignored{Place{o.doc.File, line}, o.String(), path, why})
		}
	})
}

// whyIgnored returns the reason for the pattern of table or of ofKubernetes that matches path.
func whyIgnored(path string, table map[string]string) (why string, ignored bool) {
	pattern := macKey.ReplaceAllString(index.ReplaceAllString(path, "[]"), "[]")
	if why, ignored = table[pattern]; !ignored {
		why, ignored = ofKubernetes[pattern]
	}
	return why, ignored
}

var index = regexp.MustCompile(`\[\d+\]`)

// ofKubernetes maps keys that every Kubernetes document may have to the reason why they are ignored. A key with the
// reason "" is written by Kubernetes itself, and is not recorded.
var ofKubernetes = map[string]string{
	"metadata.generateName": "", "metadata.creationTimestamp": "", "metadata.deletionTimestamp": "", "metadata.finalizers": "",
	"metadata.generation": "", "metadata.managedFields": "", "metadata.resourceVersion": "", "metadata.selfLink": "", "metadata.uid": "",
	"status": "it describes the state in another program", "metadata.annotations": "machines have labels, but no annotations",
	"metadata.ownerReferences": "another program owns the object; Ingot does not import the ownership",
}

// macKey matches a MAC address that is a key in a path.
var macKey = regexp.MustCompile(`\.[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}`)
