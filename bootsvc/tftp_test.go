package bootsvc

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/inventory"
)

func symlink(t testing.TB, target, name string) {
	t.Helper()
	if err := os.Symlink(target, name); err != nil {
		t.Fatal(err)
	}
}

// TestTFTPSocket: an answer has the address that the request was sent to as its source. A request to many hosts is ignored.
func TestTFTPSocket(t *testing.T) {
	c, err := listenTFTP(t.Context(), "0.0.0.0:0", netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := "\x00\x01" + strings.Repeat("x", maxTFTPRequest)
	for to, local := range map[string]string{"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.2", "127.255.255.255": "invalid IP"} {
		client := dial(t, fmt.Sprintf("%s:%d", to, tftpPort(t, c)))
		send(t, client, request)
		got, err := c.Receive(1)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d packets, %v", len(got), err)
		}
		d := got[0]
		if d.peer.String() != client.LocalAddr().String() || d.local.String() != local || string(d.content) != request[:maxTFTPRequest+1] {
			t.Errorf("to %s: received from %s to %s: %q", to, d.peer, d.local, d.content)
		}
		if !d.local.IsValid() {
			c.take(got, func(*tftpSession) { t.Error("a broadcast is answered") })
			continue
		}
		if n, err := c.Send(
			[]datagram{{peer: d.peer, local: d.local, head: [4]byte{0, opError, 0, 1}, content: []byte("no\x00")}},
		); n != 1 ||
			err != nil {
			t.Fatalf("%d packets sent, %v", n, err)
		}
		if b := receive(t, client); b != "\x00\x05\x00\x01no\x00" { // the kernel drops what comes from another address
			t.Errorf("to %s: answer %q", to, b)
		}
	}
}

// tftpServer serves a machine whose reservation is the loopback address.
func tftpServer(t *testing.T) (*Server, *fakeMachines, *fakeJournal, string) {
	t.Helper()
	f := &fakeMachines{
		machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.Interfaces[0].Address = netip.MustParseAddr("127.0.0.1") })},
	}
	s, j := newServer(t, f, nil)
	return s, f, j, startTFTP(t, s)
}

// dial returns a UDP socket for TFTP packets of the test.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "udp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func send(t *testing.T, c net.Conn, b string) {
	t.Helper()
	if _, err := c.Write([]byte(b)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn) string {
	t.Helper()
	b := make([]byte, 2048)
	n, err := c.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// UEFI requests the size, aborts, and downloads from the same port.
func TestTFTPSizeProbe(t *testing.T) {
	s, f, j, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	c := dial(t, addr)
	const rrq = "\x00\x01snponly.efi\x00octet\x00tsize\x000\x00blksize\x001468\x00windowsize\x004\x00"
	send(t, c, rrq)
	oack := receive(t, c)
	if !strings.HasPrefix(oack, "\x00\x06") || !strings.Contains(oack, "tsize\x004800\x00") ||
		!strings.Contains(oack, "blksize\x001468\x00") ||
		!strings.Contains(oack, "windowsize\x004\x00") {
		t.Fatalf("OACK %q", oack)
	}
	send(t, c, "\x00\x05\x00\x08User aborted the transfer\x00")
	if body, err := tftpGet(t, addr, "snponly.efi"); err != nil || len(body) != 4800 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	// The client is done before the server has read the last ACK.
	waitFor(t, func() bool { return s.Stats().TFTPServed == 1 && s.Stats().TFTPAborted == 1 })
	if n := s.Stats().TFTPRefused; n != 0 {
		t.Errorf("%d refused", n)
	}
	if kinds := j.kinds(t, s); kinds != inventory.EventLoader {
		t.Errorf("events %q", kinds)
	}
}

// waitFor waits until ok returns true.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatal("this did not happen in 20 s")
		case <-tick.C:
		}
	}
}

func TestTFTPIsReadOnly(t *testing.T) {
	_, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	c := dial(t, addr)
	send(t, c, "\x00\x02snponly.efi\x00octet\x00")
	if got := receive(t, c); got != "\x00\x05\x00\x02read-only\x00" {
		t.Errorf("%q", got)
	}
}

