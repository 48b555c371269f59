package dhcp

import (
	"encoding/binary"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// Sizes in bytes. Message sizes include the IP and UDP headers.
const (
	leastMessage = 576              // every client accepts this size (RFC 2131 §2)
	mostMessage  = 1500             // the Ethernet MTU; a longer message would be fragmented, and ROMs do not reassemble fragments
	messageHead  = 20 + 8 + 236 + 4 // IP, UDP, DHCP's fields, magic cookie

	// Room for options in the fields file and sname (RFC 2131 §2): what the library writes, minus the end option.
	fileRoom, snameRoom = 127 - 1, 63 - 1
)

// spareable are the options that a client can do without, least important first. The log server and the broadcast
// address have usual defaults, and sname and siaddr contain the same as option 66.
var spareable = []dhcpv4.OptionCode{
	dhcpv4.OptionLogServer, dhcpv4.OptionBroadcastAddress, dhcpv4.OptionTFTPServerName, dhcpv4.OptionNTPServers,
	dhcpv4.OptionDomainName, dhcpv4.OptionHostName,
}

// reaching are the options with which a client reaches other hosts, least important first. Option 3 is enough without
// option 121, except for the metadata address.
var reaching = []dhcpv4.OptionCode{
	dhcpv4.OptionDomainNameServer, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter,
}

// optionRoom returns how many bytes of options the client of p accepts in a reply, according to option 57 (RFC 2132
// §9.10).
func optionRoom(p *dhcpv4.DHCPv4) int {
	most := leastMessage
	if b := p.Options.Get(dhcpv4.OptionMaximumDHCPMessageSize); len(b) == 2 {
		most = min(max(int(binary.BigEndian.Uint16(b)), leastMessage), mostMessage)
	}
	return most - messageHead - 1 // minus the end option (255)
}

// optionSize returns the encoded size of an option with n bytes of content, which may be split into several parts (RFC
// 3396).
func optionSize(n int) int { return n + 2*max(1, (n+254)/255) }

// optionsSize returns the encoded size of all options, without the end option (255).
func optionsSize(o dhcpv4.Options) (size int) {
	for _, b := range o {
		size += optionSize(len(b))
	}
	return size
}

// shortenReply removes options until r fits the size that e's client accepts, in this order: the spareable options
// that the client did not request (option 55), the other spareable options, the reaching options. If the client is not
// booting, it moves options into file and sname (option 52) after the first step; clients that boot, such as iPXE, may
// not read them there. Option 82 alone never costs a client the reaching options, because the relay removes option 82
// (RFC 3046 §2.1).
//
// Options that the protocol requires, or that the client or the relay sent, stay in any case. The log lists the
// removed options.
func (e *exchange) shortenReply(r *dhcpv4.DHCPv4) {
	room := optionRoom(e.Packet)
	if optionsSize(r.Options) <= room {
		return
	}
	var out []int
	leaveOut := func(codes []dhcpv4.OptionCode, room int, asked []byte) {
		for _, code := range codes {
			if optionsSize(r.Options) > room && r.Options.Has(code) && !slices.Contains(asked, code.Code()) {
				r.Options.Del(code)
				out = append(out, int(code.Code()))
			}
		}
	}
	if asked := e.Packet.Options.Get(dhcpv4.OptionParameterRequestList); len(asked) > 0 {
		leaveOut(spareable, room, asked)
	}
	if e.Class == wire.ClassNone {
		overload(r, room)
	}
	leaveOut(spareable, room, nil)
	if r.Options.Has(dhcpv4.OptionRelayAgentInformation) {
		room += optionSize(len(r.Options.Get(dhcpv4.OptionRelayAgentInformation)))
	}
	leaveOut(reaching, room, nil)
	if len(out) > 0 {
		e.log().Warn("the DHCP client accepts only short messages (option 57), so options are left out of the reply", "options", out)
	}
}

// overload moves options into the fields file and sname until the others fit into room bytes (option 52, RFC 2132
// §9.3). Both fields must be empty.
func overload(r *dhcpv4.DHCPv4, room int) {
	fields := []struct {
		to   *string
		flag byte
		room int
	}{{&r.BootFileName, 1, fileRoom}, {&r.ServerHostName, 2, snameRoom}}
	movable := slices.Concat(spareable, reaching, []dhcpv4.OptionCode{dhcpv4.OptionClientIdentifier})
	slices.SortStableFunc(movable, func(a, b dhcpv4.OptionCode) int { return len(r.Options.Get(b)) - len(r.Options.Get(a)) })

	for _, code := range movable {
		b := r.Options.Get(code)
		for n := range fields {
			f := &fields[n]
			if size := optionSize(len(b)); b == nil || optionsSize(r.Options) <= room || len(*f.to)+size > f.room {
				continue
			}
			*f.to += string(append([]byte{code.Code(), byte(len(b))}, b...))
			used := r.Options.Get(dhcpv4.OptionOptionOverload)
			if len(used) == 0 {
				used = []byte{0}
			}
			r.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionOptionOverload, []byte{used[0] | f.flag}))
			r.Options.Del(code)
			break
		}
	}
	for _, f := range fields {
		if *f.to != "" {
			*f.to += "\xff"
		}
	}
}
