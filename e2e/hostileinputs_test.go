package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/pin/tftp/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/lab"
)

var hostileFor = flag.Duration("hostile", 0, "TestHostileInputs: for how long (30 s in the long form)")

// TestHostileInputs sends all hostile inputs at the same time, from forged addresses and from a few
// real ones, while an armed machine boots repeatedly. A boot may take at most twice its usual time,
// and the server must be the same process (security S34).
func TestHostileInputs(t *testing.T) {
	ctx := needLab(t)
	lasts := *hostileFor
	if lasts == 0 {
		if !*full {
			t.Skip("takes a while: FULL=1, or -hostile 30s")
		}
		lasts = 30 * time.Second
	}
	s := site(ctx, t)
	b := newBooter(ctx, t, s)
	pid := s.Pid()
	usual := make([]time.Duration, 15)
	for n := range usual {
		var err error
		usual[n], err = b.boot(ctx)
		require.NoError(t, err)
	}

	cpu, began := s.cpu(t), time.Now()
	flood := &hostility{s: s, b: b, forger: newForger(ctx, t, s.Lab), sent: map[string]*atomic.Int64{}, dials: make(chan func())}
	flooding, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	ended := flood.start(flooding, t)
	time.Sleep(3 * time.Second) // until the connections are open
	var under []time.Duration
	for flooding.Err() == nil {
		d, err := b.boot(ctx)
		require.NoError(t, err, "an armed machine is answered")
		under = append(under, d)
		time.Sleep(500 * time.Millisecond)
	}
	ended()
	slices.Sort(usual)
	slices.Sort(under)
	before, during := usual[len(usual)/2], under[len(under)/2]
	t.Logf(
		"usual time of a boot up to its script: %s; under %s of hostile inputs: %s (median of %d, slowest %s), %.2f times",
		before, lasts, during, len(under), under[len(under)-1], float64(during)/float64(before))
	for name, used := range s.cpu(t) {
		t.Logf("%s: %.0f %% of a processor", name, 100*(used-cpu[name])/time.Since(began).Seconds())
	}
	for what, n := range flood.sent {
		t.Logf("%s: %d", what, n.Load())
		require.Positive(t, n.Load(), what)
	}
	require.Equal(t, pid, s.Pid(), "the server is the same process")
	require.True(t, s.serves())
	require.LessOrEqual(t, during, 2*before)
	var status struct{ Panics int64 }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/status", nil, &status))
	require.Zero(t, status.Panics)
}

// A booter is an armed machine in the namespace of clients: it requests its address, its loader and
// its script.
type booter struct {
	s   *Site
	mac net.HardwareAddr
}

func newBooter(ctx context.Context, t *testing.T, s *Site) *booter {
	t.Helper()
	b := &booter{s: s}
	require.NoError(t, s.InNamespace(lab.Client, func() error {
		i, err := net.InterfaceByName("eth0")
		if err == nil {
			b.mac = i.HardwareAddr
		}
		return err
	}))
	// 10.10.20.201 is the machine's address, the others are the attacker's.
	for _, a := range []string{"201", "241", "242", "243"} {
		out, err := exec.CommandContext(ctx, "ip", "-n", s.NamespaceName(lab.Client), "addr", "add", "10.10.20."+a+"/24", "dev", "eth0").
			CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	doc := map[string]any{
		"name":       "awaited",
		"interfaces": []any{map[string]any{"mac": b.mac.String(), "address": "10.10.20.201", "netmask": "255.255.255.0"}},
	}
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil))
	s.must(ctx, t, "netboot", "arm", "awaited", "--for", "1h")
	return b
}

// boot makes the requests of firmware and loader, and returns how long the answers took.
func (b *booter) boot(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	err := b.s.InNamespace(lab.Client, func() error {
		dhcp, err := nclient4.New("eth0", nclient4.WithTimeout(2*time.Second), nclient4.WithRetry(4))
		if err != nil {
			return err
		}
		defer func() { _ = dhcp.Close() }()
		firmware := []dhcpv4.Modifier{
			dhcpv4.WithOption(dhcpv4.OptClassIdentifier("PXEClient:Arch:00007:UNDI:003016")),
			dhcpv4.WithGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 7}), dhcpv4.WithBroadcast(true),
		}
		lease, err := dhcp.Request(ctx, firmware...)
		if err != nil {
			return fmt.Errorf("asking for an address: %w", err)
		}
		c, err := tftp.NewClient(b.s.Address + ":69")
		if err != nil {
			return err
		}
		c.SetTimeout(2 * time.Second)
		c.SetBlockSize(1428)
		file, err := c.Receive(lease.ACK.BootFileNameOption(), "octet")
		if err != nil {
			return fmt.Errorf("asking for the loader: %w", err)
		}
		if n, err := file.WriteTo(io.Discard); err != nil || n < 100_000 {
			return fmt.Errorf("fetching the loader: %d bytes: %w", n, err)
		}
		return b.script(ctx)
	})
	return time.Since(began), err
}

func (b *booter) script(ctx context.Context) error {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 10, 20, 201)}}
	c, err := d.DialContext(ctx, "tcp4", b.s.Address+":80")
	if err != nil {
		return fmt.Errorf("asking for the script: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(c, "GET /ipxe/script/%s/auto.ipxe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b.mac); err != nil {
		return fmt.Errorf("asking for the script: %w", err)
	}
	script, err := io.ReadAll(c)
	if err == nil && !bytes.Contains(script, []byte("ingot.claim=")) {
		err = fmt.Errorf("no script of an armed machine: %.200q", script)
	}
	return err
}

