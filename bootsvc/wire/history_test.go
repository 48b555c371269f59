package wire

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/lab/pcap"
)

// The last requests of a client are listed oldest first, also after older ones were replaced.
func TestHistoryIsInOrder(t *testing.T) {
	for _, sent := range []int{1, maxEach, maxEach + 1, 3*maxEach - 1} {
		w := NewHistory()
		for n := range sent {
			w.Add(clientMAC, Entry{Request: strconv.Itoa(n)})
		}
		kept := w.Of(clientMAC)
		if len(kept) != min(sent, maxEach) {
			t.Fatalf("%d of %d kept", len(kept), sent)
		}
		for n, h := range kept {
			if h.Request != strconv.Itoa(sent-len(kept)+n) {
				t.Errorf("request %s of %d is number %d", h.Request, sent, n)
			}
		}
	}
}

// What is remembered of a client that was forgotten is not shown for the one that takes its place, and a packet is copied.
func TestHistoryReusesMemory(t *testing.T) {
	w := NewHistory()
	mac := func(n int) string { return net.HardwareAddr{2, 0, 0, 0, byte(n >> 8), byte(n)}.String() }
	b := discover(t).ToBytes()
	for n := range 2 * maxMACs {
		for k := range maxEach {
			w.Add(mac(n), Entry{Packet: b, Answer: Reply{File: strconv.Itoa(n*maxEach + k)}})
		}
	}
	clear(b)
	const last = 2*maxMACs - 1
	if got := w.Of(mac(last)); len(got) != maxEach || !strings.HasPrefix(got[0].Request, "DISCOVER") {
		t.Errorf("%+v", got)
	}
	w.Add(mac(0), Entry{Request: "GET /"})
	if got := w.Of(mac(0)); len(got) != 1 || got[0].Request != "GET /" {
		t.Errorf("a new client has %+v", got)
	}
}

func FuzzDecodeDHCP(f *testing.F) {
	captured, err := pcap.Read("../testdata/captures/*.pcap", pcap.UDP, 67, 68, 4011)
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range captured {
		f.Add(c.Payload)
	}
	f.Add(discover(f, dhcpv4.WithGeneric(dhcpv4.OptionRelayAgentInformation, []byte{5, 4, 10, 10, 20, 1})).ToBytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		text := decodeDHCP(b)
		if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			t.Fatalf("control characters in %q", text)
		}
		if len(text) > 200+len(b)*8 {
			t.Fatalf("%d characters for %d bytes", len(text), len(b))
		}
	})
}

// Nothing is kept of transfers that have ended.
func TestTransfersEnd(t *testing.T) {
	w := NewHistory()
	first, second := w.BeginTransfer(clientMAC), w.BeginTransfer(clientMAC)
	first()
	if !w.HasAskedSince(clientMAC, someTime) {
		t.Error("a machine that is being sent a file does not count as received")
	}
	second()
	if w.HasAskedSince(clientMAC, someTime) || len(w.sending) > 0 {
		t.Errorf("%d transfers have not ended", len(w.sending))
	}
}
