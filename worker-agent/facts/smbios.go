package facts

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/ingotmetal/ingot/action"
)

// Types of SMBIOS structures (DSP0134).
const (
	smbiosIPMI = 38  // §7.39: IPMI device information
	smbiosHost = 42  // §7.43: management controller host interface
	smbiosEnd  = 127 // §7.46
)

// ReadSMBIOS returns the facts about the management controller in the firmware's tables, or nil if there are none. Firmware may contain
// malformed tables: reading ends at the first mistake.
func ReadSMBIOS(tables []byte) *action.InsideBMC {
	var out action.InsideBMC
	for len(tables) >= 4 {
		kind, length := tables[0], int(tables[1])
		if length < 4 || length > len(tables) || kind == smbiosEnd {
			break
		}
		switch s := tables[:length]; kind {
		case smbiosIPMI:
			if length > 5 { // revision in BCD
				out.IPMI = fmt.Sprintf("%d.%d", s[5]>>4, s[5]&15)
			}
		case smbiosHost:
			if at := redfishInterface(s); at != "" {
				out.Redfish = at
			}
		}
		// The structure is followed by its strings, which end with two zero bytes.
		tables = tables[length:]
		end := 0
		for end+1 < len(tables) && (tables[end] != 0 || tables[end+1] != 0) {
			end++
		}
		tables = tables[min(end+2, len(tables)):]
	}
	if out == (action.InsideBMC{}) {
		return nil
	}
	return &out
}

// redfishInterface returns the address (host:port) of the Redfish service that a management controller host interface names, or "".
// It looks for a network host interface (0x40) with a protocol record of Redfish over IP (4); DSP0270 §8.2 describes the record.
func redfishInterface(s []byte) string {
	const network, redfishOverIP = 0x40, 4
	if len(s) < 6 || s[4] != network || len(s) < 7+int(s[5]) {
		return ""
	}
	records := s[6+int(s[5]):]
	count := int(records[0])
	records = records[1:]
	for ; count > 0 && len(records) >= 2; count-- {
		kind, length := records[0], int(records[1])
		if len(records) < 2+length {
			return ""
		}
		if data := records[2 : 2+length]; kind == redfishOverIP && length >= 86 {
			return redfishService(data)
		}
		records = records[2+length:]
	}
	return ""
}

// redfishService returns the address (host:port) in a Redfish-over-IP record, or "".
func redfishService(data []byte) string {
	const v4, v6 = 1, 2
	format, address, port := data[51], data[52:68], binary.LittleEndian.Uint16(data[84:])
	var a netip.Addr
	switch format {
	case v4:
		a, _ = netip.AddrFromSlice(address[:4])
	case v6:
		a, _ = netip.AddrFromSlice(address)
	}
	if !a.IsValid() || a.IsUnspecified() || port == 0 {
		return ""
	}
	return net.JoinHostPort(a.String(), strconv.Itoa(int(port)))
}

// ipmiRequester sends requests to a management controller. A response is the data after the completion code; a completion code
// other than 0 is an error.
type ipmiRequester interface {
	request(netfn, command byte, data ...byte) ([]byte, error)
}

// Requests of IPMI 2.0.
const (
	ipmiApp, ipmiGetDeviceID, ipmiGetChannel = 0x06, 0x01, 0x42 // §20.1, §22.24
	ipmiTransport, ipmiGetLAN                = 0x0c, 0x02       // §23.2
	ipmiMediumLAN                            = 4                // §6.5
	ipmiLANAddress, ipmiLANMAC               = 3, 5             // §23.2, table 23-4
)

// askIPMI returns known with the versions and the maker of the management controller, and with the address of its first network
// channel that has one.
func askIPMI(bmc ipmiRequester, known *action.InsideBMC) (*action.InsideBMC, error) {
	id, err := bmc.request(ipmiApp, ipmiGetDeviceID)
	if err != nil {
		return known, err
	}
	out := action.InsideBMC{}
	if known != nil {
		out = *known
	}
	if len(id) > 4 {
		out.Firmware = fmt.Sprintf("%d.%02x", id[2]&0x7f, id[3]) // the minor number is BCD
		out.IPMI = fmt.Sprintf("%d.%d", id[4]&15, id[4]>>4)      // BCD, with the major number in the low half
	}
	if len(id) > 8 {
		out.Maker = int(id[6]) | int(id[7])<<8 | int(id[8]&15)<<16 // 20 bits
	}
	for channel := byte(1); channel <= 11; channel++ {
		info, err := bmc.request(ipmiApp, ipmiGetChannel, channel)
		if err != nil || len(info) < 2 || info[1]&0x7f != ipmiMediumLAN {
			continue // the channel does not exist, or is not a network channel
		}
		address, err := bmc.request(ipmiTransport, ipmiGetLAN, channel, ipmiLANAddress, 0, 0)
		if err != nil || len(address) < 5 {
			continue
		}
		a, _ := netip.AddrFromSlice(address[1:5])
		if a.IsUnspecified() {
			continue
		}
		out.Address = a.String()
		if mac, err := bmc.request(ipmiTransport, ipmiGetLAN, channel, ipmiLANMAC, 0, 0); err == nil && len(mac) >= 7 {
			out.MAC = net.HardwareAddr(mac[1:7]).String()
		}
		break
	}
	return &out, nil
}