// hostility is all hostile inputs and the number of times that each was sent.
type hostility struct {
	s      *Site
	b      *booter
	forger *forger
	sent   map[string]*atomic.Int64
	frames sync.Mutex  // guards the forger
	dials  chan func() // run in the namespace of clients
}

// start sends until ctx ends; the returned function waits until it has stopped.
func (h *hostility) start(ctx context.Context, t *testing.T) (wait func()) {
	t.Helper()
	var wg sync.WaitGroup
	every := func(what string, pause time.Duration, send func(n int) error) {
		count := &atomic.Int64{}
		h.sent[what] = count
		wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
					if send(n) == nil {
						count.Add(1)
					}
				}
			}
		})
	}
	hold := func(what string, n int, dial func(n int) (net.Conn, error), request string) {
		count := &atomic.Int64{}
		h.sent[what] = count
		for i := range n {
			wg.Go(func() { h.hold(ctx, count, func() (net.Conn, error) { return dial(i) }, request) })
		}
	}

	for range 8 {
		wg.Go(func() {
			_ = h.s.InNamespace(lab.Client, func() error { // the namespace was entered before
				for {
					select {
					case <-ctx.Done():
						return nil
					case f := <-h.dials:
						f()
					}
				}
			})
		})
	}
	files := []string{"snponly.efi", h.b.mac.String() + "/snponly.efi", "02:69:6e:67:6f:74/autoexec.ipxe", "52:54:00:99:99:99/snponly.efi"}
	every("forged read requests", 5*time.Millisecond, func(n int) error {
		source := netip.AddrFrom4([4]byte{10, 10, 20, byte(2 + n%199)})
		if n%2 == 0 {
			source = netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)})
		}
		return h.udp(source, uint16(1024+n%60000), []byte("\x00\x01"+files[n%len(files)]+"\x00octet\x00blksize\x001428\x00tsize\x000\x00"))
	})
	every("malformed options", 20*time.Millisecond, func(n int) error {
		option := []string{
			"blksize\x00" + strings.Repeat("0", 600) + "512\x00", "blksize\x00" + strings.Repeat("0", 420) + "512\x00",
			strings.Repeat("tsize\x000\x00", 100), "tsize\x00" + strings.Repeat("9", 400) + "\x00",
		}[n%4]
		return h.udp(netip.MustParseAddr("10.10.20.241"), uint16(1024+n%60000), []byte("\x00\x01"+files[n%2+1]+"\x00octet\x00"+option))
	})
	every("packets in mid-transfer", 20*time.Millisecond, func(n int) error {
		from := netip.MustParseAddr("10.10.20.242")
		port := uint16(1024 + n%60000)
		err := h.udp(from, port, []byte("\x00\x01"+files[n%2+1]+"\x00octet\x00tsize\x000\x00"))
		return errors.Join(err, h.udp(from, port, append([]byte{0, byte(n % 8), 0, 0}, make([]byte, 400+n%900)...)))
	})
	every("forged DISCOVERs", 5*time.Millisecond, func(n int) error {
		h.frames.Lock()
		defer h.frames.Unlock()
		h.forger.send(t, h.forger.self, net.HardwareAddr{0x52, 0x54, 0x03, byte(n >> 16), byte(n >> 8), byte(n)})
		return nil
	})
	hold("stalled connections to port 80", 1024,
		func(n int) (net.Conn, error) { return h.dial(ctx, n, h.s.Address+":80") }, "GET /ipxe/script/"+h.b.mac.String())
	hold("connections of agents", 256, func(n int) (net.Conn, error) { return h.dial(ctx, n, h.s.Address+":7443") }, "\x16\x03\x01")
	hold("connections to the API", 256, func(int) (net.Conn, error) { return net.Dial("tcp4", h.s.API) },
		"GET /v1/events/stream HTTP/1.1\r\nHost: localhost\r\n")
	return wg.Wait
}

// dial connects from one of three addresses.
func (h *hostility) dial(ctx context.Context, n int, to string) (c net.Conn, err error) {
	done := make(chan struct{})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case h.dials <- func() {
		defer close(done)
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(10, 10, 20, byte(241+n%3))}}
		c, err = d.DialContext(ctx, "tcp4", to)
	}:
	}
	<-done
	return c, err
}

// hold opens a connection, sends a request and reads nothing. It opens another one when the server
// closes it.
func (h *hostility) hold(ctx context.Context, count *atomic.Int64, dial func() (net.Conn, error), request string) {
	for ctx.Err() == nil {
		if c, err := dial(); err == nil {
			count.Add(1)
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			if _, err = io.WriteString(c, request); err == nil {
				_, _ = c.Read(make([]byte, 1)) // until it is closed
			}
			end()
			_ = c.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// udp sends a packet from any address to the TFTP port.
func (h *hostility) udp(from netip.Addr, port uint16, payload []byte) error {
	h.frames.Lock()
	defer h.frames.Unlock()
	server, err := netip.ParseAddr(h.s.Address)
	if err != nil {
		return err
	}
	_, err = unix.Write(h.forger.fd, udpFrame(h.forger.self, netip.AddrPortFrom(from, port), netip.AddrPortFrom(server, 69), payload))
	return err
}
