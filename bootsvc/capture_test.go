package bootsvc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/net/bpf"

	"github.com/ingotmetal/ingot/inventory"
)

// frame returns an Ethernet frame with IPv4 and UDP.
func frame(t testing.TB, from, to string, source, target netip.AddrPort, payload []byte) []byte {
	t.Helper()
	var b []byte
	for _, mac := range []string{to, from} {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, hw...)
	}
	b = append(b, 8, 0)
	ip := ipPacket(source.Addr(), target.Addr(), payload)
	binary.BigEndian.PutUint16(ip[20:], source.Port())
	binary.BigEndian.PutUint16(ip[22:], target.Port())
	return append(b, ip...)
}

// Of all frames, a capture takes the machine's: first the kernel's filter, then the server's.
func TestCaptureTakesTheMachinesPackets(t *testing.T) {
	const other, router = "52:54:00:99:99:99", "52:54:00:00:00:01"
	at := netip.MustParseAddrPort
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.SyslogAddr = ":5514"; c.TFTPAddr = ":6969" })
	arp := func(from, sender, target string) []byte {
		hw, _ := net.ParseMAC(from)
		b := append(append(append([]byte{255, 255, 255, 255, 255, 255}, hw...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1), hw...)
		b = append(b, netip.MustParseAddr(sender).AsSlice()...)
		return append(append(b, 0, 0, 0, 0, 0, 0), netip.MustParseAddr(target).AsSlice()...)
	}
	dhcp := packet(t, dhcpv4.MessageTypeDiscover, pxeClient(7)).ToBytes()
	for name, x := range map[string]struct {
		frame     []byte
		boot, all bool
	}{
		"DISCOVER":            {frame(t, testMAC, "ff:ff:ff:ff:ff:ff", at("0.0.0.0:68"), at("255.255.255.255:67"), dhcp), true, true},
		"DISCOVER of a relay": {frame(t, router, other, at("10.10.30.1:67"), at("10.10.20.2:67"), dhcp), true, true},
		"proxy":               {frame(t, router, other, at("10.10.20.77:68"), at("10.10.20.2:4011"), dhcp), true, true},
		"TFTP":                {frame(t, testMAC, other, at("10.10.20.11:2001"), at("10.10.20.2:6969"), []byte("x")), true, true},
		"TFTP answer":         {frame(t, other, testMAC, at("10.10.20.2:6969"), at("10.10.20.11:2001"), []byte("x")), true, true},
		"TFTP by a router":    {frame(t, router, other, at("10.10.20.11:2001"), at("10.10.20.2:6969"), nil), true, true},
		"syslog":              {frame(t, testMAC, other, at("10.10.20.11:2001"), at("10.10.20.2:5514"), []byte("x")), true, true},
		"HTTP":                {frame(t, testMAC, other, at("10.10.20.11:2001"), at("10.10.20.2:80"), []byte("x")), false, true},
		"HTTP by a router":    {frame(t, router, other, at("10.10.20.2:80"), at("10.10.20.11:2001"), []byte("x")), false, true},
		"ARP for it":          {arp(other, "10.10.20.2", testAddr), true, true},
		"its ARP":             {arp(testMAC, testAddr, "10.10.20.2"), true, true},
		"ARP of others":       {arp(other, "10.10.20.2", "10.10.20.99"), false, false},
		"TFTP of another":     {frame(t, other, router, at("10.10.20.99:2001"), at("10.10.20.2:6969"), []byte("x")), false, false},
		"IPv6":                {append(bytes.Repeat([]byte{2}, 12), 0x86, 0xdd, 0x60), false, false},
		"short":               {[]byte{1, 2, 3}, false, false},
	} {
		for _, all := range []bool{false, true} {
			c := CaptureOf(machine(nil), all)
			vm, err := bpf.NewVM(c.filter(s.bootPorts()))
			if err != nil {
				t.Fatal(err)
			}
			n, err := vm.Run(x.frame)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			want := x.boot
			if all {
				want = x.all
			}
			if got := n > 0 && c.takes(x.frame); got != want {
				t.Errorf("%s, all %v: %v", name, all, got)
			}
		}
	}
}

func FuzzCaptureTakes(f *testing.F) {
	dhcp := packet(f, dhcpv4.MessageTypeDiscover, pxeClient(7)).ToBytes()
	f.Add(frame(f, testMAC, "ff:ff:ff:ff:ff:ff", netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), dhcp))
	f.Add(append(make([]byte, 12), 8, 6))
	f.Add(append(make([]byte, 12), 8, 0, 0x4f))
	c := CaptureOf(machine(nil), true)
	vm, err := bpf.NewVM(c.filter([]uint16{67, 68, 69}))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c.takes(b)
		if _, err := vm.Run(b); err != nil {
			t.Fatal(err)
		}
	})
}

