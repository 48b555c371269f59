package tftp

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"
)

// TestTFTPSocket: an answer has the address that the request was sent to as its source. A request to many hosts is ignored.
func TestTFTPSocket(t *testing.T) {
	c, err := Listen(t.Context(), "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := "\x00\x01" + strings.Repeat("x", maxRequest)
	for to, local := range map[string]string{"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.2", "127.255.255.255": "invalid IP"} {
		client := tftptest.Dial(t, fmt.Sprintf("%s:%d", to, portOf(t, c)))
		tftptest.Send(t, client, request)
		got, err := c.Receive(1)
		if err != nil || len(got) != 1 {
			t.Fatalf("%d packets, %v", len(got), err)
		}
		d := got[0]
		if d.peer.String() != client.LocalAddr().String() || d.local.String() != local || string(d.content) != request[:maxRequest+1] {
			t.Errorf("to %s: received from %s to %s: %q", to, d.peer, d.local, d.content)
		}
		if !d.local.IsValid() {
			c.take(got, func(*session) { t.Error("a broadcast is answered") })
			continue
		}
		if n, err := c.Send(
			[]datagram{{peer: d.peer, local: d.local, head: [4]byte{0, opError, 0, 1}, content: []byte("no\x00")}},
		); n != 1 ||
			err != nil {
			t.Fatalf("%d packets sent, %v", n, err)
		}
		if b := tftptest.Receive(t, client); b != "\x00\x05\x00\x01no\x00" { // the kernel drops what comes from another address
			t.Errorf("to %s: answer %q", to, b)
		}
	}
}

func TestTFTPIsReadOnly(t *testing.T) {
	c := tftptest.Dial(t, listenLocally(t))
	tftptest.Send(t, c, "\x00\x02snponly.efi\x00octet\x00")
	if got := tftptest.Receive(t, c); got != "\x00\x05\x00\x02read-only\x00" {
		t.Errorf("%q", got)
	}
}

// A client that never answers gets one packet for each packet it sends, and the number
// of requests of its address is limited (security S34).
func TestTFTPDoesNotAmplify(t *testing.T) {
	wire := &fakeWire{}
	c := newTestConn(wire)
	ask := func(peer string) *session {
		s := &session{peer: netip.MustParseAddrPort(peer), last: time.Now(), request: request{name: "x", blockSize: 512, window: 64}}
		if !c.admit(s) {
			return nil
		}
		return s
	}
	for port := range maxPerWindow {
		if ask(fmt.Sprintf("192.0.2.1:%d", 1000+port)) == nil {
			t.Fatalf("request %d is refused", port)
		}
	}
	if s := ask("192.0.2.1:9"); s == nil || c.serve(s, RankArmed) {
		t.Error("more requests than the limit are served")
	}
	if c.count(netip.MustParseAddr("192.0.2.1"), time.Now()) {
		t.Error("more requests than the limit are answered")
	}

	s := ask("192.0.2.2:7")
	if s == nil || !c.serve(s, RankOwn) {
		t.Fatal("not admitted")
	}
	s.sender = newSender(s.request, 1<<20, 1)
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
	if n := sent(); n != ownWindow || !s.proven {
		t.Errorf("%d packets for a client that answers", n)
	}
}

// A disk that does not answer delays only the transfer of its file.
func TestTFTPSlowDisk(t *testing.T) {
	wire := &fakeWire{}
	c := newTestConn(wire)
	start := func(peer string, content io.Reader) (*session, <-chan error) {
		s := &session{peer: netip.MustParseAddrPort(peer), last: time.Now()}
		if !c.admit(s) {
			t.Fatalf("%s is refused", peer)
		}
		done := make(chan error, 1)
		go func() { done <- c.transfer(s, RankOwn, 5, content) }()
		return s, done
	}
	finish := func(s *session, done <-chan error) {
		await(t, func() bool { return len(wire.take()) > 0 })
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

// TestTFTPWaitsForRoom: blocks that the socket has no room for are sent later, and not only when the client or the server repeats
// them (security S34). What the client has not asked for with an ACK is lost, and counted.
func TestTFTPWaitsForRoom(t *testing.T) {
	s := newService(serveLoader)
	w := serveWire(t, s)
	peer := netip.MustParseAddrPort(client.String() + ":1069")
	var got []datagram
	expect := func(want string) {
		t.Helper()
		await(t, func() bool {
			got = append(got, w.take()...)
			return slices.ContainsFunc(got, func(d datagram) bool { return strings.HasPrefix(string(d.content), want) })
		})
	}
	send := func(packet string) { w.in <- datagram{peer: peer, local: ownHost, content: []byte(packet)} }
	send("\x00\x01snponly.efi\x00octet\x00timeout\x00255\x00windowsize\x004\x00")
	expect("\x00\x06")
	w.full.Store(3)
	send("\x00\x04\x00\x00")
	for n := range 4 {
		expect(fmt.Sprintf("\x00\x03\x00%c", n+1))
	}
	if n := s.Stats().Unsent; n != 0 {
		t.Errorf("%d blocks are lost", n)
	}
	w.full.Store(1)
	w.in <- datagram{peer: netip.MustParseAddrPort("192.0.2.7:1069"), local: ownHost, content: []byte("\x00\x02file\x00octet\x00")}
	await(t, func() bool { return s.Stats().Unsent == 1 })
}

// TestS34FirstAnswersAreLimited: forged sources behind a router get a limited number of answers. A machine with an open window and
// clients that answer are not limited.
func TestS34FirstAnswersAreLimited(t *testing.T) {
	s := newService(serveLoader)
	s.limits = &fewAnswers{tokens: 2}
	w := serveWire(t, s)
	forged := func(n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 1069)
	}
	for n := range 5 {
		if got := len(w.fetch(t, forged(n), "snponly.efi")); got != 4800 {
			t.Fatalf("client %d, which answers, got %d bytes", n, got)
		}
	}
	for n := range 10 {
		w.in <- datagram{peer: forged(n), local: ownHost, content: []byte("\x00\x01snponly.efi\x00octet\x00blksize\x001428\x00")}
	}
	await(t, func() bool { return s.Stats().Unproven == 8 })
	if got := len(w.fetch(t, netip.AddrPortFrom(client, 1069), "snponly.efi")); got != 4800 {
		t.Errorf("the armed machine got %d bytes", got)
	}
}

// fewAnswers permits a few first answers to clients that have not proven their address. The connection's lock guards it.
type fewAnswers struct {
	noLimits
	tokens int
}

func (f *fewAnswers) TakeUnproven() bool {
	if f.tokens == 0 {
		return false
	}
	f.tokens--
	return true
}

func (f *fewAnswers) ReturnUnproven() { f.tokens++ }
