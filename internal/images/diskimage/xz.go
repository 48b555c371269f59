package diskimage

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"runtime"
	"sync"

	"github.com/mikelolasagasti/xz"
)

// maxBlock is the maximum content, in bytes, of an xz block that is decompressed in parallel with others. xz -T writes
// blocks with 24 MiB.
const maxBlock = 32 << 20

// Values of the .xz file format, version 1.1.0.
const (
	xzMagic      = "\xfd7zXZ\x00"
	xzHeaderSize = 12 // size of a stream's header, §2.1.1, and of its footer, §2.1.2
	xzIndexStart = 0  // first byte of an index (§4.1); in a block, the first byte is the size of its header, which is never 0
)

// xzCheckSizes holds the size in bytes of a block's check, by the type of the check, §2.1.1.2.
var xzCheckSizes = [16]int64{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}

// openXZ returns the content of the xz file in. With more than one processor, it decompresses the blocks of a stream in
// parallel if the first block of the stream declares its sizes; the blocks that xz -T writes do. From the first stream
// without declared sizes on, openXZ decompresses the rest of the file as one stream.
func openXZ(in *bufio.Reader) (io.ReadCloser, error) {
	x := &xzSplitter{in: in, records: sha256.New()}
	if runtime.GOMAXPROCS(0) == 1 {
		return x.stream()
	}
	return newPartReader(x, maxBlock), nil
}

// An xzSplitter splits an xz file, which is a sequence of streams, into its blocks.
type xzSplitter struct {
	in     *bufio.Reader
	header []byte  // header of the stream that is being read; nil between streams
	block  xzBlock // next block
	// The index of the stream must contain this number of blocks, and sizes of blocks whose hash is records.
	count   uint64
	records hash.Hash

	decoders sync.Pool // holds *xz.Reader values for reuse
}

// An xzBlock holds the sizes of a block in bytes.
type xzBlock struct {
	header  int64
	packed  int64 // compressed data with the header and the check, without padding
	content int64
}

func (x *xzSplitter) format() string { return XZ }

func (x *xzSplitter) next() (int, error) {
	for {
		if x.header == nil {
			if err := x.beginStream(); err != nil {
				return 0, err
			}
		}

		head, err := x.in.Peek(1)
		if err != nil {
			return 0, unexpected(err)
		}
		if head[0] != xzIndexStart {
			var sized bool
			if x.block, sized, err = x.blockAt(0, x.header); err == nil && !sized {
				err = refuse("compress it again, for example: xz -T0", "the xz data has blocks of different kinds in one stream")
			}
			return int(x.block.content), err
		}
		if err := x.endStream(); err != nil {
			return 0, err
		}
	}
}

// beginStream reads the padding before the next stream (§2.2) and the stream's header. It returns errStream, and
// leaves the header unread, if the first block of the stream does not declare its sizes or is too large.
func (x *xzSplitter) beginStream() error {
	var head []byte
	for {
		var err error
		head, err = x.in.Peek(4)
		if len(head) == 0 && err != nil {
			return err
		}
		if len(head) < 4 {
			return unexpected(err)
		}
		if [4]byte(head) != [4]byte{} {
			break
		}
		if _, err := x.in.Discard(4); err != nil {
			return err
		}
	}

	head, err := x.in.Peek(xzHeaderSize + 1)
	if err != nil {
		return unexpected(err)
	}
	if string(head[:6]) != xzMagic || head[6] != 0 || head[7] > 15 || crc32.ChecksumIEEE(head[6:8]) != binary.LittleEndian.Uint32(head[8:]) {
		return errors.New("the header of a stream is wrong")
	}
	header := bytes.Clone(head[:xzHeaderSize])
	if head[xzHeaderSize] != xzIndexStart {
		_, sized, err := x.blockAt(xzHeaderSize, header)
		if err != nil {
			return err
		}
		if !sized {
			return errStream
		}
	}

	x.header, x.count = header, 0
	x.records.Reset()
	_, err = x.in.Discard(xzHeaderSize)
	return err
}

// blockAt returns the sizes of the block whose header (§3.1) begins off bytes after the read position; stream is
// the header of its stream. sized is false if the block does not declare its sizes, or if its content is larger
// than maxBlock.
func (x *xzSplitter) blockAt(off int, stream []byte) (b xzBlock, sized bool, err error) {
	head, err := x.in.Peek(off + 1)
	if err != nil {
		return b, false, unexpected(err)
	}
	n := (int(head[off]) + 1) * 4
	if head, err = x.in.Peek(off + n); err != nil {
		return b, false, unexpected(err)
	}
	head = head[off:]
	if crc32.ChecksumIEEE(head[:n-4]) != binary.LittleEndian.Uint32(head[n-4:]) {
		return b, false, errors.New("the header of a block is wrong")
	}
	if head[1]&0xc0 != 0xc0 { // the flags for the compressed and the uncompressed size
		return b, false, nil
	}

	fields := bytes.NewReader(head[2 : n-4])
	packed, err1 := binary.ReadUvarint(fields)
	content, err2 := binary.ReadUvarint(fields)
	if err := errors.Join(err1, err2); err != nil {
		return b, false, errors.New("the header of a block is wrong")
	}
	// If content cannot be compressed, an encoder adds only a few bytes, so this limit is enough.
	if content > maxBlock || packed > content+content>>6+64<<10 {
		return b, false, nil
	}
	return xzBlock{header: int64(n), packed: int64(n) + int64(packed) + xzCheckSizes[stream[7]], content: int64(content)}, true, nil
}

