package diskimage

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"
)

// maxDecoders limits how many parts are decompressed in parallel.
const maxDecoders = 4

// errStream means that the rest of a file must be decompressed as one stream.
var errStream = errors.New("it has no parts")

// A splitter splits a compressed file into parts that can be decompressed independently of each other.
type splitter interface {
	format() string
	// next returns the size of the next part's content without reading the part. io.EOF means that the file is
	// complete. If next returns errStream, it has not read anything of the rest of the file.
	next() (size int, err error)
	// read reads the part and appends it to packed.
	read(packed []byte) ([]byte, error)
	// decode decompresses b.packed into b.content, which is empty and has room for size bytes. It is called in
	// several goroutines at once.
	decode(b *partBuffers, size int) error
	// stream is called after errStream. It returns the content of the rest of the file.
	stream() (io.ReadCloser, error)
	close()
}

// A partReader decompresses the parts of a file in parallel and returns their content in order. One
// goroutine finds the parts; one goroutine per part decompresses it.
type partReader struct {
	parts   splitter          // used by split until done is closed, then by stream
	decoded sync.WaitGroup    // goroutines that decompress parts
	queue   chan chan part    // one result per part, in the order of the file
	free    chan *partBuffers // buffers; their number limits the parts in memory
	stop    chan struct{}     // closed by Close
	done    chan struct{}     // closed when split has returned

	// current, rest and stream are used only by Read and Close.
	current part
	rest    []byte // the content of current that Read has not returned yet
	stream  io.ReadCloser
	err     error
}

// newPartReader starts to decompress the parts of a file. The content of each part has at most limit bytes.
func newPartReader(parts splitter, limit int) *partReader {
	n := min(runtime.GOMAXPROCS(0), maxDecoders, maxWindow/limit-1)
	r := &partReader{
		parts: parts, queue: make(chan chan part, n), stop: make(chan struct{}), done: make(chan struct{}),
		free: make(chan *partBuffers, n+1),
	}
	for range n + 1 {
		r.free <- &partBuffers{}
	}
	go r.split()
	return r
}

// partBuffers holds the buffers of a part. They are reused for later parts.
type partBuffers struct{ packed, content []byte }

// A part is the content of a part, or its error. isStream means that the rest of the file must be read as a stream.
type part struct {
	buffers  *partBuffers
	isStream bool
	err      error
}

// split reads the file and starts to decompress each part. It runs in a goroutine of its own.
func (f *partReader) split() {
	defer close(f.done)
	defer close(f.queue)
	defer func() {
		if p := recover(); p != nil {
			f.pass(part{err: fmt.Errorf("reading %s data: panic: %v", f.parts.format(), p)})
		}
	}()

	for {
		size, err := f.parts.next()
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			f.pass(part{isStream: errors.Is(err, errStream), err: err})
			return
		}

		var b *partBuffers
		select {
		case b = <-f.free:
		case <-f.stop:
			return
		}
		if b.packed, err = f.parts.read(b.packed[:0]); err != nil {
			f.pass(part{err: err})
			return
		}
		if !f.decompress(b, size) {
			return
		}
	}
}

// pass queues a result, unless the reader is closed.
func (f *partReader) pass(r part) {
	result := make(chan part, 1)
	result <- r
	f.enqueue(result)
}

// enqueue queues the result of a part. It returns false if the reader is closed.
func (f *partReader) enqueue(result chan part) bool {
	select {
	case f.queue <- result:
		return true
	case <-f.stop:
		return false
	}
}

// decompress starts to decompress b.packed, whose content has size bytes, and queues the result. It returns false
// if the reader is closed.
func (f *partReader) decompress(b *partBuffers, size int) bool {
	result := make(chan part, 1)
	if !f.enqueue(result) {
		return false
	}

	f.decoded.Go(func() {
		r := part{buffers: b}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("decompressing %s data: panic: %v", f.parts.format(), p)
			}
			result <- r
		}()

		if cap(b.content) < size {
			b.content = make([]byte, 0, size)
		}
		b.content = b.content[:0]
		if r.err = f.parts.decode(b, size); r.err != nil && !exceedsMemory(r.err) {
			// The part was read completely, so the error is not due to a file that is cut short.
			r.err = refuse(againRemedy, "the %s data is damaged (%v)", f.parts.format(), r.err)
		}
	})
	return true
}

// exceedsMemory reports whether err means that decompression would need too much memory.
func exceedsMemory(err error) bool {
	return errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, xz.ErrMemlimit)
}

// unexpected returns io.ErrUnexpectedEOF instead of io.EOF, and any other err unchanged.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Read implements io.Reader.
func (f *partReader) Read(p []byte) (int, error) {
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

// next releases the buffers of the current part and waits for the next part.
func (f *partReader) next() error {
	if f.current.buffers != nil {
		f.free <- f.current.buffers
		f.current = part{}
	}

	result, ok := <-f.queue
	if !ok {
		return io.EOF
	}

	f.current = <-result
	switch {
	case f.current.isStream:
		<-f.done // from now on split does not read the file
		var err error
		f.stream, err = f.parts.stream()
		return err
	case f.current.err != nil:
		return f.current.err
	}
	f.rest = f.current.buffers.content
	return nil
}

// Close implements io.Closer. It waits for a read of the file that is in progress.
func (f *partReader) Close() error {
	close(f.stop)
	<-f.done
	f.decoded.Wait()
	f.parts.close()
	if f.stream != nil {
		return f.stream.Close()
	}
	return nil
}
