package tftp

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// lossyWire is a network between a server and its clients that loses, duplicates and
// reorders packets. Its delays pass in the time of a synctest bubble.
type lossyWire struct {
	fakeWire
	lose, double float64 // probabilities
	jitter       time.Duration
	rand         *rand.Rand
	toClient     chan []byte
	last         time.Time // when the last packet arrives
	sentBlocks   int       // DATA packets of the server
}

// Send is called by one goroutine at a time: Conn holds its lock.
func (w *lossyWire) Send(packets []datagram) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range packets {
		b := slices.Concat(d.head[:], d.content)
		if b[1] == opData {
			w.sentBlocks++
		}
		w.deliver(func() {
			select {
			case w.toClient <- b:
			case <-w.closed:
			}
		})
	}
	return len(packets), nil
}

// send sends a packet of the client.
func (w *lossyWire) send(peer netip.AddrPort, b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.deliver(func() {
		select {
		case w.in <- datagram{peer: peer, local: ownHost, content: b}:
		case <-w.closed:
		}
	})
}

func (w *lossyWire) deliver(arrive func()) {
	if w.rand.Float64() < w.lose {
		return
	}
	for range 1 + int(w.rand.Float64()+w.double) {
		at := time.Now().Add(time.Millisecond + time.Duration(w.rand.Int64N(int64(w.jitter)+1)))
		if w.jitter == 0 && !at.After(w.last) {
			at = w.last.Add(time.Microsecond) // in order
		}
		w.last = at
		time.AfterFunc(time.Until(at), arrive)
	}
}

// lossyClient is a client of RFC 7440. With everyLoss, it repeats its ACK for each block
// that comes after a lost one, as EDK2 does, instead of for the first of them alone.
type lossyClient struct {
	w         *lossyWire
	peer      netip.AddrPort
	window    int
	everyLoss bool
	acks      int
}

func (c *lossyClient) fetch(request string) ([]byte, error) {
	var body []byte
	have, size, reported := int64(-1), 512, false
	packet := []byte(request)
	for tries := 0; tries < 12; {
		c.w.send(c.peer, packet)
		c.acks++
		for left := c.window; left > 0; {
			var b []byte
			select {
			case b = <-c.w.toClient:
			case <-time.After(3 * time.Second):
				tries++
			}
			if b == nil {
				break // repeat the ACK
			}
			number := binary.BigEndian.Uint16(b[2:])
			switch {
			case b[1] == opError:
				return nil, fmt.Errorf("refused: %q", b[4:])
			case b[1] == opOACK && have < 0:
				options := strings.Split(string(b[2:]), "\x00")
				for n := 0; n+1 < len(options); n += 2 {
					if options[n] == "blksize" {
						size, _ = strconv.Atoi(options[n+1])
					}
				}
				have, left = 0, 0
			case b[1] == opData && number == uint16(have+1) || have < 0 && number == 1:
				have = max(have, 0) + 1
				body = append(body, b[4:]...)
				left, tries, reported = left-1, 0, false
				if len(b)-4 < size {
					c.w.send(c.peer, []byte{0, opACK, byte(have >> 8), byte(have)})
					return body, nil
				}
			case b[1] == opData && have >= 0 && number-uint16(have) < 1000 && (c.everyLoss || !reported):
				left, reported = 0, true // a block is lost
			}
		}
		if have >= 0 {
			packet = []byte{0, opACK, byte(have >> 8), byte(have)}
		}
	}
	return nil, fmt.Errorf("given up after %d bytes", len(body))
}

// TestTFTPLossyNetwork: over a network that loses, duplicates and reorders packets, each
// file arrives as it is, and an ACK causes at most one window of packets (security S34).
func TestTFTPLossyNetwork(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 15))
		window, block := []int{1, 2, 4, 8, 32, 64}[seed%6], []int{8, 512, 1468, 65464}[r.IntN(4)]
		size := r.IntN(40 * min(block, maxBlock))
		if r.IntN(3) == 0 {
			size -= size % min(block, maxBlock) // the last block is empty
		}
		wire := &lossyWire{rand: r, lose: []float64{0, 0.02, 0.1}[r.IntN(3)], double: []float64{0, 0.1}[r.IntN(2)]}
		if r.IntN(2) == 0 {
			wire.jitter = 2 * time.Millisecond
		}
		name := fmt.Sprintf("seed %d: %d bytes, blocks of %d, window %d, lost %.2f, doubled %.2f, jitter %s", seed, size, block, window,
			wire.lose, wire.double, wire.jitter)
		want := make([]byte, size)
		for n := range want {
			want[n] = byte(r.Uint32())
		}
		options := fmt.Sprintf("blksize\x00%d\x00", block)
		if window > 1 {
			options += fmt.Sprintf("windowsize\x00%d\x00", window)
		}
		client := &lossyClient{w: wire, window: window, everyLoss: r.IntN(2) == 0}
		got, err := wire.transfer(t, client, want, "octet\x00"+options)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s: %d bytes, %v", name, len(got), err)
		}
		blocks := size/min(block, maxBlock) + 1
		limit := blocks + client.acks*window // at most one window for each ACK
		if wire.lose == 0 && (window == 1 || wire.jitter == 0 && wire.double == 0) {
			limit = blocks
		}
		if wire.sentBlocks > limit {
			t.Errorf("%s: %d packets for %d blocks and %d ACKs; at most %d", name, wire.sentBlocks, blocks, client.acks, limit)
		}
	}
}

