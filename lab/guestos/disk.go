package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
	"github.com/diskfs/go-diskfs/partition/gpt"
	"github.com/klauspost/compress/zstd"
)

const (
	sector = 512
	mib    = 1 << 20
)

// disk is a block device, or a file in its place.
type disk struct {
	name   string // /dev/vda
	path   string // what is opened
	serial string
	model  string
	size   int64
	rotary bool
}

// parseDisk reads NAME=FILE,serial=SERIAL.
func parseDisk(s string) (*disk, error) {
	name, rest, ok := strings.Cut(s, "=")
	path, serial, ok2 := strings.Cut(rest, ",serial=")
	if !ok || !ok2 {
		return nil, fmt.Errorf("disk %q: want NAME=FILE,serial=SERIAL", s)
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	return &disk{name: name, path: path, serial: serial, size: st.Size()}, nil
}

// findDisks lists the machine's disks in the kernel's order.
func findDisks() ([]*disk, error) {
	names, err := filepath.Glob("/sys/block/*")
	if err != nil {
		return nil, err
	}
	var all []*disk
	for _, sys := range names {
		base := filepath.Base(sys)
		if !strings.HasPrefix(base, "vd") && !strings.HasPrefix(base, "sd") && !strings.HasPrefix(base, "nvme") {
			continue
		}
		read := func(name string) string {
			b, err := os.ReadFile(filepath.Join(sys, name))
			if err != nil {
				return ""
			}
			return strings.TrimSpace(strings.Map(func(r rune) rune {
				if r < 32 || r > 126 {
					return -1
				}
				return r
			}, string(b)))
		}
		d := &disk{
			name:   "/dev/" + base,
			path:   "/dev/" + base,
			serial: cmp.Or(read("serial"), read("device/serial")),
			model:  read("device/model"),
		}
		d.rotary = read("queue/rotational") == "1"
		if d.serial == "" { // SCSI: page 0x80 of the vital product data, behind a header of 4 bytes
			if b, err := os.ReadFile(filepath.Join(sys, "device/vpd_pg80")); err == nil && len(b) > 4 {
				d.serial = strings.TrimSpace(string(b[4:]))
			}
		}
		var sectors int64
		if _, err := fmt.Sscan(read("size"), &sectors); err != nil {
			return nil, fmt.Errorf("reading the size of %q: %w", d.name, err)
		}
		d.size = sectors * 512
		all = append(all, d)
	}
	return all, nil
}

// disk finds a disk by its name in a document: /dev/vda, or a link in /dev/disk/by-id, which ends in the serial number.
func (h *host) disk(name string) (*disk, error) {
	for _, d := range h.disks {
		id, isID := strings.CutPrefix(name, "/dev/disk/by-id/")
		if d.name == name || isID && d.serial != "" && (strings.HasSuffix(id, "-"+d.serial) || strings.HasSuffix(id, "_"+d.serial)) {
			return d, nil
		}
	}
	return nil, fmt.Errorf("there is no disk %q", name)
}

// part is a partition in bytes.
type part struct {
	label       string
	kind        gpt.Type
	start, size int64
	attributes  uint64
}

// partitions reads the GPT.
func (d *disk) partitions() ([]part, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	table, err := gpt.Read(file.New(f, true), sector, sector)
	if err != nil {
		return nil, err
	}
	var all []part
	for _, p := range table.Partitions {
		if p.Type != gpt.Unused {
			all = append(all, part{p.Name, p.Type, int64(p.Start) * sector, int64(p.End-p.Start+1) * sector, p.Attributes})
		}
	}
	return all, nil
}

// find returns the partition of that name, with size 0 if there is none.
func (d *disk) find(label string) part {
	all, err := d.partitions()
	if err != nil {
		return part{}
	}
	for _, p := range all {
		if p.label == label {
			return p
		}
	}
	return part{}
}

// installed finds the disk that has a partition of that name.
func (h *host) installed(label string) (*disk, part) {
	for _, d := range h.disks {
		if p := d.find(label); p.size > 0 {
			return d, p
		}
	}
	return nil, part{}
}

// partition writes a new GPT with boot code for BIOS and returns the partitions with their offsets. A size of 0 takes the
// rest of the disk.
func (d *disk) partition(parts []part, bootCode []byte) ([]part, error) {
	at := int64(mib)
	table := &gpt.Table{LogicalSectorSize: sector, PhysicalSectorSize: sector, ProtectiveMBR: true}
	for i := range parts {
		p := &parts[i]
		p.start = at
		if p.size == 0 {
			p.size = (d.size-at-mib)/mib*mib - restOf(parts[i+1:])
		}
		if p.size <= 0 || p.start+p.size > d.size-mib {
			return nil, fmt.Errorf("partitioning %q: %d MiB are too few", d.name, d.size/mib)
		}
		at += p.size
		table.Partitions = append(table.Partitions, &gpt.Partition{
			Index:      i + 1,
			Start:      uint64(p.start) / sector,
			End:        uint64(p.start+p.size)/sector - 1,
			Type:       p.kind,
			Name:       p.label,
			Attributes: p.attributes,
		})
	}
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = table.Write(f, d.size)
	if err == nil && len(bootCode) > 0 {
		_, err = f.WriteAt(bootCode[:min(len(bootCode), 440)], 0)
	}
	return parts, errors.Join(err, f.Sync(), f.Close())
}

func restOf(parts []part) (n int64) {
	for _, p := range parts {
		n += p.size
	}
	return n
}

// write fills a partition from a zstd stream.
func (d *disk) write(p part, packed io.Reader) (int64, error) {
	z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return 0, err
	}
	defer z.Close()
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.NewOffsetWriter(f, p.start)},
		struct{ io.Reader }{io.LimitReader(z, p.size+1)}, make([]byte, mib))
	if n > p.size {
		err = fmt.Errorf("writing partition %q: %d bytes do not fit into %d", p.label, n, p.size)
	}
	return n, errors.Join(err, f.Sync(), f.Close())
}

