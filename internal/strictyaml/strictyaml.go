// Package strictyaml reads YAML (and so JSON) into structs with json tags, strictly: an
// unknown key, a duplicate key or a value of the wrong type is an error with its line, and
// all errors are reported at once.
package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/inventory"
)

// A Document is one document of a YAML stream.
type Document struct {
	File string // as given, for messages
	root *yaml.Node
}

// Documents splits b into its documents without empty ones. A syntax error is an
// inventory.Problems.
func Documents(file string, b []byte) ([]Document, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var docs []Document
	for {
		var n yaml.Node
		err := DecodeNode(dec, &n)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, inventory.Problems{syntaxProblem(file, err)}
		}
		if n.Kind == yaml.DocumentNode && len(n.Content) == 1 && !isNull(n.Content[0]) {
			docs = append(docs, Document{File: file, root: n.Content[0]})
		}
	}
}

// DecodeNode reads the next document of dec. It returns a panic of the parser as an error,
// because its input comes from operators and the network.
func DecodeNode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(n)
}

var lineInError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func syntaxProblem(file string, err error) inventory.Problem {
	p := inventory.Problem{File: file, What: err.Error()}
	if m := lineInError.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " ")); m != nil {
		p.What = "not valid YAML: " + m[2]
		p.Line = 1 // the parser omits line 1
		if n, convErr := strconv.Atoi(m[1]); convErr == nil {
			p.Line = n
		}
	}

	switch {
	case strings.Contains(p.What, "cannot start any token") && strings.Contains(p.What, "'\\t'"):
		p.Remedy = "indent with spaces instead of tabs"
	case strings.Contains(p.What, "mapping values are not allowed"):
		p.Remedy = "put text that contains \": \" in quotes, and check the indentation"
	}

	return p
}

// Decode decodes the only document of b into into, a pointer. The error is an
// inventory.Problems with every problem; into may then be partly set.
func Decode(file string, b []byte, into any) error {
	docs, err := Documents(file, b)
	if err != nil {
		return err
	}

	switch len(docs) {
	case 0:
		return inventory.Problems{{File: file, What: "is empty"}}
	case 1:
		return docs[0].Decode(into)
	}

	return inventory.Problems{{
		File: file, Line: docs[1].Line(), What: fmt.Sprintf("holds %d documents where one is expected", len(docs)),
		Remedy: "remove the lines \"---\" or split the file",
	}}
}

// Locate sets File and Line of problems from a validation of the first document of b, by
// their Field.
func Locate(file string, b []byte, problems inventory.Problems) inventory.Problems {
	docs, err := Documents(file, b)
	if err != nil || len(docs) == 0 {
		d := Document{File: file}
		return d.Locate(problems)
	}
	return docs[0].Locate(problems)
}

// Line is the line where the document's content starts, from 1.
func (d Document) Line() int {
	if d.root == nil {
		return 0
	}
	return d.root.Line
}

// Text returns the scalar at a field path ("kind", "metadata.name"), or "" if there is none.
func (d Document) Text(path string) string {
	n, whole := d.find(path)
	if !whole || n == nil || n.Kind != yaml.ScalarNode || isNull(n) {
		return ""
	}
	return n.Value
}

// Has reports whether there is a value at a field path.
func (d Document) Has(path string) bool {
	n, whole := d.find(path)
	return whole && n != nil && !isNull(n)
}

// LineOf returns the line of a field path such as "interfaces[0].mac", or of its deepest
// existing part, or 0.
func (d Document) LineOf(path string) int {
	n, _ := d.find(path)
	if n == nil {
		return 0
	}
	return n.Line
}

// Locate sets File and, if it is 0, Line of each problem by its Field.
func (d Document) Locate(problems inventory.Problems) inventory.Problems {
	out := make(inventory.Problems, len(problems))
	for i, p := range problems {
		if p.File == "" {
			p.File = d.File
		}
		if p.Line == 0 {
			p.Line = d.LineOf(p.Field)
		}
		out[i] = p
	}

	return out
}

// Decode decodes the document into into, a pointer, as the function Decode does.
func (d Document) Decode(into any) error {
	w := walker{file: d.File}
	w.decode(d.root, into)
	return w.problems.Err()
}

// find follows path as far as it exists, and reports whether all of it exists. For an entry
// of a mapping it returns the value node with the line of its key.
func (d Document) find(path string) (*yaml.Node, bool) {
	n := d.root
	if n == nil {
		return nil, false
	}

	for _, part := range splitPath(path) {
		next := child(n, part)
		if next == nil {
			return n, false
		}
		n = next
	}

	return n, true
}

func splitPath(path string) []string {
	path = strings.NewReplacer("[", ".", "]", "").Replace(path)
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' })
}

func child(n *yaml.Node, part string) *yaml.Node {
	n = follow(n)
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == part {
				v := *follow(n.Content[i+1])
				v.Line = n.Content[i].Line
				return &v
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i]
		}
	}

	return nil
}

func follow(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && n.Alias != nil && i < maxDepth; i++ {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// List returns the elements of the sequence at a field path, as documents of their own.
func (d Document) List(path string) []Document {
	n, whole := d.find(path)
	if !whole || n == nil || follow(n).Kind != yaml.SequenceNode {
		return nil
	}

	var out []Document
	for _, item := range follow(n).Content {
		if item = follow(item); !isNull(item) {
			out = append(out, Document{File: d.File, root: item})
		}
	}
	return out
}

// Part returns the value at a field path as a document of its own; without a value the
// document is empty.
func (d Document) Part(path string) Document {
	n, whole := d.find(path)
	if !whole || n == nil || isNull(n) {
		return Document{File: d.File}
	}
	return Document{File: d.File, root: follow(n)}
}

// YAML returns the document as text, without its comments' places and aliases.
func (d Document) YAML() ([]byte, error) {
	if d.root == nil {
		return nil, nil
	}
	return yaml.Marshal(d.root)
}

// Each calls f for every key of a mapping and every element of a sequence, parents first and
// in the order of the document, with its field path and line. It visits at most 200,000.
func (d Document) Each(f func(path string, line int)) {
	if d.root != nil {
		left := maxNodes
		each(d.root, "", 0, &left, f)
	}
}

func each(n *yaml.Node, path string, depth int, left *int, f func(path string, line int)) {
	n = follow(n)
	if depth > maxDepth {
		return
	}

	visit := func(path string, line int, child *yaml.Node) {
		if *left--; *left < 0 || isNull(follow(child)) {
			return
		}
		f(path, line)
		each(child, path, depth+1, left, f)
	}
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			visit(join(path, n.Content[i].Value), n.Content[i].Line, n.Content[i+1])
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			visit(fmt.Sprintf("%s[%d]", path, i), item.Line, item)
		}
	}
}
