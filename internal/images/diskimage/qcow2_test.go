package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

// How a test image stores a cluster.
type (
	stored      []byte   // uncompressed
	packed      []byte   // compressed
	zeroed      struct{} // marked by a bit
	zeroedPlace struct{} // marked by a bit, with an allocated cluster
)

// qcow2Spec describes an image for a test.
type qcow2Spec struct {
	version, bits, order uint32
	zstd                 bool
	size                 uint64
	clusters             map[int]any // by cluster number on the disk
}

// qcow2File is a generated image with the offsets of its parts.
type qcow2File struct {
	b                       []byte
	cluster                 int
	l1, l2, table, block    int
	data                    int // the first uncompressed cluster
	used                    []uint16
	entries, perTable, size int
}

// makeQcow2 generates an image: header, L1, L2 tables, data, refcount table, refcount blocks.
func makeQcow2(t testing.TB, s qcow2Spec) qcow2File {
	t.Helper()
	f := qcow2File{cluster: 1 << s.bits, perTable: 1 << s.bits / 8, size: int(s.size)}
	f.b = make([]byte, f.cluster)
	f.used = []uint16{1}
	f.entries = (f.size + f.cluster - 1) / f.cluster
	tables := (f.entries + f.perTable - 1) / f.perTable
	f.l1 = f.add(8 * tables)
	f.l2 = f.add(tables * f.cluster)
	for n := range tables {
		f.put(f.l1+8*n, uint64(f.l2+n*f.cluster)|entryCopied)
	}
	for n := range f.entries {
		f.store(t, s, n)
	}
	f.writeRefcounts(s)
	f.writeHeader(s, tables)
	return f
}

// add appends clusters for size bytes and returns their offset.
func (f *qcow2File) add(size int) int {
	at := len(f.b)
	for range (size + f.cluster - 1) / f.cluster {
		f.b, f.used = append(f.b, make([]byte, f.cluster)...), append(f.used, 1)
	}
	return at
}

func (f *qcow2File) put(at int, v uint64) { binary.BigEndian.PutUint64(f.b[at:], v) }

// entry returns the offset of a cluster's L2 entry.
func (f *qcow2File) entry(n int) int { return f.l2 + 8*n }

func (f *qcow2File) store(t testing.TB, s qcow2Spec, n int) {
	switch c := s.clusters[n].(type) {
	case stored:
		at := f.add(f.cluster)
		copy(f.b[at:], c)
		f.put(f.entry(n), uint64(at)|entryCopied)
		if f.data == 0 {
			f.data = at
		}
	case zeroed:
		f.put(f.entry(n), entryZero)
	case zeroedPlace:
		at := f.add(f.cluster)
		copy(f.b[at:], "this is not part of the disk")
		f.put(f.entry(n), uint64(at)|entryZero|entryCopied)
	case packed:
		small := pack(t, s, c)
		at := f.add(len(small)) + 7 // compressed clusters need no alignment
		f.add(7)
		copy(f.b[at:], small)
		sectors := (at%512 + len(small) - 1) / 512
		f.put(f.entry(n), uint64(at)|uint64(sectors)<<(62-(s.bits-8))|entryCompressed)
	}
}

// pack compresses a cluster.
func pack(t testing.TB, s qcow2Spec, content []byte) []byte {
	t.Helper()
	whole := make([]byte, 1<<s.bits)
	copy(whole, content)
	if s.zstd {
		w, err := zstd.NewWriter(nil)
		require.NoError(t, err)
		return w.EncodeAll(whole, nil)
	}
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, 6)
	require.NoError(t, err)
	_, err = w.Write(whole)
	require.NoError(t, errors.Join(err, w.Close()))
	return out.Bytes()
}

func (f *qcow2File) writeRefcounts(s qcow2Spec) {
	perBlock := f.cluster * 8 >> s.order
	blocks := 1
	for (len(f.used)+1+blocks+perBlock-1)/perBlock > blocks {
		blocks++
	}
	f.table = f.add(8 * blocks)
	f.block = f.add(blocks * f.cluster)
	for n := range blocks {
		f.put(f.table+8*n, uint64(f.block+n*f.cluster))
	}
	for n := range f.used {
		f.setRefcount(n, s.order, 1)
	}
}