func TestTFTPRefusals(t *testing.T) {
	_, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	for _, name := range []string{"../vmlinuz", "/etc/passwd", "nothere.efi", "52:54:00:99:99:99/snponly.efi", "zz/snponly.efi", "a/b/c", ".."} {
		if body, err := tftpGet(t, addr, name); err == nil {
			t.Errorf("%q was served: %.20q", name, body)
		}
	}
	for _, name := range []string{"snponly.efi", "/snponly.efi", "\\snponly.efi", "//52-54-00-20-01-01//snponly.efi", "525400200101/autoexec.ipxe"} {
		if _, err := tftpGet(t, addr, name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A client that never answers gets one packet for each packet it sends, and the number
// of requests of its address is limited (security S34).
func TestTFTPDoesNotAmplify(t *testing.T) {
	wire := &fakeWire{}
	c := newTFTPConn(wire)
	ask := func(peer string) *tftpSession {
		s := &tftpSession{peer: netip.MustParseAddrPort(peer), last: time.Now(), request: tftpRequest{name: "x", blockSize: 512, window: 64}}
		if !c.admit(s) {
			return nil
		}
		return s
	}
	for port := range tftpPerWindow {
		if ask(fmt.Sprintf("192.0.2.1:%d", 1000+port)) == nil {
			t.Fatalf("request %d is refused", port)
		}
	}
	if s := ask("192.0.2.1:9"); s == nil || c.serve(s, rankArmed) {
		t.Error("more requests than the limit are served")
	}
	if c.count(netip.MustParseAddr("192.0.2.1"), time.Now()) {
		t.Error("more requests than the limit are answered")
	}

	s := ask("192.0.2.2:7")
	if s == nil || !c.serve(s, rankOwn) {
		t.Fatal("not admitted")
	}
	s.tftpSender = newTFTPSender(s.request, 1<<20, 1)
	sent := func() int { c.flush(); return len(wire.take()) }
	for range 5 {
		s.repeat()
		s.repeats = 0
		c.push(s, time.Now())
	}
	if n := sent(); n != 1 {
		t.Errorf("%d packets for one request", n)
	}
	if ask("192.0.2.2:7") != nil || sent() != 1 {
		t.Error("a repeated request is not answered once")
	}
	c.acknowledged(s, 7, time.Now())
	if n := sent(); n != 0 || s.proven {
		t.Errorf("%d packets for an ACK of a block that was not sent", n)
	}
	c.acknowledged(s, 0, time.Now())
	s.addChunk(s.buffer(), false)
	c.push(s, time.Now())
	if n := sent(); n != tftpOwnWindow || !s.proven {
		t.Errorf("%d packets for a client that answers", n)
	}
}

// A disk that does not answer delays only the transfer of its file.
func TestTFTPSlowDisk(t *testing.T) {
	wire := &fakeWire{}
	c := newTFTPConn(wire)
	start := func(peer string, content io.Reader) (*tftpSession, <-chan error) {
		s := &tftpSession{peer: netip.MustParseAddrPort(peer), last: time.Now()}
		if !c.admit(s) {
			t.Fatalf("%s is refused", peer)
		}
		done := make(chan error, 1)
		go func() { done <- c.transfer(s, rankOwn, 5, content) }()
		return s, done
	}
	finish := func(s *tftpSession, done <-chan error) {
		waitFor(t, func() bool { return len(wire.take()) > 0 })
		c.mu.Lock()
		c.acknowledged(s, 1, time.Now())
		c.flush()
		c.mu.Unlock()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", s.peer, err)
		}
	}
	disk, answer := io.Pipe()
	slow, slowDone := start("192.0.2.1:1069", disk)
	if _, err := answer.Write([]byte("h")); err != nil { // it is being read
		t.Fatal(err)
	}
	finish(start("192.0.2.2:1069", strings.NewReader("hello")))
	if err := answer.Close(); err != nil {
		t.Fatal(err)
	}
	finish(slow, slowDone)
}

func TestTFTPInParallel(t *testing.T) {
	s, f, _, addr := tftpServer(t)
	f.setGrant(armed("node1"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				if body, err := tftpGet(t, addr, "ipxe.efi"); err != nil || len(body) != 3600 {
					t.Errorf("%d bytes, %v", len(body), err)
				}
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return s.Stats().TFTPServed == 12 })
}

// S34: a name never leads out of the folder of loaders.
func FuzzTFTPPath(f *testing.F) {
	for _, p := range []string{"snponly.efi", "/52:54:00:20:01:01/autoexec.ipxe", "\\..\\x", "a//b", "52-54-00-20-01-01/..", "x\x00y"} {
		f.Add(p)
	}
	for _, p := range tftpPackets(f) {
		name, _, _ := strings.Cut(string(p[2:]), "\x00")
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, p string) {
		mac, file, ok := tftpPath(p)
		if !ok {
			return
		}
		if !fileName(file) || strings.ContainsAny(file, "/\\\x00") || file == "." || file == ".." {
			t.Fatalf("%q became file %q", p, file)
		}
		if mac != "" {
			if again, ok := wire.ParseMAC(mac); !ok || again != mac {
				t.Fatalf("%q became MAC %q", p, mac)
			}
		}
	})
}

// Options get the answers of RFC 2348, 2349 and 7440, within the limits of this server.
// An invalid value is as if the option were missing (security S34).
func TestTFTPOptions(t *testing.T) {
	for options, want := range map[string]string{
		"":                                            "",
		"blksize\x008\x00":                            "blksize\x008\x00",
		"blksize\x007\x00":                            "",
		"blksize\x0065464\x00":                        "blksize\x001468\x00",
		"blksize\x0065465\x00":                        "",
		"BlkSize\x00512\x00WINDOWSIZE\x004\x00":       "blksize\x00512\x00windowsize\x004\x00",
		"windowsize\x0065535\x00":                     "windowsize\x0064\x00",
		"windowsize\x0065536\x00":                     "",
		"windowsize\x000\x00":                         "",
		"timeout\x00255\x00tsize\x000\x00":            "timeout\x00255\x00tsize\x0012345\x00",
		"timeout\x00256\x00":                          "",
		"timeout\x000\x00multicast\x00\x00x\x00y\x00": "",
		"tsize": "",
	} {
		r, ok := readRequest([]byte("\x00\x01a\x00octet\x00" + options))
		if want != "" {
			want = "\x00\x06" + want
		}
		if got := string(r.oack(12345)); !ok || got != want {
			t.Errorf("%q: %v, %q", options, ok, got)
		}
	}
	for _, bad := range []string{"\x00\x01a\x00mail\x00", "\x00\x01\x00octet\x00", "\x00\x01a", "\x00\x01" + strings.Repeat("x", 256) + "\x00octet\x00"} {
		if _, ok := readRequest([]byte(bad)); ok {
			t.Errorf("%.20q is accepted", bad)
		}
	}
}
