package diskimage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const (
	// maxDecoders limits how many frames are decompressed in parallel. Each needs up to twice
	// FrameSize of memory.
	maxDecoders = 4

	// headerPeek bytes contain every frame header, and the magic and length of a skippable frame.
	headerPeek = 18
)

// openZstd returns the content of the zstd file in. With more than one processor, frames that
// declare a content of at most FrameSize bytes are decompressed in parallel. From the first other
// frame onward, the file is decompressed as one stream.
func openZstd(in *bufio.Reader) (io.ReadCloser, error) {
	n := min(runtime.GOMAXPROCS(0), maxDecoders)
	if n == 1 {
		return zstdStream(in)
	}

	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(n), zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderMaxMemory(FrameSize))
	if err != nil {
		return nil, err
	}

	f := &frameReader{
		in: in, dec: dec, queue: make(chan chan frame, n), stop: make(chan struct{}), done: make(chan struct{}),
		free: make(chan *frameBuffers, n+1),
	}
	for range n + 1 {
		f.free <- &frameBuffers{}
	}
	go f.split()
	return f, nil
}

// zstdStream decompresses in as a single stream.
func zstdStream(in io.Reader) (io.ReadCloser, error) {
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// A frameReader decompresses the frames of a zstd file (RFC 8878) in parallel and returns their
// content in order. One goroutine finds the end of each frame from the lengths of its blocks; one
// goroutine per frame decompresses it.
type frameReader struct {
	in      *bufio.Reader // read by split until done is closed, afterwards by stream
	dec     *zstd.Decoder
	decoded sync.WaitGroup     // the goroutines of frames
	queue   chan chan frame    // one result per frame, in the order of the file
	free    chan *frameBuffers // limits the frames in memory
	stop    chan struct{}      // closed by Close
	done    chan struct{}      // closed when split has returned

	// current, rest and stream are used only by Read and Close.
	current frame
	rest    []byte // the part of current that Read has not returned yet
	stream  io.ReadCloser
	err     error
}

// frameBuffers are the buffers of a frame; they are reused.
type frameBuffers struct{ packed, content []byte }

// A frame is a decompressed frame, its error, or the start of the part that has to be read as a
// stream.
type frame struct {
	buffers  *frameBuffers
	isStream bool
	err      error
}

// split reads the file and starts the decompression of each frame.
func (f *frameReader) split() {
	defer close(f.done)
	defer close(f.queue)
	defer func() {
		if p := recover(); p != nil {
			f.pass(frame{err: fmt.Errorf("reading zstd frames: panic: %v", p)})
		}
	}()

	for {
		h, err := f.nextHeader()
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			f.pass(frame{err: err})
			return
		case !h.HasFCS || h.FrameContentSize > FrameSize || h.DictionaryID != 0:
			f.pass(frame{isStream: true})
			return
		}

		var b *frameBuffers
		select {
		case b = <-f.free:
		case <-f.stop:
			return
		}
		if b.packed, err = readFrame(f.in, h, b.packed[:0]); err != nil {
			f.pass(frame{err: err})
			return
		}
		if !f.decompress(b, int(h.FrameContentSize)) {
			return
		}
	}
}

// pass queues a result unless the reader is closed.
func (f *frameReader) pass(r frame) {
	result := make(chan frame, 1)
	result <- r
	f.enqueue(result)
}

// enqueue queues the result of a frame. It returns false if the reader is closed.
func (f *frameReader) enqueue(result chan frame) bool {
	select {
	case f.queue <- result:
		return true
	case <-f.stop:
		return false
	}
}

