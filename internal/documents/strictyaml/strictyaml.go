// Package strictyaml reads YAML (and so JSON) into structs with json tags, strictly: an
// unknown key, a duplicate key or a value of the wrong type is an error with its line, and
// all errors are reported at once.
package strictyaml

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/problem"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// A Document is one document of a YAML stream.
type Document struct {
	File string // name of the file, for messages
	root *yaml.Node
}

// Documents returns the documents of b that are not empty. If b has a syntax error, the error is a problem.List.
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
			return nil, problem.List{syntaxProblem(file, b, err)}
		}
		if n.Kind == yaml.DocumentNode && len(n.Content) == 1 && !isNull(n.Content[0]) {
			docs = append(docs, Document{File: file, root: n.Content[0]})
		}
	}
}

// DecodeNode reads the next document of dec. It returns a panic of the parser as an error, because the input comes from
// operators and the network.
func DecodeNode(dec *yaml.Decoder, n *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(n)
}

var lineInError = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

// unknownAnchor matches the parser's error for an alias without an anchor. That error has no line number.
var unknownAnchor = regexp.MustCompile(`^yaml: unknown anchor '(.*)' referenced$`)

func syntaxProblem(file string, b []byte, err error) problem.Problem {
	if m := unknownAnchor.FindStringSubmatch(err.Error()); m != nil {
		p := problem.Problem{ // do not quote the name of the alias: it may be a password that starts with *
			File: file, What: "not valid YAML: text that starts with * refers to an anchor, but no anchor has that name",
			Remedy: "put the text in quotes",
		}
		if before, _, found := bytes.Cut(b, []byte("*"+m[1])); found {
			p.Line = 1 + bytes.Count(before, []byte("\n"))
		}
		return p
	}

	p := problem.Problem{File: file, What: err.Error()}
	if m := lineInError.FindStringSubmatch(strings.ReplaceAll(err.Error(), "\n", " ")); m != nil {
		p.What = "not valid YAML: " + m[2]
		p.Line = 1 // an error without a line number is in line 1
		if n, convErr := strconv.Atoi(m[1]); convErr == nil {
			p.Line = n
		}
	}

	switch {
	case strings.Contains(p.What, "cannot start any token") && strings.Contains(p.What, "'\\t'"),
		strings.Contains(p.What, "tab character"):
		p.Remedy = "indent with spaces instead of tabs"
	case strings.Contains(p.What, "mapping values are not allowed"):
		p.Remedy = "put text that contains \": \" in quotes, and check the indentation"
	}

	return p
}

// Decode decodes b, which must hold exactly one document. into is a pointer to the result. The error is a problem.List
// with all problems; the result may then be partly set.
func Decode(file string, b []byte, into any) error {
	docs, err := Documents(file, b)
	if err != nil {
		return err
	}

	switch len(docs) {
	case 0:
		return problem.List{{File: file, What: "is empty"}}
	case 1:
		return docs[0].Decode(into)
	}

	return problem.List{{
		File: file, Line: docs[1].FirstLine(), What: fmt.Sprintf("holds %d documents where one is expected", len(docs)),
		Remedy: "remove the lines \"---\" or split the file",
	}}
}

// DecodeJSON decodes one JSON value as Decode does. Its problems have no lines.
func DecodeJSON(raw json.RawMessage, into any) error {
	err := Decode("", []byte(human.Escape(string(raw))), into)
	if problems, ok := errors.AsType[problem.List](err); ok {
		for i := range problems {
			problems[i].Line = 0
		}
	}
	return err
}

// Locate returns a copy of problems with File and Line. problems is the result of validating the first document of b.
// The Field of a problem determines its line.
func Locate(file string, b []byte, problems problem.List) problem.List {
	docs, err := Documents(file, b)
	if err != nil || len(docs) == 0 {
		d := Document{File: file}
		return d.Locate(problems)
	}
	return docs[0].Locate(problems)
}

