package selector

import (
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	space   = " \t\r\n"
	special = "=!(),<>" // each ends a word
)

// Parse parses a selector as Kubernetes does: requirements, separated by commas, of the forms key=value, key==value, key!=value,
// key in (value,…), key notin (value,…), key and !key. The operators > and < are not supported. The error is a problem.List that names the
// position.
func Parse(text string) (Selector, error) {
	if len(text) > maxText {
		return nil, tooLong(len(text))
	}
	p := parser{text: text}
	p.next()
	if p.token == "" {
		return nil, nil
	}

	var s Selector
	for {
		r, err := p.parseRequirement()
		if err != nil {
			return nil, err
		}
		s = append(s, r)

		switch p.token {
		case "":
			return normalize(s)
		case ",":
			p.next()
		default:
			return nil, p.failUnexpected("put a comma between two requirements")
		}
	}
}

// parser reads the tokens of text one after the other.
type parser struct {
	text  string
	token string // the current token: a word, one of = == != ( ) , < > !, or "" at the end
	at    int    // where token begins in text, in bytes
}

// next reads the next token.
func (p *parser) next() {
	rest := p.text[p.at+len(p.token):]
	trimmed := strings.TrimLeft(rest, space)
	p.at = len(p.text) - len(trimmed)

	n := strings.IndexAny(trimmed, space+special)
	switch {
	case n < 0:
		n = len(trimmed)
	case n == 0:
		n = 1
		if strings.HasPrefix(trimmed, "==") || strings.HasPrefix(trimmed, "!=") {
			n = 2
		}
	}
	p.token = trimmed[:n]
}

// isWord reports whether the current token is a word.
func (p *parser) isWord() bool { return p.token != "" && !strings.ContainsAny(p.token[:1], special) }

// fail returns an error at the current token.
func (p *parser) fail(remedy, format string, args ...any) error {
	position := utf8.RuneCountInString(p.text[:p.at]) + 1
	return invalid(remedy, format+" at character %d", append(args, position)...)
}

func (p *parser) failUnexpected(remedy string) error {
	if p.token == "" {
		return p.fail(remedy, "unexpected end")
	}
	return p.fail(remedy, "unexpected %q", p.token)
}

func (p *parser) parseRequirement() (r Requirement, err error) {
	isAbsent := p.token == "!"
	if isAbsent {
		p.next()
	}
	if !p.isWord() {
		return r, p.fail("write key=value, key in (a,b), key or !key", "a key is missing")
	}
	if r.Key = p.token; !IsKey(r.Key) {
		return r, p.fail(KeyRemedy, "invalid key %q", r.Key)
	}
	p.next()

	operator := p.token
	switch {
	case isAbsent:
		r.Operator = DoesNotExist
		return r, nil
	case operator == "" || operator == ",":
		r.Operator = Exists
		return r, nil
	case slices.Contains([]string{"=", "==", "in"}, operator):
		r.Operator = In
	case slices.Contains([]string{"!=", "notin"}, operator):
		r.Operator = NotIn
	default:
		return r, p.fail("use =, ==, !=, in or notin", "invalid operator %q", operator)
	}

	p.next()
	if operator == "in" || operator == "notin" {
		r.Values, err = p.parseList()
		return r, err
	}
	if !p.isWord() && p.token != "" && p.token != "," {
		return r, p.failUnexpected("write key=value, or key in (a,b) for several values")
	}
	v, err := p.parseValue()
	r.Values = []string{v}
	return r, err
}

// parseList reads values in parentheses, separated by commas.
func (p *parser) parseList() (values []string, err error) {
	const remedy = "write several values as (a,b)"
	if p.token != "(" {
		return nil, p.failUnexpected(remedy)
	}
	for p.token != ")" {
		p.next()
		v, err := p.parseValue()
		if err != nil {
			return nil, err
		}
		values = append(values, v)
		if p.token != "," && p.token != ")" {
			return nil, p.failUnexpected(remedy)
		}
	}
	p.next()
	return values, nil
}

// parseValue reads a value, which may be empty.
func (p *parser) parseValue() (string, error) {
	if !p.isWord() {
		return "", nil
	}
	v := p.token
	if !IsValue(v) {
		return "", p.fail(ValueRemedy, "invalid value %q", v)
	}
	p.next()
	return v, nil
}
