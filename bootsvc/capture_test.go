package bootsvc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

// The ports of a capture are those that the configuration names.
func TestPortsOfACapture(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.SyslogAddr = ":5514"; c.TFTPAddr = ":6969" })
	if got := s.bootPorts(); !slices.Equal(got, []uint16{67, 68, 4011, 6969, 5514}) {
		t.Errorf("%d", got)
	}
}

// A boot's packets on a real interface are in a file that tcpdump reads; HTTP is not.
func TestLabCapture(t *testing.T) {
	t.Parallel()
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
	go func() { captured <- s.Capture(ctx, packets, wire.CaptureOf(m, false)) }()
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
	if script, err = tftptest.Get(t, "10.10.20.2:69", strings.ReplaceAll(cli.HardwareAddr.String(), ":", "-")+"/"+autoexecName); err != nil {
		return "", err
	}
	log, err := net.Dial("udp4", "10.10.20.2:514")
	if err != nil {
		return "", err
	}
	_, err = log.Write([]byte("<190>ipxe: the end"))
	return script, errors.Join(err, log.Close(), conn.Close(), client.Close())
}
