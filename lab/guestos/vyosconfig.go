package main

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
)

// refusal is an error with VyOS's own text.
type refusal string

// Error implements error.
func (r refusal) Error() string { return string(r) }

// vnode is a node of a VyOS configuration. Of "ethernet eth0 { … }" the node ethernet is a tag node with the child eth0.
type vnode struct {
	name   string
	tag    bool
	leaf   bool
	values []string // of a leaf
	kids   []*vnode
}

func (n *vnode) kid(name string) *vnode {
	for _, k := range n.kids {
		if k.name == name {
			return k
		}
	}
	return nil
}

// need returns a child and creates it if it is missing.
func (n *vnode) need(name string) *vnode {
	k := n.kid(name)
	if k == nil {
		k = &vnode{name: name}
		n.kids = append(n.kids, k)
	}
	return k
}

// at follows a path and returns nil if it does not exist.
func (n *vnode) at(path ...string) *vnode {
	for _, name := range path {
		if n = n.kid(name); n == nil {
			return nil
		}
	}
	return n
}

// all returns the values of a leaf.
func (n *vnode) all(path ...string) []string {
	if n = n.at(path...); n == nil {
		return nil
	}
	return n.values
}

// value is the first value of a leaf, or def.
func (n *vnode) value(def string, path ...string) string {
	if v := n.all(path...); len(v) > 0 {
		return v[0]
	}
	return def
}

func (n *vnode) clone() *vnode {
	c := &vnode{name: n.name, tag: n.tag, leaf: n.leaf, values: slices.Clone(n.values)}
	for _, k := range n.kids {
		c.kids = append(c.kids, k.clone())
	}
	return c
}

// json is the node as the API shows it: a leaf is a string, or a list when it has several values, or {} when it has none.
func (n *vnode) json() any {
	switch {
	case n.leaf && len(n.values) == 1:
		return n.values[0]
	case n.leaf && len(n.values) > 1:
		return n.values
	}
	o := object{}
	for _, k := range n.kids {
		o[k.name] = k.json()
	}
	return o
}

// write prints the node's children in the form of config.boot.
func (n *vnode) write(b *strings.Builder, indent string) {
	slices.SortStableFunc(n.kids, func(a, b *vnode) int { return strings.Compare(a.name, b.name) })
	for _, k := range n.kids {
		switch {
		case k.leaf && len(k.values) == 0:
			fmt.Fprintf(b, "%s%s\n", indent, k.name)
		case k.leaf:
			for _, v := range k.values {
				fmt.Fprintf(b, "%s%s %q\n", indent, k.name, v)
			}
		case k.tag:
			for _, t := range k.kids {
				fmt.Fprintf(b, "%s%s %s {\n", indent, k.name, t.name)
				t.write(b, indent+"    ")
				fmt.Fprintf(b, "%s}\n", indent)
			}
		default:
			fmt.Fprintf(b, "%s%s {\n", indent, k.name)
			k.write(b, indent+"    ")
			fmt.Fprintf(b, "%s}\n", indent)
		}
	}
}

var vyosToken = regexp.MustCompile(`(?s)^(?:[ \t\r]+|/\*.*?\*/|//[^\n]*|("(?:[^"\\]|\\.)*"|'[^']*')|([{}\n])|([^\s{}"']+))`)

// parseVyOS reads a config.boot and what follows the last brace: the footer with the versions, unchanged.
func parseVyOS(text string) (root *vnode, footer string, err error) {
	if i := strings.Index(text, "// Warning: Do not remove"); i >= 0 {
		footer = text[i:]
	} else if i := strings.Index(text, "// vyos-config-version:"); i >= 0 {
		footer = text[i:]
	}
	root = &vnode{}
	stack := []*vnode{root}
	var words []string
	line := 1
	flush := func() error { // a leaf
		top := stack[len(stack)-1]
		switch len(words) {
		case 0:
			return nil
		case 1, 2:
			k := top.need(words[0])
			if len(k.kids) > 0 {
				return fmt.Errorf("line %d: %q is a node", line, words[0])
			}
			k.leaf = true
			k.values = append(k.values, words[1:]...)
		default:
			return fmt.Errorf("line %d: too many words", line)
		}
		words = nil
		return nil
	}
	for text != "" {
		m := vyosToken.FindStringSubmatch(text)
		if m == nil {
			return nil, "", fmt.Errorf("line %d: cannot read %q", line, text[:min(20, len(text))])
		}
		text = text[len(m[0]):]
		line += strings.Count(m[0], "\n")
		switch {
		case m[1] != "":
			words = append(words, regexp.MustCompile(`\\(.)`).ReplaceAllString(m[1][1:len(m[1])-1], "$1"))
		case m[3] != "":
			words = append(words, m[3])
		case m[2] == "\n":
			err = flush()
		case m[2] == "{":
			top := stack[len(stack)-1]
			if len(words) != 1 && len(words) != 2 {
				return nil, "", fmt.Errorf("line %d: a node has a name and at most one value", line)
			}
			k := top.need(words[0])
			if len(words) == 2 {
				k.tag = true
				k = k.need(words[1])
			}
			stack, words = append(stack, k), nil
		case m[2] == "}":
			if err = flush(); err == nil && len(stack) == 1 {
				err = fmt.Errorf("line %d: a brace too many", line)
			} else if err == nil {
				stack = stack[:len(stack)-1]
			}
		}
		if err != nil {
			return nil, "", err
		}
	}
	if err := flush(); err != nil {
		return nil, "", err
	}
	if len(stack) != 1 {
		return nil, "", errors.New("a brace is missing at the end")
	}
	return root, footer, nil
}

