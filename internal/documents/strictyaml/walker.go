package strictyaml

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/problem"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Limits of a document. The first two apply after aliases are expanded, because nested aliases grow
// exponentially.
const (
	maxNodes    = 200_000
	maxDepth    = 100
	maxProblems = 50
)

type walker struct {
	file     string
	nodes    int
	problems problem.List
	skip     func(path string) bool // see Document.DecodeExcept; may be nil
}

var errTooMuch = errors.New("too much")

func (w *walker) add(n *yaml.Node, path, remedy, format string, args ...any) {
	line := 0
	if n != nil {
		line = n.Line
	}
	w.problems = append(w.problems, problem.Problem{
		File: w.file, Line: line, Field: path, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

func (w *walker) tick(depth int) error {
	w.nodes++
	if w.nodes > maxNodes || depth > maxDepth || len(w.problems) >= maxProblems {
		return errTooMuch
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func kindName(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!int", "!!float":
			return "a number"
		case "!!bool":
			return "a truth value"
		}
		return "text"
	}

	return "an unknown node"
}

func clip(s string) string { return plaintext.Clip(s, 60) }

func follow(n *yaml.Node) *yaml.Node {
	for i := 0; n.Kind == yaml.AliasNode && n.Alias != nil && i < maxDepth; i++ {
		n = n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
