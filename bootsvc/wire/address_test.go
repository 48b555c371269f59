package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
)

func TestParseMAC(t *testing.T) {
	for _, s := range []string{"52:54:00:20:01:01", "52-54-00-20-01-01", "5254.0020.0101", "525400200101", "52:54:00:20:01:01"} {
		if mac, ok := ParseMAC(strings.ToUpper(s)); !ok || mac != clientMAC {
			t.Errorf("%q: %q, %v", s, mac, ok)
		}
	}
	for _, s := range []string{"", "52:54:00:20:01", "52:54-00:20:01:01", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "52:54:00:20:01:0g", "52.54.00.20.01.01", "5254002001010"} {
		if mac, ok := ParseMAC(s); ok {
			t.Errorf("%q was read as %q", s, mac)
		}
	}
}

// The packet of a raw reply is valid for a client's IP stack.
func TestIPPacket(t *testing.T) {
	for _, size := range []int{300, 301} {
		b := IPPacket(netip.MustParseAddr("10.10.20.2"), netip.MustParseAddr(clientAddress), bytes.Repeat([]byte{0xab}, size))
		if checksum(b[:20], 0) != 0 {
			t.Error("IP checksum")
		}
		pseudo := uint32(17) + uint32(len(b)-20)
		for i := 12; i < 20; i += 2 {
			pseudo += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		if checksum(b[20:], pseudo) != 0 {
			t.Error("UDP checksum")
		}
		if int(binary.BigEndian.Uint16(b[2:])) != len(b) || int(binary.BigEndian.Uint16(b[24:])) != size+8 ||
			binary.BigEndian.Uint16(b[22:]) != 68 {
			t.Errorf("header % x", b[:28])
		}
	}
}
