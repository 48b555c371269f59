// Package importfile reads documents of other programs as machines, templates and commands of
// Ingot, and writes machines and templates as documents that it reads to the same state:
// Tinkerbell (v1alpha1, its first hardware.json), EKS Anywhere (CSV and configurations).
// It changes nothing and starts nothing; a machine that it returns never has network boot open.
package importfile

import "github.com/ingotmetal/ingot/inventory"

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

// A Machine is a machine that a file describes.
type Machine struct {
	inventory.Machine
	Place
	// lineOf returns the line of a field of inventory.Machine, such as "interfaces[0].mac", or 0.
	lineOf func(field string) int
}

// An Ignored is a key that was not imported.
type Ignored struct {
	Place
	Object string `json:"object"` // such as "Hardware node-1"
	Key    string `json:"key"`    // path in the document, or the column
	Why    string `json:"why"`
}