// setRefcount sets the refcount of a cluster in the file.
func (f *qcow2File) setRefcount(n int, order uint32, count uint64) {
	bits := 1 << order
	for k := range bits {
		bit := n*bits + k // within a byte, bits are counted from the lowest one
		if bits > 8 {     // larger refcounts are big-endian
			bit = n*bits + (bits/8-1-k/8)*8 + k%8
		}
		f.b[f.block+bit/8] &^= 1 << (bit % 8)
		f.b[f.block+bit/8] |= byte(count>>k&1) << (bit % 8)
	}
}

func (f *qcow2File) writeHeader(s qcow2Spec, tables int) {
	h := qcow2Header{
		Magic: [4]byte([]byte(qcow2Start)), Version: s.version, ClusterBits: s.bits, Size: s.size, L1Size: uint32(tables),
		L1Offset: uint64(f.l1), RefcountOffset: uint64(f.table), RefcountClusters: uint32((f.block - f.table) / f.cluster),
		RefcountOrder: s.order, Length: 112,
	}
	if s.zstd {
		h.Incompatible, h.Compression = featureCompression, 1
	}
	f.setHeader(h)
}

func (f *qcow2File) setHeader(h qcow2Header) {
	var out bytes.Buffer
	_ = binary.Write(&out, binary.BigEndian, h) // a buffer never fails
	if h.Version == 2 {
		out.Truncate(72)
	}
	copy(f.b, out.Bytes())
}

// changeHeader returns a copy of the file with a changed header.
func (f qcow2File) changeHeader(change func(*qcow2Header)) []byte {
	f.b = slices.Clone(f.b)
	var h qcow2Header
	_, _ = binary.Decode(f.b, binary.BigEndian, &h) // cannot fail: the file was encoded from this type
	change(&h)
	f.setHeader(h)
	return f.b
}

// changeEntry returns a copy of the file with 8 changed bytes.
func (f qcow2File) changeEntry(at int, v uint64) []byte {
	f.b = slices.Clone(f.b)
	f.put(at, v)
	return f.b
}

// disk returns the content that the specification describes.
func (s qcow2Spec) disk() []byte {
	b := make([]byte, s.size)
	for n, c := range s.clusters {
		switch at := n << s.bits; c := c.(type) {
		case stored:
			copy(b[at:min(at+1<<s.bits, len(b))], c)
		case packed:
			copy(b[at:min(at+1<<s.bits, len(b))], c)
		}
	}
	return b
}

