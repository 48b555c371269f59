package importfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// API groups.
const (
	groupTinkerbell = "tinkerbell.org"
	groupBMC        = "bmc.tinkerbell.org"
	groupEKSA       = "anywhere.eks.amazonaws.com"
)

// An object is a document with the identity that others refer to it by.
type object struct {
	doc       strictyaml.Document
	kind      string
	namespace string
	name      string
}

// String returns the kind and name for messages.
func (o object) String() string { return o.kind + " " + clip(o.name) }

// key is how bmcs finds the object.
func (o object) key() string { return o.namespace + "/" + o.name }

// A reference names an object; without a namespace, one in the namespace of the document.
type reference struct {
	APIGroup  string `json:"apiGroup"`
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func (x reference) key(from object) string { return cmp.Or(x.Namespace, from.namespace) + "/" + x.Name }

// find returns the key in objects of what x refers to: an object of that namespace, or one whose
// document names none and so goes into any.
func find[T any](objects map[string]T, x reference, from object) (string, bool) {
	for _, key := range []string{x.key(from), "/" + x.Name} {
		if _, ok := objects[key]; ok {
			return key, true
		}
	}
	return "", false
}

// objectMeta is a Kubernetes metadata; what only Kubernetes writes is any.
type objectMeta struct {
	Name              string            `json:"name"`
	GenerateName      any               `json:"generateName"`
	Namespace         string            `json:"namespace"`
	Labels            map[string]string `json:"labels"`
	Annotations       map[string]string `json:"annotations"`
	CreationTimestamp any               `json:"creationTimestamp"`
	DeletionTimestamp any               `json:"deletionTimestamp"`
	Finalizers        any               `json:"finalizers"`
	Generation        any               `json:"generation"`
	ManagedFields     any               `json:"managedFields"`
	OwnerReferences   any               `json:"ownerReferences"`
	ResourceVersion   any               `json:"resourceVersion"`
	SelfLink          any               `json:"selfLink"`
	UID               any               `json:"uid"`
}

// typeMeta begins each document.
type typeMeta struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   objectMeta `json:"metadata"`
	Status     any        `json:"status"`
}

// ownForm says how to write what is not read.
const ownForm = "write it as ingot machine push --help shows"

// readDocument reads a document of any kind.
func (r *reader) readDocument(d strictyaml.Document) {
	r.documents++
	if r.tooLarge(d) {
		return
	}
	o := object{doc: d, kind: d.Text("kind"), namespace: d.Text("metadata.namespace"), name: d.Text("metadata.name")}
	group, version, _ := strings.Cut(d.Text("apiVersion"), "/")
	switch {
	case o.kind == "" && group == "":
		r.readOwn(d)
	case o.kind == "" || group == "":
		r.found.add(d, "", "write both apiVersion and kind, or none of them for Ingot's own form", "kind and apiVersion belong together")
	case o.kind == "List" && group == "v1":
		r.readList(o)
	case group == "v1" && o.kind == "Secret":
		r.bmcs.readSecret(o)
	case (group == groupTinkerbell || group == groupBMC) && version != "v1alpha1":
		r.readLater(o, group, version)
	case group == groupEKSA && version != "v1alpha1":
		r.found.add(d, "apiVersion", "write it as v1alpha1", "version %q of %s is not read; v1alpha1 is", clip(version), group)
	case group == groupBMC && o.kind == "Task":
		r.found.ignore(o, "kind", "a Task is a step of a Job; the Job has a command")
	case group == groupTinkerbell || group == groupBMC || group == groupEKSA:
		if read, ok := r.kinds()[group+" "+o.kind]; ok {
			read(o)
			return
		}
		r.found.ignore(o, "kind", "documents of this kind have no counterpart")
	default:
		r.found.ignore(o, "kind", "the document belongs to another program")
	}
}

// maxKeys is how many keys and elements all documents may have, with aliases written out: those
// of 20,000 machines. Aliases in a List would otherwise make a small file endless.
const maxKeys = 2_000_000

// tooLarge counts the keys of a document, and reports once when there are too many.
func (r *reader) tooLarge(d strictyaml.Document) bool {
	if r.keys > maxKeys {
		return true
	}
	d.Each(func(string, int) { r.keys++ })
	if r.keys > maxKeys {
		r.found.add(d, "", "import in several steps, and write repeated parts out", "the files have more than %d keys", maxKeys)
		return true
	}
	return false
}

