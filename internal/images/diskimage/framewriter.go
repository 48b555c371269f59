package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/klauspost/compress/zstd"
)

// FrameSize is the size in bytes of the content of each frame that a FrameWriter writes, except for the last one.
const FrameSize = 16 << 20

// maxEncoders limits how many frames are compressed in parallel. Each needs up to 64 MiB of memory.
const maxEncoders = 8

// Magic numbers of the zstd seekable format.
const (
	skippableMagic = 0x184d2a5e
	seekableMagic  = 0x8f92eab1
)

// A FrameWriter compresses its input in the zstd seekable format (contrib/seekable_format in zstd, version 0.1.0):
// independent frames, which can be decompressed in parallel and from any frame on, and then a table of their sizes
// in a frame that decompressors skip. The same content always results in the same bytes.
type FrameWriter struct {
	out     io.Writer
	encoder *zstd.Encoder
	decoder *zstd.Decoder

	parallel int
	next     *packing   // frame that is being filled
	started  []*packing // frames that are being compressed, in the order of the file
	sizes    []byte     // table of the frames' sizes, as it is written at the end
}

// packing is a frame that is being compressed, with its reusable buffers.
type packing struct {
	content, packed, proof []byte
	done                   chan error // receives the result of pack
}

// NewFrameWriter returns a FrameWriter that writes to out. It uses out only in calls of Write and Close.
func NewFrameWriter(out io.Writer) (*FrameWriter, error) {
	f := &FrameWriter{out: out, parallel: min(runtime.GOMAXPROCS(0), maxEncoders), next: newPacking()}
	var encoderErr, decoderErr error
	f.encoder, encoderErr = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(f.parallel))
	f.decoder, decoderErr = zstd.NewReader(nil, zstd.WithDecoderConcurrency(f.parallel))
	return f, errors.Join(encoderErr, decoderErr)
}

func newPacking() *packing {
	return &packing{content: make([]byte, 0, FrameSize), done: make(chan error, 1)}
}

// Write implements io.Writer. Do not write again after an error.
func (f *FrameWriter) Write(p []byte) (n int, err error) {
	for n < len(p) {
		content := &f.next.content
		k := min(FrameSize-len(*content), len(p)-n)
		*content = append(*content, p[n:n+k]...)
		n += k
		if len(*content) < FrameSize {
			continue
		}
		if err := f.start(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// start starts to compress the frame in next and sets next to an empty one.
func (f *FrameWriter) start() (err error) {
	full := f.next
	go func() { full.done <- f.pack(full) }()
	f.started = append(f.started, full)
	if len(f.started) < f.parallel {
		f.next = newPacking()
		return nil
	}
	f.next, err = f.writeOldest()
	return err
}

// pack compresses a frame, decompresses the result and compares it with the content.
func (f *FrameWriter) pack(x *packing) (err error) {
	x.packed = f.encoder.EncodeAll(x.content, x.packed[:0])
	x.proof, err = f.decoder.DecodeAll(x.packed, x.proof[:0])
	if err == nil && !bytes.Equal(x.proof, x.content) {
		err = errors.New("the compressed data differs from the original: the memory of this host may be faulty")
	}
	if err != nil {
		return fmt.Errorf("compressing an image: %w", err)
	}
	return nil
}

// writeOldest waits for the oldest started frame, writes it and returns it for reuse.
func (f *FrameWriter) writeOldest() (*packing, error) {
	x := f.started[0]
	f.started = f.started[1:]
	if err := <-x.done; err != nil {
		return nil, err
	}
	if _, err := f.out.Write(x.packed); err != nil {
		return nil, err
	}

	f.sizes = binary.LittleEndian.AppendUint32(f.sizes, uint32(len(x.packed)))
	f.sizes = binary.LittleEndian.AppendUint32(f.sizes, uint32(len(x.content)))
	x.content = x.content[:0]
	return x, nil
}

// Close writes the last frame and the table. It does not close the underlying writer.
func (f *FrameWriter) Close() error {
	if len(f.next.content) > 0 {
		if err := f.start(); err != nil {
			return err
		}
	}
	for len(f.started) > 0 {
		if _, err := f.writeOldest(); err != nil {
			return err
		}
	}
	f.decoder.Close()

	frames := uint32(len(f.sizes) / 8)
	b := binary.LittleEndian.AppendUint32(nil, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.sizes)+9))
	b = append(b, f.sizes...)
	b = binary.LittleEndian.AppendUint32(b, frames)
	b = append(b, 0) // flags: no checksums in the table, because each frame has its own
	b = binary.LittleEndian.AppendUint32(b, seekableMagic)
	_, err := f.out.Write(b)
	return errors.Join(err, f.encoder.Close())
}