// decompress starts the decompression of b.packed, whose content has size bytes, and queues its
// result. It returns false if the reader is closed.
func (f *frameReader) decompress(b *frameBuffers, size int) bool {
	result := make(chan frame, 1)
	if !f.enqueue(result) {
		return false
	}

	f.decoded.Go(func() {
		r := frame{buffers: b}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("decompressing a zstd frame: panic: %v", p)
			}
			result <- r
		}()

		if cap(b.content) < size {
			b.content = make([]byte, 0, size)
		}
		b.content, r.err = f.dec.DecodeAll(b.packed, b.content[:0])
		if r.err != nil && !exceedsMemory(r.err) {
			// The frame was read whole, so it is not cut short, even if the file has ended since.
			r.err = refuse(againRemedy, "the %s data is damaged (%v)", Zstd, r.err)
		}
	})
	return true
}

// nextHeader returns the header of the next frame with content without consuming it. It skips
// skippable frames. io.EOF means that the file ended between two frames.
func (f *frameReader) nextHeader() (h zstd.Header, err error) {
	for {
		head, err := f.in.Peek(headerPeek)
		if len(head) == 0 && err != nil {
			return h, err
		}

		if decodeErr := h.Decode(head); decodeErr != nil {
			if err != nil && !errors.Is(err, io.EOF) {
				return h, err
			}
			return h, decodeErr
		}
		if !h.Skippable {
			return h, nil
		}

		if _, err := io.CopyN(io.Discard, f.in, int64(h.HeaderSize)+int64(h.SkippableSize)); err != nil {
			return h, unexpected(err)
		}
	}
}

// blockRLE is the block type whose data is shorter than its length field (RFC 8878, 3.1.1.2.2).
const blockRLE = 1

// readFrame appends a complete frame with header h to packed.
func readFrame(in *bufio.Reader, h zstd.Header, packed []byte) ([]byte, error) {
	// An encoder adds only the block headers to the size of the content.
	limit := int(h.FrameContentSize) + int(h.FrameContentSize>>6) + 64<<10

	read := func(n int) (_ []byte, err error) {
		at := len(packed)
		if at+n > limit {
			return nil, errors.New("a frame is larger than its content")
		}
		if cap(packed) < at+n {
			packed = append(make([]byte, 0, min(limit, 2*(at+n))), packed...)
		}
		packed = packed[:at+n]
		_, err = io.ReadFull(in, packed[at:])
		return packed[at:], unexpected(err)
	}

	if _, err := read(h.HeaderSize); err != nil {
		return packed, err
	}

	for last := false; !last; {
		b, err := read(3)
		if err != nil {
			return packed, err
		}

		block := uint32(b[0]) | uint32(binary.LittleEndian.Uint16(b[1:]))<<8
		last = block&1 != 0
		size := int(block >> 3)
		if block>>1&3 == blockRLE {
			size = 1
		}
		if _, err := read(size); err != nil {
			return packed, err
		}
	}

	var err error
	if h.HasCheckSum {
		_, err = read(4)
	}
	return packed, err
}

// unexpected returns err, with io.ErrUnexpectedEOF in place of io.EOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Read implements io.Reader.
func (f *frameReader) Read(p []byte) (int, error) {
	for len(f.rest) == 0 && f.err == nil && f.stream == nil {
		f.err = f.next()
	}
	switch {
	case len(f.rest) > 0:
		n := copy(p, f.rest)
		f.rest = f.rest[n:]
		return n, nil
	case f.stream != nil:
		return f.stream.Read(p)
	default:
		return 0, f.err
	}
}

// next releases the buffers of the current frame and waits for the next frame.
func (f *frameReader) next() error {
	if f.current.buffers != nil {
		f.free <- f.current.buffers
		f.current = frame{}
	}

	result, ok := <-f.queue
	if !ok {
		return io.EOF
	}

	f.current = <-result
	switch {
	case f.current.err != nil:
		return f.current.err
	case f.current.isStream:
		<-f.done // split no longer reads
		var err error
		f.stream, err = zstdStream(f.in)
		return err
	}
	f.rest = f.current.buffers.content
	return nil
}

// Close implements io.Closer. It waits for a read of the file that is in progress.
func (f *frameReader) Close() error {
	close(f.stop)
	<-f.done
	f.decoded.Wait()
	f.dec.Close()
	if f.stream != nil {
		return f.stream.Close()
	}
	return nil
}
