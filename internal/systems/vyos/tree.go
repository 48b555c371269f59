package vyos

import (
	"slices"
	"strings"
)

// A Node is a node of config.boot. A tag node such as "ethernet eth0 { … }" becomes a node "ethernet" with a child
// "eth0".
type Node struct {
	Name     string
	Line     int
	Values   []string // values of a leaf: one for each line of the same leaf
	Children []*Node
	leaf     bool
}

// Config is the contents of a config.boot.
type Config struct {
	Node
	// Versions is the text of the footer: the syntax version of each component. VyOS uses the versions to migrate an older file.
	Versions string
}

// At returns the node at a path, or nil.
func (n *Node) At(path ...string) *Node {
	for _, name := range path {
		i := slices.IndexFunc(n.Children, func(c *Node) bool { return c.Name == name })
		if i < 0 {
			return nil
		}
		n = n.Children[i]
	}
	return n
}

// All returns the values of the leaf at a path.
func (n *Node) All(path ...string) []string {
	if at := n.At(path...); at != nil {
		return at.Values
	}
	return nil
}

// Value returns the value of the leaf at a path if it has exactly one, otherwise "".
func (n *Node) Value(path ...string) string {
	if v := n.All(path...); len(v) == 1 {
		return v[0]
	}
	return ""
}

// Hostname returns the configured host name, or "".
func (c Config) Hostname() string { return c.Value("system", "host-name") }

// walk calls visit for each node below n with its path.
func (n *Node) walk(path string, visit func(path string, n *Node)) {
	for _, c := range n.Children {
		at := strings.TrimSpace(path + " " + c.Name)
		visit(at, c)
		c.walk(at, visit)
	}
}

func (n *Node) child(t token, leaf bool) *Node {
	if c := n.At(t.text); c != nil {
		return c
	}
	c := &Node{Name: t.text, Line: t.line, leaf: leaf}
	n.Children = append(n.Children, c)
	return c
}