// FirstLine returns the line where the content of the document starts, from 1; 0 for an empty document.
func (d Document) FirstLine() int {
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

// Has reports whether there is a value other than null at a field path.
func (d Document) Has(path string) bool {
	n, whole := d.find(path)
	return whole && n != nil && !isNull(n)
}

// LineOf returns the line of the value at a field path such as "interfaces[0].mac". If only a part of the path exists,
// it returns the line of that part; 0 for an empty document.
func (d Document) LineOf(path string) int {
	n, _ := d.find(path)
	if n == nil {
		return 0
	}
	return n.Line
}

// Locate returns a copy of problems. It sets File where it is "", and Line where it is 0: the Field of a problem determines its line.
func (d Document) Locate(problems problem.List) problem.List {
	out := make(problem.List, len(problems))
	for i, p := range problems {
		p.File = cmp.Or(p.File, d.File)
		if p.Line == 0 {
			p.Line = d.LineOf(p.Field)
		}
		out[i] = p
	}

	return out
}

// Decode decodes the document as the function Decode does.
func (d Document) Decode(into any) error { return d.DecodeExcept(into, nil) }

// DecodeExcept is like Decode, but ignores an unknown key if skip returns true for the path of the key.
func (d Document) DecodeExcept(into any, skip func(path string) bool) error {
	w := walker{file: d.File, skip: skip}
	w.decode(d.root, into)
	return w.problems.Err()
}

// find returns the node at path and true. If only a part of path exists, it returns the node of that part and
// false. If the node is the value of a mapping's entry, find returns a copy of it with the line of the key.
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
				return valueAtKey(n.Content[i], n.Content[i+1])
			}
		}

		var w walker
		pairs, err := w.pairs(n, "", 0)
		if err != nil {
			return nil
		}
		for _, p := range pairs { // part is not a key of the mapping itself: look in its merge keys, too
			if p.key.Value == part {
				return valueAtKey(p.key, p.value)
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(part); err == nil && i >= 0 && i < len(n.Content) {
			return n.Content[i]
		}
	}

	return nil
}

// valueAtKey returns a copy of value with the line of key.
func valueAtKey(key, value *yaml.Node) *yaml.Node {
	v := *follow(value)
	v.Line = key.Line
	return &v
}

// Elements returns the elements of the sequence at a field path as documents, without null elements; nil if there is no sequence.
func (d Document) Elements(path string) []Document {
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

// Part returns the value at a field path as a document. Without a value, the document is empty.
func (d Document) Part(path string) Document {
	n, whole := d.find(path)
	if !whole || n == nil || isNull(n) {
		return Document{File: d.File}
	}
	return Document{File: d.File, root: follow(n)}
}

// LineIn returns the line of the file that holds line n (counted from 1) of the text at a field path. This is exact
// only for a literal block (|); for other text, LineIn returns the line of the key.
func (d Document) LineIn(path string, n int) int {
	v, whole := d.find(path)
	if v == nil {
		return 0
	}
	if whole && v.Kind == yaml.ScalarNode && v.Style&yaml.LiteralStyle != 0 {
		return v.Line + n
	}
	return v.Line
}

// YAML returns the document as YAML with all aliases expanded. It returns an error if the result is too large or too deep.
func (d Document) YAML() ([]byte, error) {
	if d.root == nil {
		return nil, nil
	}
	w := walker{file: d.File}
	n, err := w.expand(d.root, 0)
	if err != nil {
		return nil, problem.List{{
			File: d.File, Line: d.FirstLine(), What: "is too large or too deep", Remedy: "use fewer aliases and less nesting",
		}}
	}
	return yaml.Marshal(n)
}

// expand returns a copy of n without anchors and aliases.
func (w *walker) expand(n *yaml.Node, depth int) (*yaml.Node, error) {
	if err := w.tick(depth); err != nil {
		return nil, err
	}
	out := *follow(n)
	if out.Kind == yaml.AliasNode { // follow has stopped, because the chain of aliases is endless
		return nil, errTooMuch
	}

	out.Anchor, out.Content = "", nil
	for _, c := range follow(n).Content {
		c, err := w.expand(c, depth+1)
		if err != nil {
			return nil, err
		}
		out.Content = append(out.Content, c)
	}
	return &out, nil
}

// Each calls f for every key of a mapping and every element of a sequence, with its field path and line. Parents
// come before children, in the order of the document; merge keys are resolved. Each calls f at most 200,000 times.
func (d Document) Each(f func(path string, line int)) {
	if d.root != nil {
		v := visitor{left: maxNodes, visit: f}
		v.children(d.root, "", 0)
	}
}

// A visitor is the state of Each.
type visitor struct {
	left   int
	merges walker
	visit  func(path string, line int)
}

func (v *visitor) children(n *yaml.Node, path string, depth int) {
	n = follow(n)
	if depth > maxDepth || v.left <= 0 {
		return
	}

	switch n.Kind {
	case yaml.MappingNode:
		pairs, err := v.merges.pairs(n, path, depth)
		if err != nil {
			v.left = 0
			return
		}
		for _, p := range pairs {
			v.node(p.value, join(path, p.key.Value), p.key.Line, depth)
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			v.node(item, fmt.Sprintf("%s[%d]", path, i), item.Line, depth)
		}
	}
}

func (v *visitor) node(n *yaml.Node, path string, line, depth int) {
	if v.left--; v.left < 0 || isNull(follow(n)) {
		return
	}
	v.visit(path, line)
	v.children(n, path, depth+1)
}
