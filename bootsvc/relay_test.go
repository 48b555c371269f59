package bootsvc

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

var (
	relaySelf  = netip.MustParseAddr("192.168.1.10")
	relayAddrs = []netip.Prefix{netip.MustParsePrefix("10.10.20.1/32")}
)

// relayOnly changes newServer's configuration to a relay-only server's.
func relayOnly(c *Config) {
	c.Interfaces, c.RelayOnly, c.Address, c.Relays, c.HTTPAddr = nil, true, relaySelf, relayAddrs, nil
}

// TestS31RelayOnlyNeedsItsRelays: a relay-only server without listed relays does not
// start. Its error names all problems.
func TestS31RelayOnlyNeedsItsRelays(t *testing.T) {
	_, err := New(
		Config{
			RelayOnly:  true,
			Interfaces: []string{"lo"},
			AgentURL:   "https://192.168.1.10:7443",
			AgentPin:   "sha256:" + strings.Repeat("ab", 32),
		},
		&fakeMachines{},
		&fakeJournal{},
	)
	for _, want := range []string{"no relay is listed", "list the relays' addresses", "no interface from which to take its address", "remove the interfaces or relay_only"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
	_, err = New(Config{Listen: netip.IPv4Unspecified()}, &fakeMachines{}, &fakeJournal{})
	if err == nil || !strings.Contains(err.Error(), "only a server with relay_only") {
		t.Errorf("a server with interfaces that listens everywhere: %v", err)
	}
}

// TestS31RelayOnly: replies go only to giaddr. Packets without giaddr, with one that is
// not listed, or with too many hops are dropped. Option 82 is echoed unchanged, as the
// last option.
func TestS31RelayOnly(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	s, _ := newServer(t, f, relayOnly)
	in := dhcp.Link{Name: "relay"}
	relay := func(a string) dhcpv4.Modifier { return dhcpv4.WithGatewayIP(net.ParseIP(a)) }
	with := func(code uint8, a string) dhcpv4.Modifier { return generic(code, net.ParseIP(a).To4()...) }
	ciaddr := dhcpv4.WithClientIP(net.ParseIP(testAddr))
	const discover, request, inform = dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform
	agent := generic(82, 1, 4, 'e', 't', 'h', '1', 2, 2, 0xde, 0xad)
	for _, c := range []struct {
		name string
		p    *dhcpv4.DHCPv4
		want string
		to   string
	}{
		{"DISCOVER", packet(t, discover, relay("10.10.20.1"), agent, pxeClient(7)), "relay", "10.10.20.1"},
		{"DISCOVER, broadcast flag", packet(t, discover, relay("10.10.20.1"), agent, dhcpv4.WithBroadcast(true)), "relay", "10.10.20.1"},
		{"REQUEST", packet(t, request, relay("10.10.20.1"), agent, with(54, "192.168.1.10"), with(50, testAddr)), "relay", "10.10.20.1"},
		{"REQUEST of another server", packet(t, request, relay("10.10.20.1"), agent, with(54, "10.10.20.2"), with(50, testAddr)), "none", ""},
		{"REQUEST wrong: NAK", packet(t, request, relay("10.10.20.1"), agent, with(50, "10.10.20.99")), "relay", "10.10.20.1"},
		{"REQUEST rebinding", packet(t, request, relay("10.10.20.1"), agent, ciaddr), "relay", "10.10.20.1"},
		{"INFORM", packet(t, inform, relay("10.10.20.1"), agent, ciaddr), "unicast", testAddr},
		{"no giaddr", packet(t, discover), "none", ""},
		{"no giaddr, renewing", packet(t, request, ciaddr), "none", ""},
		{"relay that is not listed", packet(t, discover, relay("10.10.20.254")), "none", ""},
		{"the router's other address", packet(t, discover, relay("192.168.1.2")), "none", ""},
		{"our own address", packet(t, discover, relay("192.168.1.10")), "none", ""},
		{"too many hops", packet(t, discover, relay("10.10.20.1"), func(p *dhcpv4.DHCPv4) { p.HopCount = 17 }), "none", ""},
	} {
		r := s.dhcp.Handle(t.Context(), c.p.ToBytes(), in)
		if r.Route.String() != c.want || r.Route != dhcp.RouteNone && r.To.String() != c.to {
			t.Errorf("%s: by %s to %s, want %s to %s", c.name, r.Route, r.To, c.want, c.to)
		}
		if r.Route == dhcp.RouteNone {
			continue
		}
		sent := r.Packet.ToBytes()
		if !bytes.Contains(sent, append([]byte{82, 10}, c.p.Options.Get(dhcpv4.OptionRelayAgentInformation)...)) || lastOption(sent) != 82 {
			t.Errorf("%s: option 82 is not echoed as it came: % x", c.name, sent[240:])
		}
		if id := wire.Addr4(r.Packet.Options.Get(dhcpv4.OptionServerIdentifier)); id != relaySelf {
			t.Errorf("%s: server %s", c.name, id)
		}
	}
	if n := s.Stats().DHCPDirect; n != 2 {
		t.Errorf("%d packets without giaddr were counted", n)
	}
}

// Why names the relays that may ask, and reports if none may.
func TestWhyRelayOnly(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	for relays, want := range map[string]string{
		"10.10.20.1/32": "DHCP is answered only through a relay: 10.10.20.1",
		"10.10.0.0/16":  "DHCP is answered only through a relay: 10.10.0.0/16",
		"10.10.30.1/32": "no interface of this server is in 10.10.20.0/24, nor is any relay of netboot.relays: DHCP is not answered there",
	} {
		s, _ := newServer(t, f, func(c *Config) {
			relayOnly(c)
			c.Relays = []netip.Prefix{netip.MustParsePrefix(relays)}
		})
		e, err := s.Why(t.Context(), testMAC)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(e.Reasons, "; "); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in %s", relays, want, got)
		}
	}
}

