package vyos

import (
	"fmt"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// The lexer follows vyos1x-config, the library with which VyOS itself reads the file: a leaf ends only at the end
// of its line.

// Kinds of tokens. The kind of a brace is the brace itself.
const (
	tokenEnd     = 0
	tokenWord    = 'w'
	tokenString  = 's'
	tokenComment = 'c'
	tokenNewline = 'n' // the end of a line that contains a leaf; other line ends are skipped
)

type token struct {
	kind byte
	text string
	line int
}

type lexer struct {
	src      string
	line     int
	inLeaf   bool
	problems inventory.Problems
}

func (l *lexer) add(line int, remedy, format string, args ...any) {
	l.problems = append(l.problems, inventory.Problem{Line: line, What: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (l *lexer) next() token {
	for l.src != "" {
		c := l.src[0]
		switch {
		case c == '\n':
			t := token{kind: tokenNewline, line: l.line}
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
			return token{kind: c, line: l.line}
		case c == '"' || c == '\'':
			return l.quoted(c)
		case strings.HasPrefix(l.src, "//"): // skip the comment, but not the line end
			comment, _, _ := strings.Cut(l.src, "\n")
			l.src = l.src[len(comment):]
		case strings.HasPrefix(l.src, "/*"):
			if t, ok := l.comment(); ok {
				return t
			}
		case c < ' ' || c == 0x7f:
			l.add(l.line, "remove it", "unexpected control character")
			l.src = l.src[1:]
		default:
			n := strings.IndexAny(l.src, " \t\r\n{}\"'")
			if n < 0 {
				n = len(l.src)
			}
			t := token{kind: tokenWord, text: l.src[:n], line: l.line}
			l.src, l.inLeaf = l.src[n:], true
			return t
		}
	}
	return token{line: l.line}
}

// escapes maps a character after a backslash to the character with which VyOS replaces the two.
var escapes = map[byte]byte{
	'/': '/', '\\': '\\', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '\'': '\'', '"': '"',
}

// quoted reads a quoted string. As in VyOS, a backslash before a character that is not in escapes is kept.
func (l *lexer) quoted(quote byte) token {
	start := l.line
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
		return token{kind: tokenString, line: start}
	}
	l.src, l.inLeaf = l.src[i+1:], true
	return token{kind: tokenString, text: b.String(), line: start}
}

func (l *lexer) comment() (token, bool) {
	start := l.line
	end := strings.Index(l.src[2:], "*/")
	if end < 0 {
		l.add(start, "close it with */", "this comment does not end")
		l.src = ""
		return token{}, false
	}
	text := l.src[2 : 2+end]
	if text != "" && !strings.ContainsAny(text[:1], " \t\r\n") {
		l.add(start, "write a space after /*", "VyOS reads this comment as a word")
	}
	l.line += strings.Count(text, "\n")
	l.src, l.inLeaf = l.src[2+end+2:], false
	return token{kind: tokenComment, text: text, line: start}, true
}
