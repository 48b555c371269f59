package bootsvc

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/inventory"
)

// startHTTP serves s on a loopback port.
func startHTTP(t *testing.T, s *Server) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.web.serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp4", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// attack opens a connection, sends request and keeps the connection open. It returns nil if it is refused.
func attack(t *testing.T, from, to, request string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(t.Context(), "tcp4", to)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = c.Close() })
	_, _ = io.WriteString(c, request)
	return c
}

// TestHTTPIsNotStarved: idle connections from a few addresses cannot block HTTP for a
// machine with an open window, or for other clients (security S35).
func TestHTTPIsNotStarved(t *testing.T) {
	image := filepath.Join(t.TempDir(), "big.raw")
	write(t, image, "")
	if err := os.Truncate(image, 64<<20); err != nil {
		t.Fatal(err)
	}
	token := inventory.BootToken(testKey, armed("node1").Owner, armed("node1").Boot)
	for name, request := range map[string]string{
		"ask nothing":  "",
		"read nothing": "GET /images/big.raw HTTP/1.1\r\nHost: x\r\n\r\n",
		"stay":         "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		// The MAC of a booting machine is known to the whole network.
		"name the machine": "GET /ipxe/binary/" + testMAC + "/snponly.efi HTTP/1.1\r\nHost: x\r\n\r\n",
		// Anyone who asks for the machine's script reads its token there.
		"use the token": "GET /boot/" + testMAC + "/" + token + "/vmlinuz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeMachines{
				machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1") })},
			}
			s, _ := newServer(t, f, func(c *Config) { c.Images = fakeImages{image, inventory.Image{Name: "big.raw"}} })
			if err := os.Truncate(filepath.Join(s.cfg.LoaderDir, "snponly.efi"), 64<<20); err != nil {
				t.Fatal(err)
			}
			f.setGrant(armed("node1"))
			addr := startHTTP(t, s)
			sources, proves := 3, strings.Contains(request, token)
			if proves {
				sources = 8 // each has its share of what is preferred
			}
			for n := range maxHTTPConns + 100 {
				c := attack(t, fmt.Sprintf("127.1.0.%d", 1+n%sources), addr, request)
				if proves && c != nil {
					_, _ = c.Read(make([]byte, 1)) // an answer, or the end: the token is read by now
				}
			}
			for _, from := range []string{"127.0.0.1", "127.9.9.9"} {
				c := dialFrom(t, from, addr)
				if _, err := io.WriteString(c, "GET /ipxe/script/"+testMAC+"/auto.ipxe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(c)
				if !strings.HasPrefix(string(body), "HTTP/1.1 200 ") {
					t.Errorf("%s is answered with %.40q, %v", from, body, err)
				}
			}
		})
	}
}

// TestHTTPKeepsWhatIsProven: connections of an armed machine survive a flood if they
// come from its reserved address or use its boot's token (security S35).
func TestHTTPKeepsWhatIsProven(t *testing.T) {
	const own, other = "127.0.0.1", "127.0.0.2"
	g := armed("node1")
	boot := "/boot/" + testMAC + "/" + inventory.BootToken(testKey, g.Owner, g.Boot) + "/vmlinuz"
	for name, c := range map[string]struct {
		from, path string
		kept       bool
	}{
		"its own address": {own, "/ipxe/script/" + testMAC + "/auto.ipxe", true},
		"its token":       {other, boot, true},
		"its MAC":         {other, "/ipxe/script/" + testMAC + "/auto.ipxe", false},
		"a wrong token":   {other, "/boot/" + testMAC + "/00/vmlinuz", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeMachines{
				machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr(own) })},
			}
			s, _ := newServer(t, f, nil)
			f.setGrant(g)
			addr := startHTTP(t, s)
			request := func(conn net.Conn) error {
				if _, err := io.WriteString(conn, "GET "+c.path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
					return err
				}
				res, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					return err
				}
				_, err = io.Copy(io.Discard, res.Body)
				return errors.Join(err, res.Body.Close())
			}
			var conns []net.Conn
			for range 3 {
				conn := dialFrom(t, c.from, addr)
				if err := request(conn); err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
			}
			for n := range maxHTTPConns + 100 {
				attack(t, fmt.Sprintf("127.1.%d.%d", 1+n/200, 1+n%200), addr, "")
			}
			// This connection is accepted last, and has priority.
			if err := request(dialFrom(t, own, addr)); err != nil {
				t.Fatal(err)
			}
			for _, conn := range conns[:2] { // any source may keep one connection
				if err := request(conn); (err == nil) != c.kept {
					t.Errorf("kept: %v, want %v (%v)", err == nil, c.kept, err)
				}
			}
		})
	}
}

// TestNoSourceEndsTheProcess: a panic during the look-up of a connection's source is
// recovered and counted (security S35).
func TestNoSourceEndsTheProcess(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, nil)
	s.decider.machines = panicking{}
	if s.decider.isAwaited(t.Context(), netip.MustParseAddr(testAddr)) || s.cfg.Guard.Panics() != 1 {
		t.Errorf("%d panics were counted", s.cfg.Guard.Panics())
	}
}

// panicking is an inventory whose look-ups panic.
type panicking struct{ *fakeMachines }

func (panicking) MachineByMAC(context.Context, string) (inventory.Machine, inventory.Grant, error) {
	panic("a test's")
}

func (panicking) MachineByAddress(context.Context, netip.Addr) (inventory.Machine, inventory.Grant, error) {
	panic("a test's")
}

// TestNoInputEndsTheProcess: a panic while DHCP, TFTP or HTTP input is handled affects
// only that packet or request, and is counted (security S35).
func TestNoInputEndsTheProcess(t *testing.T) {
	known := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, known, nil)
	s.decider.machines = panicking{known}
	addr, files := startHTTP(t, s), tftptest.Dial(t, startTFTP(t, s))
	for n := range 3 {
		want := 3 * int64(n)
		discover := packet(t, dhcpv4.MessageTypeDiscover, pxeClient(0)).ToBytes()
		s.dhcp.Handle(t.Context(), discover, dhcp.Link{})
		if got := s.cfg.Guard.Panics(); got != want+1 {
			t.Errorf("DHCP: %d panics were counted, not %d", got, want+1)
		}

		res, err := http.Get("http://" + addr + "/ipxe/script/" + testMAC + "/auto.ipxe")
		if err == nil {
			_ = res.Body.Close()
			t.Errorf("HTTP: %s", res.Status)
		}

		tftptest.Send(t, files, "\x00\x01snponly.efi\x00octet\x00")
		waitFor(t, func() bool { return s.cfg.Guard.Panics() == want+3 })
	}
	if got := s.Stats().Panics; got != 9 {
		t.Errorf("%d panics in the counters", got)
	}
}
