package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Class is the kind of a DHCP client.
type Class string

// Classes of clients.
const (
	ClassNone Class = ""     // an operating system, or the agent
	ClassPXE  Class = "pxe"  // firmware, by TFTP (option 60 PXEClient)
	ClassHTTP Class = "http" // firmware, by HTTP (option 60 HTTPClient)
	ClassIPXE Class = "ipxe" // iPXE (option 77)
)

// Values of option 93 for which there is a loader, and ArchUnknown.
const (
	ArchBIOS     = 0
	ArchUEFIEBC  = 7 // RFC 4578 and IANA assign 7 and 9 differently: both are x64
	ArchUEFI     = 9
	ArchHTTPx86  = 15
	ArchHTTP     = 16
	ArchHTTPEBC  = 17
	ArchHTTPBIOS = 20
	ArchUnknown  = -1 // option 93 is missing
)

// Architectures returns the architectures that option 93 lists (RFC 4578 §2.1), in the client's order.
func Architectures(b []byte) (out []int) {
	for ; len(b) >= 2; b = b[2:] {
		out = append(out, int(binary.BigEndian.Uint16(b)))
	}
	return out
}

// HasLoader reports whether there is a loader for arch, a value of option 93.
func HasLoader(arch int) bool {
	switch arch {
	case ArchBIOS, ArchUEFIEBC, ArchUEFI, ArchHTTPx86, ArchHTTP, ArchHTTPEBC, ArchHTTPBIOS:
		return true
	}
	return false
}

// Options of iPXE (https://ipxe.org/howto/dhcpd).
const (
	IPXEOptions = 175 // the option that encloses iPXE's own options
	NoProxyDHCP = 176 // one of iPXE's own options: do not wait 3 s for a proxy offer
)

// ProxyPort is the port on which a PXE client asks its chosen server for the boot file (PXE 2.1 §2.2.3).
const ProxyPort = 4011

// decodeDHCP returns a DHCP packet as text, with its options sorted by code. Text that the client sent is quoted and
// shortened.
func decodeDHCP(payload []byte) string {
	p, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return "malformed packet"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s xid=%s secs=%d", p.MessageType(), p.TransactionID, p.NumSeconds)
	for _, a := range []struct {
		name string
		addr netip.Addr
	}{{"ciaddr", Addr4(p.ClientIPAddr)}, {"giaddr", Addr4(p.GatewayIPAddr)}} {
		if a.addr.IsValid() {
			fmt.Fprintf(&b, " %s=%s", a.name, a.addr)
		}
	}
	if p.IsBroadcast() {
		b.WriteString(" broadcast")
	}
	for _, code := range sortedOptions(p.Options) {
		if code != uint8(dhcpv4.OptionDHCPMessageType.Code()) {
			b.WriteString(" " + decodeOption(code, p.Options[code]))
		}
	}
	return b.String()
}

func sortedOptions(o dhcpv4.Options) []uint8 {
	codes := make([]uint8, 0, len(o))
	for code := range o {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	return codes
}

// decodeOption returns an option as code=value. Known options show addresses, numbers or text; others show bytes in
// hexadecimal (RFC 2132, 4578, 3046).
func decodeOption(code uint8, b []byte) string {
	const most = 64
	switch c := dhcpv4.GenericOptionCode(code); {
	case (c == 50 || c == 54) && len(b) == 4:
		return fmt.Sprintf("%d=%s", code, Addr4(b))
	case c == 12 || c == 60 || c == 77:
		return fmt.Sprintf("%d=%q", code, ShortText(string(b[:min(len(b), most)])))
	case c == 93 && len(b) >= 2 && len(b) <= most:
		names := make([]string, 0, len(b)/2)
		for _, arch := range Architectures(b) {
			names = append(names, iana.Arch(arch).String())
		}
		return fmt.Sprintf("%d=%s", code, strings.Join(names, ","))
	case c == 57 && len(b) == 2:
		return fmt.Sprintf("%d=%d", code, int(b[0])<<8|int(b[1]))
	case c == 55:
		return fmt.Sprintf("%d=%d", code, b[:min(len(b), most)])
	}
	if len(b) > most {
		return fmt.Sprintf("%d=%x…", code, b[:most])
	}
	return fmt.Sprintf("%d=%x", code, b)
}

// Reply is the part of a DHCP reply that the history keeps.
type Reply struct {
	Route   string // how the reply was sent; "" = no reply
	Kind    dhcpv4.MessageType
	Address netip.Addr
	File    string
}

func (a Reply) String() string {
	if a.Route == "" {
		return "not answered"
	}
	text := a.Kind.String() + " by " + a.Route
	if a.Address.IsValid() {
		text += ", address " + a.Address.String()
	}
	if a.File != "" {
		text += ", boot file " + a.File
	}
	return text
}

// ShortText returns s as printable ASCII, at most 64 characters.
func ShortText(s string) string { return plaintext.ASCII(s, 64) }