var (
	relayServerNS = namespace("relay-srv")
	relayRouterNS = namespace("relay-rtr")
	relayClientNS = clientNS // used by atClient
)

// The server process of TestLabS31RealRelay. It stops at the end of its standard input,
// and then writes its counters.
func TestRelayServerProcess(t *testing.T) {
	mac := os.Getenv("INGOT_RELAY_CLIENT")
	if mac == "" {
		t.Skip("runs as a part of TestLabS31RealRelay")
	}
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].MAC = mac })}}
	s, _ := newServer(t, f, relayOnly)
	f.setGrant(armed("node1"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	_, err := io.Copy(io.Discard, os.Stdin)
	waitFor(t, func() bool {
		st := s.Stats()
		return st.DHCPDirect >= 1 && st.DHCPReceived >= 6 && st.DHCPAnswered >= 3
	})
	cancel()
	if err := <-done; err != nil || t.Failed() {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(s.Stats()); err == nil {
		t.Logf("STATS %s", b)
	}
}

// TestLabS31RealRelay runs ISC dhcrelay, with the options of VyOS, on a router between a
// client and a server. The server is an unprivileged user with only
// CAP_NET_BIND_SERVICE. Like in a container, its network rewrites source addresses.
// DHCP, TFTP and HTTP all go through the router.
func TestLabS31RealRelay(t *testing.T) {
	if !*lab {
		t.Skip("needs root and network namespaces: go test -lab")
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = filepath.Join(os.Getenv("HOME"), ".cache")
	}
	dhcrelay := filepath.Join(cache, "ingot-lab/pkg/relay/usr/sbin/dhcrelay")
	if _, err := os.Stat(dhcrelay); err != nil {
		t.Fatalf("%v: run make deps", err)
	}
	for _, name := range []string{relayServerNS, relayRouterNS, relayClientNS} {
		ip(t, "netns", "add", name)
		t.Cleanup(func() {
			if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "del", name).CombinedOutput(); err != nil {
				t.Errorf("removing namespace %s: %v %s", name, err, out)
			}
		})
		ip(t, "-n", name, "link", "set", "lo", "up")
	}
	for _, c := range []string{
		"-n " + relayServerNS + " link add srv0 type veth peer name up0 netns " + relayRouterNS,
		"-n " + relayClientNS + " link add cli0 type veth peer name dn0 netns " + relayRouterNS,
		"-n " + relayServerNS + " addr add 192.168.1.10/24 dev srv0", "-n " + relayServerNS + " link set srv0 up",
		"-n " + relayRouterNS + " addr add 192.168.1.2/24 dev up0", "-n " + relayRouterNS + " link set up0 up",
		"-n " + relayRouterNS + " addr add 10.10.20.1/24 dev dn0", "-n " + relayRouterNS + " link set dn0 up",
		"-n " + relayServerNS + " route add 10.10.20.0/24 via 192.168.1.2", "-n " + relayClientNS + " link set cli0 up",
	} {
		ip(t, strings.Fields(c)...)
	}
	within(t, relayRouterNS, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	within(
		t,
		relayServerNS,
		"nft",
		"add table ip rewrite; add chain ip rewrite in { type nat hook input priority 100; }; add rule ip rewrite in udp dport 67 snat to 172.17.0.1",
	)
	var cli *net.Interface
	atClient(t, func() (err error) {
		cli, err = net.InterfaceByName("cli0")
		return err
	})

	program := unprivileged(t)
	server := exec.CommandContext(
		t.Context(),
		"ip",
		"netns",
		"exec",
		relayServerNS,
		"setpriv",
		"--reuid",
		"65534",
		"--regid",
		"65534",
		"--clear-groups",
		"--bounding-set",
		"-all,+net_bind_service",
		"--inh-caps",
		"-all,+net_bind_service",
		"--ambient-caps",
		"-all,+net_bind_service",
		"--no-new-privs",
		program,
		"-test.run",
		"^TestRelayServerProcess$",
		"-test.v",
	)
	server.Env = append(os.Environ(), "INGOT_RELAY_CLIENT="+cli.HardwareAddr.String(), "TMPDIR="+filepath.Dir(program))
	var said bytes.Buffer
	server.Stdout, server.Stderr = &said, &said
	stop, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	start(t, server)
	start(
		t,
		exec.CommandContext(
			t.Context(),
			"ip",
			"netns",
			"exec",
			relayRouterNS,
			dhcrelay,
			"-4",
			"-d",
			"--no-pid",
			"-c",
			"10",
			"-a",
			"-m",
			"forward",
			"-A",
			"576",
			"-id",
			"dn0",
			"-iu",
			"up0",
			"192.168.1.10",
		),
	)

	var client *nclient4.Client
	atClient(t, func() (err error) {
		client, err = nclient4.New("cli0", nclient4.WithTimeout(time.Second), nclient4.WithRetry(20))
		return err
	})
	lease, err := client.Request(t.Context(), pxeClient(7))
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	ack := lease.ACK
	if wire.Addr4(ack.YourIPAddr).String() != testAddr || ack.BootFileName != "snponly.efi" || ack.ServerIPAddr.String() != "192.168.1.10" ||
		ack.ServerIdentifier().String() != "192.168.1.10" {
		t.Errorf("lease: %s", ack.Summary())
	}
	if err := client.Close(); err != nil {
		t.Error(err)
	}

	// Fetch the files through the router, from the address of the lease.
	ip(t, "-n", relayClientNS, "addr", "add", testAddr+"/24", "dev", "cli0")
	ip(t, "-n", relayClientNS, "route", "add", "default", "via", "10.10.20.1")
	if got := within(
		t,
		relayClientNS,
		"curl",
		"-sSf",
		"--max-time",
		"20",
		"tftp://192.168.1.10/snponly.efi",
	); !strings.HasPrefix(
		got,
		"snponly.efi\n",
	) {
		t.Errorf("TFTP: %.40q", got)
	}
	if got := within(
		t,
		relayClientNS,
		"curl",
		"-sSf",
		"--max-time",
		"20",
		"http://192.168.1.10/ipxe/script/"+cli.HardwareAddr.String()+"/auto.ipxe",
	); !strings.HasPrefix(
		got,
		"#!ipxe",
	) {
		t.Errorf("HTTP: %.40q", got)
	}

	// Sent by this test: option 82 is echoed, and a relay that is not listed gets no answer.
	from := func(giaddr string) *dhcpv4.DHCPv4 {
		return packet(
			t,
			dhcpv4.MessageTypeDiscover,
			dhcpv4.WithHwAddr(cli.HardwareAddr),
			dhcpv4.WithGatewayIP(net.ParseIP(giaddr)),
			generic(82, 1, 2, 'p', '7'),
		)
	}
	ip(
		t,
		"-n",
		relayClientNS,
		"addr",
		"add",
		"10.10.20.1/32",
		"dev",
		"lo",
	) // a host that forges the relay's address gets no answer either: it is sent to the relay
	var liar net.PacketConn
	atClient(t, func() (err error) {
		var lc net.ListenConfig
		liar, err = lc.ListenPacket(t.Context(), "udp4", testAddr+":67")
		return err
	})
	defer liar.Close()
	for _, giaddr := range []string{"0.0.0.0", "192.168.1.2", "10.10.20.77", "10.10.20.1"} {
		if _, err := liar.WriteTo(from(giaddr).ToBytes(), &net.UDPAddr{IP: relaySelf.AsSlice(), Port: 67}); err != nil {
			t.Fatal(err)
		}
	}
	if err := liar.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, _, err := liar.ReadFrom(make([]byte, wire.MaxDatagram)); err == nil {
		t.Errorf("the sender of a packet was answered with %d bytes, not the relay", n)
	}
	if err := stop.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	_, after, ok := strings.Cut(said.String(), "STATS ")
	var st Stats
	if !ok || json.Unmarshal([]byte(strings.SplitN(after, "\n", 2)[0]), &st) != nil || st.DHCPDirect != 1 || st.DHCPAnswered < 3 ||
		st.DHCPReceived < 6 {
		t.Errorf("counters: %+v\n%s", st, said.String())
	}
}

// start starts cmd and stops it at the end of the test.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Cancel() // it may have exited already
		_ = cmd.Wait()
	})
}

