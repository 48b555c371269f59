package actions

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesys"
	"github.com/ingotmetal/ingot/worker-agent/disk/filesystest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

var seedEnv = map[string]string{
	"META_DATA": "instance-id: i-1\n", "USER_DATA": "#cloud-config\n" + strings.Repeat("# a long one\n", 1000),
	"NETWORK_CONFIG": "version: 2\n", "VENDOR_DATA": "\x1f\x8b\x00\xff is no text\r\n",
}

func TestConfigDrive(t *testing.T) {
	t.Parallel()
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			const size = 64 * blockdev.MiB
			s := newWorker(t)
			files, disk, file := disktest.OldDisk(t, size)
			image := disktest.GptImage(t, int64(sector))
			disktest.WriteAt(t, file, 0, image)
			cfg := s.config()
			files[0].SectorSize = sector
			cfg.Disks = files
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
			after := disktest.MapFile(t, file)
			if !bytes.Equal(after[blockdev.MiB:9*blockdev.MiB], image[blockdev.MiB:9*blockdev.MiB]) {
				t.Fatal("the root partition changed")
			}
			table, err := parttable.Read(bytes.NewReader(after), size, sector)
			if err != nil || len(table.Parts) != 2 || table.Parts[0].Name != "root" || table.Parts[1].Name != parttable.SeedLabel {
				t.Fatalf("%+v, %v", table, err)
			}
			seed := table.Parts[1]
			if seed.Size != parttable.SeedBytes(sector) || seed.Start%blockdev.MiB != 0 || seed.Start+seed.Size < size-2*blockdev.MiB {
				t.Fatalf("the seed lies at %d, %d bytes", seed.Start, seed.Size)
			}
			names, _ := probe.Signatures(bytes.NewReader(after), size, sector)
			if want := []string{"gpt", "1:data", "2:vfat"}; fmt.Sprint(names) != fmt.Sprint(want) {
				t.Fatalf("signatures %v, want %v", names, want)
			}
			volume := filepath.Join(t.TempDir(), "seed")
			if err := os.WriteFile(volume, after[seed.Start:seed.Start+seed.Size], 0o600); err != nil {
				t.Fatal(err)
			}
			disktest.Judge(t, ": 5 files", "fsck.vfat", "-n", volume)
			if sector == 512 {
				disktest.Judge(t, "No problems found", "sgdisk", "-v", file)
				disktest.Judge(t, "No errors detected", "sfdisk", "-V", file)
				disktest.Judge(t, "instance-id: i-1", "mtype", "-i", volume, "::meta-data")
				disktest.Judge(t, "# a long one", "mtype", "-i", volume, "::user-data")
				disktest.Judge(t, seedEnv["VENDOR_DATA"], "mtype", "-i", volume, "::vendor-data")
				disktest.Judge(t, "version: 2", "mtype", "-i", volume, "::network-config")
				disktest.Judge(t, "is CIDATA", "mdir", "-i", volume, "::")
			}
		})
	}
}

// Documents of every length around the sizes of a cluster and of a reader's buffer are read back as
// they were written.
func TestConfigDriveOfAnySize(t *testing.T) {
	t.Parallel()
	s := newWorker(t)
	files, disk, file := disktest.OldDisk(t, 64*blockdev.MiB)
	disktest.WriteAt(t, file, 0, disktest.GptImage(t, 512))
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
	full := disktest.GptImage(t, 512)
	damaged := bytes.Clone(full)
	damaged[512+60] ^= 1
	for name, c := range map[string]struct {
		content []byte
		text    string
	}{
		"no table":      {disktest.OldData(12 * blockdev.MiB), "no GPT"},
		"no room":       {full, "too small"},
		"damaged table": {damaged, "checksum"},
	} {
		s := newWorker(t)
		files, disk, file := disktest.OldDisk(t, int64(len(c.content)))
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := s.config()
		cfg.Disks = files
		s.start(cfg)
		res := s.result(s.give(0, action.ConfigDrive, disk, seedEnv))
		after := disktest.MapFile(t, file)
		if res.State != action.Failed || !strings.Contains(res.Message, c.text) || !bytes.Equal(after, c.content) {
			t.Errorf("%s: %s %q", name, res.State, res.Message)
		}
	}
}

