package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/filesystem/fat16"
)

// seedLabel is the volume label that cloud-init's NoCloud looks for.
const seedLabel = "CIDATA"

// configDrive writes a NoCloud seed to the bound disk: a FAT16 partition at the end of the disk,
// labeled CIDATA. It replaces the seed of an earlier run.
//
//	DEST_DISK                                             the bound disk; it has a GPT
//	META_DATA, USER_DATA, VENDOR_DATA, NETWORK_CONFIG     contents of the files of that name
//
// Without META_DATA, the instance id is derived from the run. Without VENDOR_DATA or
// NETWORK_CONFIG, the seed does not contain that file. Output: partition (number), bytes.
func (t *attempt) configDrive(ctx context.Context) (err error) {
	files := t.seedFiles()
	disk, dev, err := t.open(ctx, "DEST_DISK")
	if err != nil {
		return err
	}
	defer closeDisk(dev, disk.Path, &err)
	volume, err := makeFAT16(seedBytes(dev.SectorSize()), dev.SectorSize(), seedLabel, files)
	if err == nil {
		err = checkSeed(volume, dev.SectorSize(), files)
	}
	if err != nil {
		return fmt.Errorf("making the %s file system: %w", seedLabel, err)
	}

	table, _, err := readAnyGPT(dev, dev.Size(), dev.SectorSize())
	if errors.Is(err, errNoTable) {
		return fmt.Errorf("reading %s: it has no GPT to add a partition to", disk.Path)
	}
	if err != nil {
		return fmt.Errorf("reading %s: %w", disk.Path, err)
	}

	number, first, err := table.placeSeed(dev.Size())
	if err != nil {
		return fmt.Errorf("making room on %s: %w", disk.Path, err)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}

	t.agent.markWrote()

	// The contents are written before the table: a partition in the table is always complete.
	if err := writeVerified(dev, volume, int64(first)*table.sector); err != nil {
		return fmt.Errorf("writing partition %d of %s: %w", number, disk.Path, err)
	}
	if err := table.write(dev); err != nil {
		return fmt.Errorf("writing %s: %w", disk.Path, err)
	}
	if err := dev.Reread(); err != nil {
		t.logf("warning: the kernel does not read the new partition table: %v", err)
	}

	t.output["partition"], t.output["bytes"] = fmt.Sprint(number), fmt.Sprint(len(volume))
	t.logf("partition %d of %s is the %s seed, %d files, read back", number, disk.Path, seedLabel, len(files))
	return nil
}

// seedFile is one file of the seed.
type seedFile struct{ name, contents string }

func (t *attempt) seedFiles() []seedFile {
	meta := t.env["META_DATA"]
	if meta == "" {
		meta = "instance-id: " + t.agent.cfg.Machine + "-" + t.run + "\n"
	}

	// NoCloud accepts a seed only if it has both meta-data and user-data.
	files := []seedFile{{"meta-data", meta}, {"user-data", t.env["USER_DATA"]}}
	for _, f := range []seedFile{{"vendor-data", t.env["VENDOR_DATA"]}, {"network-config", t.env["NETWORK_CONFIG"]}} {
		if f.contents != "" {
			files = append(files, f)
		}
	}
	return files
}

// placeSeed changes the table in memory: the table covers the whole disk of size bytes and has one
// partition named CIDATA at its end. It returns the number and the first sector of that partition.
func (g *gpt) placeSeed(size int64) (number int, first uint64, err error) {
	g.resize(size)
	free, end := -1, uint64(0)
	for i := range g.count() {
		e := g.entry(i)
		if !e.unused() && e.name() == seedLabel {
			clear(e)
		}

		if e.unused() {
			if free < 0 {
				free = i
			}
			continue
		}

		end = max(end, e.last())
	}
	if free < 0 {
		return 0, 0, errors.New("all entries of the partition table are taken")
	}

	sectors, grain := uint64(seedBytes(int(g.sector))/g.sector), uint64(mib/g.sector)
	usable := g64(g.header, gptLastUsable) + 1
	if usable < sectors+grain {
		return 0, 0, errors.New("the disk is too small")
	}

	first = (usable - sectors) / grain * grain
	if first <= end || first < g64(g.header, gptFirstUsable) {
		return 0, 0, fmt.Errorf("no %d MiB are free at the end of the disk: the last partition ends at sector %d of %d",
			seedBytes(int(g.sector))/mib, end, usable)
	}

	g.entry(free).set(basicData, first, first+sectors-1, seedLabel)
	return free + 1, first, nil
}

// seedBytes returns the size of the seed partition for a sector size: a FAT16 that fsck, mtools and
// the kernel all accept.
func seedBytes(sector int) int64 {
	if sector == 512 {
		return 16 * mib
	}
	return 32 * mib
}

// checkSeed reads the volume with go-diskfs, which shares no code with makeFAT16. go-diskfs
// supports only sectors of 512 bytes.
func checkSeed(volume []byte, sector int, files []seedFile) error {
	if sector != 512 {
		return nil
	}
	vol, err := fat16.Read(memory{bytes.NewReader(volume)}, int64(len(volume)), 0, 512)
	if err != nil {
		return err
	}

	for _, f := range files {
		if f.contents == "" {
			continue // go-diskfs cannot open empty files
		}

		b, err := vol.ReadFile("/" + f.name)
		if err != nil {
			return fmt.Errorf("%q: %w", f.name, err)
		}

		// go-diskfs v1.9 reads to the end of a file's last cluster: the size in the directory is
		// the file's size.
		st, err := vol.Stat(f.name)
		if err != nil {
			return fmt.Errorf("%q: %w", f.name, err)
		}
		if st.Size() != int64(len(f.contents)) || string(b[:min(len(b), len(f.contents))]) != f.contents {
			return fmt.Errorf("%q does not have the contents that were written", f.name)
		}
	}

	return nil
}

// memory is a read-only file in memory, with the methods that go-diskfs needs.
type memory struct{ *bytes.Reader }

var _ backend.Storage = memory{}

func (memory) Close() error                            { return nil }
func (memory) Path() string                            { return "" }
func (memory) Sys() (*os.File, error)                  { return nil, backend.ErrNotSuitable }
func (memory) Writable() (backend.WritableFile, error) { return nil, backend.ErrIncorrectOpenMode }
func (m memory) Stat() (fs.FileInfo, error)            { return memoryInfo(m.Size()), nil }

// memoryInfo is the fs.FileInfo of a memory; its value is the size.
type memoryInfo int64

func (memoryInfo) Name() string       { return seedLabel }
func (i memoryInfo) Size() int64      { return int64(i) }
func (memoryInfo) Mode() fs.FileMode  { return 0o600 }
func (memoryInfo) ModTime() time.Time { return time.Time{} }
func (memoryInfo) IsDir() bool        { return false }
func (memoryInfo) Sys() any           { return nil }
