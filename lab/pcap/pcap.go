// Package pcap reads capture files for tests.
package pcap

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Protocol numbers in the IPv4 header.
const (
	TCP = 6
	UDP = 17
)

// Packet is an IPv4 packet with a TCP or UDP payload.
type Packet struct {
	N        int // number of the packet in the file, from 1
	At       time.Time
	Src, Dst netip.AddrPort
	Payload  []byte // of UDP or TCP
}

// Read returns the packets of a protocol in the files that match pattern. If ports are given, it returns only packets
// to one of these ports. The files must be classic pcap files, little-endian, of Ethernet with timestamps in
// microseconds. Read ignores a packet that is truncated by the end of its file.
func Read(pattern string, protocol byte, ports ...uint16) ([]Packet, error) {
	files, err := filepath.Glob(pattern)
	if err == nil && len(files) == 0 {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("finding captures %q: %w", pattern, err)
	}
	var out []Packet
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 || binary.LittleEndian.Uint32(b[20:]) != 1 {
			return nil, fmt.Errorf("reading %q: not a capture of Ethernet frames", file)
		}
		b = b[24:]
		for n := 1; len(b) >= 16; n++ {
			p := Packet{N: n, At: time.Unix(int64(binary.LittleEndian.Uint32(b)), int64(binary.LittleEndian.Uint32(b[4:]))*1000)}
			end := 16 + int(binary.LittleEndian.Uint32(b[8:]))
			if end > len(b) {
				break
			}
			if p.decode(b[16:end], protocol) && (len(ports) == 0 || slices.Contains(ports, p.Dst.Port())) {
				out = append(out, p)
			}
			b = b[end:]
		}
	}
	return out, nil
}

// Requests returns the HTTP requests to port 80 in the files that match pattern. Each request must fit in one packet.
func Requests(pattern string) (out []*http.Request, err error) {
	packets, err := Read(pattern, TCP, 80)
	for _, p := range packets {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(p.Payload)))
		if err != nil {
			return nil, fmt.Errorf("reading the HTTP request in packet %d: %w", p.N, err)
		}
		out = append(out, r)
	}
	return out, err
}

// decode parses an Ethernet frame into p. It returns false unless the frame contains an IPv4 packet with a payload of
// the given protocol.
func (p *Packet) decode(frame []byte, protocol byte) bool {
	if len(frame) < 14+20 || frame[12] != 8 || frame[13] != 0 || frame[14+9] != protocol {
		return false
	}
	ip := frame[14:]
	if size := int(binary.BigEndian.Uint16(ip[2:])); size >= 20 && size < len(ip) {
		ip = ip[:size] // the rest is padding of the frame
	}
	head := 4 * int(ip[0]&15)
	data := head + 8
	if protocol == TCP && len(ip) > head+12 {
		data = head + 4*int(ip[head+12]>>4)
	}
	if len(ip) <= data {
		return false
	}
	address := func(at, port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[at:at+4])), binary.BigEndian.Uint16(ip[head+port:]))
	}
	p.Src, p.Dst, p.Payload = address(12, 0), address(16, 2), ip[data:]
	return true
}
