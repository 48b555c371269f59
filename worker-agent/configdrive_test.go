package agent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// gptImage returns a disk image of 12 MiB with one partition from 1 MiB to 9 MiB, as image2disk
// writes it to a larger disk.
func gptImage(t *testing.T, sector int64) []byte {
	t.Helper()
	const size = 12 * mib
	file := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := &gpt{sector: sector, header: make([]byte, 92), entries: make([]byte, 128*128)}
	copy(g.header, "EFI PART\x00\x00\x01\x00\x5c\x00\x00\x00")
	copy(g.header[gptDiskGUID:], "0123456789abcdef")
	g.put64(gptMyLBA, 1)
	g.put64(gptEntriesLBA, 2)
	g.put64(gptFirstUsable, 2+g.entrySectors())
	binary.LittleEndian.PutUint32(g.header[gptCount:], 128)
	binary.LittleEndian.PutUint32(g.header[gptEntrySize:], 128)
	g.entry(0).set(basicData, uint64(mib/sector), uint64(9*mib/sector-1), "root")
	g.resize(size)
	mbr := make([]byte, sector)
	mbr[446+4], mbr[446+8] = 0xee, 1
	mbr[510], mbr[511] = 0x55, 0xaa
	if _, err := f.WriteAt(mbr, 0); err != nil {
		t.Fatal(err)
	}
	if err := g.write(&sectorDevice{fileDevice{File: f, size: size}, int(sector)}); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sectorDevice is a file with another sector size.
type sectorDevice struct {
	fileDevice
	sector int
}

func (d *sectorDevice) SectorSize() int { return d.sector }

type sectorDisks struct {
	FileDisks
	sector int
}

func (d sectorDisks) Open(path string) (Device, error) {
	dev, err := d.FileDisks.Open(path)
	if err != nil {
		return nil, err
	}
	return &sectorDevice{*dev.(*fileDevice), d.sector}, nil
}

// judge checks a file with a program of the system. If the program is not installed, it only logs
// that: this package's own reader has checked the file already.
func judge(t *testing.T, good string, name string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		t.Logf("%s is not installed: its judgement is missing", name)
		return
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), good) {
		t.Errorf("%s %v: %v, want %q\n%s", name, args, err, good, out)
	}
}

var seedEnv = map[string]string{
	"META_DATA": "instance-id: i-1\n", "USER_DATA": "#cloud-config\n" + strings.Repeat("# a long one\n", 1000),
	"NETWORK_CONFIG": "version: 2\n", "VENDOR_DATA": "\x1f\x8b\x00\xff is no text\r\n",
}

func TestConfigDrive(t *testing.T) {
	t.Parallel()
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			const size = 64 * mib
			s := newFakeServer(t)
			files, disk, file := testDisk(t, size)
			image := gptImage(t, int64(sector))
			write(t, file, 0, image)
			cfg := s.config()
			cfg.Disks = sectorDisks{files, sector}
			s.start(cfg)
			res := s.result(s.give(0, action.ConfigDrive, disk, seedEnv))
			if res.State != action.Success || res.Output["partition"] != "2" {
				t.Fatalf("%+v", res)
			}
			if strings.Contains(res.Log, "a long one") {
				t.Fatal("the log shows user data")
			}
			// A second run replaces the seed, with other contents.
			env := map[string]string{"DEST_DISK": "/dev/alias", "USER_DATA": ""}
			res = s.result(s.give(1, action.ConfigDrive, disk, env))
			if res.State != action.Success || res.Output["partition"] != "2" {
				t.Fatalf("the second time: %+v", res)
			}
			res = s.result(s.give(2, action.ConfigDrive, disk, seedEnv))
			if res.State != action.Success || res.Output["partition"] != "2" {
				t.Fatalf("the third time: %+v", res)
			}
			after := mapFile(t, file)
			if !bytes.Equal(after[mib:9*mib], image[mib:9*mib]) {
				t.Fatal("the root partition changed")
			}
			table, err := readTable(bytes.NewReader(after), size, sector)
			if err != nil || len(table.parts) != 2 || table.parts[0].name != "root" || table.parts[1].name != seedLabel {
				t.Fatalf("%+v, %v", table, err)
			}
			seed := table.parts[1]
			if seed.size != seedBytes(sector) || seed.start%mib != 0 || seed.start+seed.size < size-2*mib {
				t.Fatalf("the seed lies at %d, %d bytes", seed.start, seed.size)
			}
			names, _ := Signatures(bytes.NewReader(after), size, sector)
			if want := []string{"gpt", "1:data", "2:vfat"}; fmt.Sprint(names) != fmt.Sprint(want) {
				t.Fatalf("signatures %v, want %v", names, want)
			}
			volume := filepath.Join(t.TempDir(), "seed")
			if err := os.WriteFile(volume, after[seed.start:seed.start+seed.size], 0o600); err != nil {
				t.Fatal(err)
			}
			judge(t, ": 5 files", "fsck.vfat", "-n", volume)
			if sector == 512 {
				judge(t, "No problems found", "sgdisk", "-v", file)
				judge(t, "No errors detected", "sfdisk", "-V", file)
				judge(t, "instance-id: i-1", "mtype", "-i", volume, "::meta-data")
				judge(t, "# a long one", "mtype", "-i", volume, "::user-data")
				judge(t, seedEnv["VENDOR_DATA"], "mtype", "-i", volume, "::vendor-data")
				judge(t, "version: 2", "mtype", "-i", volume, "::network-config")
				judge(t, "is CIDATA", "mdir", "-i", volume, "::")
			}
		})
	}
}

