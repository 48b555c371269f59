package importfile

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// A File is one file as the operator gave it.
type File struct {
	Name    string // for messages
	Content []byte
}

// A Place is where something was written.
type Place struct {
	File string `json:"file"`
	Line int    `json:"line"` // from 1
}

// String returns "FILE:LINE".
func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

func (p Place) compare(q Place) int { return cmp.Or(strings.Compare(p.File, q.File), p.Line-q.Line) }

// A Machine is a machine that a file describes.
type Machine struct {
	inventory.Machine
	Place
	// Own is set for Ingot's own form, which describes all of a machine. The other formats
	// have no word for some fields; what is stored in those stays.
	Own bool
	// says reports whether the document says what a field of inventory.Machine is, even if the
	// field is empty.
	says func(field string) bool
	// lineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac", or 0.
	lineOf func(field string) int
	// fieldOf translates such a field to the words of the document.
	fieldOf func(field string) string
}

// LineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac".
func (m Machine) LineOf(field string) int { return cmp.Or(m.lineOf(field), m.Line) }

// A Template is a template that a file contains.
type Template struct {
	inventory.Template
	Place
}

// A Start is a document that starts something elsewhere. Here an operator starts it.
type Start struct {
	Place
	Object  string `json:"object"`  // such as "Workflow node-1"
	Command string `json:"command"` // that does the same
}

// An Ignored is a key that was not imported.
type Ignored struct {
	Place
	Object string `json:"object"` // such as "Hardware node-1"
	Key    string `json:"key"`    // path in the document, or the column
	Why    string `json:"why"`
}

// An Import is what files contain.
type Import struct {
	Machines  []Machine
	Templates []Template
	Starts    []Start
	Ignored   []Ignored
}