// readList reads the items of a v1 List, as "kubectl get -o yaml" prints them.
func (r *reader) readList(o object) {
	items := o.doc.List("items")
	if items == nil {
		r.found.add(o.doc, "items", "give the documents as a list", "a List needs items")
	}
	for n, item := range items {
		if item.Text("kind") == "List" {
			r.found.add(o.doc, fmt.Sprintf("items[%d]", n), "put its items into the outer one", "a List is not read inside of another")
			continue
		}
		r.readDocument(item)
	}
}

// kinds has one row for each kind that is read.
func (r *reader) kinds() map[string]func(o object) {
	return map[string]func(o object){
		groupTinkerbell + " Hardware":           r.readHardware,
		groupTinkerbell + " Template":           r.templates.readTemplate,
		groupTinkerbell + " Workflow":           r.starts.readWorkflow,
		groupBMC + " Machine":                   r.bmcs.readController,
		groupBMC + " Job":                       r.starts.readJob,
		groupEKSA + " TinkerbellTemplateConfig": r.templates.readTemplateConfig,
		groupEKSA + " TinkerbellMachineConfig":  r.readMachineConfig,
	}
}

// laterKinds has one row for each kind of v1alpha2 that is read.
func (r *reader) laterKinds() map[string]func(o object) {
	return map[string]func(o object){
		groupTinkerbell + " Hardware": r.readLaterHardware,
		groupTinkerbell + " Task":     r.templates.readLaterTask,
		groupTinkerbell + " Workflow": r.starts.readLaterWorkflow,
		groupBMC + " Job":             r.starts.readLaterJob,
	}
}

// readLater reads v1alpha2 of Tinkerbell's API, which no controller runs yet, and refuses other versions.
func (r *reader) readLater(o object, group, version string) {
	if group == groupBMC && o.kind == "Task" || group == groupTinkerbell && slices.Contains([]string{"WorkflowRuleSet", "Policy"}, o.kind) {
		r.found.ignore(o, "kind", "documents of this kind have no counterpart")
		return
	}
	if read, ok := r.laterKinds()[group+" "+o.kind]; ok && version == "v1alpha2" {
		read(o)
		return
	}
	r.found.add(o.doc, "apiVersion", "write it as v1alpha1, or "+ownForm, "%s of version %q of %s is not read; v1alpha1 is",
		o.kind, clip(version), group)
}

// readOwn reads a machine in Ingot's own form.
func (r *reader) readOwn(d strictyaml.Document) {
	ms, notes, err := machinefile.Read(d.File, []strictyaml.Document{d})
	r.found.report(err)
	if err != nil {
		return
	}
	o := object{doc: d, kind: "machine", name: ms[0].Name}
	if len(notes) > 0 {
		r.found.ignore(o, "netboot", "a run arms its machine; by hand: ingot netboot arm")
	}
	r.addMachine(Machine{Machine: ms[0], Place: Place{d.File, d.Line()}, Own: true, lineOf: d.LineOf})
}

// place returns where a document starts.
func (o object) place() Place { return Place{o.doc.File, o.doc.Line()} }

// checked canonicalizes and validates a machine. Its problems get the places of the fields
// in the document, which fieldOf translates.
func (r *reader) checked(o object, m inventory.Machine, fieldOf func(field string) string) Machine {
	m = inventory.Canonical(m)
	ps := inventory.Validate(m)
	ps = slices.DeleteFunc(ps, func(p inventory.Problem) bool { return strings.HasPrefix(p.Field, "bmc") }) // see checkController
	for i := range ps {
		ps[i].Field = fieldOf(ps[i].Field)
	}
	r.found.problems = append(r.found.problems, o.doc.Locate(ps)...)
	return Machine{
		Machine: m, Place: o.place(), says: saysAlways, lineOf: func(field string) int { return o.doc.LineOf(fieldOf(field)) }, fieldOf: fieldOf,
	}
}

// shortName returns a name without its domain, and whether it had one: machines have names
// of one label.
func shortName(name string) (string, bool) {
	short, _, cut := strings.Cut(name, ".")
	return short, cut
}

// quote writes a word for a shell.
func quote(word string) string {
	if word != "" && !strings.ContainsFunc(word, func(c rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-", c)
	}) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// command joins the words of a command for a shell.
func command(words ...string) string {
	words = slices.Clone(words)
	for i := range words {
		words[i] = quote(words[i])
	}
	return strings.Join(words, " ")
}
