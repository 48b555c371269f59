package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/lab/pcap"
)

// A relayLoad is machines on VLAN 20 that continuously request an address, each time with a new
// transaction id. The packets on both sides of the relay are captured to check the answers.
type relayLoad struct {
	cancel context.CancelFunc
	done   chan error
	stops  []func()
	files  []string
}

const (
	loadMachines = 40
	loadEvery    = 30 * time.Millisecond // 33 DISCOVERs a second
)

func loadMAC(n int) net.HardwareAddr { return net.HardwareAddr{0x02, 0x4c, 0x4f, 0x41, 0x44, byte(n)} }

// addLoad adds the machines of the load to s.
func (s *Site) addLoad(ctx context.Context) error {
	var machines []any
	for n := range loadMachines {
		machines = append(machines, map[string]any{
			"name": fmt.Sprintf("load-%02d", n),
			"interfaces": []any{map[string]any{
				"mac": loadMAC(n).String(), "address": fmt.Sprintf("10.10.20.%d", 200+n), "netmask": "255.255.255.0", "gateway": lab.DirectGateway,
			}},
		})
	}
	return s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": machines}, nil)
}

// startLoad captures packets on both sides of the relay and makes the machines of addLoad send
// requests until stop.
func startLoad(ctx context.Context, l *lab.Lab, name string) (*relayLoad, error) {
	ctx, cancel := context.WithCancel(ctx)
	r := &relayLoad{cancel: cancel, done: make(chan error, 1)}
	for _, iface := range []string{"eth1", "eth20"} {
		file := name + "-" + iface + ".pcap"
		stop, err := l.Capture(ctx, lab.Router, iface, file, "udp port 67 or udp port 68")
		if err != nil {
			r.cancel()
			return nil, err
		}
		r.stops, r.files = append(r.stops, stop), append(r.files, filepath.Join(l.Dir(), file))
	}
	var fd int
	var index int
	err := l.InNamespace(lab.Client, func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		index = i.Index
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // only for sending
		return err
	})
	if err != nil {
		r.cancel()
		return nil, err
	}
	go func() { r.done <- errors.Join(discover(ctx, fd, index), unix.Close(fd)) }()
	return r, nil
}

// discover sends DISCOVERs until ctx ends.
func discover(ctx context.Context, fd, index int) error {
	to := &unix.SockaddrLinklayer{Ifindex: index, Protocol: 0x0008, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	tick := time.NewTicker(loadEvery)
	defer tick.Stop()
	first := rand.Uint32()
	for n := 0; ; n++ {
		mac := loadMAC(n % loadMachines)
		p, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true))
		if err != nil {
			return err
		}
		binary.BigEndian.PutUint32(p.TransactionID[:], first+uint32(n))
		if err := unix.Sendto(fd, frame(mac, p.ToBytes()), 0, to); err != nil {
			return fmt.Errorf("sending a DISCOVER: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// frame adds Ethernet, IPv4 and UDP 68 to 67 headers for a broadcast.
func frame(from net.HardwareAddr, payload []byte) []byte {
	return udpFrame(from, netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), payload)
}

// udpFrame adds Ethernet broadcast, IPv4 and UDP headers to payload.
func udpFrame(mac net.HardwareAddr, from, to netip.AddrPort, payload []byte) []byte {
	b := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, mac, []byte{8, 0}, make([]byte, 28), payload)
	ip := b[14:34]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], from.Addr().AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	udp := b[34:42] // no checksum: IPv4 does without
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	return b
}

// stop ends the load and checks the captured packets.
func (r *relayLoad) stop() (relayVerdict, error) {
	r.cancel()
	err := <-r.done
	for _, stop := range r.stops {
		stop()
	}
	var packets []dhcpSeen
	for _, f := range r.files {
		p, e := readDHCP(f)
		err = errors.Join(err, e)
		packets = append(packets, p...)
	}
	return judgeRelay(packets), err
}

// dhcpSeen is a DHCP packet of a capture.
type dhcpSeen struct {
	at     time.Time
	packet *dhcpv4.DHCPv4
}

// readDHCP reads the DHCP packets of a capture.
func readDHCP(file string) ([]dhcpSeen, error) {
	packets, err := pcap.Read(file, pcap.UDP)
	var out []dhcpSeen
	for _, x := range packets {
		if p, err := dhcpv4.FromBytes(x.Payload); err == nil {
			out = append(out, dhcpSeen{x.At, p})
		}
	}
	return out, err
}

// relayVerdict is the result of judgeRelay.
type relayVerdict struct {
	Discovers, Answered int
	PerSecond           float64
	By                  map[string]int // number of transactions that each server answered
	Twice               []string       // transactions with answers from more than one server
	// Gap is the longest time between the first answers of two consecutive transactions. Lost is
	// the largest number of consecutive DISCOVERs without an answer.
	Gap  time.Duration
	Lost int
}

func (v relayVerdict) String() string {
	var by []string
	for _, s := range slices.Sorted(maps.Keys(v.By)) {
		by = append(by, fmt.Sprintf("%s: %d", s, v.By[s]))
	}
	return fmt.Sprintf(
		"%d DISCOVERs, %.1f/s, %d answered (%s), by two servers: %d, longest gap without an answer: %s (%d DISCOVERs in a row)",
		v.Discovers, v.PerSecond, v.Answered, strings.Join(by, ", "), len(v.Twice), v.Gap.Round(time.Millisecond), v.Lost)
}

