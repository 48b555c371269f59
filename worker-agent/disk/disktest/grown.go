package disktest

import (
	"os"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/parttable"
)

// GrownDisk returns a disk of size bytes as image2disk leaves it after writing an image of 24 MiB. The partition table is still the
// table of the image: an ESP at 1 MiB and a root partition at 4 MiB.
func GrownDisk(t *testing.T, size int64) (disk.FileDisks, *action.Disk, string) {
	t.Helper()
	files, disk, file := Sparse(t, 24*blockdev.MiB)
	NewGPT(
		t,
		file,
		parttable.Span{Start: blockdev.MiB, Size: 3 * blockdev.MiB, Name: "esp"},
		parttable.Span{Start: 4 * blockdev.MiB, Size: 16 * blockdev.MiB, Name: "root"},
	)
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	disk.Size = size
	files[0].Size = size
	return files, disk, file
}
