package tftp

import (
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/lab/pcap"
)

// tftpPackets returns the TFTP packets of the captures: requests of clients, and acknowledged options.
func tftpPackets(f *testing.F) (out [][]byte) {
	f.Helper()
	packets, err := pcap.Read("../testdata/captures/*.pcap", pcap.UDP)
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range packets {
		if p.Payload[0] == 0 && len(p.Payload) > 2 { // DHCP begins with 1 or 2
			out = append(out, p.Payload)
		}
	}
	return out
}

// fuzzTFTP serves a loader. It returns the wire, and a function that returns the address of the next client.
func fuzzTFTP(f *testing.F) (*fakeWire, func() netip.AddrPort) {
	f.Helper()
	port := uint16(0)
	return serveWire(f, newService(serveLoader)), func() netip.AddrPort {
		port++
		return netip.AddrPortFrom(client, max(port, 1))
	}
}

// finish ends the transfer with an error from peer, waits until the server has ended it,
// and checks the packets that were sent.
func (w *fakeWire) finish(t *testing.T, peer netip.AddrPort) {
	t.Helper()
	// When the second packet is taken, the first has been handled.
	for range 2 {
		w.in <- datagram{peer: peer, local: ownHost, content: []byte("\x00\x05\x00\x00enough\x00")}
	}
	for w.has(peer) {
		runtime.Gosched()
	}
	for _, d := range w.take() {
		switch {
		case d.peer != peer:
			t.Fatalf("%s was sent %q", d.peer, d.content)
		case len(d.content) > maxBlock+4:
			t.Fatalf("%d bytes were sent", len(d.content))
		case d.content[1] == opOACK:
			options := strings.Split(strings.TrimSuffix(string(d.content[2:]), "\x00"), "\x00")
			if len(options)%2 != 0 || len(options) > 8 || len(d.content) > 80 {
				t.Fatalf("options %q", d.content)
			}
		}
	}
}

// FuzzTFTPOptions: with any bytes after the mode of a request, the transfer begins and
// ends, and the answer has at most four options with numbers of the server (security S34).
func FuzzTFTPOptions(f *testing.F) {
	for _, options := range []string{
		"", "blksize\x001428\x00tsize\x000\x00", "blksize\x00" + strings.Repeat("0", 470) + "512\x00", "BLKSIZE\x008\x00", "tsize\x00-1\x00windowsize\x0064\x00",
		strings.Repeat("blksize\x00512\x00", 30), "\x00\x00\x00", "blksize", "blksize\x00", "windowsize\x0065536\x00blksize\x008\x00", "timeout\x00255\x00multicast\x00\x00", strings.Repeat("x", 1400),
	} {
		f.Add("octet\x00" + options)
	}
	f.Add("netascii\x00tsize\x000\x00")
	for _, p := range tftpPackets(f) {
		if _, afterName, ok := strings.Cut(string(p[2:]), "\x00"); ok && p[1] == opRRQ {
			f.Add(afterName)
		}
	}
	w, next := fuzzTFTP(f)
	f.Fuzz(func(t *testing.T, options string) {
		peer := next()
		w.in <- datagram{peer: peer, local: ownHost, content: []byte("\x00\x01snponly.efi\x00" + options)}
		w.finish(t, peer)
	})
}

// FuzzTFTPTransfer: with any packets of a client during a transfer, the transfer ends.
// The input is a list of packets, each after a byte with its length in units of six
// bytes (security S34).
func FuzzTFTPTransfer(f *testing.F) {
	const oack = "\x01\x00\x04\x00\x00\x00\x00"
	for _, packets := range []string{
		"", oack, oack + "\x01\x00\x04\x00\x01\x00\x00" + "\x01\x00\x04\x00\x02\x00\x00", "\x78\x00\x03" + strings.Repeat("x", 718), "\xff\x00\x06" + strings.Repeat("blksize\x0065464\x00", 110),
		oack + oack + oack, "\xc8\x00\x01snponly.efi\x00octet\x00" + strings.Repeat("x", 1200), "\x01\x00\x05\x00\x00\x00\x00" + oack, "\x00\x00\x00", "\x01\x00\x02\x00\x00\x00\x00",
	} {
		f.Add(packets)
	}
	for _, p := range tftpPackets(f) {
		units := (len(p) + 5) / 6
		f.Add(string([]byte{byte(units)}) + string(p) + strings.Repeat("\x00", 6*units-len(p)) + oack)
	}
	w, next := fuzzTFTP(f)
	f.Fuzz(func(t *testing.T, packets string) {
		peer := next()
		w.in <- datagram{peer: peer, local: ownHost, content: []byte("\x00\x01snponly.efi\x00octet\x00tsize\x000\x00")}
		for len(packets) > 0 {
			n := min(6*int(packets[0]), len(packets)-1)
			w.in <- datagram{peer: peer, local: ownHost, content: []byte(packets[1 : 1+n])}
			packets = packets[1+n:]
		}
		w.finish(t, peer)
	})
}
