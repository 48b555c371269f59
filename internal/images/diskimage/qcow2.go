package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// The qcow2 format is specified in docs/interop/qcow2 of QEMU, versions 2 and 3. All numbers in it are big-endian.

const (
	convertAgainRemedy = "convert the image where it was made (qemu-img convert -O qcow2 FILE NEW.qcow2), and store NEW.qcow2"
	repairRemedy       = "repair the image where it was made (qemu-img check -r all FILE), and store it again"
)

// Bits of the header field for incompatible features.
const (
	featureDirty = 1 << iota
	featureCorrupt
	featureExternalData
	featureCompression
	featureExtendedL2
)

// Bits of the entries of L1 and L2 tables.
const (
	entryZero       = 1
	entryOffset     = 0x00ff_ffff_ffff_fe00
	entryCompressed = 1 << 62
	entryCopied     = 1 << 63
)

const (
	// maxL1 limits the size of the L1 table in bytes, as in QEMU.
	maxL1 = 32 << 20
	// maxClusterWindow limits the memory, in bytes, with which a compressed cluster is decompressed. A cluster never
	// needs more than its own size.
	maxClusterWindow = 8 << 20
	// maxClusters limits the number of clusters in a file: a count of two bytes is kept in memory for each cluster.
	maxClusters = 64 << 20
)

// qcow2Header is the header, the first 112 bytes of a file.
type qcow2Header struct {
	Magic            [4]byte
	Version          uint32
	BackingOffset    uint64
	BackingSize      uint32
	ClusterBits      uint32
	Size             uint64 // of the disk, in bytes
	Encryption       uint32
	L1Size           uint32 // in entries
	L1Offset         uint64
	RefcountOffset   uint64
	RefcountClusters uint32
	Snapshots        uint32
	SnapshotsOffset  uint64

	// The following fields exist only since version 3.
	Incompatible, Compatible, Autoclear uint64
	RefcountOrder                       uint32 // a refcount has 1<<RefcountOrder bits
	Length                              uint32
	Compression                         uint8 // 0 = zlib, 1 = zstd
	_                                   [7]byte
}

// qcow2 reads the disk in a qcow2 image as a stream.
type qcow2 struct {
	qcow2Header
	file    io.ReaderAt
	length  uint64 // of the file, in bytes
	cluster uint64 // size of a cluster in bytes
	l1      []uint64

	at       uint64 // position of Read on the disk
	l2       []byte // the L2 table of l1[l2Of]
	l2Of     int
	packed   []byte // data of a compressed cluster, as in the file
	unpacked []byte // content of the compressed cluster at offset unpackedAt of the disk
	// unpackedAt has no meaning while unpacked is nil.
	unpackedAt uint64
	inflate    io.ReadCloser
	zstd       *zstd.Decoder
}

func newQcow2(file io.ReaderAt, length int64, most uint64) (*qcow2, error) {
	q := &qcow2{file: file, length: uint64(max(length, 0)), l2Of: -1}
	if err := q.readHeader(); err != nil {
		return nil, err
	}
	if q.Size > most {
		return nil, refuse("store an image that grows to its disk when it first boots", "the image is larger than %d GiB", most>>30)
	}
	if err := q.readL1(); err != nil {
		return nil, err
	}

	used, err := q.countClusters()
	if err != nil {
		return nil, err
	}
	return q, q.compareRefcounts(used)
}

// damaged returns a *Refusal for an invalid header, table or entry.
func damaged(format string, args ...any) error {
	return refuse(againRemedy, "the qcow2 image is cut short or damaged: "+format, args...)
}

func (q *qcow2) readHeader() error {
	b := make([]byte, binary.Size(q.qcow2Header))
	if n, err := q.file.ReadAt(b, 0); n < 72 && errors.Is(err, io.EOF) {
		return damaged("its header has %d bytes", n)
	} else if n < len(b) && !errors.Is(err, io.EOF) {
		return err
	}

	h := &q.qcow2Header
	if _, err := binary.Decode(b, binary.BigEndian, h); err != nil {
		return err
	}
	if h.Version == 2 {
		h.Incompatible, h.Compatible, h.Autoclear, h.RefcountOrder, h.Length, h.Compression = 0, 0, 0, 4, 72, 0
	}
	if h.Length == 104 {
		h.Compression = 0 // in so short a header, this byte belongs to what follows the header
	}

	if err := h.check(); err != nil {
		return err
	}
	q.cluster = 1 << h.ClusterBits
	return q.checkExtensions()
}

