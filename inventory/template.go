package inventory

import "time"

// A Template is a Tinkerbell template (format 0.1) as an operator has entered it. Package template parses and renders it.
type Template struct {
	Name    string    `json:"name"`
	Source  string    `json:"source"` // YAML
	Builtin bool      `json:"builtin,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Updated time.Time `json:"updated,omitzero"`
}
