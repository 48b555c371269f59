package bmc

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

// noIPMI2 matches ipmitool's message for a BMC that supports only IPMI 1.5. ipmitool also prints this message if its
// first packet is lost: it then repeats the request in the form of IPMI 1.5, and the answer does not mention IPMI 2.0.
var noIPMI2 = regexp.MustCompile(`(?i)does not support IPMI v2`)

const (
	capabilityTries = 3
	capabilityTime  = time.Second
)

// authCapabilities is the request Get Channel Authentication Capabilities (IPMI v2.0, section 22.13), sent outside a
// session. It asks about this channel, privilege administrator, and IPMI 2.0 extended data.
var authCapabilities = []byte{
	0x06, 0x00, 0xff, 0x07, // RMCP, class IPMI
	0x00, 0, 0, 0, 0, 0, 0, 0, 0, 9, // no authentication, no session; 9 bytes follow
	0x20, 0x06 << 2, 0xc8, 0x81, 0x00, 0x38, 0x80 | 0x0e, 0x04, 0xb5,
}

// judgeIPMI2 checks ipmitool's message that the BMC has no IPMI 2.0: it sends authCapabilities to the BMC. It returns
// inventory.ErrUnsupported if the BMC's answer confirms the message, otherwise inventory.ErrUnreachable or the
// context's error. said is the text that ipmitool has printed.
func judgeIPMI2(ctx context.Context, host string, port int, said string) error {
	for range capabilityTries {
		if v2, err := askIPMI2(ctx, net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			if !v2 {
				return fmt.Errorf("%s; the BMC confirms that it has no IPMI 2.0 (enable IPMI 2.0 over LAN in the BMC, or use another driver): %w",
					said, inventory.ErrUnsupported)
			}
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return silentIPMI(port, said)
}

// askIPMI2 asks the BMC at address whether it supports IPMI 2.0, and waits up to capabilityTime for the answer.
func askIPMI2(ctx context.Context, address string) (v2 bool, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", address)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close() }() // UDP: nothing is lost
	deadline := time.Now().Add(capabilityTime)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return false, err
	}
	if _, err := conn.Write(authCapabilities); err != nil {
		return false, err
	}
	answer := make([]byte, 256)
	for {
		n, err := conn.Read(answer)
		if err != nil {
			return false, err
		}
		if v2, ok := readCapabilities(answer[:n]); ok {
			return v2, nil
		}
	}
}

// readCapabilities parses b, the answer to authCapabilities (IPMI v2.0, table 22-15). v2 reports whether the BMC
// supports IPMI 2.0. A BMC that has only IPMI 1.5 rejects the request for extended data, or clears the bit for extended
// data in its answer. ok is false if b cannot be used.
func readCapabilities(b []byte) (v2, ok bool) {
	const header = 4 + 10
	if len(b) < header+8 || b[3] != 0x07 || b[4] != 0 || b[header+1]>>2 != 0x07 || b[header+5] != 0x38 {
		return false, false
	}
	data := b[header+6 : len(b)-1] // everything from the completion code up to the checksum
	switch data[0] {
	case 0:
	case 0xc1, 0xc7, 0xc8, 0xcc: // invalid command, length or field (table 5-2): the BMC has only IPMI 1.5
		return false, true
	default: // for example busy (0xc0) or initializing (0xd2)
		return false, false
	}
	if len(data) < 5 {
		return false, false
	}
	return data[2]&0x80 != 0 && data[4]&0x02 != 0, true
}
