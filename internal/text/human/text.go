package human

import (
	"fmt"
	"strings"
)

// Dangerous reports whether a terminal could interpret r instead of showing it: r is a control character or a mark that reorders text. It
// is also true for U+FFFE and U+FFFF, which YAML does not allow.
func Dangerous(r rune) bool {
	switch {
	case r < ' ', r >= 0x7f && r < 0xa0: // C0, DEL, C1
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069: // text direction
		return true
	case r == 0xfffe, r == 0xffff:
		return true
	}
	return false
}

// Escape returns text with every Dangerous character, except line feeds, replaced by the \u escape of JSON. The value of a JSON string or a
// double-quoted YAML string stays the same.
func Escape(text string) string {
	var b strings.Builder
	for _, r := range text {
		if Dangerous(r) && r != '\n' {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}

	return b.String()
}
