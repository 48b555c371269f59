package fat_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/fat"
)

// sizes are volumes that can be made, by the size of their sectors.
var sizes = map[int]int64{512: 16 * blockdev.MiB, 4096: 32 * blockdev.MiB}

// files have contents and names around the units of a FAT: sectors, clusters, pieces of a long name.
func files() (out []fat.File) {
	for i, size := range []int{0, 1, 511, 512, 1023, 1024, 1025, 9000, 100_000} {
		name := "a" + strings.Repeat("long-name", 5)[:i+8]
		out = append(out, fat.File{Name: name, Contents: strings.Repeat("contents\n", size/9+1)[:size]})
	}
	return out
}

func TestVolumeIsReadAsItWasMade(t *testing.T) {
	for sector, size := range sizes {
		volume, err := fat.Make16(size, sector, "CIDATA", files())
		require.NoError(t, err)
		require.NoError(t, fat.Check(volume, sector, files()))
		label, uuid := fat.Names(bytes.NewReader(volume))
		require.Equal(t, "CIDATA", label)
		require.Equal(t, "1E50-7001", uuid)

		again, err := fat.Make16(size, sector, "CIDATA", files())
		require.NoError(t, err)
		require.True(t, bytes.Equal(volume, again), "the same files give the same bytes")

		file := filepath.Join(t.TempDir(), "volume")
		require.NoError(t, os.WriteFile(file, volume, 0o600))
		disktest.Judge(t, ": 10 files", "fsck.vfat", "-n", file) // and the label
	}
}

func TestCheckFindsWhatDiffers(t *testing.T) {
	want := []fat.File{{Name: "user-data", Contents: "#cloud-config\n"}}
	volume, err := fat.Make16(sizes[512], 512, "CIDATA", want)
	require.NoError(t, err)
	changed := bytes.Replace(volume, []byte("#cloud-config"), []byte("#cloud-c0nfig"), 1)
	require.ErrorContains(t, fat.Check(changed, 512, want), "differ from what was written")
	require.Error(t, fat.Check(volume, 512, []fat.File{{Name: "meta-data", Contents: "x"}}), "there is no such file")
}

func TestMake16Refuses(t *testing.T) {
	_, err := fat.Make16(blockdev.MiB, 512, "X", nil)
	require.ErrorContains(t, err, "making a FAT16 volume")
	_, err = fat.Make16(sizes[512], 512, "X", []fat.File{{Name: "big", Contents: strings.Repeat("x", 17*blockdev.MiB)}})
	require.ErrorContains(t, err, "more than the volume has free")
}

// The label in the root directory counts, and the one in the boot sector where that has none.
func TestNames(t *testing.T) {
	volume, err := fat.Make16(sizes[512], 512, "OLD", nil)
	require.NoError(t, err)
	root := bytes.LastIndex(volume, []byte("OLD        \x08"))
	copy(volume[root:], "NEW")
	label, _ := fat.Names(bytes.NewReader(volume))
	require.Equal(t, "NEW", label)
	clear(volume[root : root+32])
	label, _ = fat.Names(bytes.NewReader(volume))
	require.Equal(t, "OLD", label)
	copy(volume[43:], "NO NAME    ")
	label, _ = fat.Names(bytes.NewReader(volume))
	require.Empty(t, label)
	label, uuid := fat.Names(bytes.NewReader(volume[:100]))
	require.Empty(t, label+uuid, "it is cut short")
}

// FuzzNames reads the names of volumes with a hostile boot sector.
func FuzzNames(f *testing.F) {
	volume, err := fat.Make16(sizes[512], 512, "CIDATA", nil)
	require.NoError(f, err)
	f.Add(volume[:512], []byte{})
	fat32 := bytes.Clone(volume[:512])
	clear(fat32[22:24])
	f.Add(fat32, volume[:64])
	f.Fuzz(func(t *testing.T, boot, rest []byte) {
		disk := make([]byte, 64<<10)
		copy(disk[copy(disk, boot):], rest)
		if label, uuid := fat.Names(bytes.NewReader(disk)); len(label) > 11 || len(uuid) != 9 {
			t.Fatalf("label %q, UUID %q", label, uuid)
		}
	})
}
