package importfile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// exportHead explains a file of Export.
const exportHead = `# Written by ingot export. ingot import FILE reads it to the same state.
# Secrets are not in it: hasPassword, hasUserData and hasVendorData keep what is stored.
`

// templateDocument is a Template of Tinkerbell.
type templateDocument struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Data string `json:"data"`
	} `json:"spec"`
}

// Export returns templates and machines as YAML documents, which Read reads to the same
// state: a template as one of Tinkerbell, a machine in Ingot's own form, which alone has all
// of its fields. Left out are built-in templates, secrets, and what storing a machine does
// not change: its standing, its installation, its times.
func Export(ms []inventory.Machine, ts []inventory.Template) ([]byte, error) {
	b := bytes.NewBufferString(exportHead)
	for _, t := range ts {
		if t.Builtin {
			continue
		}

		d := templateDocument{APIVersion: "tinkerbell.org/v1alpha1", Kind: "Template"}
		d.Metadata.Name, d.Spec.Data = t.Name, t.Source
		if err := writeDocument(b, d); err != nil {
			return nil, fmt.Errorf("writing template %q: %w", t.Name, err)
		}
	}

	for _, m := range ms {
		if err := writeDocument(b, documentOf(m)); err != nil {
			return nil, fmt.Errorf("writing machine %q: %w", m.Name, err)
		}
	}
	return b.Bytes(), nil
}

// documentOf returns what a file says of a machine.
func documentOf(m inventory.Machine) inventory.Machine {
	m = m.WithoutSecrets()
	out := inventory.DocumentOf(m)
	flags := m.SecretFields()
	for n, f := range out.SecretFields() {
		*f.Stored = *flags[n].Stored
	}
	return out
}

// writeDocument appends v as a document.
func writeDocument(b *bytes.Buffer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	text, err := strictyaml.FromJSON(raw)
	if err != nil {
		return err
	}
	b.WriteString("---\n")
	b.Write(text)
	return nil
}
