package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const netnsDir = "/run/netns"

// buildNetwork creates namespaces, bridges, ports and addresses. The VLANs are separate bridges,
// because not every kernel has 802.1Q, and bare metal normally has untagged ports anyway.
func (l *Lab) buildNetwork(ctx context.Context) error {
	for _, ns := range []Namespace{Switch, Server, Router, BMCs, Client} {
		if err := l.addNamespace(ctx, ns); err != nil {
			return err
		}
	}
	var sw []string
	for _, vlan := range []int{BMCVLAN, DirectVLAN, RelayedVLAN} {
		sw = append(sw, bridge(vlan)...)
	}
	ports := []port{
		{Server, "eth0", DirectVLAN},
		{Server, "eth10", BMCVLAN},
		{Router, "eth20", DirectVLAN},
		{Router, "eth30", RelayedVLAN},
		{Client, "eth0", DirectVLAN},
		{BMCs, "eth0", BMCVLAN},
	}
	for _, p := range ports {
		sw = append(sw, l.plug(p)...)
	}
	if err := l.ipBatch(ctx, Switch, sw...); err != nil {
		return err
	}
	for _, n := range []struct {
		ns  Namespace
		cmd []string
	}{
		{Server, []string{
			"link set eth0 up", "link set eth10 up",
			"addr add " + ServerAddress + "/24 dev eth0", "addr add " + MetadataAddress + "/32 dev eth0",
			"addr add " + ServerBMCAddr + "/24 dev eth10", "route add default via " + DirectGateway,
		}},
		{Router, []string{
			"link set eth20 up", "link set eth30 up",
			"addr add " + DirectGateway + "/24 dev eth20", "addr add " + RelayedGateway + "/24 dev eth30",
			"route add " + MetadataAddress + "/32 via " + ServerAddress,
		}},
		{BMCs, []string{"link set eth0 up", "addr add 10.10.10.10/24 dev eth0"}},
		{Client, []string{"link set eth0 up"}},
	} {
		if err := l.ipBatch(ctx, n.ns, n.cmd...); err != nil {
			return err
		}
	}
	return l.InNamespace(Router, func() error { return sysctl("ipv4/ip_forward", "1") })
}

// A port is an interface of a namespace, connected to a VLAN.
type port struct {
	ns   Namespace
	name string
	vlan int
}

// bridge creates the switch of a VLAN.
func bridge(vlan int) []string {
	// Without forward_delay 0, a port would drop packets for 15 s, including a machine's first DHCP
	// packets.
	return []string{
		fmt.Sprintf("link add br%d type bridge stp_state 0 forward_delay 0 mcast_snooping 0", vlan),
		fmt.Sprintf("link set br%d up", vlan),
	}
}

// plug creates the cable of a port.
func (l *Lab) plug(p port) []string {
	peer := fmt.Sprintf("p-%s-%s", p.ns, p.name)
	return []string{
		fmt.Sprintf("link add %s type veth peer name %s netns %s", peer, p.name, l.NamespaceName(p.ns)),
		fmt.Sprintf("link set %s master br%d up", peer, p.vlan),
	}
}

