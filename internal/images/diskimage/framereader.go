package diskimage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

// headerPeek bytes are enough for every zstd frame header, and for the magic number and length of a skippable frame.
const headerPeek = 18

// openZstd returns the content of the zstd file in. With more than one processor, it decompresses frames in parallel,
// as long as each frame declares a content of at most FrameSize bytes. From the first frame that does not, it
// decompresses the rest of the file as one stream.
func openZstd(in *bufio.Reader) (io.ReadCloser, error) {
	n := runtime.GOMAXPROCS(0)
	if n == 1 {
		return zstdStream(in)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(min(n, maxDecoders)), zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderMaxMemory(FrameSize))
	if err != nil {
		return nil, err
	}
	return newPartReader(&frameSplitter{in: in, dec: dec}, FrameSize), nil
}

// zstdStream decompresses in as one stream.
func zstdStream(in io.Reader) (io.ReadCloser, error) {
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// A frameSplitter splits a zstd file into its frames (RFC 8878). It finds the end of a frame by the lengths of the
// frame's blocks.
type frameSplitter struct {
	in     *bufio.Reader
	dec    *zstd.Decoder
	header zstd.Header // header of the next frame
}

func (f *frameSplitter) format() string { return Zstd }

func (f *frameSplitter) next() (int, error) {
	var err error
	switch f.header, err = f.nextHeader(); {
	case err != nil:
		return 0, err
	case !f.header.HasFCS || f.header.FrameContentSize > FrameSize || f.header.DictionaryID != 0:
		return 0, errStream
	}
	return int(f.header.FrameContentSize), nil
}

func (f *frameSplitter) read(packed []byte) ([]byte, error) { return readFrame(f.in, f.header, packed) }

func (f *frameSplitter) decode(b *partBuffers, _ int) (err error) {
	b.content, err = f.dec.DecodeAll(b.packed, b.content)
	return err
}

func (f *frameSplitter) stream() (io.ReadCloser, error) { return zstdStream(f.in) }

func (f *frameSplitter) close() { f.dec.Close() }

// nextHeader skips skippable frames and returns the header of the next frame with content, without consuming that
// header. io.EOF means that the file ended between two frames.
func (f *frameSplitter) nextHeader() (h zstd.Header, err error) {
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

// blockRLE is the type of a block that holds one byte, whatever its length field says (RFC 8878, 3.1.1.2.2).
const blockRLE = 1

// readFrame appends to packed the complete frame whose header is h.
func readFrame(in *bufio.Reader, h zstd.Header, packed []byte) ([]byte, error) {
	// If content cannot be compressed, an encoder adds only block headers, so this limit is enough.
	limit := int(h.FrameContentSize) + int(h.FrameContentSize>>6) + 64<<10

	read := func(n int) (_ []byte, err error) {
		at := len(packed)
		if at+n > limit {
			return nil, errors.New("a compressed frame is larger than its content")
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