// judgeRelay determines which server answered which request. A packet that was captured more than
// once, on its way through the relay, counts once. A server is identified by its server identifier.
func judgeRelay(packets []dhcpSeen) relayVerdict {
	type transaction struct {
		asked, answered time.Time
		by              map[string]bool
	}
	all := map[dhcpv4.TransactionID]*transaction{}
	slices.SortFunc(packets, func(a, b dhcpSeen) int { return a.at.Compare(b.at) })
	for _, p := range packets {
		t := all[p.packet.TransactionID]
		switch kind := p.packet.MessageType(); {
		case kind == dhcpv4.MessageTypeDiscover && t == nil:
			all[p.packet.TransactionID] = &transaction{asked: p.at, by: map[string]bool{}}
		case p.packet.OpCode == dhcpv4.OpcodeBootReply && t != nil:
			if t.answered.IsZero() {
				t.answered = p.at
			}
			server := "no server"
			if a, ok := netip.AddrFromSlice(p.packet.ServerIdentifier().To4()); ok {
				server = a.String()
			}
			t.by[server] = true
		}
	}
	v := relayVerdict{By: map[string]int{}, Discovers: len(all)}
	order := slices.SortedFunc(maps.Values(all), func(a, b *transaction) int { return a.asked.Compare(b.asked) })
	var answers []time.Time
	lost := 0
	for _, t := range order {
		if t.answered.IsZero() {
			lost++
			v.Lost = max(v.Lost, lost)
			continue
		}
		lost = 0
		v.Answered++
		answers = append(answers, t.answered)
		for s := range t.by {
			v.By[s]++
		}
	}
	for id, t := range all {
		if len(t.by) > 1 {
			v.Twice = append(v.Twice, fmt.Sprintf("%s by %s", id, strings.Join(slices.Sorted(maps.Keys(t.by)), " and ")))
		}
	}
	slices.Sort(v.Twice)
	slices.SortFunc(answers, time.Time.Compare)
	for i := range answers {
		if i > 0 {
			v.Gap = max(v.Gap, answers[i].Sub(answers[i-1]))
		}
	}
	if len(order) > 1 {
		v.PerSecond = float64(len(order)-1) / order[len(order)-1].asked.Sub(order[0].asked).Seconds()
	}
	return v
}

func TestJudgeRelay(t *testing.T) {
	begin := time.Unix(1000, 0)
	seen := func(ms int, id byte, kind dhcpv4.MessageType, server string) dhcpSeen {
		p, err := dhcpv4.New(dhcpv4.WithMessageType(kind), dhcpv4.WithTransactionID(dhcpv4.TransactionID{0, 0, 0, id}))
		require.NoError(t, err)
		if server != "" {
			p.OpCode = dhcpv4.OpcodeBootReply
			p.UpdateOption(dhcpv4.OptServerIdentifier(net.ParseIP(server)))
		}
		return dhcpSeen{begin.Add(time.Duration(ms) * time.Millisecond), p}
	}
	const ask, offer = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeOffer
	packets := []dhcpSeen{
		seen(0, 1, ask, ""), seen(1, 1, ask, ""), seen(2, 1, offer, "192.0.2.1"), seen(3, 1, offer, "192.0.2.1"), // both sides of the relay
		seen(100, 2, ask, ""), seen(200, 3, ask, ""),
		seen(300, 4, ask, ""), seen(302, 4, offer, "192.0.2.2"),
		seen(310, 9, offer, "192.0.2.3"), // an answer without a request
	}
	v := judgeRelay(packets)
	require.Equal(
		t,
		relayVerdict{
			Discovers: 4,
			Answered:  2,
			PerSecond: 10,
			By:        map[string]int{"192.0.2.1": 1, "192.0.2.2": 1},
			Gap:       300 * time.Millisecond,
			Lost:      2,
		},
		v,
	)
	v = judgeRelay(append(packets, seen(400, 4, offer, "192.0.2.1")))
	require.Equal(t, []string{"0x00000004 by 192.0.2.1 and 192.0.2.2"}, v.Twice)
}

// TestRelayLoad: the relay sends to both servers, and first one and then the other is silent. No
// client gets two answers. At the end, two servers that both know the machines show that two
// answers would be detected.
func TestRelayLoad(t *testing.T) {
	runInTurn(t, 25, 3)
	ctx := needLab(t)
	seed, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Programs: programs(), Home: true, Namespace: lab.Seed, RelayOnly: true})
	require.NoError(t, err)
	seed.keep(t)
	target, err := NewSite(ctx, Options{Root: "..", Programs: programs(), Lab: seed.Lab, Name: "target"})
	require.NoError(t, err)
	target.keep(t)
	require.NoError(t, seed.SetRelays(lab.SeedAddress, lab.TargetAddress))
	require.NoError(t, seed.addLoad(ctx))

	load, err := startLoad(ctx, seed.Lab, "change")
	require.NoError(t, err)
	pause(ctx, t, 5*time.Second)
	seed.Kill()
	require.NoError(t, target.addLoad(ctx))
	pause(ctx, t, 5*time.Second)
	v, err := load.stop()
	require.NoError(t, err)
	t.Logf("from one server to the other: %s", v)
	require.Empty(t, v.Twice)
	require.GreaterOrEqual(t, v.PerSecond, 20.0)
	require.Positive(t, v.By[lab.SeedAddress])
	require.Positive(t, v.By[lab.TargetAddress])

	require.NoError(t, seed.Start(ctx))
	load, err = startLoad(ctx, seed.Lab, "both")
	require.NoError(t, err)
	pause(ctx, t, 3*time.Second)
	v, err = load.stop()
	require.NoError(t, err)
	t.Logf("two servers that both answer: %s", v)
	require.NotEmpty(t, v.Twice)
}

// pause lets the load continue for a while; stop checks the packets.
func pause(ctx context.Context, t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	case <-time.After(d):
	}
}