// addNamespace creates a namespace that has only a loopback interface.
func (l *Lab) addNamespace(ctx context.Context, ns Namespace) error {
	if err := ip(ctx, "netns", "add", l.NamespaceName(ns)); err != nil {
		return err
	}
	// IPv6 would only add router solicitations and duplicate address detection to every capture.
	err := l.InNamespace(ns, func() error {
		return errors.Join(sysctl("ipv6/conf/all/disable_ipv6", "1"), sysctl("ipv6/conf/default/disable_ipv6", "1"))
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) { // a kernel without IPv6 is fine
		return err
	}
	return l.ipBatch(ctx, ns, "link set lo up")
}

// StartRelay starts the router's DHCP relay if it is not running: from VLAN 30 to the server, or as
// set by SetRelays.
func (l *Lab) StartRelay() error {
	l.mu.Lock()
	running, flags, servers := l.relay, l.relayFlags, l.relays
	l.mu.Unlock()
	if running != nil {
		select {
		case <-running.Done():
		default:
			return nil
		}
	}
	if len(servers) == 0 {
		return nil
	}
	c, err := l.startRelay(flags, servers)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.relay = c
	l.mu.Unlock()
	return nil
}

// StopRelay kills the DHCP relay: machines on VLAN 30 get no more answers. Routing continues.
func (l *Lab) StopRelay() {
	l.mu.Lock()
	c := l.relay
	l.mu.Unlock()
	if c != nil {
		c.Kill()
		<-c.Done()
	}
}

// SlowServer limits what the server sends on VLAN 20 (and through the router) to rate, in the
// notation of tc: "40mbit". It slows down an installation so that it can be interrupted in the
// middle. UnslowServer removes the limit.
func (l *Lab) SlowServer(ctx context.Context, rate string) error {
	_, err := l.Command(ctx, Server, "tc", "qdisc", "replace", "dev", ServerInterface, "root",
		"tbf", "rate", rate, "burst", "64kb", "latency", "200ms").Output()
	return err
}

// UnslowServer removes the limit of SlowServer, if there is one.
func (l *Lab) UnslowServer(ctx context.Context) error {
	out, err := l.Command(ctx, Server, "tc", "qdisc", "show", "dev", ServerInterface).Output()
	if err != nil || !strings.Contains(string(out), "tbf") {
		return err
	}
	_, err = l.Command(ctx, Server, "tc", "qdisc", "del", "dev", ServerInterface, "root").Output()
	return err
}

// Capture writes the packets of an interface to a pcap file in Dir until the returned function is
// called or the lab is closed. filter is a pcap filter, or empty. Capture returns after the capture
// has begun.
func (l *Lab) Capture(ctx context.Context, ns Namespace, iface, file, filter string) (stop func(), err error) {
	started := &notifyWriter{want: "listening on", seen: make(chan struct{})}
	// -Z root: dropping privileges would clear the parent-death signal. Immediate mode: otherwise
	// packets arrive up to a second late, and the last ones never.
	args := []string{"-Z", "root", "--immediate-mode", "-i", iface, "-U", "-n", "-w", filepath.Join(l.dir, file)}
	if filter != "" {
		args = append(args, filter)
	}
	c := l.Command(l.ctx, ns, "tcpdump", args...)
	c.Stderr = started
	if err := c.Start(); err != nil {
		return nil, err
	}
	select {
	case <-started.seen:
	case <-c.Done():
		return nil, fmt.Errorf("capturing on %q: tcpdump ended: %s", iface, started.text())
	case <-ctx.Done():
		c.Kill()
		return nil, ctx.Err()
	}
	return func() {
		_ = c.Signal(syscall.SIGINT) // makes it write its buffer; an error means that it has ended
		<-c.Done()
	}, nil
}

// InNamespace calls f on a thread in namespace ns. Sockets that f opens stay in that namespace,
// even if they are used elsewhere. Goroutines that f starts are not in it.
func (l *Lab) InNamespace(ns Namespace, f func() error) error {
	if ns == Host {
		return f()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: a thread that changed its namespace must not serve other goroutines
		result <- func() error {
			h, err := os.Open(filepath.Join(netnsDir, l.NamespaceName(ns)))
			if err != nil {
				return err
			}
			err = unix.Setns(int(h.Fd()), unix.CLONE_NEWNET)
			_ = h.Close()
			if err != nil {
				return fmt.Errorf("entering namespace %q: %w", l.NamespaceName(ns), err)
			}
			return f()
		}()
	}()
	return <-result
}

// DialContext opens a connection from inside namespace ns. addr must hold an address, not a name.
func (l *Lab) DialContext(ctx context.Context, ns Namespace, network, addr string) (net.Conn, error) {
	var c net.Conn
	err := l.InNamespace(ns, func() (err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// Listen opens a listening TCP socket inside namespace ns.
func (l *Lab) Listen(ctx context.Context, ns Namespace, addr string) (net.Listener, error) {
	var s net.Listener
	err := l.InNamespace(ns, func() (err error) {
		var c net.ListenConfig
		s, err = c.Listen(ctx, "tcp4", addr)
		return err
	})
	return s, err
}

// Forward accepts TCP connections on listen, an address of namespace from ("127.0.0.1:0" for
// any free port), and connects each to target inside namespace ns, until the lab is closed. It
// returns the address on which it listens. Browsers and command-line tools use it, from Host, to
// reach a server in the lab.
func (l *Lab) Forward(ctx context.Context, from Namespace, listen string, ns Namespace, target string) (string, error) {
	s, err := l.Listen(ctx, from, listen)
	if err != nil {
		return "", fmt.Errorf("forwarding to %q: %w", target, err)
	}
	if !l.onClose(func() error { return s.Close() }) {
		_ = s.Close()
		return "", ErrClosed
	}
	go func() {
		for {
			in, err := s.Accept()
			if err != nil {
				return // closed
			}
			go l.forwardOne(in, ns, target)
		}
	}()
	return s.Addr().String(), nil
}

// forwardOne copies in both directions until both have ended or the lab is closed.
func (l *Lab) forwardOne(in net.Conn, ns Namespace, target string) {
	defer in.Close() // nothing more is written
	out, err := l.DialContext(l.ctx, ns, "tcp", target)
	if err != nil {
		l.log.Debug("forwarding", "target", target, "error", err)
		return
	}
	defer out.Close() // nothing more is written
	stop := context.AfterFunc(l.ctx, func() {
		_ = in.Close()
		_ = out.Close()
	})
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyHalf(out, in)
	}()
	copyHalf(in, out)
	<-done
}

// copyHalf copies one direction and closes it at the end. An error also ends the direction.
func copyHalf(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	if t, ok := dst.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// ipBatch runs lines of `ip` commands in a namespace, and stops at the first error.
func (l *Lab) ipBatch(ctx context.Context, ns Namespace, lines ...string) error {
	c := exec.CommandContext(ctx, "ip", "-n", l.NamespaceName(ns), "-batch", "-")
	c.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("configuring namespace %q: %w: %s (of %q)", l.NamespaceName(ns), err, strings.TrimSpace(string(out)), lines)
	}
	return nil
}

func ip(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("running ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// sysctl writes a setting of the calling thread's network namespace.
func sysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
}

// removeNamespace kills the processes in a namespace and removes it. It is not an error if the
// namespace does not exist.
func removeNamespace(name string) error {
	if _, err := os.Stat(filepath.Join(netnsDir, name)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ctx := context.Background() // the cleanup must not be interrupted
	if out, err := exec.CommandContext(ctx, "ip", "netns", "pids", name).Output(); err == nil {
		for _, f := range strings.Fields(string(out)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 1 && pid != os.Getpid() {
				_ = syscall.Kill(pid, syscall.SIGKILL) // ESRCH: it has ended
			}
		}
	}
	return ip(ctx, "netns", "del", name)
}

// SendFrame sends an Ethernet frame to the machine's first network card, as its switch would.
func (m *Machine) SendFrame(frame []byte) error {
	return m.lab.InNamespace(Switch, func() error {
		i, err := net.InterfaceByName(m.tap())
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: i.Index, Halen: 6}), unix.Close(fd))
	})
}
