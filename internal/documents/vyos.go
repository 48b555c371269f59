package documents

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// A VyOSNode is a node of config.boot. A tag node, "ethernet eth0 { … }", is a
// node "ethernet" with a child "eth0".
type VyOSNode struct {
	Name     string
	Line     int
	Values   []string // of a leaf; the same leaf given again adds one
	Children []*VyOSNode
	leaf     bool
}

// VyOS is a config.boot that was read.
type VyOS struct {
	VyOSNode
	// Versions is the text of the footer: the version of every component's
	// syntax, by which VyOS migrates the file.
	Versions string
}

// ParseVyOS reads a config.boot. The error is an inventory.Problems.
func ParseVyOS(file string, contents []byte) (VyOS, error) {
	v, problems := parseVyOS(contents)
	return v, finish(file, secrets(KindVyOS, contents), problems).Err()
}

// At returns the node at a path, or nil.
func (n *VyOSNode) At(path ...string) *VyOSNode {
	for _, name := range path {
		i := slices.IndexFunc(n.Children, func(c *VyOSNode) bool { return c.Name == name })
		if i < 0 {
			return nil
		}
		n = n.Children[i]
	}
	return n
}

// All returns the values of the leaf at a path.
func (n *VyOSNode) All(path ...string) []string {
	if at := n.At(path...); at != nil {
		return at.Values
	}
	return nil
}

// Value returns the only value of the leaf at a path, and "" otherwise.
func (n *VyOSNode) Value(path ...string) string {
	if v := n.All(path...); len(v) == 1 {
		return v[0]
	}
	return ""
}

// Hostname is what the installed system answers with when it is asked for its
// configuration; "" when the document does not say.
func (v VyOS) Hostname() string { return v.Value("system", "host-name") }

// Ethernet returns the hardware address of every Ethernet interface, in its
// canonical form, by the interface's name.
func (v VyOS) Ethernet() map[string]string {
	out := map[string]string{}
	if n := v.At("interfaces", "ethernet"); n != nil {
		for _, c := range n.Children {
			if mac, err := inventory.ParseMAC(c.Value("hw-id")); err == nil {
				out[c.Name] = mac
			}
		}
	}
	return out
}

func (n *VyOSNode) walk(f func(path []string, n *VyOSNode)) { n.walkAt(nil, f) }

func (n *VyOSNode) walkAt(path []string, f func([]string, *VyOSNode)) {
	for _, c := range n.Children {
		p := append(slices.Clip(path), c.Name)
		f(p, c)
		c.walkAt(p, f)
	}
}

var (
	ethernet   = regexp.MustCompile(`^((eth|lan)[0-9]+|(eno|ens|enp|enx).+)$`)
	component  = regexp.MustCompile(`^[a-z0-9-]+@[0-9]+$`)
	footer     = regexp.MustCompile(`^//[ \t]*vyos-config-version:[ \t]*"([^"]*)"[ \t\r]*$`)
	oldFooter  = regexp.MustCompile(`(?m)^/\*.*vyatta-config-version`)
	vyosHost   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]{0,61}[A-Za-z0-9])?$`)
	footerHelp = `copy the two lines that begin with // from the end of the image's own config.boot`
)

func checkVyOS(contents []byte) (problems, warnings inventory.Problems) {
	v, problems := parseVyOS(contents)
	add := func(line int, field, remedy, format string, args ...any) {
		problems = append(problems, inventory.Problem{Line: line, Field: field, What: fmt.Sprintf(format, args...), Remedy: remedy})
	}
	unknown, warnings := checkKeys(&v.VyOSNode, "", "")
	problems = append(problems, unknown...)
	macs := map[string]string{}
	if eth := v.At("interfaces", "ethernet"); eth != nil {
		for _, c := range eth.Children {
			checkEthernet(c, macs, add)
		}
	}
	if len(macs) == 0 {
		line := 1
		if n := v.At("interfaces"); n != nil {
			line = n.Line
		}
		add(line, "interfaces ethernet", "give at least one: ethernet eth0 { hw-id … }", "no Ethernet interface is configured, so nothing would reach the router")
	}
	if n := v.At("service", "dhcp-relay"); n != nil {
		checkRelay(n, unknown, add)
	}
	warn := func(line int, field, remedy, what string) {
		warnings = append(warnings, inventory.Problem{Line: line, Field: field, What: what, Remedy: remedy})
	}
	switch name := v.Hostname(); {
	case name == "":
		warn(1, "system host-name", "give it", "there is no host name, by which the installed system could be told from another")
	case !vyosHost.MatchString(name):
		add(v.At("system", "host-name").Line, "system host-name", "use letters, digits and -", "this is no host name")
	}
	v.walk(func(path []string, n *VyOSNode) {
		if n.Name == "plaintext-password" && n.Value() != "" {
			warn(n.Line, strings.Join(path, " "), "give encrypted-password, as: mkpasswd -m sha-512", "a password stands here as it is typed")
		}
	})
	return problems, warnings
}