// A capture has a size that it does not exceed.
func TestCaptureIsBounded(t *testing.T) {
	var b bytes.Buffer
	p := &pcapWriter{w: &b, left: 24 + 2*(16+100)}
	if err := p.begin(); err != nil {
		t.Fatal(err)
	}
	for n, want := range []error{nil, nil, errCaptureFull, errCaptureFull} {
		if err := p.add(testNow, make([]byte, 100)); !errors.Is(err, want) {
			t.Errorf("packet %d: %v", n, err)
		}
	}
	if b.Len() != 24+2*116 {
		t.Errorf("%d bytes", b.Len())
	}
}

// A boot's packets on a real interface are in a file that tcpdump reads; HTTP is not.
func TestLabCapture(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	var cli *net.Interface
	atClient(t, func() (err error) {
		cli, err = net.InterfaceByName("cli0")
		return err
	})
	m := machine(func(m *inventory.Machine) { m.Interfaces[0].MAC = cli.HardwareAddr.String() })
	f := &fakeMachines{machines: []inventory.Machine{m}}
	s, j := newServer(t, f, func(c *Config) {
		c.Interfaces, c.HTTPAddr, c.SyslogAddr = []string{"srv0"}, []string{":80"}, ":514"
	})
	f.setGrant(armed("node1"))
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()
	for deadline := time.Now().Add(20 * time.Second); s.fetchCheck(ctx) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("the server does not come up")
		}
	}

	file := filepath.Join(t.TempDir(), "node1.pcap")
	to, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	packets := &countingWriter{w: to, add: make(chan struct{}, 1000)}
	captured := make(chan error, 1)
	go func() { captured <- s.Capture(ctx, packets, CaptureOf(m, false)) }()
	<-packets.add // the header: the sockets are open

	ip(t, "-n", clientNS, "addr", "add", testAddr+"/24", "dev", cli.Name)
	var script string
	atClient(t, func() (err error) {
		script, err = captureBoot(t, cli)
		return err
	})
	if !strings.Contains(script, "ingot.claim=") {
		t.Errorf("by TFTP: %q", script)
	}
	for { // the syslog message is the last packet
		<-packets.add
		if b, err := os.ReadFile(file); err != nil || bytes.Contains(b, []byte("ipxe: the end")) {
			break
		}
	}
	waitFor(t, func() bool { // the capture may see the message before the receiver does
		j.mu.Lock()
		defer j.mu.Unlock()
		return len(j.syslog) > 0
	})
	stop()
	if err := errors.Join(<-captured, <-served, to.Close()); err != nil {
		t.Fatal(err)
	}

	out, err := exec.CommandContext(t.Context(), "tcpdump", "-n", "-v", "-r", file).CombinedOutput()
	text := string(out)
	if err != nil {
		t.Fatalf("tcpdump: %v %s", err, text)
	}
	for _, want := range []string{
		"BOOTP/DHCP, Request from " + cli.HardwareAddr.String(), "DHCP-Message (53), length 1: Discover", "DHCP-Message (53), length 1: Offer",
		"snponly.efi", "TFTP, length", "RRQ", "autoexec.ipxe", "ARP", "ipxe: the end",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("tcpdump does not show %q", want)
		}
	}
	for _, not := range []string{".80 >", ".80:", "TCP"} {
		if strings.Contains(text, not) {
			t.Errorf("tcpdump shows %q", not)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
	if len(j.syslog) != 1 || j.syslog[0].Program != "ipxe" || j.syslog[0].Machine != "node1" {
		t.Errorf("syslog: %+v", j.syslog)
	}
}

// countingWriter reports each packet that it writes.
type countingWriter struct {
	w   io.Writer
	add chan struct{}
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.add <- struct{}{}
	return n, err
}

// captureBoot does in the client's namespace what firmware does, and returns the boot script.
func captureBoot(t *testing.T, cli *net.Interface) (script string, err error) {
	client, err := nclient4.New(cli.Name, nclient4.WithTimeout(5*time.Second), nclient4.WithRetry(3))
	if err != nil {
		return "", err
	}
	if _, err := client.DiscoverOffer(t.Context(), pxeClient(7)); err != nil {
		return "", err
	}
	conn, err := net.Dial("tcp4", "10.10.20.2:80")
	if err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.0\r\n\r\n")); err != nil {
		return "", err
	}
	if _, err := io.ReadAll(conn); err != nil {
		return "", err
	}
	if script, err = tftpGet(t, "10.10.20.2:69", strings.ReplaceAll(cli.HardwareAddr.String(), ":", "-")+"/"+autoexecName); err != nil {
		return "", err
	}
	log, err := net.Dial("udp4", "10.10.20.2:514")
	if err != nil {
		return "", err
	}
	_, err = log.Write([]byte("<190>ipxe: the end"))
	return script, errors.Join(err, log.Close(), conn.Close(), client.Close())
}
