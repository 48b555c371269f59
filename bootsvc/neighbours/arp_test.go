package neighbours

import (
	"net"
	"net/netip"
	"testing"
)

// S35: the packets of any host end nothing, whatever their length, and only the sender's own address counts.
func TestARPSender(t *testing.T) {
	a := netip.MustParseAddr("10.10.20.11")
	const hostMAC = "52:54:00:20:01:01"
	hw, err := net.ParseMAC(hostMAC)
	if err != nil {
		t.Fatal(err)
	}
	question := arpQuestion(hw, a)
	if _, ok := arpSender(question, a); ok || len(question) != arpLength {
		t.Error("a probe has a sender's address")
	}
	answer := append([]byte(nil), question...)
	answer[7] = 2
	copy(answer[14:], a.AsSlice())
	if mac, ok := arpSender(answer, a); !ok || mac != hostMAC {
		t.Errorf("an answer: %q", mac)
	}
	if _, ok := arpSender(answer, netip.MustParseAddr("10.10.20.2")); ok {
		t.Error("an answer of another address")
	}
	for n := range answer {
		if _, ok := arpSender(answer[:n], a); ok {
			t.Errorf("%d bytes", n)
		}
	}
}