// Documents of every length around the sizes of a cluster and of a reader's buffer are read back as
// they were written.
func TestConfigDriveOfAnySize(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	files, disk, file := testDisk(t, 64*mib)
	write(t, file, 0, gptImage(t, 512))
	cfg := s.config()
	cfg.Disks = files
	s.start(cfg)
	for i, size := range []int{1, 511, 512, 1023, 1024, 1300, 1536, 2047, 2048, 3000, 5000} {
		env := map[string]string{"META_DATA": "instance-id: i-1\n", "USER_DATA": strings.Repeat("x", size)}
		if res := s.result(s.give(i, action.ConfigDrive, disk, env)); res.State != action.Success {
			t.Errorf("%d bytes: %+v", size, res)
		}
	}
}

func TestConfigDriveRefuses(t *testing.T) {
	t.Parallel()
	full := gptImage(t, 512)
	damaged := bytes.Clone(full)
	damaged[512+60] ^= 1
	for name, c := range map[string]struct {
		content []byte
		text    string
	}{
		"no table":      {oldData(12 * mib), "no GPT"},
		"no room":       {full, "too small"},
		"damaged table": {damaged, "checksum"},
	} {
		s := newFakeServer(t)
		files, disk, file := testDisk(t, int64(len(c.content)))
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := s.config()
		cfg.Disks = files
		s.start(cfg)
		res := s.result(s.give(0, action.ConfigDrive, disk, seedEnv))
		after := mapFile(t, file)
		if res.State != action.Failed || !strings.Contains(res.Message, c.text) || !bytes.Equal(after, c.content) {
			t.Errorf("%s: %s %q", name, res.State, res.Message)
		}
	}
}

func TestWipe(t *testing.T) {
	t.Parallel()
	const size = 90 * mib
	for _, mode := range []string{"", "quick"} {
		s := newFakeServer(t)
		files, disk, file := testDisk(t, size)
		write(t, file, 0, gptImage(t, 512)[:9*mib])
		cfg := s.config()
		cfg.Disks = files
		s.start(cfg)
		res := s.result(s.give(0, "disk-wipe", disk, map[string]string{"BLOCK_DEVICE": "/dev/alias", "WIPE_MODE": mode}))
		if res.State != action.Success {
			t.Fatalf("%+v", res)
		}
		after := mapFile(t, file)
		zero := [][2]int{{0, 10 * mib}, {64 * mib, 65 * mib}, {size - 10*mib, size}}
		if mode == "quick" {
			zero = [][2]int{{0, size}}
		} else if !bytes.Equal(after[20*mib:60*mib], oldData(size)[20*mib:60*mib]) {
			t.Error("a metadata wipe wiped data")
		}
		for _, z := range zero {
			if !allZero(after[z[0]:z[1]]) {
				t.Errorf("%q: not all is zero between %d and %d", mode, z[0], z[1])
			}
		}
		if names, blank := Signatures(bytes.NewReader(after), size, 512); !blank {
			t.Errorf("%q: the disk still holds %v", mode, names)
		}
		if res := s.result(s.give(1, "wipe", disk, map[string]string{"WIPE_MODE": "secure"})); res.State != action.Failed {
			t.Errorf("secure: %+v", res)
		}
	}
}

func TestWipeWithoutEffectIsDetected(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	files, disk, _ := testDisk(t, 32*mib)
	cfg := s.config()
	cfg.Disks = keepingDisks{files}
	s.start(cfg)
	for n, mode := range []string{"metadata", "quick"} {
		if res := s.result(s.give(n, "wipe", disk, map[string]string{"WIPE_MODE": mode})); res.State != action.Failed ||
			!strings.Contains(res.Message, "are zero") {
			t.Errorf("%+v", res)
		}
	}
}

// keepingDisks report success for zeroing and keep the old data.
type keepingDisks struct{ FileDisks }

func (k keepingDisks) Open(path string) (Device, error) {
	d, err := k.FileDisks.Open(path)
	return keeping{d}, err
}

type keeping struct{ Device }

func (keeping) Zero(int64, int64) error { return nil }
