package tftp

import (
	"cmp"
	"errors"
	"io"
	"time"
)

// sender splits a file into blocks (RFC 1350) and windows of blocks (RFC 7440). It has no socket and no clock. The
// OACK is block 0, and the file begins with block 1. The counters here do not wrap, unlike the 16-bit block numbers in
// packets.
//
// Without windows, a duplicate ACK repeats nothing (RFC 1123 §4.2.3.1). With windows, a duplicate ACK reports that the
// first block of a window is lost; some clients (EDK2) send one for each block that arrives after the lost block.
type sender struct {
	oack      []byte // nil = the request had no options
	blockSize int
	window    int
	timeout   time.Duration

	acked   int64 // last block that the client has acknowledged; -1 = not even the OACK
	sent    int64 // last block that was sent
	read    int64 // last block that was read into chunks
	final   int64 // last block of the file; -1 = not known yet
	end     int64 // last block of the current window
	repeats int   // how often the blocks after the block acked were repeated
	sentAt  time.Time

	repeated bool          // whether a block of this window was sent twice
	trip     time.Duration // last measured time between the last packet of a window and its ACK; windows with repetitions are not measured

	// chunks hold the next blocks of the file: at most two chunks, of perChunk blocks each. first is the number of the
	// block with which the first chunk begins.
	chunks   [][]byte
	first    int64
	perChunk int64
	spare    []byte // an acknowledged chunk, for reuse
}

const (
	plainBlock  = 512 // block size if the client does not send blksize
	plainWindow = 1

	// Bytes that a transfer reads from its file at once: chunkTotal divided by the number of transfers when this one
	// starts, but at least chunkMin and at most chunkMax. Each chunk costs a switch to the goroutine of its transfer.
	chunkTotal = 4 << 20
	chunkMin   = 64 << 10
	chunkMax   = 1 << 20
)

// newSender returns the sender of a file of size bytes; netascii may double that size. transfers is the number of
// transfers including this one.
func newSender(r request, size int64, transfers int) *sender {
	t := &sender{
		oack: r.oack(size), blockSize: cmp.Or(r.blockSize, plainBlock), window: cmp.Or(r.window, plainWindow),
		timeout: cmp.Or(r.timeout, Timeout), final: -1, first: 1,
	}
	if r.netascii {
		size *= 2
	}
	if t.oack != nil {
		t.acked, t.sent = -1, -1 // the first window is the OACK alone
	} else {
		t.beginWindow()
	}
	chunk := min(max(chunkTotal/int64(transfers), chunkMin), chunkMax)
	if t.oack == nil { // without an OACK, two chunks are read before the client has sent an ACK
		chunk = chunkMin
	}
	t.perChunk = max(int64(t.window), min(chunk, size)/int64(t.blockSize)+1)
	return t
}

// wantsChunk reports whether to read another chunk of the file. It returns false until the client has acknowledged the
// OACK, because the source address of a request may be forged.
func (t *sender) wantsChunk() bool {
	return t.acked >= 0 && t.final < 0 && len(t.chunks) < 2
}

// readChunk reads the next chunk of a file into b. last reports whether the file ends with this chunk.
func readChunk(r io.Reader, b []byte) (chunk []byte, last bool, err error) {
	n, err := io.ReadFull(r, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return b[:n], true, nil
	}
	return b[:n], false, err
}

// buffer returns memory for the next chunk.
func (t *sender) buffer() []byte {
	b := t.spare
	if t.spare = nil; b == nil {
		b = make([]byte, t.perChunk*int64(t.blockSize))
	}
	return b
}

// addChunk appends a chunk. The last block of a file is shorter than blockSize, and may be empty; addChunk counts this
// block together with the last chunk.
func (t *sender) addChunk(b []byte, last bool) {
	t.chunks = append(t.chunks, b)
	if !last {
		t.read += t.perChunk
		return
	}
	t.read += int64(len(b)/t.blockSize) + 1
	t.final = t.read
}

// next returns the next block to send. ok is false at the end of the window, or if the block is not read yet.
func (t *sender) next() (number uint16, content []byte, ok bool) {
	n := t.sent + 1
	if n > t.read || n > t.end {
		return 0, nil, false
	}
	t.sent = n
	if n == 0 {
		return 0, nil, true
	}
	chunk := t.chunks[(n-t.first)/t.perChunk]
	at := int((n-t.first)%t.perChunk) * t.blockSize
	return uint16(n), chunk[at:min(at+t.blockSize, len(chunk))], true
}

// unsend takes back block, which could not be sent, so that next returns it again. The caller must call unsend before
// the next ack.
func (t *sender) unsend(block int64) { t.sent = max(min(t.sent, block-1), t.acked) }

// ack handles an ACK that came at now, and reports whether it acknowledges a new block. The caller then sends the
// blocks that next returns.
//
// An ACK for an earlier block than the last of the window reports that the block after it is lost. But if such an ACK
// comes within a quarter of a round trip after the last packet, it answers earlier packets. Then ack repeats nothing:
// otherwise each packet could cause two more.
func (t *sender) ack(number uint16, now time.Time) bool {
	news := int64(number - uint16(t.acked))
	soon := now.Sub(t.sentAt) <= t.trip/4
	switch {
	case news > t.sent-t.acked:
		return false // the ACK is for a block that was not sent, or for one that was acknowledged earlier
	case news == 0:
		if t.window > 1 && t.acked >= 0 && t.sent > t.acked && !soon && t.repeats < Retries {
			t.repeat()
		}
		return false
	}
	t.acked += news
	t.repeats = 0
	if t.acked == t.sent {
		if !t.repeated {
			t.trip = now.Sub(t.sentAt)
		}
		t.repeated = false
		t.beginWindow()
	} else if !soon {
		t.repeated = true
		t.beginWindow()
	}
	if len(t.chunks) > 0 && t.acked >= t.first+t.perChunk-1 {
		t.spare = t.chunks[0][:cap(t.chunks[0])]
		t.chunks, t.first = t.chunks[1:], t.first+t.perChunk
	}
	return true
}

// done reports whether the client has acknowledged the last block.
func (t *sender) done() bool { return t.final >= 0 && t.acked == t.final }

// beginWindow makes next continue with the block after the last acknowledged one, in a new window.
func (t *sender) beginWindow() {
	t.sent, t.end = t.acked, t.acked+int64(t.window)
}

// repeat makes next return the unacknowledged blocks again.
func (t *sender) repeat() {
	t.repeats++
	t.repeated = true
	if t.acked >= 0 {
		t.beginWindow()
	} else {
		t.sent = t.acked
	}
}

// expired reports whether the unacknowledged blocks were repeated more than Retries times.
func (t *sender) expired() bool { return t.repeats > Retries }
