package dhcp

import (
	"encoding/binary"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
)

// Sizes in bytes. Those of messages are of their IP packets.
const (
	leastMessage = 576              // every client accepts it (RFC 2131 §2)
	mostMessage  = 1500             // of Ethernet; a longer one would be sent in fragments, which ROMs do not put together
	messageHead  = 20 + 8 + 236 + 4 // IP, UDP, DHCP's fields, magic cookie

	// What the library writes of the fields file and sname (RFC 2131 §2), less the end of their options.
	fileRoom, snameRoom = 127 - 1, 63 - 1
)

// spareable are the options that a client can do without, the least important first. The log server and the broadcast
// address have usual defaults, and sname and siaddr say what option 66 does.
var spareable = []dhcpv4.OptionCode{
	dhcpv4.OptionLogServer, dhcpv4.OptionBroadcastAddress, dhcpv4.OptionTFTPServerName, dhcpv4.OptionNTPServers,
	dhcpv4.OptionDomainName, dhcpv4.OptionHostName,
}

// reaching are the options by which a client reaches others, the least important first. Option 3 gives what option 121
// does, but for the metadata address.
var reaching = []dhcpv4.OptionCode{
	dhcpv4.OptionDomainNameServer, dhcpv4.OptionClasslessStaticRoute, dhcpv4.OptionRouter,
}

// optionRoom returns how many bytes of options the client of p accepts in a reply, from option 57 (RFC 2132 §9.10).
func optionRoom(p *dhcpv4.DHCPv4) int {
	most := leastMessage
	if b := p.Options.Get(dhcpv4.OptionMaximumDHCPMessageSize); len(b) == 2 {
		most = min(max(int(binary.BigEndian.Uint16(b)), leastMessage), mostMessage)
	}
	return most - messageHead - 1 // option 255
}

// optionSize returns the bytes of an option with n bytes of content, which may need several parts (RFC 3396).
func optionSize(n int) int { return n + 2*max(1, (n+254)/255) }

// optionsSize returns the bytes of all options but option 255.
func optionsSize(o dhcpv4.Options) (size int) {
	for _, b := range o {
		size += optionSize(len(b))
	}
	return size
}

// shortenReply makes a reply as short as e's client accepts. It leaves out what the client did not ask for (option 55). A
// client that does not boot gets the rest in file and sname (option 52); others, such as iPXE, may not look there. At last
// it leaves out what the client asked for. It writes to the log what is left out. What the protocol needs, and what a relay
// or the client has sent, stays in any case. Option 82 alone does not cost a client the options of reaching: the relay takes
// it off again (RFC 3046 §2.1).
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

// overload moves options into the fields file and sname until the others fit into room (option 52, RFC 2132 §9.3).
// Both fields must be empty.
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
