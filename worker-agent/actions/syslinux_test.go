package actions

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/stretchr/testify/require"
)

// BootCode implements Programs.
func (f *fakePrograms) BootCode(table string) ([]byte, error) {
	return []byte("boot code for " + table), nil
}

// syslinux runs the agent's program on the partition, marks that partition alone, and leaves the rest of the table as it is.
func TestSyslinux(t *testing.T) {
	t.Parallel()
	for _, table := range []string{"gpt", "mbr"} {
		t.Run(table, func(t *testing.T) {
			t.Parallel()
			s := newStorageSite(t)
			disk := s.disks[0].File
			// Two partitions of 8 MiB. The first one is marked.
			if table == "gpt" {
				require.NoError(t, os.Truncate(disk, 48*blockdev.MiB)) // the image is smaller than the disk
				out, err := exec.Command("sgdisk", "-n", "1:2048:18431", "-n", "2:18432:34815", "-A", "1:set:2", disk).CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.NoError(t, os.Truncate(disk, s.bound.Size))
			} else {
				disktest.WriteMBR(t, disk, 0, 0x0c, 2048, 16384)
				require.NoError(t, s.mark(disk, 446, "\x80"))
				require.NoError(t, s.mark(disk, 446+16, "\x00\x00\x00\x00\x83\x00\x00\x00\x00\x48\x00\x00\x00\x40\x00\x00"))
			}
			s.Dirs = map[string]string{filepath.Join(s.dir, "sdb2"): t.TempDir()}
			run := func(partition string) (map[string]string, string, error) {
				return try(t, Machine{Disks: s.disks, Files: s.fakePrograms}, action.Syslinux, &s.bound,
					map[string]string{"DEST_DISK": "/dev/alias", "DEST_PARTITION": partition, "FS_TYPE": "vfat"})
			}

			before := disktest.ReadSpans(t, disk)
			signature := append([]byte(nil), disktest.MapFile(t, disk)[440:446]...)
			for range 2 { // it may be repeated
				values, log, err := run("/dev/alias2")
				require.NoError(t, err, log)
				require.Equal(t, table, values["table"])
			}
			require.Len(t, s.ran, 2)
			require.Contains(t, s.ran[0], "extlinux --install /")
			first := disktest.MapFile(t, disk)[:512]
			require.Equal(t, "boot code for "+table, string(first[:len("boot code for "+table)]))
			require.True(t, blockdev.AllZero(first[20:440]))
			require.Equal(t, signature, first[440:446])
			require.Equal(t, before, disktest.ReadSpans(t, disk))
			if table == "gpt" {
				disktest.Judge(t, "No problems found", "sgdisk", "-v", disk)
				disktest.Judge(t, "1:2:0", "sgdisk", "-A", "1:get:2", disk)
				disktest.Judge(t, "2:2:1", "sgdisk", "-A", "2:get:2", disk)
			} else {
				require.Equal(t, []byte{0, 0x80, 0, 0}, []byte{first[446], first[462], first[478], first[494]})
			}

			_, _, err := run("/dev/alias")
			require.ErrorContains(t, err, "it names no partition")
			s.fails = "extlinux"
			_, _, err = run("/dev/alias2")
			var exit *exitError
			require.ErrorAs(t, err, &exit)
			require.Equal(t, 5, exit.code)
			s.missing = []string{"extlinux"}
			_, _, err = run("/dev/alias2")
			require.ErrorContains(t, err, "finding the program extlinux")
		})
	}
}
