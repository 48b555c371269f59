package importfile

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// A File is an input file.
type File struct {
	Name    string // for messages
	Content []byte
}

// Stdin is the name of standard input as a File.
const Stdin = "stdin"

// A Place is a line of an input file.
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
	// Own is true for Ingot's own form.
	Own bool
	// lineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac", or 0.
	lineOf func(field string) int
	// fieldOf translates a field of inventory.Machine to its path in the document; nil: the paths are the same.
	fieldOf func(field string) string
}

// LineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac". If that is not known, it
// returns the line where the machine starts.
func (m Machine) LineOf(field string) int { return cmp.Or(m.lineOf(field), m.Line) }

// A Template is a template that a file contains.
type Template struct {
	inventory.Template
	Place
}

// A Start is a document that starts a run or a BMC job in another program. An import does not start it:
// Command is what the operator has to run.
type Start struct {
	Place
	Object  string   `json:"object"`  // such as "Workflow node-1"
	Command string   `json:"command"` // the command of ingot that does the same
	Args    []string `json:"-"`       // the words of the command that starts the same now
	Input   []byte   `json:"-"`       // standard input of Args; nil = standard input of the caller
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
	Warnings  []string // remarks about templates
}
