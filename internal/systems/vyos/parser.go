package vyos

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	maxNesting  = 64 // depth of nested nodes
	maxProblems = 50 // once so many are found, the rest of the file is not read
)

type parser struct {
	lexer
	tok   token
	depth int
}

func (p *parser) advance() { p.tok = p.next() }

// skipLine skips the rest of the line, after a problem in it.
func (p *parser) skipLine() {
	line := p.tok.line
	for p.tok.kind != tokenEnd && p.tok.kind != tokenNewline && p.tok.kind != '}' && p.tok.line == line {
		p.advance()
	}
	if p.tok.kind == tokenNewline {
		p.advance()
	}
}

// nodes reads nodes and appends them to the children of into: the nodes before the next closing brace or, if top is true, those of the
// whole file.
func (p *parser) nodes(into *Node, path string, top bool) {
	for {
		comment := 0
		for p.tok.kind == tokenComment {
			comment = p.tok.line
			p.advance()
		}
		switch p.tok.kind {
		case tokenEnd, '}':
			if comment > 0 {
				p.add(comment, "move the comment before a node", "VyOS accepts a comment only before a node")
			}
			if p.tok.kind == tokenEnd || !top {
				return
			}
			p.add(p.tok.line, "remove the brace, or open the block above", "this closing brace has no opening brace")
			p.advance()
		case tokenNewline:
			p.advance()
		case tokenWord:
			p.node(into, path)
		default:
			p.add(p.tok.line, "", "expected the name of a node here")
			p.advance()
			p.skipLine()
		}
		if len(p.problems) >= maxProblems {
			return
		}
	}
}

func (p *parser) node(into *Node, path string) {
	name := p.tok
	p.advance()
	here := strings.TrimSpace(path + " " + name.text)
	switch p.tok.kind {
	case tokenNewline, tokenEnd: // a leaf without a value
		p.leaf(into, here, name, nil)
		p.advance()
	case '{':
		n := into.child(name, false)
		if n.leaf {
			p.add(name.line, "remove one of the two", "%s has both a value and a block in braces", here)
		}
		p.block(n, here)
	case tokenWord, tokenString:
		value := p.tok
		p.advance()
		switch p.tok.kind {
		case tokenNewline, tokenEnd:
			p.leaf(into, here, name, &value)
			p.advance()
		case '{':
			tag := into.child(name, false)
			if tag.At(value.text) != nil {
				p.add(value.line, "merge the two", "%s %s is given for the second time", here, value.text)
			}
			p.block(tag.child(value, false), here+" "+value.text)
		case tokenWord, tokenString:
			p.add(p.tok.line, "put a value of several words into quotation marks",
				"%s has more than one value on its line", here)
			p.skipLine()
		default:
			p.leafEnd(here)
		}
	default:
		p.leafEnd(here)
	}
}

func (p *parser) leafEnd(here string) {
	p.add(p.tok.line, "end the line there", "unexpected text after %s on the same line", here)
	p.skipLine()
}

func (p *parser) leaf(into *Node, here string, name token, value *token) {
	earlier := into.At(name.text)
	n := into.child(name, true)
	if earlier != nil && (!earlier.leaf || value == nil || len(earlier.Values) == 0 ||
		slices.Contains(earlier.Values, value.text)) {
		p.add(name.line, "remove one of the two", "%s is given for the second time", here)
		return
	}
	if value != nil {
		n.Values = append(n.Values, value.text)
	}
}

func (p *parser) block(n *Node, here string) {
	opened := p.tok.line
	p.advance()
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxNesting {
		p.add(opened, "", "nodes are nested more than %d levels deep", maxNesting)
		p.src = ""
		p.advance()
		return
	}
	p.nodes(n, here, false)
	if p.tok.kind != '}' {
		if p.tok.kind == tokenEnd && len(p.problems) < maxProblems {
			p.add(opened, "close it", "the brace of %s is not closed", here)
		}
		return
	}
	p.advance()
}

// Parse reads a config.boot: its nodes and its footer. The texts of problems may repeat values. As for VyOS, the footer begins at the first
// line that begins with //.
func Parse(contents []byte) (Config, inventory.Problems) {
	text := string(contents)
	end := len(text)
	if strings.HasPrefix(text, "//") {
		end = 0
	} else if n := strings.Index(text, "\n//"); n >= 0 {
		end = n + 1
	}

	p := parser{lexer: lexer{src: text[:end], line: 1}}
	c := Config{}
	p.advance()
	p.nodes(&c.Node, "", true)

	found := 0
	c.Versions, found = p.footer(text[end:], strings.Count(text[:end], "\n")+1)
	switch {
	case found > 1:
		p.add(strings.Count(text[:end], "\n")+1, "keep only the footer of your image", "there are %d footers vyos-config-version", found)
	case found == 0 && oldFooter.MatchString(text):
		p.add(1, footerRemedy, "the footer has the form of VyOS 1.2 or older")
	case found == 0:
		p.add(strings.Count(text, "\n")+1, footerRemedy,
			"the footer // vyos-config-version: is missing, so VyOS would take the file for its oldest syntax")
	}
	return c, p.problems
}

var (
	component = regexp.MustCompile(`^[a-z0-9-]+@[0-9]+$`)
	footer    = regexp.MustCompile(`^//[ \t]*vyos-config-version:[ \t]*"([^"]*)"[ \t\r]*$`)
	oldFooter = regexp.MustCompile(`(?m)^/\*.*vyatta-config-version`)
)

const footerRemedy = "copy the two lines that begin with // from the end of the image's own config.boot"

// footer reads the part of the file that begins with //; line is the number of its first line. footer returns the versions in it, and the
// number of lines that contain versions.
func (p *parser) footer(text string, line int) (versions string, found int) {
	for s := range strings.Lines(text) {
		s = strings.TrimRight(s, "\n")
		if m := footer.FindStringSubmatch(s); m != nil {
			versions = m[1]
			found++
			parts := strings.Split(versions, ":")
			if slices.ContainsFunc(parts, func(part string) bool { return !component.MatchString(part) }) {
				p.add(line, footerRemedy, "the footer vyos-config-version must be a list of component@version")
			}
		} else if s = strings.TrimSpace(s); s != "" && !strings.HasPrefix(s, "//") {
			p.add(line, "move the lines that begin with // to the end of the file",
				"VyOS reads nothing after the first line that begins with //")
			break
		}
		line++
	}
	return versions, found
}
