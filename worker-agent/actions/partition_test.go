package actions

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// The partitions of partedDisk. The second begins between two pages.
var (
	firstPart  = parttable.Span{Start: blockdev.MiB, Size: 5 * blockdev.MiB, Name: "one"}
	secondPart = parttable.Span{Start: 6*blockdev.MiB + 512, Size: 8*blockdev.MiB - 512, Name: "two"}
	thirdPart  = parttable.Span{Start: 14 * blockdev.MiB, Size: 3 * blockdev.MiB, Name: "small"}
)

// partedDisk returns a worker whose disk, the file, has three partitions, full of old data.
func partedDisk(t *testing.T) (w *worker, watched *disktest.WatchedDisks, bound *action.Disk, file string) {
	t.Helper()
	files, bound, file := disktest.OldDisk(t, 18*blockdev.MiB)
	disktest.NewGPT(t, file, firstPart, secondPart, thirdPart)
	w, watched = newWorker(t), &disktest.WatchedDisks{Inner: files}
	cfg := w.config()
	cfg.Disks = watched
	w.start(cfg)
	return w, watched, bound, file
}

// outside returns what is on the disk outside of the partition.
func outside(disk []byte, p parttable.Span) []byte {
	return slices.Concat(disk[:p.Start], disk[p.Start+p.Size:])
}

// An image fills its partition, and every other byte of the disk stays: the table, so also the type and the UUID of the partition, and the
// other partitions. The first MiB of the partition is written last.
func TestImageToPartition(t *testing.T) {
	t.Parallel()
	for name, env := range map[string]map[string]string{
		"path":   {"DEST_DISK": "/dev/alias2"},
		"number": {"PARTITION": "2"},
		"name":   {"DEST_DISK": "/dev/alias", "PARTITION": "PARTLABEL=two"},
	} {
		for _, format := range []string{"raw", "zst"} {
			for _, native := range []string{action.Image2Disk, action.QemuImg2Disk} {
				t.Run(fmt.Sprint(name, " ", format, " ", native), func(t *testing.T) {
					t.Parallel()
					served := disktest.PackedImage(t, format)
					web := httptest.NewServer(&disktest.Mirror{Data: served})
					t.Cleanup(web.Close)
					w, watched, bound, file := partedDisk(t)
					disk := disktest.MapFile(t, file)
					before := outside(disk, secondPart)
					var order []int64
					watched.OnWrite = func(off int64) { order = append(order, off) }

					full := map[string]string{"IMG_URL": web.URL, "IMG_SHA256": disktest.SHA256(served)}
					maps.Copy(full, env)
					res := w.result(w.give(0, native, bound, full))
					disktest.RequireImage(t, res, disk[secondPart.Start:secondPart.Start+secondPart.Size], disktest.TestImage(), served)
					require.Equal(t, "/dev/sda2", res.Output["disk"])
					require.True(t, bytes.Equal(before, outside(disk, secondPart)), "something outside of the partition was written")
					require.Equal(t, secondPart.Start, order[len(order)-1], "the beginning of the partition is written last")
				})
			}
		}
	}
}

// What fails after the first write leaves a partition that does not boot, and everything else as it was.
func TestHalfWrittenPartitionDoesNotBoot(t *testing.T) {
	t.Parallel()
	served := disktest.PackedImage(t, "zst")
	for name, c := range map[string]struct {
		data   []byte
		number string
		part   parttable.Span
		want   string
	}{
		"cut":          {served[:len(served)/2], "2", secondPart, "writing image"},
		"wrong digest": {served, "2", secondPart, "the plan has"},
		"too large":    {served, "1", firstPart, "the image is larger than the partition of 5242880 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			web := httptest.NewServer(&disktest.Mirror{Data: c.data})
			t.Cleanup(web.Close)
			w, _, bound, file := partedDisk(t)
			disk := disktest.MapFile(t, file)
			before := outside(disk, c.part)

			res := w.result(w.give(0, action.Image2Disk, bound, map[string]string{
				"IMG_URL": web.URL, "IMG_SHA256": strings.Repeat("0", 64), "PARTITION": c.number,
			}))
			require.Equal(t, action.Failed, res.State)
			require.Contains(t, res.Message, c.want)
			require.True(t, blockdev.AllZero(disk[c.part.Start:c.part.Start+blockdev.MiB]), "the partition has a boot sector")
			require.True(t, bytes.Equal(before, outside(disk, c.part)), "something outside of the partition was written")
		})
	}
}