// transfer serves content over w to client.
func (w *lossyWire) transfer(t *testing.T, client *lossyClient, content []byte, options string) (got []byte, err error) {
	t.Helper()
	s := newService(func(_ context.Context, r Request) error {
		return r.Send(RankOwn, int64(len(content)), bytes.NewReader(content))
	})
	synctest.Test(t, func(t *testing.T) {
		w.in, w.closed, w.toClient = make(chan datagram), make(chan struct{}), make(chan []byte)
		client.peer = netip.AddrPortFrom(netip.MustParseAddr("10.10.20.11"), 1069)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, newConn(w)) }()
		got, err = client.fetch("\x00\x01file.efi\x00" + options)
		drain := time.After(time.Minute) // what is still on the way, and the last ACK
		for over := false; !over; {
			select {
			case <-w.toClient:
			case <-drain:
				over = true
			}
		}
		cancel()
		if e := <-done; e != nil {
			t.Error(e)
		}
	})
	return got, err
}

// TestTFTPBlockNumbersRollOver: a file with more than 65,535 blocks arrives as it is, with
// and without windows, also where packets are lost in the window that rolls over.
func TestTFTPBlockNumbersRollOver(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abc"), 8*70000/13)
	for _, c := range []struct {
		window int
		lose   float64
	}{{1, 0}, {64, 0}, {7, 0.01}, {64, 0.01}} { // 65536 is no multiple of 7
		wire := &lossyWire{rand: rand.New(rand.NewPCG(1, 1)), lose: c.lose}
		options := fmt.Sprintf("octet\x00blksize\x008\x00windowsize\x00%d\x00", c.window)
		got, err := wire.transfer(t, &lossyClient{w: wire, window: c.window}, want, options)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%+v: %d bytes, %v", c, len(got), err)
		}
	}
}

// TestTFTPWindowsAtTheEnd: a file that is shorter than a window, or ends where a window or a block does, is sent once and
// ends without a time-out (RFC 7440 §4).
func TestTFTPWindowsAtTheEnd(t *testing.T) {
	for _, window := range []int{1, 4, 64} {
		for _, size := range []int{0, 1, 511, 512, 513, 512*window - 1, 512 * window, 512*window + 1, 512 * 2 * window} {
			want := bytes.Repeat([]byte{'x'}, size)
			wire := &lossyWire{rand: rand.New(rand.NewPCG(1, 1))}
			options := fmt.Sprintf("octet\x00windowsize\x00%d\x00", window)
			got, err := wire.transfer(t, &lossyClient{w: wire, window: window}, want, options)
			if err != nil || !bytes.Equal(got, want) || wire.sentBlocks != size/512+1 {
				t.Errorf("window %d: %d of %d bytes in %d packets, %v", window, len(got), size, wire.sentBlocks, err)
			}
		}
	}
}

// TestTFTPNetascii: LF becomes CR LF and CR becomes CR NUL (RFC 764), across the limits of
// blocks and chunks.
func TestTFTPNetascii(t *testing.T) {
	text := bytes.Repeat([]byte("a\nb\rc\r\n"), 40000)
	want := bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r"), []byte("\r\x00")), []byte("\n"), []byte("\r\n"))
	wire := &lossyWire{rand: rand.New(rand.NewPCG(1, 1))}
	got, err := wire.transfer(t, &lossyClient{w: wire, window: 8}, text, "NetASCII\x00blksize\x00513\x00windowsize\x008\x00tsize\x000\x00")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, not %d, %v", len(got), len(want), err)
	}
}