// check returns a *Refusal for an image that this reader does not support, or that needs another file.
func (h *qcow2Header) check() error {
	known := uint64(featureDirty | featureCorrupt | featureExternalData | featureCompression | featureExtendedL2)
	zstandard := h.Incompatible&featureCompression != 0
	switch {
	case string(h.Magic[:]) != qcow2Start:
		return damaged("it begins with %q", h.Magic)
	case h.Version != 2 && h.Version != 3:
		return refuse(convertAgainRemedy, "the qcow2 image has version %d; only 2 and 3 can be read", h.Version)
	case h.Incompatible&featureDirty != 0:
		return refuse(repairRemedy, "the qcow2 image was not closed properly: its dirty bit is set")
	case h.Incompatible&featureCorrupt != 0:
		return refuse(repairRemedy, "the qcow2 image is marked as corrupt")
	case h.BackingOffset != 0:
		return refuse(convertAgainRemedy, "the qcow2 image needs another file, its backing file")
	case h.Incompatible&featureExternalData != 0:
		return refuse(convertAgainRemedy, "the qcow2 image needs another file, which holds its data")
	case h.Encryption != 0:
		return refuse(convertAgainRemedy, "the qcow2 image is encrypted")
	case h.Snapshots != 0:
		return refuse(convertAgainRemedy, "the qcow2 image has %d internal snapshots", h.Snapshots)
	case h.Incompatible&featureExtendedL2 != 0:
		return refuse(convertAgainRemedy, "the qcow2 image has extended L2 entries, which cannot be read")
	case h.Incompatible&^known != 0:
		return refuse(convertAgainRemedy, "the qcow2 image has unknown incompatible features %#x", h.Incompatible&^known)
	case h.ClusterBits < 9 || h.ClusterBits > 21:
		return damaged("its clusters have 2^%d bytes; 2^9 to 2^21 are supported", h.ClusterBits)
	case h.RefcountOrder > 6:
		return damaged("its refcounts have 2^%d bits; at most 2^6 are supported", h.RefcountOrder)
	case h.Version == 3 && (h.Length < 104 || h.Length%8 != 0 || h.Length > 1<<h.ClusterBits):
		return damaged("its header claims a length of %d bytes", h.Length)
	case zstandard != (h.Compression != 0):
		return damaged("its compression type is %d, which its features contradict", h.Compression)
	case h.Compression > 1:
		return refuse(convertAgainRemedy, "the qcow2 image has the unknown compression type %d", h.Compression)
	}
	return nil
}

// checkExtensions returns a *Refusal unless the header extensions end within the first cluster.
func (q *qcow2) checkExtensions() error {
	head := make([]byte, min(q.cluster, q.length))
	if err := q.readAt(head, 0); err != nil {
		return err
	}

	for at := uint64(q.Length); at+8 <= uint64(len(head)); {
		kind, length := binary.BigEndian.Uint32(head[at:]), uint64(binary.BigEndian.Uint32(head[at+4:]))
		if kind == 0 {
			return nil
		}
		if at += 8 + (length+7)&^7; at > uint64(len(head)) {
			return damaged("header extension %#x has %d bytes, more than the first cluster", kind, length)
		}
	}
	return nil
}

// readAt reads len(b) bytes of the file at offset. If the file is shorter, the error is a *Refusal.
func (q *qcow2) readAt(b []byte, offset uint64) error {
	n, err := q.file.ReadAt(b, int64(offset))
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return damaged("%d bytes are missing at %#x", len(b)-n, offset+uint64(n))
	}
	return err
}

// checkPlace returns a *Refusal unless the range of length bytes at offset is in the file, starts at a cluster boundary
// and does not overlap the header's cluster.
func (q *qcow2) checkPlace(offset, length uint64, format string, args ...any) error {
	var wrong string
	switch {
	case offset%q.cluster != 0:
		wrong = "where no cluster begins"
	case offset == 0:
		wrong = "the place of the header"
	case offset > q.length || length > q.length-offset:
		wrong = fmt.Sprintf("outside the file of %d bytes", q.length)
	default:
		return nil
	}
	return damaged("%s is at %#x, %s", fmt.Sprintf(format, args...), offset, wrong)
}

// readL1 reads and checks the part of the L1 table that a disk of this size needs.
func (q *qcow2) readL1() error {
	perEntry := q.cluster * (q.cluster / 8) // bytes of the disk that one L1 entry covers
	needed := (q.Size + perEntry - 1) / perEntry
	switch {
	case uint64(q.L1Size) < needed:
		return damaged("its L1 table has %d entries, but a disk of %d bytes needs %d", q.L1Size, q.Size, needed)
	case needed*8 > maxL1:
		return refuse(convertAgainRemedy, "the qcow2 image needs an L1 table of %d bytes: its clusters are too small for its disk",
			needed*8)
	case needed == 0:
		return nil
	}
	if err := q.checkPlace(q.L1Offset, 8*uint64(q.L1Size), "the L1 table"); err != nil {
		return err
	}

	b := make([]byte, 8*needed)
	if err := q.readAt(b, q.L1Offset); err != nil {
		return err
	}
	q.l1 = make([]uint64, needed)
	for n := range q.l1 {
		e := binary.BigEndian.Uint64(b[8*n:])
		if e&^(entryOffset|entryCopied) != 0 {
			return damaged("L1 entry %d has the invalid value %#x", n, e)
		}
		if q.l1[n] = e & entryOffset; q.l1[n] == 0 {
			continue
		}
		if err := q.checkPlace(q.l1[n], q.cluster, "the L2 table of L1 entry %d", n); err != nil {
			return err
		}
	}
	return nil
}