func checkEthernet(c *VyOSNode, macs map[string]string, add func(int, string, string, string, ...any)) {
	field := "interfaces ethernet " + c.Name
	if !ethernet.MatchString(c.Name) {
		add(c.Line, field, "use eth0, eth1 …", "this is no name of an Ethernet interface")
	}
	const remedy = "write the hardware address of that socket: hw-id aa:bb:cc:dd:ee:ff"
	at := c.At("hw-id")
	if at == nil {
		macs[c.Name] = ""
		add(c.Line, field+" hw-id", remedy, "is missing: without it, interfaces are numbered in the order in which the kernel finds them")
		return
	}
	mac, err := inventory.ParseMAC(at.Value())
	if err != nil {
		macs[c.Name] = ""
		add(at.Line, field+" hw-id", remedy, "%q is no hardware address", at.Value())
		return
	}
	for other, m := range macs {
		if m == mac {
			add(at.Line, field+" hw-id", "give each interface its own", "%s is the hardware address of %s already", mac, other)
		}
	}
	macs[c.Name] = mac
}

// checkRelay checks the part that machines behind the router are booted by.
// unknown are keys of which one may be meant for one that is missed here.
func checkRelay(n *VyOSNode, unknown inventory.Problems, add func(int, string, string, string, ...any)) {
	const field = "service dhcp-relay"
	if n.At("disable") != nil {
		return
	}
	if slices.ContainsFunc(unknown, func(p inventory.Problem) bool { return strings.HasPrefix(p.Field, field+" ") }) {
		return
	}
	if len(n.All("server")) == 0 {
		add(n.Line, field+" server", "name the server that provisions: server 192.0.2.10", "the relay has nobody to pass requests to")
	}
	if at := n.At("server"); at != nil {
		for _, s := range at.Values {
			if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
				add(at.Line, field+" server", "give an IPv4 address", "%q is none", s)
			}
		}
	}
	listen, upstream := len(n.All("listen-interface")) > 0, len(n.All("upstream-interface")) > 0
	switch {
	case len(n.All("interface")) > 0 && !listen && !upstream, listen && upstream:
	case len(n.All("interface")) > 0:
		add(n.Line, field+" interface", "give listen-interface and upstream-interface alone", "VyOS refuses it beside listen-interface and upstream-interface")
	case listen:
		add(n.Line, field+" upstream-interface", "name the interface towards the server", "the relay has no way to the server")
	default:
		add(n.Line, field+" listen-interface", "name the interface of the machines, and upstream-interface towards the server", "the relay listens nowhere")
	}
}

// The syntax is that of vyos1x-config, the library by which VyOS itself reads
// the file: only the line end after a leaf says where the leaf ends.

type vyosToken struct {
	kind byte // w(ord), s(tring), { } c(omment), n(ewline), 0 = end
	text string
	line int
}

type vyosLexer struct {
	src      string
	line     int
	inLeaf   bool
	problems inventory.Problems
}

