package bmc

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// Answers of BMCs to authCapabilities.
var (
	ipmi20  = []byte{6, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0x81, 0x1c, 0x63, 0x20, 0, 0x38, 0, 1, 0x86, 4, 2, 0, 0, 0, 0, 0x1b}
	ipmi15  = []byte{6, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0x81, 0x1c, 0x63, 0x20, 0, 0x38, 0, 1, 0x06, 4, 0, 0, 0, 0, 0, 0x9d}
	refuses = []byte{6, 0, 0xff, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0x81, 0x1c, 0x63, 0x20, 0, 0x38, 0xcc, 0xdc}
)

// ipmitool reports a lost packet and a BMC with IPMI 1.5 by the same message. Only the
// BMC's own answer makes it ErrUnsupported.
func TestLostPacketIsNotUnsupported(t *testing.T) {
	for name, c := range map[string]struct {
		answer []byte
		want   error
	}{
		"away":            {nil, inventory.ErrUnreachable},
		"speaks IPMI 2.0": {ipmi20, inventory.ErrUnreachable},
		"answers rubbish": {[]byte("rubbish"), inventory.ErrUnreachable},
		"speaks IPMI 1.5": {ipmi15, inventory.ErrUnsupported},
		"refuses the bit": {refuses, inventory.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			require.NoError(t, err)
			defer func() { require.NoError(t, conn.Close()) }()
			go func() {
				buffer := make([]byte, 256)
				for {
					_, from, err := conn.ReadFromUDPAddrPort(buffer)
					if err != nil {
						return
					}
					if c.answer != nil {
						_, _ = conn.WriteToUDPAddrPort(c.answer, from)
					}
				}
			}()
			b := newBench(t)
			b.cfg.Networks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			address, err := netip.ParseAddrPort(conn.LocalAddr().String())
			require.NoError(t, err)
			b.bmc.Host, b.bmc.Port = address.Addr().String(), int(address.Port())
			b.set("fail-chassis-power-status", "This BMC does not support IPMI v2 / RMCP+\nError: Unable to establish IPMI v2 / RMCP+ session")
			_, err = b.State(t.Context(), b.bmc, password())
			require.ErrorIs(t, err, c.want)
			require.NotContains(t, err.Error(), "cipherSuite")
			if errors.Is(c.want, inventory.ErrUnsupported) {
				require.ErrorContains(t, err, "does not support IPMI v2", "ipmitool's own words")
			} else {
				require.ErrorContains(t, err, "BMC 127.0.0.1 does not answer (IPMI, UDP port ")
			}
		})
	}
}

// Only the completion codes for an invalid command, length or field mean IPMI 1.5. A
// BMC that is starting answers with other codes.
func TestOnlyRefusalsOfExtendedDataMeanIPMI15(t *testing.T) {
	for code := 1; code < 256; code++ {
		answer := bytes.Clone(refuses)
		answer[20] = byte(code)
		v2, ok := readCapabilities(answer)
		require.False(t, v2)
		require.Equal(t, slices.Contains([]byte{0xc1, 0xc7, 0xc8, 0xcc}, byte(code)), ok, "completion code %#x", code)
	}
}

func FuzzReadCapabilities(f *testing.F) {
	f.Add(ipmi20)
	f.Add(ipmi15)
	f.Add(refuses)
	f.Fuzz(func(t *testing.T, b []byte) {
		if v2, ok := readCapabilities(b); v2 && !ok {
			t.Error("2.0 without an answer")
		}
	})
}