// someClusters returns an image with every kind of cluster, on a disk that ends within a cluster.
func someClusters(version, bits, order uint32, zstd bool) qcow2Spec {
	r := rand.New(rand.NewPCG(1, uint64(bits)))
	random := func() []byte {
		b := make([]byte, 1<<bits)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	text := bytes.Repeat([]byte("a line of text\n"), 1<<bits/15)
	s := qcow2Spec{version: version, bits: bits, order: order, zstd: zstd, clusters: map[int]any{
		0: stored(random()), 1: packed(text), 2: packed(text), 4: stored(text), 70: stored(random()), 71: packed(text),
	}}
	if version == 3 {
		s.clusters[5], s.clusters[6] = zeroed{}, zeroedPlace{}
	}
	s.size = 71<<bits + 300 // the last cluster is compressed, and the disk ends within it
	return s
}

// readQcow2 reads the disk in a file.
func readQcow2(b []byte) ([]byte, error) {
	c, err := OpenQcow2(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return io.ReadAll(c)
}

func TestQcow2(t *testing.T) {
	for _, s := range []qcow2Spec{
		someClusters(2, 9, 4, false),
		someClusters(2, 16, 4, false),
		someClusters(3, 9, 0, false),
		someClusters(3, 12, 1, true),
		someClusters(3, 12, 3, false),
		someClusters(3, 16, 5, true),
		someClusters(3, 16, 6, false),
	} {
		t.Run(fmt.Sprintf("version %d, 2^%d, refcounts 2^%d, zstd %v", s.version, s.bits, s.order, s.zstd), func(t *testing.T) {
			f := makeQcow2(t, s)
			got, err := readQcow2(f.b)
			require.NoError(t, err)
			require.True(t, bytes.Equal(s.disk(), got), "the disk differs")
		})
	}
}

// Errors in an image are detected before any content is returned.
func TestS20Qcow2Refusals(t *testing.T) {
	s := someClusters(3, 12, 4, false)
	f := makeQcow2(t, s)
	old := makeQcow2(t, someClusters(2, 12, 4, false))
	header := f.changeHeader
	feature := func(bits uint64) []byte { return header(func(h *qcow2Header) { h.Incompatible = bits }) }
	refcounted := func(n int, count uint64) []byte {
		x := f
		x.b = slices.Clone(f.b)
		x.setRefcount(n, s.order, count)
		return x.b
	}
	outside := uint64(len(f.b))

	for name, c := range map[string]struct {
		file   []byte
		says   string
		remedy string
	}{
		"too short":        {f.b[:60], "its header has 60 bytes", againRemedy},
		"version 1":        {header(func(h *qcow2Header) { h.Version = 1 }), "has version 1", convertAgainRemedy},
		"version 4":        {header(func(h *qcow2Header) { h.Version = 4 }), "has version 4", convertAgainRemedy},
		"backing file":     {header(func(h *qcow2Header) { h.BackingOffset = 400 }), "its backing file", convertAgainRemedy},
		"encrypted":        {header(func(h *qcow2Header) { h.Encryption = 2 }), "encrypted", convertAgainRemedy},
		"snapshots":        {header(func(h *qcow2Header) { h.Snapshots = 1 }), "1 internal snapshots", convertAgainRemedy},
		"dirty":            {feature(featureDirty), "dirty bit", repairRemedy},
		"corrupt":          {feature(featureCorrupt), "marked as corrupt", repairRemedy},
		"external data":    {feature(featureExternalData), "which holds its data", convertAgainRemedy},
		"extended L2":      {feature(featureExtendedL2), "extended L2 entries", convertAgainRemedy},
		"unknown feature":  {feature(1 << 40), "unknown incompatible features 0x10000000000", convertAgainRemedy},
		"compression 0":    {feature(featureCompression), "compression type is 0", againRemedy},
		"no feature":       {header(func(h *qcow2Header) { h.Compression = 1 }), "compression type is 1", againRemedy},
		"compression 2":    {header(func(h *qcow2Header) { h.Compression, h.Incompatible = 2, 8 }), "unknown compression type 2", convertAgainRemedy},
		"cluster bits 8":   {header(func(h *qcow2Header) { h.ClusterBits = 8 }), "2^8 bytes", againRemedy},
		"cluster bits 22":  {header(func(h *qcow2Header) { h.ClusterBits = 22 }), "2^22 bytes", againRemedy},
		"refcounts":        {header(func(h *qcow2Header) { h.RefcountOrder = 7 }), "2^7 bits", againRemedy},
		"header length 96": {header(func(h *qcow2Header) { h.Length = 96 }), "length of 96 bytes", againRemedy},
		"header length":    {header(func(h *qcow2Header) { h.Length = 8192 }), "length of 8192 bytes", againRemedy},
		"header odd":       {header(func(h *qcow2Header) { h.Length = 109 }), "length of 109 bytes", againRemedy},
		"extension":        {f.changeEntry(112, 0x6803f857_00100000), "header extension 0x6803f857", againRemedy},
		"petabytes":        {header(func(h *qcow2Header) { h.Size = 1 << 50 }), "larger than 2048 GiB", "grows to its disk"},
		"negative size":    {header(func(h *qcow2Header) { h.Size = 1<<64 - 1 }), "larger than 2048 GiB", "grows to its disk"},
		"L1 too small":     {header(func(h *qcow2Header) { h.L1Size = 0 }), "L1 table has 0 entries", againRemedy},
		"L1 outside":       {header(func(h *qcow2Header) { h.L1Offset = outside }), "the L1 table is at", againRemedy},
		"L1 huge":          {header(func(h *qcow2Header) { h.L1Size = 1<<32 - 1 }), "the L1 table is at", againRemedy},
		"L1 far outside":   {header(func(h *qcow2Header) { h.L1Offset = 1<<64 - 4096 }), "outside the file", againRemedy},
		"L1 not aligned":   {header(func(h *qcow2Header) { h.L1Offset += 8 }), "where no cluster begins", againRemedy},
		"L1 in the header": {header(func(h *qcow2Header) { h.L1Offset = 0 }), "the place of the header", againRemedy},
		"refcount table":   {header(func(h *qcow2Header) { h.RefcountOffset = outside }), "the refcount table is at", againRemedy},
		"no refcounts":     {header(func(h *qcow2Header) { h.RefcountClusters = 0 }), "its refcount is 0", repairRemedy},
		"L1 entry":         {f.changeEntry(f.l1, uint64(f.l2)|1), "L1 entry 0 has the invalid value", againRemedy},
		"L2 outside":       {f.changeEntry(f.l1, outside), "the L2 table of L1 entry 0 is at", againRemedy},
		"L2 not aligned":   {f.changeEntry(f.l1, uint64(f.l2)+512), "where no cluster begins", againRemedy},
		"L2 entry":         {f.changeEntry(f.entry(0), uint64(f.data)|2), "the L2 entry of byte 0x0", againRemedy},
		"zeros, version 2": {old.changeEntry(old.entry(5), 1), "the L2 entry of byte 0x5000", againRemedy},
		"data outside":     {f.changeEntry(f.entry(4), outside), "the cluster of byte 0x4000 of the disk", againRemedy},
		"data not aligned": {f.changeEntry(f.entry(4), uint64(f.data)+512), "where no cluster begins", againRemedy},
		"packed outside":   {f.changeEntry(f.entry(1), outside|entryCompressed), "the compressed cluster of byte 0x1000", againRemedy},
		"packed in header": {f.changeEntry(f.entry(1), 100|entryCompressed), "the compressed cluster of byte 0x1000", againRemedy},
		"block outside":    {f.changeEntry(f.table, outside), "refcount block 0", againRemedy},
		"block missing":    {f.changeEntry(f.table, 0), "the cluster at 0x0 is used 1 times, but its refcount is 0", repairRemedy},
		"refcount 0":       {refcounted(f.data/f.cluster, 0), "is used 1 times, but its refcount is 0", repairRemedy},
		"used twice":       {f.changeEntry(f.entry(3), uint64(f.data)), "is used 2 times, but its refcount is 1", repairRemedy},
		"cut":              {f.b[:len(f.b)/2], "cut short or damaged", againRemedy},
		"cut by a byte":    {f.b[:len(f.b)-1], "cut short or damaged", againRemedy},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenQcow2(bytes.NewReader(c.file), int64(len(c.file)))
			var r *Refusal
			require.ErrorAs(t, err, &r)
			require.Contains(t, r.What, c.says)
			require.Contains(t, r.Remedy, c.remedy)
		})
	}

	_, err := readQcow2(refcounted(f.data/f.cluster, 9))
	require.NoError(t, err, "a refcount that is too high only wastes space")
	broken := errors.New("the disk is broken")
	_, err = OpenQcow2(failingAt{broken}, 1<<20)
	require.ErrorIs(t, err, broken)
}

