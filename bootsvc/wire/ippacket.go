package wire

import (
	"encoding/binary"
	"net/netip"
)

// Hton16 converts v from host to network byte order (byteorder(3)).
func Hton16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// IPPacket returns payload with IPv4 and UDP headers, from port 67 to port 68. The UDP checksum is optional in IPv4,
// but some firmware requires it.
func IPPacket(src, dst netip.Addr, payload []byte) []byte {
	b := make([]byte, 28, 28+len(payload))
	b = append(b, payload...)
	ip, udp := b[:20], b[20:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(b)))
	copy(ip[12:], src.AsSlice())
	copy(ip[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip, 0))
	binary.BigEndian.PutUint16(udp[0:], 67)
	binary.BigEndian.PutUint16(udp[2:], 68)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	pseudo := uint32(17) + uint32(len(udp))
	for i := 12; i < 20; i += 2 {
		pseudo += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum := checksum(udp, pseudo)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

func checksum(b []byte, s uint32) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
