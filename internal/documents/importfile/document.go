package importfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
)

// API groups.
const (
	groupTinkerbell = "tinkerbell.org"
	groupBMC        = "bmc.tinkerbell.org"
	groupEKSA       = "anywhere.eks.amazonaws.com"
)

// ownForm is the remedy for a document that cannot be read.
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
		r.found.add(d, "", "write both apiVersion and kind, or neither for Ingot's own form", "kind and apiVersion must be given together")
	case o.kind == "List" && group == "v1":
		r.readList(o)
	case group == "v1" && o.kind == "Secret":
		r.bmcs.readSecret(o)
	case (group == groupTinkerbell || group == groupBMC) && version != "v1alpha1":
		r.readLater(o, group, version)
	case group == groupEKSA && version != "v1alpha1":
		r.found.add(d, "apiVersion", "write the document as v1alpha1", "cannot read version %q of %s, only v1alpha1", clip(version), group)
	case group == groupBMC && o.kind == "Task":
		r.found.ignore(o, "kind", "a Task is one step of a Job; a command is printed for the Job")
	case group == groupTinkerbell || group == groupBMC || group == groupEKSA:
		if read, ok := r.kinds()[group+" "+o.kind]; ok {
			read(o)
			return
		}
		r.found.ignore(o, "kind", "documents of this kind have no counterpart in Ingot")
	default:
		r.found.ignore(o, "kind", "the document belongs to another program")
	}
}

// readOwn reads a document in Ingot's own form: a workflow, a lab, or a machine.
func (r *reader) readOwn(d strictyaml.Document) {
	switch {
	case d.Has("type") && d.Has("input"):
		r.readOwnWorkflow(d)
	case d.Has("seed") && d.Has("machines"):
		if !r.alone {
			r.found.add(d, "", "write it to a file of its own", "a lab of Genesis must be the only document of a file")
			return
		}
		r.starts.addCommand(object{doc: d, kind: "lab", name: d.Text("name")}, "ingot", "genesis", "start", d.File)
	default:
		r.machines.readOwn(d)
	}
}

// readOwnWorkflow adds the command that starts the workflow of d. The command gets what was read: the file may change, or be a pipe.
func (r *reader) readOwnWorkflow(d strictyaml.Document) {
	o := object{doc: d, kind: "workflow", name: d.Text("type")}
	if m := d.Text("input.machine"); m != "" {
		o.name += " of " + m
	}
	input, err := d.YAML()
	r.found.report(err)
	start := Start{Place: o.place(), Object: o.String(), Input: input, Args: []string{"ingot", "workflow", "create", "--file", "-"}}
	start.Command = command("ingot", "workflow", "create", "--file", d.File)
	switch {
	case d.File == Stdin:
		start.Command = "ingot apply --file - --start"
	case !r.alone:
		start.Command = command("ingot", "apply", "--file", d.File, "--start")
	}
	r.starts.commands = append(r.starts.commands, start)
}

// maxKeys limits the keys and elements of all documents together, after YAML aliases are expanded. It is enough for
// 20,000 machines. Without it, a small file with nested aliases in a List could be expanded without end.
const maxKeys = 2_000_000

// tooLarge adds the number of keys of d to r.keys. It returns true if r.keys exceeds maxKeys, and adds a problem the first time.
func (r *reader) tooLarge(d strictyaml.Document) bool {
	if r.keys > maxKeys {
		return true
	}
	d.Each(func(string, int) { r.keys++ })
	if r.keys > maxKeys {
		r.found.add(d, "", "import the files in several steps, and use fewer aliases", "the files have more than %d keys", maxKeys)
		return true
	}
	return false
}

// readList reads the items of a v1 List, as "kubectl get -o yaml" prints them.
func (r *reader) readList(o object) {
	items := o.doc.Elements("items")
	if items == nil {
		r.found.add(o.doc, "items", "give the documents as a list", "a List needs items")
	}
	for n, item := range items {
		if item.Text("kind") == "List" {
			r.found.add(o.doc, fmt.Sprintf("items[%d]", n), "move the items of the inner List to the outer List", "cannot read a List inside a List")
			continue
		}
		r.readDocument(item)
	}
}

// kinds maps "GROUP KIND" in v1alpha1 to the function that reads such a document.
func (r *reader) kinds() map[string]func(o object) {
	return map[string]func(o object){
		groupTinkerbell + " Hardware":           r.machines.readHardware,
		groupTinkerbell + " Template":           r.templates.readTemplate,
		groupTinkerbell + " Workflow":           r.starts.readWorkflow,
		groupBMC + " Machine":                   r.bmcs.readController,
		groupBMC + " Job":                       r.starts.readJob,
		groupEKSA + " TinkerbellTemplateConfig": r.templates.readTemplateConfig,
		groupEKSA + " TinkerbellMachineConfig":  r.machines.readMachineConfig,
	}
}

// laterKinds maps "GROUP KIND" in v1alpha2 to the function that reads such a document.
func (r *reader) laterKinds() map[string]func(o object) {
	return map[string]func(o object){
		groupTinkerbell + " Hardware": r.machines.readLaterHardware,
		groupTinkerbell + " Task":     r.templates.readLaterTask,
		groupTinkerbell + " Workflow": r.starts.readLaterWorkflow,
		groupBMC + " Job":             r.starts.readLaterJob,
	}
}

// readLater reads a document of Tinkerbell's v1alpha2, which no controller of Tinkerbell serves yet. It adds a problem for other versions.
func (r *reader) readLater(o object, group, version string) {
	if group == groupBMC && o.kind == "Task" || group == groupTinkerbell && slices.Contains([]string{"WorkflowRuleSet", "Policy"}, o.kind) {
		r.found.ignore(o, "kind", "documents of this kind have no counterpart in Ingot")
		return
	}
	if read, ok := r.laterKinds()[group+" "+o.kind]; ok && version == "v1alpha2" {
		read(o)
		return
	}
	r.found.add(o.doc, "apiVersion", "write the document as v1alpha1, or "+ownForm, "cannot read %s of version %q of %s, only of v1alpha1",
		o.kind, clip(version), group)
}