type failingAt struct{ err error }

func (f failingAt) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// Damage in compressed data is detected on reading: the tables do not show it.
func TestQcow2CompressedClusterIsDamaged(t *testing.T) {
	for _, isZstd := range []bool{false, true} {
		f := makeQcow2(t, someClusters(3, 12, 4, isZstd))
		at := binary.BigEndian.Uint64(f.b[f.entry(1):]) & (1<<(62-4) - 1)
		clear(f.b[at : at+40])
		_, err := readQcow2(f.b)
		var r *Refusal
		require.ErrorAs(t, err, &r)
		require.Contains(t, r.What, "the compressed cluster of byte 0x1000 of the disk")
		require.Equal(t, againRemedy, r.Remedy)
	}
}

// A qcow2 image needs random access, so it cannot be compressed as a whole or be read by an agent.
func TestQcow2InStreamIsRefused(t *testing.T) {
	f := makeQcow2(t, someClusters(3, 12, 4, false))
	_, err := Open(bytes.NewReader(f.b))
	require.ErrorContains(t, err, "this is a qcow2 image")
	var out bytes.Buffer
	w := frames(t, &out)
	_, err = w.Write(f.b)
	require.NoError(t, errors.Join(err, w.Close()))
	_, err = describeFile(t.Context(), &out, maxSize)
	var r *Refusal
	require.ErrorAs(t, err, &r)
	require.Contains(t, r.Remedy, "uncompressed")
}

// qemu runs a program of QEMU, or skips the test.
func qemu(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Skipf("%v: it is in the package qemu-utils (make deps)", err)
	}
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", args, out)
}