// vyosPaths are what may be set here: * is a tag, the last sign says how many values the leaf has: 0, 1 or + for several.
var vyosPaths = strings.Split(strings.TrimSpace(`
system host-name 1
system domain-name 1
system name-server +
system time-zone 1
interfaces ethernet * address +
interfaces ethernet * description 1
interfaces ethernet * disable 0
interfaces ethernet * hw-id 1
interfaces ethernet * mtu 1
interfaces ethernet * vif * address +
interfaces ethernet * vif * description 1
interfaces ethernet * vif * disable 0
interfaces loopback * address +
protocols static route * next-hop * distance 1
protocols static route * next-hop * disable 0
service dhcp-relay disable 0
service dhcp-relay interface +
service dhcp-relay listen-interface +
service dhcp-relay upstream-interface +
service dhcp-relay server +
service dhcp-relay relay-options hop-count 1
service dhcp-relay relay-options max-size 1
service dhcp-relay relay-options relay-agents-packets 1
service https port 1
service https listen-address +
service https api keys id * key 1
service https api rest debug 0
service ntp allow-client address +
service ntp server * disable 0
service ssh port +
service ssh listen-address +
system login user * authentication encrypted-password 1
`), "\n")

// lookup tells what a path is: a prefix of something known, and if a leaf, of how many values.
func lookup(path []string) (known, tag bool, leaf string) {
	for _, p := range vyosPaths {
		words := strings.Fields(p)
		count, words := words[len(words)-1], words[:len(words)-1]
		if len(path) > len(words) {
			continue
		}
		fits := true
		for i, w := range path {
			fits = fits && (w == words[i] || words[i] == "*")
		}
		if !fits {
			continue
		}
		known = true
		if len(path) == len(words) {
			leaf = count
		} else if words[len(path)] == "*" {
			tag = true
		}
	}
	return known, tag, leaf
}

// set adds a path; its last word may be a leaf's value.
func (n *vnode) set(path []string) error {
	bad := func() error { return refusal("Configuration path: [" + strings.Join(path, " ") + "] is not valid") }
	for i := range path {
		known, tag, leaf := lookup(path[:i+1])
		if !known {
			return bad()
		}
		n = n.need(path[i])
		n.tag = n.tag || tag
		if leaf == "" {
			continue
		}
		rest := path[i+1:]
		if (leaf == "0") != (len(rest) == 0) || len(rest) > 1 {
			return bad()
		}
		n.leaf = true
		switch {
		case leaf == "1":
			n.values = slices.Clone(rest)
		case leaf == "+" && !slices.Contains(n.values, rest[0]):
			n.values = append(n.values, rest[0])
		}
		return nil
	}
	return nil
}

// remove deletes a path, a value of a leaf too. What is not there is no error, as VyOS has it.
func (n *vnode) remove(path []string) {
	if len(path) == 0 {
		return
	}
	k := n.kid(path[0])
	if k == nil {
		return
	}
	if len(path) > 1 && k.leaf {
		k.values = slices.DeleteFunc(k.values, func(v string) bool { return v == path[1] })
		if len(k.values) > 0 {
			return
		}
	} else if len(path) > 1 {
		k.remove(path[1:])
		if !k.tag || len(k.kids) > 0 {
			return
		}
	}
	n.kids = slices.DeleteFunc(n.kids, func(o *vnode) bool { return o == k })
}

// verify is what a commit checks.
func (n *vnode) verify() error {
	if r := n.at("service", "dhcp-relay"); r != nil && r.at("disable") == nil {
		switch {
		case len(r.all("server")) == 0:
			return refusal("No DHCP relay server(s) configured.\nAt least one DHCP relay server required.")
		case len(r.all("listen-interface"))+len(r.all("upstream-interface"))+len(r.all("interface")) == 0:
			return refusal("Interface(s) or listen and upstream interfaces must be specified")
		}
		for _, s := range r.all("server") {
			if net.ParseIP(s) == nil {
				return fmt.Errorf("%q is not a valid IPv4 address", s)
			}
		}
	}
	if e := n.at("interfaces", "ethernet"); e != nil {
		for _, k := range e.kids {
			for _, a := range k.all("address") {
				if _, _, err := net.ParseCIDR(a); err != nil && a != "dhcp" {
					return fmt.Errorf("%q is not a valid address of %s", a, k.name)
				}
			}
		}
	}
	return nil
}
