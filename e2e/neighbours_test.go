package e2e

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestS30S34BootsBesideAbsentNeighbours installs a machine with real firmware twice: on a quiet network, and during forged packets
// whose answers go to addresses that no host has. bootsvc has the flood of each port.
func TestS30S34BootsBesideAbsentNeighbours(t *testing.T) {
	runInTurn(t, 150, 8)
	ctx := needLab(t)
	s := siteWith(ctx, t, Options{LogLevel: "info", Netboot: "  relays: [10.20.0.0/16]"})
	require.NoError(t, s.Command(ctx, lab.Server, "ip", "address", "add", "10.20.0.2/16", "dev", lab.ServerInterface).Run())
	s.template(ctx, t, "one", "version: \"0.1\"\nname: one\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n"+
		"  - {name: hello, image: noop, timeout: 600}\n")
	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.UEFI}, nil)
	require.NoError(t, err)
	install := func() time.Duration {
		began := time.Now()
		_, err := s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: "one"})
		require.NoError(t, err)
		s.ended(ctx, t, "guest", inventory.StateSuccess)
		return time.Since(began)
	}

	install() // what the host reads for the first time is read from its disk
	ons := m.PowerOns()
	quiet := install()
	once := m.PowerOns() - ons
	mac, err := net.ParseMAC(m.Spec().MAC)
	require.NoError(t, err)
	flood := newForger(ctx, t, s.Lab).absentNeighbours(t, s.Lab, mac)
	flooded := install()
	sent := flood()
	require.Equal(t, ons+2*once, m.PowerOns(), "the flood costs no boot")

	dhcp, tftp := s.unresolved(ctx, t, "dhcp"), s.unresolved(ctx, t, "tftp")
	t.Logf("installed in %s on a quiet network, in %s during %d forged packets; %d answers by DHCP and %d by TFTP were dropped",
		quiet.Round(time.Second/10), flooded.Round(time.Second/10), sent, dhcp, tftp)
	require.Positive(t, dhcp)
	require.Positive(t, tftp)
}

// unresolved returns how many answers were dropped because too many waited for ARP.
func (s *Site) unresolved(ctx context.Context, t *testing.T, protocol string) int {
	t.Helper()
	line := regexp.MustCompile(`(?m)^ingot_boot_answers_dropped_total\{protocol="` + protocol + `",reason="unresolved"\} (\S+)$`)
	found := line.FindStringSubmatch(s.must(ctx, t, "metrics", "show"))
	require.NotEmpty(t, found)
	n, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)
	return int(n)
}

// absentNeighbours sends 600 forged packets a second in the name of a machine, until the returned function is called; that returns
// how many were sent. Half are read requests, half are DISCOVERs of relays.
func (f *forger) absentNeighbours(t *testing.T, l *lab.Lab, mac net.HardwareAddr) (stop func() int) {
	t.Helper()
	var server net.HardwareAddr
	require.NoError(t, l.InNamespace(lab.Server, func() error {
		i, err := net.InterfaceByName(lab.ServerInterface)
		if err == nil {
			server = i.HardwareAddr
		}
		return err
	}))
	self := netip.MustParseAddr(lab.ServerAddress)
	selection := dhcpv4.OptRelayAgentInfo(dhcpv4.Option{
		Code: dhcpv4.LinkSelectionSubOption, Value: dhcpv4.IP(net.ParseIP(lab.DirectGateway).To4()),
	})
	packet := func(n int) []byte {
		absent := netip.AddrFrom4([4]byte{10, 20, 1 + byte(n>>8)%250, byte(n)})
		if n%2 == 0 {
			return f.frame(server, netip.AddrPortFrom(absent, uint16(1024+n%1000)), netip.AddrPortFrom(self, 69),
				[]byte("\x00\x01"+mac.String()+"/snponly.efi\x00octet\x00blksize\x001428\x00"))
		}
		p, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover), dhcpv4.WithHwAddr(mac),
			dhcpv4.WithTransactionID(dhcpv4.TransactionID(binary.BigEndian.AppendUint32(nil, uint32(n)))),
			dhcpv4.WithGatewayIP(absent.AsSlice()), dhcpv4.WithOption(selection))
		if err != nil {
			return nil
		}
		return f.frame(server, netip.AddrPortFrom(absent, 67), netip.AddrPortFrom(self, 67), p.ToBytes())
	}

	sent, done := 0, make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			for range 6 {
				if _, err := unix.Write(f.fd, packet(n)); err == nil {
					sent++
				}
				n++
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(done)
		running.Wait()
	})
	t.Cleanup(end)
	return func() int {
		end()
		return sent
	}
}

// frame returns an Ethernet frame of a UDP packet without a checksum: IPv4 can do without.
func (f *forger) frame(to net.HardwareAddr, source, destination netip.AddrPort, payload []byte) []byte {
	b := make([]byte, 14+20+8, 14+20+8+len(payload))
	copy(b, to)
	copy(b[6:], f.self)
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	ip, udp := b[14:34], b[34:42]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], source.Addr().AsSlice())
	copy(ip[16:], destination.Addr().AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(udp, source.Port())
	binary.BigEndian.PutUint16(udp[2:], destination.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	return append(b, payload...)
}
