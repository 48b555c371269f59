package plaintext_test

import (
	"testing"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

func TestLine(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""},
		{"Größe", 9, "Größe"},
		{"Größe", 3, "Gr"}, // ö has two bytes
		{"a\r\nb\tc\x7fd", 99, "a  b c d"},
		{"\x1b[31mred", 99, " [31mred"},
		{"\u009b31mred", 99, " 31mred"}, // C1: CSI in one character
		{"a\xffb\uFFFDc", 99, "a b c"},
	} {
		if got := plaintext.Line(c.in, c.n); got != c.want {
			t.Errorf("Line(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestASCII(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"pxelinux.0", 64, "pxelinux.0"},
		{"pxelinux.0", 3, "pxe"},
		{"a\x00b\x1bc\x7f d~é\u009b\xff", 64, "abc d~"},
	} {
		if got := plaintext.ASCII(c.in, c.n); got != c.want {
			t.Errorf("ASCII(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}
