package bootsvc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

var lab = flag.Bool("lab", false, "run the tests that need root and make network namespaces")

// inside is set in a test that runs in a namespace: the number of the process that made it, and the test.
const inside = "INGOT_BOOTSVC_LAB"

// namespace returns the name of a namespace that no other run of these tests has.
func namespace(name string) string {
	return "ingot-bootsvc-" + cmp.Or(os.Getenv(inside), strconv.Itoa(os.Getpid())) + "-" + name
}

// clientNS is the client's namespace of the test that this process runs.
var clientNS = namespace("cli")

// inNamespaces reports whether the test runs inside a namespace with srv0, 10.10.20.2/24,
// whose other end is cli0 in a second namespace, without an address. If not, it runs
// the calling test there.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) != "" {
		return true
	}
	if !*lab {
		t.Skip("needs root and network namespaces: go test -lab")
	}
	id := fmt.Sprintf("%d-%s", os.Getpid(), t.Name())
	serverNS, clientNS := "ingot-bootsvc-"+id+"-srv", "ingot-bootsvc-"+id+"-cli"
	for _, name := range []string{serverNS, clientNS} {
		ip(t, "netns", "add", name)
		t.Cleanup(func() {
			if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "del", name).CombinedOutput(); err != nil {
				t.Errorf("removing namespace %s: %v %s", name, err, out)
			}
		})
	}
	ip(t, "-n", serverNS, "link", "set", "lo", "up")
	ip(t, "-n", serverNS, "link", "add", "srv0", "type", "veth", "peer", "name", "cli0", "netns", clientNS)
	ip(t, "-n", serverNS, "addr", "add", "10.10.20.2/24", "dev", "srv0")
	ip(t, "-n", serverNS, "link", "set", "srv0", "up")
	ip(t, "-n", clientNS, "link", "set", "cli0", "up")
	cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", serverNS, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-lab")
	cmd.Env = append(os.Environ(), inside+"="+id)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v %s", strings.Join(args, " "), err, out)
	}
}

// atClient runs do in the client's namespace, on a thread that is not used again.
// Sockets that do opens stay in that namespace.
func atClient(t *testing.T, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		ns, err := os.Open("/run/netns/" + clientNS)
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// A client without an address gets its lease by raw unicast and by broadcast, a relay at
// giaddr. A probe finds a server that answers unknown MACs.
func TestLabDHCP(t *testing.T) {
	t.Parallel()
	if !inNamespaces(t) {
		return
	}
	var cli *net.Interface
	atClient(t, func() (err error) {
		cli, err = net.InterfaceByName("cli0")
		return err
	})
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].MAC = cli.HardwareAddr.String() })}}
	s, j := newServer(t, f, func(c *Config) { c.Interfaces, c.HTTPAddr = []string{"srv0"}, nil })
	f.setGrant(armed("node1"))
	c, err := dhcp.Listen(t.Context(), "srv0", 67, testSelf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dhcp.Listen(t.Context(), "srv0", 67, testSelf); err == nil || !strings.Contains(err.Error(), "UDP port 67 on srv0") {
		t.Errorf("a second server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.dhcp.Serve(ctx, c) }()
	for _, broadcast := range []bool{false, true} {
		var client *nclient4.Client
		atClient(t, func() (err error) {
			client, err = nclient4.New("cli0", nclient4.WithTimeout(5*time.Second), nclient4.WithRetry(2))
			return err
		})
		lease, err := client.Request(t.Context(), dhcpv4.WithBroadcast(broadcast), pxeClient(7))
		if err != nil {
			t.Fatalf("broadcast %v: %v", broadcast, err)
		}
		if got := wire.Addr4(lease.ACK.YourIPAddr); got != netip.MustParseAddr(testAddr) || lease.ACK.BootFileName != "snponly.efi" {
			t.Errorf("broadcast %v: %s", broadcast, lease.ACK.Summary())
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	if kinds := j.kinds(t, s); kinds != inventory.EventDHCP {
		t.Errorf("events %q", kinds)
	}
	atClient(t, func() error {
		servers, err := neighbours.ProbeDHCP(t.Context(), "cli0")
		if len(servers) != 0 {
			t.Errorf("we answered a probe: %v", servers)
		}
		return err
	})
	s.rec.Flush(t.Context())
	if len(j.seen) != 1 {
		t.Errorf("the probe's MAC was not seen: %+v", j.seen)
	}
	relayed(t, cli)
	probed(t)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// relayed sends a DISCOVER like a relay. The answer must come to port 67 of giaddr, from
// the server's address, with option 82 at the end.
func relayed(t *testing.T, cli *net.Interface) {
	t.Helper()
	ip(t, "-n", clientNS, "addr", "add", "10.10.20.1/24", "dev", "cli0")
	var relay net.PacketConn
	atClient(t, func() (err error) {
		var lc net.ListenConfig
		relay, err = lc.ListenPacket(t.Context(), "udp4", "10.10.20.1:67")
		return err
	})
	defer relay.Close()
	p := packet(
		t,
		dhcpv4.MessageTypeDiscover,
		dhcpv4.WithHwAddr(cli.HardwareAddr),
		dhcpv4.WithGatewayIP(net.IPv4(10, 10, 20, 1)),
		generic(82, 1, 2, 'p', '7'),
	)
	if _, err := relay.WriteTo(p.ToBytes(), &net.UDPAddr{IP: testSelf.AsSlice(), Port: 67}); err != nil {
		t.Fatal(err)
	}
	if err := relay.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, wire.MaxDatagram)
	n, from, err := relay.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	if from.String() != "10.10.20.2:67" || lastOption(b[:n]) != 82 || !bytes.Contains(b[:n], []byte{82, 4, 1, 2, 'p', '7'}) ||
		!bytes.Equal(b[28:34], cli.HardwareAddr) {
		t.Errorf("from %s: % x", from, b[:n])
	}
}

// offering returns the socket of a DHCP server on cli0 that answers any client until it is closed.
func offering(t *testing.T) net.PacketConn {
	t.Helper()
	var foreign net.PacketConn
	atClient(t, func() (err error) {
		lc := net.ListenConfig{Control: broadcastOn("cli0")}
		foreign, err = lc.ListenPacket(t.Context(), "udp4", ":67")
		return err
	})
	go func() {
		b := make([]byte, wire.MaxDatagram)
		for {
			n, _, err := foreign.ReadFrom(b)
			if err != nil {
				return
			}
			p, err := dhcpv4.FromBytes(b[:n])
			if err != nil {
				continue
			}
			r, err := dhcpv4.NewReplyFromRequest(p, dhcpv4.WithMessageType(dhcpv4.MessageTypeOffer), dhcpv4.WithYourIP(net.IPv4(10, 10, 20, 99)),
				dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 10, 20, 1))))
			if err == nil {
				_, _ = foreign.WriteTo(r.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 68}) // the client asks again
			}
		}
	}()
	return foreign
}