// within runs a command in a namespace and returns its output.
func within(t *testing.T, ns string, args ...string) string {
	t.Helper()
	var errs bytes.Buffer
	c := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", ns}, args...)...)
	c.Stderr = &errs
	out, err := c.Output()
	if err != nil {
		t.Errorf("%s: %v %s", strings.Join(args, " "), err, errs.String())
	}
	return string(out)
}

// unprivileged copies this program to a directory where any user may run it.
func unprivileged(t *testing.T) string {
	t.Helper()
	//nolint:usetesting // another user must have access
	dir, err := os.MkdirTemp("", "ingot-relay-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil { // for its temporary files
		t.Fatal(err)
	}
	file := filepath.Join(dir, "server.test")
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// A relay-only server hands out Address, even if it listens on another one.
func TestRelayOnlyListensElsewhere(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}, grants: map[string]inventory.Grant{"node1": armed("node1")}}
	s, _ := newServer(t, f, func(c *Config) { relayOnly(c); c.Listen = netip.MustParseAddr("127.0.0.1") })
	s.cfg.HTTPAddr = []string{":0"}
	ls, err := s.web.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(ls)
	if !strings.HasPrefix(ls[0].Addr().String(), "127.0.0.1:") || !strings.HasPrefix(s.Base(), "http://192.168.1.10:") {
		t.Errorf("listens at %s, says %s", ls[0].Addr(), s.Base())
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/ipxe/script/"+testMAC+"/auto.ipxe", nil))
	if !strings.Contains(w.Body.String(), "http://192.168.1.10") {
		t.Errorf("script: %s", w.Body.String())
	}
}
