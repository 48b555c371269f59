package bootsvc

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// FuzzProxy sends packets to ports 67 and 4011 of an interface in mode proxy. Whatever they hold, no
// answer gives an address, is much larger than the request, or goes to a foreign network.
func FuzzProxy(f *testing.F) {
	for _, c := range dhcpPackets(f, captures) {
		f.Add(c.Payload, false, uint32(0x0a0a14aa))
		f.Add(c.Payload, true, uint32(0x0a0a14aa))
	}

	m := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	s, _ := newServer(f, m, inMode(inventory.DHCPProxy))
	own := netip.MustParsePrefix("10.10.20.2/24")
	f.Fuzz(func(t *testing.T, b []byte, bootServer bool, source uint32) {
		if len(b) >= 34 {
			copy(b[28:], []byte{0x52, 0x54, 0, 0x20, 1, 1}) // the known machine
		}
		from := netip.AddrFrom4([4]byte{byte(source >> 24), byte(source >> 16), byte(source >> 8), byte(source)})
		in := dhcp.Link{
			Name: "lo", Prefixes: []netip.Prefix{own}, Mode: inventory.DHCPProxy, Port: dhcpv4.ServerPort,
			From: netip.AddrPortFrom(from, 68),
		}
		if bootServer {
			in.Port = wire.ProxyPort
		}
		r := s.dhcp.Handle(t.Context(), b, in)
		if r.Route == dhcp.RouteNone {
			return
		}

		sent := r.Packet.ToBytes()
		if len(sent) > len(b)+400 {
			t.Fatalf("%d bytes were answered by %d", len(b), len(sent))
		}
		if p, err := dhcpv4.FromBytes(sent); err != nil || !p.YourIPAddr.IsUnspecified() {
			t.Fatalf("the reply gives an address or cannot be read: %v, %v", p, err)
		}
		relay := netip.MustParsePrefix("10.10.30.0/24")
		if r.To.IsValid() && !own.Contains(r.To) && !relay.Contains(r.To) {
			t.Fatalf("the reply goes to %s", r.To)
		}
	})
}

// FuzzRange asks for parts of an image. The answer is exactly the part that its Content-Range names, or
// the whole file.
func FuzzRange(f *testing.F) {
	content := make([]byte, 10_000)
	for i := range content {
		content[i] = byte(i * i >> 3)
	}
	for _, r := range []string{
		"", "bytes=0-", "bytes=0-0", "bytes=9999-", "bytes=-1", "bytes=-0", "bytes=10000-", "bytes=5-4", "bytes=0-1,3-4",
		"bytes=18446744073709551615-", "bytes=-9223372036854775808", "lines=1-2", "bytes=1-2;", "bytes= 1 - 2 ",
	} {
		f.Add(r, "", "")
		f.Add(r, `"`+strings.Repeat("ab", 32)+`"`, `"x"`)
	}
	s, _ := newServer(f, &fakeMachines{}, func(c *Config) { c.Images = imageFiles{"x": string(content)} })
	h := s.Handler()
	f.Fuzz(func(t *testing.T, ranges, ifRange, ifNoneMatch string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://10.10.20.2/images/x", nil)
		r.Header.Set("Range", ranges)
		r.Header.Set("If-Range", ifRange)
		r.Header.Set("If-None-Match", ifNoneMatch)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)

		want := content
		switch w.Code {
		case http.StatusOK:
		case http.StatusNotModified, http.StatusRequestedRangeNotSatisfiable:
			return
		case http.StatusPartialContent:
			span, size, _ := strings.Cut(strings.TrimPrefix(w.Header().Get("Content-Range"), "bytes "), "/")
			first, last, _ := strings.Cut(span, "-")
			a, errA := strconv.Atoi(first)
			b, errB := strconv.Atoi(last)
			// net/http answers "bytes=-0" with an empty part; RFC 9110 §14.1.2 would have 416.
			if errA != nil || errB != nil || size != "10000" || a < 0 || a > b+1 || b >= len(content) {
				t.Fatalf("%q: Content-Range %q", ranges, w.Header().Get("Content-Range"))
			}
			want = content[a : b+1]
		default:
			t.Fatalf("%q: %d", ranges, w.Code)
		}
		if !bytes.Equal(w.Body.Bytes(), want) {
			t.Fatalf("%q: %d bytes, not the %d that were named", ranges, w.Body.Len(), len(want))
		}
	})
}
