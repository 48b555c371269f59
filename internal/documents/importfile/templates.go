package importfile

import (
	"errors"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// templateKind is tinkerbell.org/v1alpha1 Template.
type templateKind struct {
	typeMeta
	Spec struct {
		Data string `json:"data"` // YAML
	} `json:"spec"`
}

func (r *reader) readTemplate(o object) {
	var d templateKind
	if !r.decode(o, &d, map[string]string{
		"metadata.namespace": ignoredWorkflow["metadata.namespace"],
		"metadata.labels":    "a template has no labels",
	}) {
		return
	}
	if strings.TrimSpace(d.Spec.Data) == "" {
		r.add(o.doc, "spec.data", "put the template's text there", "the template is empty")
		return
	}

	_, err := template.Parse(o.doc.File, []byte(d.Spec.Data))
	r.addTemplate(o, d.Spec.Data, err, func(p inventory.Problem) inventory.Problem {
		p.Field = strings.TrimSuffix("spec.data: "+p.Field, ": ")
		p.Line = o.doc.LineIn("spec.data", p.Line)
		return p
	})
}

// addTemplate adds a template, or the problems of err, which locate places in the file.
func (r *reader) addTemplate(o object, source string, err error, locate func(p inventory.Problem) inventory.Problem) {
	var ps inventory.Problems
	switch {
	case errors.As(err, &ps):
		for _, p := range ps {
			p.File = o.doc.File
			r.problems = append(r.problems, locate(p))
		}
		return
	case err != nil:
		r.add(o.doc, "", "", "%v", err)
		return
	}

	if !inventory.SafeName(o.name) {
		r.add(o.doc, "metadata.name", "use "+inventory.SafeNameRule, "invalid name of a template %q", clip(o.name))
	}
	if slices.ContainsFunc(template.Builtins(), func(b inventory.Template) bool { return b.Name == o.name }) {
		r.add(o.doc, "metadata.name", "choose another name", "the template %s comes with the program", o.name)
	}
	ps = nil
	r.taken.Add(&ps, "metadata.name", "template name", o.name, o.place().String())
	r.problems = append(r.problems, o.doc.Locate(ps)...)
	r.Templates = append(r.Templates, Template{inventory.Template{Name: o.name, Source: source}, o.place()})
}

// templateConfig is EKS Anywhere's TinkerbellTemplateConfig.
type templateConfig struct {
	typeMeta
	Spec struct {
		Template map[string]any `json:"template"`
	} `json:"spec"`
}

// readTemplateConfig reads a template that stands in the document as YAML, not as text.
func (r *reader) readTemplateConfig(o object) {
	var d templateConfig
	if !r.decode(o, &d, map[string]string{"metadata.namespace": ignoredWorkflow["metadata.namespace"]}) {
		return
	}
	part := o.doc.Part("spec.template")
	source, err := part.YAML()
	if err != nil {
		r.report(err)
		return
	}
	if len(d.Spec.Template) == 0 {
		r.add(o.doc, "spec.template", "put the template there", "the template is empty")
		return
	}

	_, err = template.Parse(o.doc.File, source)
	r.addTemplate(o, string(source), err, func(p inventory.Problem) inventory.Problem {
		p.Line = part.LineOf(p.Field)
		p.Field = strings.TrimSuffix("spec.template."+p.Field, ".")
		if p.Line == 0 {
			p.Line = o.doc.LineOf("spec.template")
		}
		return p
	})
}
