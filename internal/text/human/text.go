package human

import (
	"fmt"
	"strings"
)

// Dangerous reports whether a terminal could interpret r: control characters, and marks that
// reorder text. It also reports the two noncharacters that YAML does not allow.
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

// Escape writes characters that a terminal could interpret as JSON's \u escapes, which keeps
// the value of a string in JSON and of a double-quoted one in YAML.
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