// busyDisks are mounted: the kernel refuses to open them.
type busyDisks struct{ disk.FileDisks }

func (busyDisks) Open(path string) (blockdev.Device, error) {
	return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EBUSY}
}

// What does not fit, is not there or is in use is refused before the first write.
func TestPartitionsThatAreRefused(t *testing.T) {
	t.Parallel()
	fat := make([]byte, 4*blockdev.MiB) // its boot sector looks like an MBR
	copy(fat[0x36:], "FAT16   ")
	copy(fat[446:], "\x80\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00")
	fat[510], fat[511] = 0x55, 0xaa

	for name, c := range map[string]struct {
		image   []byte
		env     map[string]string
		prepare func(t *testing.T, file string)
		busy    bool
		protect bool
		want    string // "" = it is written
	}{
		"a file system":     {image: fat, env: map[string]string{"PARTITION": "2"}},
		"missing":           {env: map[string]string{"DEST_DISK": "/dev/alias7"}, want: "finding the partition NUMBER=7: not found among: 1 ("},
		"two match":         {env: map[string]string{"PARTITION": "PARTTYPE=ebd0a0a2-b9e5-4433-87c0-68b6b72699c7"}, want: "both match"},
		"named twice":       {env: map[string]string{"DEST_DISK": "/dev/alias2", "PARTITION": "2"}, want: "names a partition already"},
		"another disk":      {env: map[string]string{"DEST_DISK": "/dev/other2"}, want: "is not the disk bound to this run"},
		"too small":         {env: map[string]string{"PARTITION": "1"}, want: "the partition has only 5242880: use a smaller image or a larger partition"},
		"tiny":              {env: map[string]string{"PARTITION": "3"}, want: "too small for any image"},
		"a partition table": {image: disktest.GptImage(t, 512)[:4*blockdev.MiB], env: map[string]string{"PARTITION": "2"}, want: "name the disk, or use an image of one file system"},
		"mounted":           {env: map[string]string{"PARTITION": "2"}, busy: true, want: "a partition of it is mounted"},
		"protected":         {env: map[string]string{"PARTITION": "2"}, protect: true, want: "the inventory protects this disk"},
		"no table": {env: map[string]string{"PARTITION": "2"}, want: "no partition table", prepare: func(t *testing.T, file string) {
			t.Helper()
			disktest.WriteAt(t, file, 0, make([]byte, blockdev.MiB))
			disktest.WriteAt(t, file, 17*blockdev.MiB, make([]byte, blockdev.MiB))
		}},
		"extended": {env: map[string]string{"PARTITION": "1"}, want: "contains logical partitions", prepare: func(t *testing.T, file string) {
			t.Helper()
			disktest.WriteAt(t, file, 0, make([]byte, blockdev.MiB))
			disktest.WriteAt(t, file, 17*blockdev.MiB, make([]byte, blockdev.MiB))
			disktest.WriteMBR(t, file, 0, 0x0f, 2048, 16384)
		}},
		"overlapping": {env: map[string]string{"PARTITION": "1"}, want: "it overlaps partition 2", prepare: func(t *testing.T, file string) {
			t.Helper()
			disktest.NewGPT(t, file, parttable.Span{Start: blockdev.MiB, Size: 8 * blockdev.MiB}, secondPart)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := c.image
			if image == nil {
				image = disktest.TestImage()
			}
			web := httptest.NewServer(&disktest.Mirror{Data: image})
			t.Cleanup(web.Close)
			w, watched, bound, file := partedDisk(t)
			if c.prepare != nil {
				c.prepare(t, file)
			}
			if c.busy {
				w.machine.Disks = busyDisks{watched.Inner.(disk.FileDisks)}
			}
			before, err := os.ReadFile(file)
			require.NoError(t, err)

			env := map[string]string{"IMG_URL": web.URL, "IMG_SHA256": disktest.SHA256(image)}
			maps.Copy(env, c.env)
			as := action.Assignment{
				Disk: bound, DiskAlias: "/dev/alias", Action: action.Action{Image: action.Image2Disk, Environment: env, Timeout: 600},
			}
			if c.protect {
				as.Protected = []action.DiskID{bound.ID()}
			}
			task := newTask(w.machine, as)
			err = task.perform(context.Background(), as)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			after, err := os.ReadFile(file)
			require.NoError(t, err)
			require.True(t, bytes.Equal(before, after), "the disk was written")
		})
	}
}
