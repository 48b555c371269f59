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
	mostMessage  = 1500             // the Ethernet MTU: ROMs cannot read a longer message, because it arrives in fragments
	messageHead  = 20 + 8 + 236 + 4 // IP, UDP, DHCP's fields, magic cookie

	// Room for options in the header fields file and sname (RFC 2131 §2): as much as the library writes, minus the end
	// option.
	fileRoom, snameRoom = 127 - 1, 63 - 1
)

// spareable are the options without which a client can do, least important first. For the log server and the broadcast
// address, clients have usual defaults. Option 66 is also contained in sname and siaddr.
var spareable = []dhcpv4.OptionCode{
	dhcpv4.OptionLogServer, dhcpv4.OptionBroadcastAddress, dhcpv4.OptionTFTPServerName, dhcpv4.OptionNTPServers,
	dhcpv4.OptionDomainName, dhcpv4.OptionHostName,
}

// reaching are the options that a client needs to reach other hosts, least important first. Without option 121, option
// 3 is enough to reach all hosts except the metadata address.
var reaching = []dhcpv4.OptionCode{
	dhcpv4.OptionDomainNameServer, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter,
}

// optionRoom returns how many bytes of options a reply to p may contain: the client limits the message size by option
// 57 (RFC 2132 §9.10).
func optionRoom(p *dhcpv4.DHCPv4) int {
	most := leastMessage
	if b := p.Options.Get(dhcpv4.OptionMaximumDHCPMessageSize); len(b) == 2 {
		most = min(max(int(binary.BigEndian.Uint16(b)), leastMessage), mostMessage)
	}
	return most - messageHead - 1 // one byte is for the end option (255)
}

// optionSize returns the encoded size of an option with n bytes of content. If the content is long, the option is
// encoded in several parts (RFC 3396).
func optionSize(n int) int { return n + 2*max(1, (n+254)/255) }

// optionsSize returns the encoded size of all options, without the end option (255).
func optionsSize(o dhcpv4.Options) (size int) {
	for _, b := range o {
		size += optionSize(len(b))
	}
	return size
}

// shortenReply removes options until r fits the message size that e's client accepts. It removes first those spareable
// options that the client has not requested (option 55), then the other spareable options, then the reaching options.
// After the first step it moves options into file and sname (option 52), but only if the client is not booting: clients
// that boot, such as iPXE, may not read options there. Option 82 never causes the loss of reaching options, because the
// relay removes option 82 before the client gets the message (RFC 3046 §2.1).
//
// shortenReply never removes options that the protocol requires, or that the client or the relay has sent. The removed
// options are logged.
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

// overload moves options into the header fields file and sname until the remaining options fit into room bytes (option
// 52, RFC 2132 §9.3). Both fields must be empty before.
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