func TestWipe(t *testing.T) {
	t.Parallel()
	const size = 90 * blockdev.MiB
	for _, mode := range []string{"", "quick"} {
		s := newWorker(t)
		files, disk, file := disktest.OldDisk(t, size)
		disktest.WriteAt(t, file, 0, disktest.GptImage(t, 512)[:9*blockdev.MiB])
		cfg := s.config()
		cfg.Disks = files
		s.start(cfg)
		res := s.result(s.give(0, "disk-wipe", disk, map[string]string{"BLOCK_DEVICE": "/dev/alias", "WIPE_MODE": mode}))
		if res.State != action.Success {
			t.Fatalf("%+v", res)
		}
		after := disktest.MapFile(t, file)
		zero := [][2]int{{0, 10 * blockdev.MiB}, {64 * blockdev.MiB, 65 * blockdev.MiB}, {size - 10*blockdev.MiB, size}}
		if mode == "quick" {
			zero = [][2]int{{0, size}}
		} else if !bytes.Equal(after[20*blockdev.MiB:60*blockdev.MiB], disktest.OldData(size)[20*blockdev.MiB:60*blockdev.MiB]) {
			t.Error("a metadata wipe wiped data")
		}
		for _, z := range zero {
			if !blockdev.AllZero(after[z[0]:z[1]]) {
				t.Errorf("%q: not all is zero between %d and %d", mode, z[0], z[1])
			}
		}
		if names, blank := probe.Signatures(bytes.NewReader(after), size, 512); !blank {
			t.Errorf("%q: the disk still holds %v", mode, names)
		}
		if res := s.result(s.give(1, "wipe", disk, map[string]string{"WIPE_MODE": "secure"})); res.State != action.Failed {
			t.Errorf("secure: %+v", res)
		}
	}
}

func TestWipeWithoutEffectIsDetected(t *testing.T) {
	t.Parallel()
	s := newWorker(t)
	files, disk, _ := disktest.OldDisk(t, 32*blockdev.MiB)
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
type keepingDisks struct{ disk.FileDisks }

func (k keepingDisks) Open(path string) (blockdev.Device, error) {
	d, err := k.FileDisks.Open(path)
	return keeping{d}, err
}

type keeping struct{ blockdev.Device }

func (keeping) Zero(int64, int64) error { return nil }

// With a partition, the seed lies in the root file system on it, and cloud-init there reads no other seed.
func TestSeedInARoot(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	first, second := filesystest.ExtPartition(t, 1, 8192), filesystest.ExtPartition(t, 2, 4096)
	files := &filesystest.FakeFiles{
		Parts: []filesys.Partition{first, second}, Dirs: map[string]string{first.Path: one, second.Path: two},
	}
	disks, disk, file := disktest.Sparse(t, 24*blockdev.MiB)
	disktest.NewGPT(
		t,
		file,
		parttable.Span{Start: blockdev.MiB, Size: blockdev.MiB},
		parttable.Span{Start: 2 * blockdev.MiB, Size: blockdev.MiB},
	)
	before := bytes.Clone(disktest.MapFile(t, file))

	for _, env := range []map[string]string{{"DEST_DISK": "/dev/alias2"}, {"PARTITION": "2"}} {
		maps.Copy(env, seedEnv)
		out, log, err := try(t, Machine{Disks: disks, Files: files}, action.ConfigDrive, disk, env)
		require.NoError(t, err, log)
		require.Equal(t, "5", out["files"])
		require.NotContains(t, log, "a long one", "the log shows user data")
		for name, variable := range map[string]string{
			"meta-data": "META_DATA", "user-data": "USER_DATA", "vendor-data": "VENDOR_DATA", "network-config": "NETWORK_CONFIG",
		} {
			path := filepath.Join(two, "var/lib/cloud/seed/nocloud", name)
			got, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, seedEnv[variable], string(got))
			st, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), st.Mode())
		}
		config, err := os.ReadFile(filepath.Join(two, "etc/cloud/cloud.cfg.d/99-ingot-seed.cfg"))
		require.NoError(t, err)
		require.Contains(t, string(config), "fs_label: null")
	}
	left, err := os.ReadDir(one)
	require.NoError(t, err)
	require.Empty(t, left, "the other system has no seed of this run")
	require.True(t, bytes.Equal(before, disktest.MapFile(t, file)), "no partition was added")
}
