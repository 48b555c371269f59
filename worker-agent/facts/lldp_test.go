package facts

import (
	"strings"
	"testing"
	"unicode"

	"github.com/ingotmetal/ingot/action"
)

// tlv returns a TLV of LLDP.
func tlv(kind int, value string) string {
	return string([]byte{byte(kind<<1 | len(value)>>8), byte(len(value))}) + value
}

func TestParseLLDP(t *testing.T) {
	ttl, end := tlv(3, "\x00\x78"), tlv(0, "")
	for name, c := range map[string]struct {
		frame string
		want  action.Neighbour
	}{
		"a switch": {
			tlv(1, "\x04\x02\x00\x00\x00\x00\x01") + tlv(2, "\x05Ethernet1/7") + ttl + tlv(4, "to rack a1\x1b[31m") + tlv(5, "leaf-1") + end + "padding",
			action.Neighbour{System: "leaf-1", Chassis: "02:00:00:00:00:01", Port: "Ethernet1/7", Description: "to rack a1 [31m"},
		},
		"network addresses": {
			tlv(1, "\x05\x01\x0a\x00\x00\x01") + tlv(2, "\x04\x01\x0a\x00\x00\x02") + ttl + end,
			action.Neighbour{Chassis: "10.0.0.1", Port: "10.0.0.2"},
		},
		"without a port": {tlv(1, "\x07leaf") + ttl + end, action.Neighbour{}},
		"without an end": {tlv(1, "\x07leaf") + tlv(2, "\x07one") + ttl, action.Neighbour{}},
		"cut":            {tlv(1, "\x07leaf") + tlv(2, "\x07one")[:3], action.Neighbour{}},
		"empty":          {"", action.Neighbour{}},
	} {
		got, err := parseLLDP([]byte(c.frame))
		if got != c.want || (err == nil) != (c.want != action.Neighbour{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func FuzzParseLLDP(f *testing.F) {
	f.Add([]byte(tlv(1, "\x04\x02\x00\x00\x00\x00\x01") + tlv(2, "\x05Ethernet1/7") + tlv(3, "\x00\x78") + tlv(5, "leaf-1") + tlv(0, "")))
	f.Add([]byte(tlv(1, "\x07leaf\u009b31m") + tlv(2, "\x051/7") + tlv(0, ""))) // begins an escape sequence in a terminal
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := parseLLDP(b)
		if (err == nil) != (n.Chassis != "" && n.Port != "") {
			t.Fatalf("%+v, %v", n, err)
		}
		for _, text := range []string{n.System, n.Chassis, n.Port, n.Description} {
			if len(text) > 2*maxLLDPText+2 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Fatalf("%q", text)
			}
		}
	})
}