// putFiles makes an ext4 file system with files in its top folder.
func (d *disk) putFiles(p part, files map[string][]byte) error {
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	fs, err := ext4.Create(file.New(f, false), p.size, p.start, sector, &ext4.Params{VolumeName: p.label})
	if err != nil {
		return errors.Join(fmt.Errorf("making a file system on %q: %w", p.label, err), f.Close())
	}
	for name, content := range files {
		w, err := fs.OpenFile(name, os.O_CREATE|os.O_RDWR)
		if err == nil {
			_, err = w.Write(content)
			err = errors.Join(err, w.Close())
		}
		if err != nil {
			return errors.Join(fmt.Errorf("writing %q: %w", name, err), f.Close())
		}
	}
	return errors.Join(fs.Close(), f.Sync(), f.Close())
}

// getFile reads a file of an ext4 file system.
func (d *disk) getFile(p part, name string) ([]byte, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from
	fs, err := ext4.Read(file.New(f, true), p.size, p.start, sector)
	if err != nil {
		return nil, err
	}
	return fs.ReadFile(name)
}

// clear overwrites the signatures at a partition's start and end.
func (d *disk) clear(p part) error {
	f, err := os.OpenFile(d.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	zero := make([]byte, min(mib, p.size))
	_, err = f.WriteAt(zero, p.start)
	_, err2 := f.WriteAt(zero, p.start+p.size-int64(len(zero)))
	return errors.Join(err, err2, f.Sync(), f.Close())
}

// store keeps a value in a partition without a file system. It has two slots; the newer complete slot counts, so that a power
// cut loses at most the last change.
type store struct {
	d      *disk
	p      part
	number uint64
}

const slotSize = 2 * mib

var storeMagic = []byte("ingotlab")

// load reads the last value into v; without one v is unchanged.
func (s *store) load(v any) {
	f, err := os.Open(s.d.path)
	if err != nil {
		return
	}
	defer f.Close() // only read from
	found := false
	for i := range int64(2) {
		head := make([]byte, 8+8+8+32)
		if _, err := f.ReadAt(head, s.p.start+i*slotSize); err != nil || !bytes.Equal(head[:8], storeMagic) {
			continue
		}
		number, length := binary.LittleEndian.Uint64(head[8:]), binary.LittleEndian.Uint64(head[16:])
		if number <= s.number && found || length > slotSize-64 {
			continue
		}
		body := make([]byte, length)
		if _, err := f.ReadAt(body, s.p.start+i*slotSize+int64(len(head))); err != nil {
			continue
		}
		if sum := sha256.Sum256(body); !bytes.Equal(sum[:], head[24:]) {
			continue
		}
		if json.Unmarshal(body, v) == nil {
			s.number, found = number, true
		}
	}
}

// save writes v to the slot that is older.
func (s *store) save(v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(body) > slotSize-64 {
		return errors.New("saving: too much")
	}
	number := s.number + 1
	b := binary.LittleEndian.AppendUint64(bytes.Clone(storeMagic), number)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(body)))
	sum := sha256.Sum256(body)
	b = append(append(b, sum[:]...), body...)
	f, err := os.OpenFile(s.d.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, s.p.start+int64(number%2)*slotSize)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		s.number = number
	}
	return err
}