// Images written by QEMU are read with the same result as by QEMU.
func TestQcow2OfQEMU(t *testing.T) {
	dir := t.TempDir()
	raw, image, want := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "disk.qcow2"), filepath.Join(dir, "want.raw")
	r := rand.New(rand.NewPCG(2, 2))
	content := make([]byte, 9<<20+512*3)
	for at := 0; at+70_000 < len(content); at += 40_000 + r.IntN(400_000) {
		part := content[at : at+r.IntN(70_000)]
		for i := range part {
			part[i] = byte(r.Uint32()) >> r.IntN(8)
		}
	}
	require.NoError(t, os.WriteFile(raw, content, 0o600))

	same := func(t *testing.T) {
		qemu(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, want)
		wanted, err := os.ReadFile(want)
		require.NoError(t, err)
		file, err := os.ReadFile(image)
		require.NoError(t, err)
		got, err := readQcow2(file)
		require.NoError(t, err)
		require.True(t, bytes.Equal(wanted, got), "the disk differs")
	}
	for _, args := range [][]string{
		{},
		{"-c"},
		{"-o", "compat=0.10"},
		{"-c", "-o", "compat=0.10,cluster_size=512"},
		{"-o", "cluster_size=512,refcount_bits=1"},
		{"-c", "-o", "cluster_size=4k,compression_type=zstd"},
		{"-c", "-o", "cluster_size=2M,compression_type=zstd"},
		{"-c", "-o", "cluster_size=2M"},
		{"-o", "refcount_bits=64,lazy_refcounts=on"},
		{"-o", "preallocation=metadata"},
		{"-S", "0"},
	} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			qemu(t, slices.Concat([]string{"qemu-img", "convert", "-f", "raw", "-O", "qcow2"}, args, []string{raw, image})...)
			same(t)
		})
	}

	t.Run("written", func(t *testing.T) {
		qemu(t, "qemu-img", "create", "-f", "qcow2", image, "100M")
		qemu(t, "qemu-io", "-f", "qcow2", "-c", "write -P 1 0 1M", "-c", "write -P 2 50M 5k", "-c", "write -z 100k 200k",
			"-c", "write -c -P 3 64M 64k", "-c", "discard 300k 200k", "-c", "write -P 4 104856576 1024", image)
		same(t)
	})
}

// The refusals for generated headers also apply to images written by QEMU.
func TestS20Qcow2OfQEMURefusals(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	create := func(name string, args ...string) {
		qemu(t, slices.Concat([]string{"qemu-img", "create", "-q", "-f", "qcow2"}, args, []string{path(name), "10M"})...)
	}
	create("base")
	create("backed", "-b", path("base"), "-F", "qcow2")
	create("external", "-o", "data_file="+path("data"))
	create("subclusters", "-o", "extended_l2=on")
	// Not LUKS: qemu-img measures its processor time to choose the number of iterations, and fails where it cannot.
	create("encrypted", "--object", "secret,id=s,data=secret", "-o", "encrypt.format=aes,encrypt.key-secret=s")
	create("snapshot")
	qemu(t, "qemu-img", "snapshot", "-c", "first", path("snapshot"))

	for name, says := range map[string]string{
		"backed": "its backing file", "external": "which holds its data", "subclusters": "extended L2 entries",
		"encrypted": "encrypted", "snapshot": "1 internal snapshots",
	} {
		b, err := os.ReadFile(path(name))
		require.NoError(t, err)
		_, err = readQcow2(b)
		var r *Refusal
		require.ErrorAs(t, err, &r, name)
		require.Contains(t, r.What, says)
		require.Equal(t, convertAgainRemedy, r.Remedy)
	}
}

func FuzzQcow2(f *testing.F) {
	for _, s := range []qcow2Spec{someClusters(2, 9, 4, false), someClusters(3, 9, 3, true)} {
		f.Add(makeQcow2(f, s).b)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		if len(file) > 256<<10 {
			return
		}
		q, err := newQcow2(bytes.NewReader(file), int64(len(file)), 64<<20)
		if err == nil {
			defer q.Close()
			var n int64
			if n, err = io.Copy(io.Discard, struct{ io.Reader }{q}); err == nil && uint64(n) != q.Size {
				t.Fatalf("%d bytes of %d", n, q.Size)
			}
		}
		var r *Refusal
		if err != nil && (!errors.As(err, &r) || r.Remedy == "") {
			t.Fatalf("not a refusal: %v", err)
		}
	})
}