// An extent is the location of a cluster's data in the file. The length is 0 if the cluster is all zeros and has
// no data.
type extent struct {
	zeros, packed  bool
	offset, length uint64
}

// find returns the location of the cluster that begins at the offset guest of the disk.
func (q *qcow2) find(guest uint64) (x extent, err error) {
	n := guest / q.cluster
	perTable := q.cluster / 8
	table := int(n / perTable)
	if q.l1[table] == 0 {
		return extent{zeros: true}, nil
	}

	if q.l2Of != table {
		q.l2, q.l2Of = slices.Grow(q.l2[:0], int(q.cluster))[:q.cluster], -1
		if err := q.readAt(q.l2, q.l1[table]); err != nil {
			return x, err
		}
		q.l2Of = table
	}
	e := binary.BigEndian.Uint64(q.l2[8*(n%perTable):])
	if e&entryCompressed != 0 {
		return q.findPacked(guest, e)
	}

	x = extent{zeros: e&entryZero != 0, offset: e & entryOffset}
	reserved := e &^ (entryOffset | entryCopied | entryZero)
	if reserved != 0 || x.zeros && q.Version == 2 {
		return x, damaged("the L2 entry of byte %#x of the disk has the invalid value %#x", guest, e)
	}
	if x.offset == 0 {
		return extent{zeros: true}, nil
	}
	x.length = min(q.cluster, q.Size-guest) // the last cluster of the file may be shorter: it may end where the disk ends
	return x, q.checkPlace(x.offset, x.length, "the cluster of byte %#x of the disk", guest)
}

// findPacked does the same as find, but for a compressed cluster.
func (q *qcow2) findPacked(guest, e uint64) (x extent, err error) {
	bits := 62 - (q.ClusterBits - 8)
	x.packed = true
	x.offset = e & (1<<bits - 1)
	sectors := e&(entryCompressed-1)>>bits + 1
	x.length = sectors*512 - x.offset%512

	if x.offset < q.cluster || x.offset >= q.length || x.offset+x.length > (q.length+511)&^511 {
		return x, damaged("the compressed cluster of byte %#x of the disk is at %#x, outside the data of the file of %d bytes",
			guest, x.offset, q.length)
	}
	x.length = min(x.length, q.length-x.offset)
	return x, nil
}

// Read implements io.Reader.
func (q *qcow2) Read(p []byte) (int, error) {
	if q.at >= q.Size {
		return 0, io.EOF
	}

	within := q.at % q.cluster
	p = p[:min(uint64(len(p)), q.cluster-within, q.Size-q.at)]
	x, err := q.find(q.at - within)
	switch {
	case err != nil:
	case x.zeros:
		clear(p)
	case x.packed:
		if err = q.unpack(q.at-within, x); err == nil {
			copy(p, q.unpacked[within:])
		}
	default:
		err = q.readAt(p, x.offset+within)
	}
	if err != nil {
		return 0, err
	}

	q.at += uint64(len(p))
	return len(p), nil
}

// unpack decompresses into q.unpacked the cluster that begins at the offset guest of the disk.
func (q *qcow2) unpack(guest uint64, x extent) error {
	if q.unpacked != nil && q.unpackedAt == guest {
		return nil
	}
	if q.unpacked == nil {
		q.packed, q.unpacked = make([]byte, 2*q.cluster), make([]byte, q.cluster)
	}

	packed := q.packed[:x.length]
	if err := q.readAt(packed, x.offset); err != nil {
		return err
	}
	in, err := q.decompressor(packed)
	if err == nil {
		_, err = io.ReadFull(in, q.unpacked) // what follows in the file belongs to other clusters
	}
	if err != nil {
		q.unpacked = nil
		return damaged("the compressed cluster of byte %#x of the disk, at %#x: %v", guest, x.offset, err)
	}
	q.unpackedAt = guest
	return nil
}

// decompressor returns a reader of the decompressed content of a cluster.
func (q *qcow2) decompressor(packed []byte) (in io.Reader, err error) {
	if q.Compression == 0 {
		if q.inflate == nil {
			q.inflate = flate.NewReader(nil)
		}
		return q.inflate, q.inflate.(flate.Resetter).Reset(bytes.NewReader(packed), nil)
	}

	if q.zstd == nil {
		q.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxClusterWindow))
		if err != nil {
			return nil, err
		}
	}
	return q.zstd, q.zstd.Reset(bytes.NewReader(packed))
}

// Close implements io.Closer.
func (q *qcow2) Close() error {
	if q.zstd != nil {
		q.zstd.Close()
	}
	return nil
}
