package template

import (
	"errors"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// output is a rendered text. marks say from which line of the source each line comes.
type output struct {
	file  string
	text  string
	marks []mark
}

// sourceLine returns the line of the source from which line n of the text comes.
func (o output) sourceLine(n int) int {
	src := n
	for _, m := range o.marks {
		if m.out > n {
			break
		}
		src = m.src + n - m.out
	}
	return src
}

// document parses the rendered text. The problems in its error have the line numbers of the source.
func (o output) document() (document, error) {
	var doc document
	err := strictyaml.Decode(o.file, []byte(o.text), &doc)
	var p inventory.Problems

	if errors.As(err, &p) {
		for i := range p {
			p[i].Line = o.sourceLine(p[i].Line)
		}
		return doc, p
	}
	return doc, err
}

// line returns the line of the source from which the field at path comes.
func (o output) line(path string) int {
	at := strictyaml.Locate(o.file, []byte(o.text), inventory.Problems{{Field: path}})
	return o.sourceLine(at[0].Line)
}
