package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/ingotmetal/ingot/inventory"
)

// frame returns an Ethernet frame with IPv4 and UDP.
func frame(t testing.TB, from, to string, source, target netip.AddrPort, payload []byte) []byte {
	t.Helper()
	var b []byte
	for _, mac := range []string{to, from} {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, hw...)
	}
	b = append(b, 8, 0)
	ip := IPPacket(source.Addr(), target.Addr(), payload)
	binary.BigEndian.PutUint16(ip[20:], source.Port())
	binary.BigEndian.PutUint16(ip[22:], target.Port())
	return append(b, ip...)
}

// Of all frames, a capture takes the machine's: first the kernel's filter, then the server's.
func TestCaptureTakesTheMachinesPackets(t *testing.T) {
	const other, router = "52:54:00:99:99:99", "52:54:00:00:00:01"
	at := netip.MustParseAddrPort
	arp := func(from, sender, target string) []byte {
		hw, _ := net.ParseMAC(from)
		b := append(append(append([]byte{255, 255, 255, 255, 255, 255}, hw...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1), hw...)
		b = append(b, netip.MustParseAddr(sender).AsSlice()...)
		return append(append(b, 0, 0, 0, 0, 0, 0), netip.MustParseAddr(target).AsSlice()...)
	}
	dhcp := discover(t).ToBytes()
	for name, x := range map[string]struct {
		frame     []byte
		boot, all bool
	}{
		"DISCOVER":            {frame(t, clientMAC, "ff:ff:ff:ff:ff:ff", at("0.0.0.0:68"), at("255.255.255.255:67"), dhcp), true, true},
		"DISCOVER of a relay": {frame(t, router, other, at("10.10.30.1:67"), at("10.10.20.2:67"), dhcp), true, true},
		"proxy":               {frame(t, router, other, at("10.10.20.77:68"), at("10.10.20.2:4011"), dhcp), true, true},
		"TFTP":                {frame(t, clientMAC, other, at("10.10.20.11:2001"), at("10.10.20.2:6969"), []byte("x")), true, true},
		"TFTP answer":         {frame(t, other, clientMAC, at("10.10.20.2:6969"), at("10.10.20.11:2001"), []byte("x")), true, true},
		"TFTP by a router":    {frame(t, router, other, at("10.10.20.11:2001"), at("10.10.20.2:6969"), nil), true, true},
		"syslog":              {frame(t, clientMAC, other, at("10.10.20.11:2001"), at("10.10.20.2:5514"), []byte("x")), true, true},
		"HTTP":                {frame(t, clientMAC, other, at("10.10.20.11:2001"), at("10.10.20.2:80"), []byte("x")), false, true},
		"HTTP by a router":    {frame(t, router, other, at("10.10.20.2:80"), at("10.10.20.11:2001"), []byte("x")), false, true},
		"ARP for it":          {arp(other, "10.10.20.2", clientAddress), true, true},
		"its ARP":             {arp(clientMAC, clientAddress, "10.10.20.2"), true, true},
		"ARP of others":       {arp(other, "10.10.20.2", "10.10.20.99"), false, false},
		"TFTP of another":     {frame(t, other, router, at("10.10.20.99:2001"), at("10.10.20.2:6969"), []byte("x")), false, false},
		"IPv6":                {append(bytes.Repeat([]byte{2}, 12), 0x86, 0xdd, 0x60), false, false},
		"short":               {[]byte{1, 2, 3}, false, false},
	} {
		for _, all := range []bool{false, true} {
			c := onlyClients(all)
			vm, err := bpf.NewVM(c.filter([]uint16{67, 68, 4011, 6969, 5514}))
			if err != nil {
				t.Fatal(err)
			}
			n, err := vm.Run(x.frame)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want := x.boot
			if all {
				want = x.all
			}
			if got := n > 0 && c.takes(x.frame); got != want {
				t.Errorf("%s, all %v: %v", name, all, got)
			}
		}
	}
}

func FuzzCaptureTakes(f *testing.F) {
	dhcp := discover(f).ToBytes()
	f.Add(frame(f, clientMAC, "ff:ff:ff:ff:ff:ff", netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), dhcp))
	f.Add(append(make([]byte, 12), 8, 6))
	f.Add(append(make([]byte, 12), 8, 0, 0x4f))
	c := onlyClients(true)
	vm, err := bpf.NewVM(c.filter([]uint16{67, 68, 69}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c.takes(b)
		if _, err := vm.Run(b); err != nil {
			t.Fatal(err)
		}
	})
}

// A capture has a size that it does not exceed.
func TestCaptureIsBounded(t *testing.T) {
	var b bytes.Buffer
	p := &pcapWriter{w: &b, left: 24 + 2*(16+100)}
	if err := p.begin(); err != nil {
		t.Fatal(err)
	}
	for n, want := range []error{nil, nil, errCaptureFull, errCaptureFull} {
		if err := p.add(someTime, make([]byte, 100)); !errors.Is(err, want) {
			t.Errorf("packet %d: %v", n, err)
		}
	}
	if b.Len() != 24+2*116 {
		t.Errorf("%d bytes", b.Len())
	}
}

// onlyClients selects the packets of one machine.
func onlyClients(all bool) Capture {
	return CaptureOf(inventory.Machine{Interfaces: []inventory.Interface{
		{MAC: clientMAC, Address: netip.MustParseAddr(clientAddress)},
	}}, all)
}
