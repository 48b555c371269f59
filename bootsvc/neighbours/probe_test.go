package neighbours

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/lab/pcap"
)

// A fakeNetwork is a socket on a network whose servers answer at once. A read without an answer times out.
type fakeNetwork struct {
	net.PacketConn
	t *testing.T
	// answers returns the last bytes of the addresses of the servers that answer the n-th DISCOVER, from 1.
	answers func(n int) []byte
	sent    int
	failAt  int // this DISCOVER cannot be sent; 0 = none
	queue   [][]byte
}

var errFake = errors.New("the network is down")

func (f *fakeNetwork) SetReadDeadline(time.Time) error { return nil }

func (f *fakeNetwork) WriteTo(b []byte, _ net.Addr) (int, error) {
	if f.sent++; f.sent == f.failAt {
		return 0, errFake
	}
	p, err := dhcpv4.FromBytes(b)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, server := range f.answers(f.sent) {
		r, err := dhcpv4.NewReplyFromRequest(p, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 0, 0, server))), dhcpv4.WithOption(dhcpv4.OptBootFileName("file")))
		if err != nil {
			f.t.Fatal(err)
		}
		f.queue = append(f.queue, r.ToBytes())
	}
	return len(b), nil
}

func (f *fakeNetwork) ReadFrom(b []byte) (int, net.Addr, error) {
	if len(f.queue) == 0 {
		return 0, nil, os.ErrDeadlineExceeded
	}
	n := copy(b, f.queue[0])
	f.queue = f.queue[1:]
	return n, &net.UDPAddr{}, nil
}

func names(servers []ForeignServer) (out []byte) {
	for _, x := range servers {
		out = append(out, x.Server.AsSlice()[3])
	}
	return out
}

// The wait ends when every known server has answered, and not when others have. Without known servers both DISCOVERs
// are sent, and each server is found once.
func TestAskServers(t *testing.T) {
	p, err := probeClients[0].newDiscover(make(net.HardwareAddr, 6))
	if err != nil {
		t.Fatal(err)
	}
	known := []ForeignServer{{Server: netip.MustParseAddr("10.0.0.1")}, {Server: netip.MustParseAddr("10.0.0.2")}}
	for name, c := range map[string]struct {
		known  []ForeignServer
		answer [2][]byte // to each DISCOVER
		want   []byte
		sent   int
	}{
		"all":                 {nil, [2][]byte{{1}, {1, 2}}, []byte{1, 2}, 2},
		"none":                {nil, [2][]byte{}, nil, 2},
		"both are known":      {known, [2][]byte{{1, 2, 3}, {}}, []byte{1, 2}, 1},
		"a new server first":  {known, [2][]byte{{3, 1, 2}, {}}, []byte{3, 1, 2}, 1},
		"the second is slow":  {known, [2][]byte{{3, 1}, {1, 2}}, []byte{3, 1, 2}, 2},
		"the second is quiet": {known, [2][]byte{{1}, {1}}, []byte{1}, 2},
	} {
		f := &fakeNetwork{t: t, answers: func(n int) []byte { return c.answer[n-1] }}
		found, err := askServers(t.Context(), f, p, c.known)
		if err != nil || !slices.Equal(names(found), c.want) || f.sent != c.sent {
			t.Errorf("%s: %v after %d DISCOVERs, %v", name, names(found), f.sent, err)
		}
	}
}

// A client that gets no answer has a nil one. After an error, the clients that were not asked have none.
func TestAskAs(t *testing.T) {
	one := func(n int) []byte {
		if n == 2 || n == 4 || n == 5 { // two DISCOVERs of the first client, one of the second, two of the third
			return nil
		}
		return []byte{1}
	}
	f := &fakeNetwork{t: t, answers: one}
	found, err := askAs(t.Context(), f, probeClients)
	if err != nil || len(found) != 1 || len(found[0].ByClient) != len(probeClients) {
		t.Fatalf("%+v, %v", found, err)
	}
	for n, c := range probeClients {
		if a := found[0].ByClient[c.name]; (a == nil) != (n == 2) || a != nil && a.BootFile != "file" {
			t.Errorf("the answer to %s is %+v", c.name, a)
		}
	}

	f = &fakeNetwork{t: t, answers: one, failAt: 4}
	found, err = askAs(t.Context(), f, probeClients)
	if !errors.Is(err, errFake) || len(found) != 1 || len(found[0].ByClient) != 2 {
		t.Errorf("after an error: %+v, %v", found, err)
	}
	for _, text := range []string{"UEFI PXE", "UEFI PXE as architecture 9"} {
		if found[0].ByClient[text] == nil {
			t.Errorf("the answer to %s is lost", text)
		}
	}
}

// The boot file of another server is in option 67 where the field file has options (option 52).
func TestOfferWithOptionsInFile(t *testing.T) {
	for overload, want := range map[byte]string{0: "header", 1: "option", 2: "header", 3: "option"} {
		p, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithOption(dhcpv4.OptBootFileName("option")),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 0, 0, 1))))
		if err != nil {
			t.Fatal(err)
		}
		p.OpCode, p.BootFileName = dhcpv4.OpcodeBootReply, "header"
		if overload > 0 {
			p.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionOptionOverload, []byte{overload}))
		}
		if f, ok := parseOffer(p.ToBytes(), p.TransactionID); !ok || f.BootFile != want {
			t.Errorf("option 52 = %d: %q, want %q", overload, f.BootFile, want)
		}
	}
}

func FuzzOffer(f *testing.F) {
	captured, err := pcap.Read("../testdata/captures/*.pcap", pcap.UDP, 67, 68, 4011)
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range captured {
		f.Add(c.Payload)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var id dhcpv4.TransactionID
		if len(b) >= 8 {
			id = dhcpv4.TransactionID(b[4:8])
		}
		if o, ok := parseOffer(b, id); ok && (!o.Server.IsValid() || len(o.BootFile) > 64) {
			t.Fatalf("%+v", o)
		}
	})
}