func (l *vyosLexer) add(line int, remedy, format string, args ...any) {
	l.problems = append(l.problems, inventory.Problem{Line: line, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (l *vyosLexer) next() vyosToken {
	for l.src != "" {
		c := l.src[0]
		switch {
		case c == '\n':
			t := vyosToken{kind: 'n', line: l.line}
			l.line++
			l.src = l.src[1:]
			if l.inLeaf {
				l.inLeaf = false
				return t
			}
		case c == ' ' || c == '\t' || c == '\r':
			l.src = l.src[1:]
		case c == '{' || c == '}':
			l.src, l.inLeaf = l.src[1:], false
			return vyosToken{kind: c, line: l.line}
		case c == '"' || c == '\'':
			return l.quoted(c)
		case strings.HasPrefix(l.src, "//"): // to the end of the line, which still counts
			if n := strings.IndexByte(l.src, '\n'); n >= 0 {
				l.src = l.src[n:]
			} else {
				l.src = ""
			}
		case strings.HasPrefix(l.src, "/*"):
			if t, ok := l.comment(); ok {
				return t
			}
		case c < ' ' || c == 0x7f:
			l.add(l.line, "remove it", "there is a control character")
			l.src = l.src[1:]
		default:
			n := strings.IndexAny(l.src, " \t\r\n{}\"'")
			if n < 0 {
				n = len(l.src)
			}
			t := vyosToken{kind: 'w', text: l.src[:n], line: l.line}
			l.src, l.inLeaf = l.src[n:], true
			return t
		}
	}
	return vyosToken{line: l.line}
}

// quoted reads a quoted string; a backslash before anything that is no escape
// stands for itself, as VyOS has it.
func (l *vyosLexer) quoted(quote byte) vyosToken {
	start := l.line
	escapes := map[byte]byte{'/': '/', '\\': '\\', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '\'': '\'', '"': '"'}
	var b strings.Builder
	i := 1
	for ; i < len(l.src) && l.src[i] != quote; i++ {
		c := l.src[i]
		if c == '\n' {
			l.line++
		}
		if c == '\\' && i+1 < len(l.src) {
			if e, ok := escapes[l.src[i+1]]; ok {
				c = e
				i++
			}
		}
		b.WriteByte(c)
	}
	if i >= len(l.src) {
		l.add(start, "add it", "the closing quotation mark %c is missing", quote)
		l.src = ""
		return vyosToken{kind: 's', line: start}
	}
	l.src, l.inLeaf = l.src[i+1:], true
	return vyosToken{kind: 's', text: b.String(), line: start}
}

func (l *vyosLexer) comment() (vyosToken, bool) {
	start := l.line
	end := strings.Index(l.src[2:], "*/")
	if end < 0 {
		l.add(start, "close it with */", "a comment does not end")
		l.src = ""
		return vyosToken{}, false
	}
	text := l.src[2 : 2+end]
	if text != "" && !strings.ContainsAny(text[:1], " \t\r\n") {
		l.add(start, "write a space after /*", "VyOS takes this comment for a word")
	}
	l.line += strings.Count(text, "\n")
	l.src, l.inLeaf = l.src[2+end+2:], false
	return vyosToken{kind: 'c', text: text, line: start}, true
}

// maxNesting bounds how deep nodes may lie in each other.
const maxNesting = 64

type vyosParser struct {
	vyosLexer
	tok   vyosToken
	depth int
}

func (p *vyosParser) advance() { p.tok = p.next() }

// resync goes on behind the line on which something was wrong.
func (p *vyosParser) resync() {
	line := p.tok.line
	for p.tok.kind != 0 && p.tok.kind != 'n' && p.tok.kind != '}' && p.tok.line == line {
		p.advance()
	}
	if p.tok.kind == 'n' {
		p.advance()
	}
}

// nodes reads what stands between two braces, or in the whole file.
func (p *vyosParser) nodes(into *VyOSNode, path string, top bool) {
	for {
		comment := 0
		for p.tok.kind == 'c' {
			comment = p.tok.line
			p.advance()
		}
		switch p.tok.kind {
		case 0, '}':
			if comment > 0 {
				p.add(comment, "move it before a node", "a comment that belongs to no node is not read by VyOS")
			}
			if p.tok.kind == 0 || !top {
				return
			}
			p.add(p.tok.line, "remove it, or open it before", "a brace is closed that was not opened")
			p.advance()
		case 'n':
			p.advance()
		case 'w':
			p.node(into, path)
		default:
			p.add(p.tok.line, "", "a name of a node was expected here")
			p.advance()
			p.resync()
		}
		if len(p.problems) >= maxProblems {
			return
		}
	}
}

func (p *vyosParser) node(into *VyOSNode, path string) {
	name := p.tok
	p.advance()
	here := strings.TrimSpace(path + " " + name.text)
	switch p.tok.kind {
	case 'n', 0: // a leaf without a value
		p.leaf(into, here, name, nil)
		p.advance()
	case '{':
		n := into.child(name, false)
		if n.leaf {
			p.add(name.line, "remove one of the two", "%s has a value and is opened with a brace", here)
		}
		p.block(n, here)
	case 'w', 's':
		value := p.tok
		p.advance()
		switch p.tok.kind {
		case 'n', 0:
			p.leaf(into, here, name, &value)
			p.advance()
		case '{':
			tag := into.child(name, false)
			if tag.At(value.text) != nil {
				p.add(value.line, "merge the two", "%s %s stands here for the second time", here, value.text)
			}
			p.block(tag.child(value, false), here+" "+value.text)
		case 'w', 's':
			p.add(p.tok.line, "put a value of several words into quotation marks", "%s has more than one value on its line", here)
			p.resync()
		default:
			p.leafEnd(here)
		}
	default:
		p.leafEnd(here)
	}
}

func (p *vyosParser) leafEnd(here string) {
	p.add(p.tok.line, "end the line after it", "what follows %s on its line cannot stand there", here)
	p.resync()
}

func (p *vyosParser) leaf(into *VyOSNode, here string, name vyosToken, value *vyosToken) {
	known := into.At(name.text)
	n := into.child(name, true)
	if known != nil && (!known.leaf || value == nil || len(known.Values) == 0 || slices.Contains(known.Values, value.text)) {
		p.add(name.line, "remove one of the two", "%s stands here for the second time", here)
		return
	}
	if value != nil {
		n.Values = append(n.Values, value.text)
	}
}

func (p *vyosParser) block(n *VyOSNode, here string) {
	opened := p.tok.line
	p.advance()
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxNesting {
		p.add(opened, "", "nodes lie in each other more than %d deep", maxNesting)
		p.src = ""
		p.advance()
		return
	}
	p.nodes(n, here, false)
	if p.tok.kind != '}' {
		if p.tok.kind == 0 && len(p.problems) < maxProblems {
			p.add(opened, "close it", "the brace of %s is not closed", here)
		}
		return
	}
	p.advance()
}

func (n *VyOSNode) child(t vyosToken, leaf bool) *VyOSNode {
	if c := n.At(t.text); c != nil {
		return c
	}
	c := &VyOSNode{Name: t.text, Line: t.line, leaf: leaf}
	n.Children = append(n.Children, c)
	return c
}

// parseVyOS reads the tree and the footer. VyOS splits the file at the first
// line that begins with //: what comes after is the footer, whatever it is.
func parseVyOS(contents []byte) (VyOS, inventory.Problems) {
	text := string(contents)
	config, rest, restLine := text, "", 0
	for at, line := 0, 1; at < len(text); line++ {
		end := strings.IndexByte(text[at:], '\n')
		if end < 0 {
			end = len(text) - at - 1
		}
		if strings.HasPrefix(text[at:], "//") {
			config, rest, restLine = text[:at], text[at:], line
			break
		}
		at += end + 1
	}
	p := vyosParser{vyosLexer: vyosLexer{src: config, line: 1}}
	v := VyOS{}
	p.advance()
	p.nodes(&v.VyOSNode, "", true)
	found := 0
	for i, s := range strings.Split(rest, "\n") {
		line := restLine + i
		if m := footer.FindStringSubmatch(s); m != nil {
			v.Versions = m[1]
			found++
			for c := range strings.SplitSeq(m[1], ":") {
				if !component.MatchString(c) {
					p.add(line, footerHelp, "the footer vyos-config-version is not made of component@version")
					break
				}
			}
			continue
		}
		if s = strings.TrimSpace(s); s != "" && !strings.HasPrefix(s, "//") {
			p.add(line, "move the lines that begin with // to the end of the file", "VyOS reads nothing after the first line that begins with //")
			break
		}
	}
	switch {
	case found > 1:
		p.add(restLine, "keep the one of your image", "there are %d footers vyos-config-version", found)
	case found == 0 && oldFooter.MatchString(text):
		p.add(1, footerHelp, "the footer is that of VyOS 1.2 or older")
	case found == 0:
		p.add(strings.Count(text, "\n")+1, footerHelp, "the footer // vyos-config-version: is missing, so VyOS would take the file for its oldest syntax")
	}
	return v, p.problems
}