// read reads the next block and appends it to packed as a stream of its own, so that it can be decompressed alone.
func (x *xzSplitter) read(packed []byte) ([]byte, error) {
	packed = append(packed, x.header...)
	at := len(packed)
	// The block is padded to a multiple of 4. The padding comes before the check, but the check's size is a multiple of
	// 4 itself.
	padded := int(x.block.packed+3) &^ 3
	if cap(packed) < at+padded+64 {
		packed = append(make([]byte, 0, at+padded+64), packed...)
	}
	packed = packed[:at+padded]
	if _, err := io.ReadFull(x.in, packed[at:]); err != nil {
		return packed, unexpected(err)
	}

	record := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(x.block.packed)), uint64(x.block.content))
	x.count++
	x.records.Write(record)

	index := append([]byte{xzIndexStart, 1}, record...)
	for len(index)%4 != 0 {
		index = append(index, 0)
	}
	index = binary.LittleEndian.AppendUint32(index, crc32.ChecksumIEEE(index))
	return append(append(packed, index...), xzFooter(x.header, len(index))...), nil
}

// xzFooter returns the footer (§2.1.2) of a stream with this header and an index of size bytes.
func xzFooter(header []byte, size int) []byte {
	fields := binary.LittleEndian.AppendUint32(nil, uint32(size/4-1))
	fields = append(fields, header[6:8]...)
	return append(append(binary.LittleEndian.AppendUint32(nil, crc32.ChecksumIEEE(fields)), fields...), "YZ"...)
}

// endStream reads the index and the footer of a stream and returns an error if they do not match its blocks.
func (x *xzSplitter) endStream() error {
	index := &indexReader{in: x.in}
	if _, err := index.ReadByte(); err != nil {
		return err
	}
	count, err := binary.ReadUvarint(index)
	if err != nil {
		return err
	}
	if count != x.count {
		return fmt.Errorf("the index of a stream has %d blocks, not %d", count, x.count)
	}
	records := sha256.New()
	for range 2 * count {
		size, err := binary.ReadUvarint(index)
		if err != nil {
			return err
		}
		records.Write(binary.AppendUvarint(nil, size))
	}
	for index.size%4 != 0 {
		if b, err := index.ReadByte(); err != nil || b != 0 {
			return errors.Join(err, errors.New("the padding of an index is wrong"))
		}
	}

	sum := index.sum
	rest := make([]byte, 4+xzHeaderSize)
	if _, err := io.ReadFull(x.in, rest); err != nil {
		return unexpected(err)
	}
	if !bytes.Equal(records.Sum(nil), x.records.Sum(nil)) || binary.LittleEndian.Uint32(rest) != sum {
		return errors.New("the index of a stream is wrong")
	}
	if !bytes.Equal(rest[4:], xzFooter(x.header, index.size+4)) {
		return errors.New("the footer of a stream is wrong")
	}
	x.header = nil
	return nil
}

// An indexReader reads the index of a stream (§4) up to the CRC32 of the index.
type indexReader struct {
	in   *bufio.Reader
	size int    // bytes read so far
	sum  uint32 // CRC32 of the bytes read so far
}

// ReadByte implements io.ByteReader.
func (r *indexReader) ReadByte() (byte, error) {
	b, err := r.in.ReadByte()
	if err == nil {
		r.size++
		r.sum = crc32.Update(r.sum, crc32.IEEETable, []byte{b})
	}
	return b, unexpected(err)
}

func (x *xzSplitter) decode(b *partBuffers, size int) (err error) {
	z, ok := x.decoders.Get().(*xz.Reader)
	if !ok {
		if z, err = xz.NewReader(nil, maxWindow); err != nil {
			return err
		}
	}
	defer x.decoders.Put(z)
	if err := z.Reset(bytes.NewReader(b.packed)); err != nil {
		return err
	}
	b.content = b.content[:size]
	if _, err := io.ReadFull(z, b.content); err != nil {
		return unexpected(err)
	}
	if n, err := z.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return errors.Join(err, fmt.Errorf("a block has more than %d bytes", size))
	}
	return nil
}

func (x *xzSplitter) stream() (io.ReadCloser, error) {
	z, err := xz.NewReader(x.in, maxWindow)
	return io.NopCloser(z), err
}

func (x *xzSplitter) close() {}
