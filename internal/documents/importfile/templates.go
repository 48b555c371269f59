package importfile

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// templates collects the templates of the documents.
type templates struct {
	found *findings
	name  string             // of a file that is a template; "": the one in the file
	taken machinefile.Claims // names
	all   []Template
}

// templateKind is a Template of tinkerbell.org/v1alpha1.
type templateKind struct {
	typeMeta
	Spec struct {
		Data string `json:"data"` // YAML
	} `json:"spec"`
}

func (r *templates) readTemplate(o object) {
	var d templateKind
	if !r.found.decode(o, &d, map[string]string{
		"metadata.namespace": ignoredWorkflow["metadata.namespace"],
		"metadata.labels":    "a template has no labels",
	}) {
		return
	}
	if strings.TrimSpace(d.Spec.Data) == "" {
		r.found.add(o.doc, "spec.data", "put the template's text there", "the template is empty")
		return
	}

	t, err := template.Parse(o.doc.File, []byte(d.Spec.Data))
	r.addTemplate(o, t, err, func(p inventory.Problem) inventory.Problem {
		p.Field = strings.TrimSuffix("spec.data: "+p.Field, ": ")
		p.Line = o.doc.LineIn("spec.data", p.Line)
		return p
	})
}

// ofTemplate matches the keys with which the lines of a template begin. A template need not be YAML before it is rendered.
var ofTemplate = regexp.MustCompile(`(?m)^(version|name|global_timeout|tasks):`)

// isTemplate reports whether a file is a template itself, and not a document that contains one.
func isTemplate(b []byte) bool {
	keys := map[string]bool{}
	for _, m := range ofTemplate.FindAllSubmatch(b, -1) {
		keys[string(m[1])] = true
	}
	return keys["version"] && keys["tasks"]
}

// readOwn reads a file that is a template.
func (r *templates) readOwn(f File) {
	t, err := template.Parse(f.Name, f.Content)
	o := object{doc: strictyaml.Document{File: f.Name}, kind: "template"}
	if err == nil {
		o.name = cmp.Or(r.name, t.Name)
	}
	r.addTemplate(o, t, err, func(p inventory.Problem) inventory.Problem { return p })
}

// addTemplate adds the template t, which was parsed with err. If err is not nil, addTemplate adds the problems of err instead, and locate
// sets the line of each problem in the file.
func (r *templates) addTemplate(o object, t *template.Template, err error, locate func(p inventory.Problem) inventory.Problem) {
	var ps inventory.Problems
	switch {
	case errors.As(err, &ps):
		for _, p := range ps {
			p.File = o.doc.File
			r.found.problems = append(r.found.problems, locate(p))
		}
		return
	case err != nil:
		r.found.add(o.doc, "", "", "%v", err)
		return
	}

	for _, p := range t.Notes {
		p.File = o.doc.File
		r.found.warnings = append(r.found.warnings, locate(p).String())
	}
	name := "metadata.name"
	if !o.doc.Has(name) {
		name = "name"
	}
	if !inventory.SafeName(o.name) {
		r.found.add(o.doc, name, "use "+inventory.SafeNameRule, "invalid name of a template %q", clip(o.name))
	}
	if slices.ContainsFunc(template.Builtins(), func(b inventory.Template) bool { return b.Name == o.name }) {
		r.found.add(o.doc, name, "choose another name", "the template %s is built in", o.name)
	}
	ps = nil
	r.taken.Add(&ps, name, "template name", o.name, o.place().String())
	r.found.problems = append(r.found.problems, o.doc.Locate(ps)...)
	r.all = append(r.all, Template{inventory.Template{Name: o.name, Source: t.Source}, o.place()})
}

// templateConfig is EKS Anywhere's TinkerbellTemplateConfig.
type templateConfig struct {
	typeMeta
	Spec struct {
		Template map[string]any `json:"template"`
	} `json:"spec"`
}

// readTemplateConfig reads a template that is part of the document's YAML, and not a text with YAML in it.
func (r *templates) readTemplateConfig(o object) {
	var d templateConfig
	if !r.found.decode(o, &d, map[string]string{"metadata.namespace": ignoredWorkflow["metadata.namespace"]}) {
		return
	}
	part := o.doc.Part("spec.template")
	source, err := part.YAML()
	if err != nil {
		r.found.report(err)
		return
	}
	if len(d.Spec.Template) == 0 {
		r.found.add(o.doc, "spec.template", "put the template there", "the template is empty")
		return
	}

	t, err := template.Parse(o.doc.File, source)
	r.addTemplate(o, t, err, func(p inventory.Problem) inventory.Problem {
		p.Line = cmp.Or(part.LineOf(p.Field), o.doc.LineOf("spec.template"))
		p.Field = strings.TrimSuffix("spec.template."+p.Field, ".")
		return p
	})
}
