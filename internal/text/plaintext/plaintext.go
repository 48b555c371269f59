// Package plaintext makes text from machines, BMCs and networks safe for logs, terminals and pages.
package plaintext

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line replaces each control character (C0, DEL and C1), each byte that is not UTF-8, and each U+FFFD in s by a space. Then it returns the
// first n bytes, cut at the boundary of a rune.
func Line(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
	return Head(s, n)
}

// Words returns the words of s with one space between them. Control characters count as white space, because firmware may fill a field with
// them.
func Words(s string) string { return strings.Join(strings.Fields(Line(s, len(s))), " ") }

// Head returns the first n bytes of text, cut at the boundary of a rune.
func Head(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Clip returns the same as Head, followed by an ellipsis if text was cut.
func Clip(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return Head(text, n) + "…"
}

// Tail returns the last n bytes of text, cut at the boundary of a rune.
func Tail(text string, n int) string {
	if len(text) <= n {
		return text
	}
	i := len(text) - n
	for i < len(text) && !utf8.RuneStart(text[i]) {
		i++
	}
	return text[i:]
}

// ASCII removes all characters that are not printable ASCII from s, and returns the first n of the remaining characters.
func ASCII(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s)
	return s[:min(len(s), n)]
}
