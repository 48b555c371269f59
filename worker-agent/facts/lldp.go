package facts

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/text/plaintext"
)

// Types of TLVs and subtypes of identifiers (IEEE 802.1AB-2016, 8.5).
const (
	lldpEnd             = 0
	lldpChassis         = 1
	lldpPort            = 2
	lldpPortDescription = 4
	lldpSystemName      = 5

	chassisMAC, chassisNetwork = 4, 5
	portMAC, portNetwork       = 3, 4
)

// maxLLDPText is the size limit of each text of a neighbour, in bytes. The standard allows 255.
const maxLLDPText = 255

var errLLDP = errors.New("malformed LLDP frame")

// parseLLDP returns the sender of an LLDP frame with the payload b (IEEE 802.1AB). Chassis and port are mandatory; the other fields may be
// "". Texts contain only printable characters.
func parseLLDP(b []byte) (n action.Neighbour, err error) {
	for {
		if len(b) < 2 {
			return action.Neighbour{}, errLLDP
		}
		head := binary.BigEndian.Uint16(b)
		kind, size := int(head>>9), int(head&0x1ff)
		if b = b[2:]; size > len(b) {
			return action.Neighbour{}, errLLDP
		}
		value := b[:size]
		b = b[size:]

		switch kind {
		case lldpEnd:
			if n.Chassis == "" || n.Port == "" {
				return action.Neighbour{}, errLLDP
			}
			return n, nil
		case lldpChassis:
			n.Chassis = lldpID(value, chassisMAC, chassisNetwork)
		case lldpPort:
			n.Port = lldpID(value, portMAC, portNetwork)
		case lldpPortDescription:
			n.Description = lldpText(value)
		case lldpSystemName:
			n.System = lldpText(value)
		}
	}
}

// lldpID returns the identifier b as text. b begins with a subtype: after the subtype mac follows a MAC address, after network a
// network address, and after any other subtype text.
func lldpID(b []byte, mac, network byte) string {
	if len(b) < 2 {
		return ""
	}
	subtype, value := b[0], b[1:]
	switch {
	case subtype == mac && len(value) == 6:
		return net.HardwareAddr(value).String()
	case subtype == network:
		// The first byte is the address family (IANA): 1 = IPv4, 2 = IPv6.
		if a, ok := netip.AddrFromSlice(value[1:]); ok {
			return a.String()
		}
		return hex.EncodeToString(value[:min(len(value), maxLLDPText/2)])
	}
	return lldpText(value)
}

func lldpText(b []byte) string { return plaintext.Words(string(b[:min(len(b), maxLLDPText)])) }