// broadcastOn binds a socket to a device, on which it may send broadcasts.
func broadcastOn(device string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = errors.Join(unix.BindToDevice(int(fd), device), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
		})
		return errors.Join(err, set)
	}
}

// probed checks that ProbeDHCP finds a server that answers any client.
func probed(t *testing.T) {
	t.Helper()
	foreign := offering(t)
	defer foreign.Close()
	servers, err := neighbours.ProbeDHCP(t.Context(), "srv0")
	if err != nil || len(servers) != 1 || servers[0].Server.String() != "10.10.20.1" || servers[0].Offered.String() != "10.10.20.99" ||
		servers[0].Proxy {
		t.Errorf("%+v, %v", servers, err)
	}
}

// CheckClient over real sockets: without a server, with this server alone, with another
// Ingot server, and with a relay-only server.
func TestLabCheckClient(t *testing.T) {
	t.Parallel()
	if !inNamespaces(t) {
		return
	}
	ip(t, "-n", clientNS, "addr", "add", "10.10.20.1/24", "dev", "cli0")
	// run serves until the returned function is called.
	run := func(s *Server) func() {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		deadline := time.Now().Add(20 * time.Second)
		for s.fetchCheck(ctx) != nil {
			if time.Now().After(deadline) {
				t.Fatal("the server does not come up")
			}
		}
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	on := func(c *Config) { c.Interfaces, c.HTTPAddr = []string{"srv0"}, []string{":80"} }
	s, _ := newServer(t, &fakeMachines{}, on)
	_, err := s.CheckClient(t.Context())
	if !errors.Is(err, inventory.ErrUnreachable) || !strings.Contains(err.Error(), "was not answered by 10.10.20.2") {
		t.Errorf("no server answers: %v", err)
	}
	stop := run(s)
	notes, err := s.CheckClient(t.Context())
	if err != nil || len(notes) != 2 || !strings.Contains(notes[0], "answered by 10.10.20.2 and by no other server") {
		t.Errorf("alone: %v %v", notes, err)
	}

	// Another Ingot server receives the same broadcast, as it would behind a relay.
	twin, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.Address = netip.MustParseAddr("10.10.20.1") })
	var at *dhcp.Conn
	atClient(t, func() (err error) {
		at, err = dhcp.Listen(t.Context(), "cli0", 67, netip.MustParseAddr("10.10.20.1"))
		return err
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- twin.dhcp.Serve(ctx, at) }()
	waitFor(t, func() bool { // on a slow host the second answer may come too late
		_, err = s.CheckClient(t.Context())
		return errors.Is(err, inventory.ErrConflict)
	})
	if !errors.Is(err, inventory.ErrConflict) || !strings.Contains(err.Error(), "another server of Ingot, 10.10.20.1") {
		t.Errorf("two servers: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	stop()

	relays, _ := newServer(t, &fakeMachines{}, func(c *Config) {
		relayOnly(c)
		c.Address, c.HTTPAddr = testSelf, []string{":80"}
	})
	stop = run(relays)
	notes, err = relays.CheckClient(t.Context())
	if err != nil || len(notes) != 2 || !strings.Contains(notes[0], "as a relay is answered by 10.10.20.2 and by no other server") {
		t.Errorf("a server of relays: %v %v", notes, err)
	}
	stop()
	if _, err = relays.CheckClient(t.Context()); !errors.Is(err, inventory.ErrUnreachable) {
		t.Errorf("a server of relays that does not serve: %v", err)
	}
}
