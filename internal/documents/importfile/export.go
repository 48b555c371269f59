package importfile

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// exportHead is the comment at the start of an exported file.
const exportHead = `# Written by ingot export. ingot import FILE restores the same state.
# It contains no secrets: hasPassword, hasUserData and hasVendorData keep the stored ones.
# version: the import is refused if the machine has changed since; remove the line to replace it anyway.
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

// Export returns templates and machines as YAML documents, from which Read reads the same state. A template is written as a
// Template of Tinkerbell. A machine is written in Ingot's own form, the only form with all fields of a machine. Export leaves out
// built-in templates, secrets, and the fields that storing a machine does not change: Standing, Installation, Created and Updated.
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

// documentOf returns the fields of m that Export writes. It leaves out secrets, but sets the flags, such as
// hasPassword, that tell which secrets are stored, and the version.
func documentOf(m inventory.Machine) inventory.Machine {
	m = m.WithoutSecrets()
	out := inventory.DocumentOf(m)
	out.Version = m.Version
	flags := m.SecretFields()
	for n, f := range out.SecretFields() {
		*f.Stored = *flags[n].Stored
	}
	return out
}

// writeDocument appends v to b as a YAML document.
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
