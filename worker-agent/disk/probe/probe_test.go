package probe_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/ingotmetal/ingot/worker-agent/disk/blockdev"
	"github.com/ingotmetal/ingot/worker-agent/disk/disktest"
	"github.com/ingotmetal/ingot/worker-agent/disk/probe"
)

func TestSignatures(t *testing.T) {
	const size = 4 * blockdev.MiB
	at := func(off int, s string) []byte {
		b := make([]byte, size)
		copy(b[off:], s)
		return b
	}
	made := func(name string) []byte {
		b := make([]byte, size)
		disktest.HandMade[name](b)
		return b
	}
	cephOnLVM := made("LVM")
	disktest.HandMade["Ceph"](cephOnLVM[blockdev.MiB:]) // the first extent
	mbr := at(510, "\x55\xaa")
	copy(mbr[446:], "\x80\x00\x00\x00\x83\x00\x00\x00\x00\x08\x00\x00\x00\x10\x00\x00")
	copy(mbr[blockdev.MiB:], "XFSB")
	badGPT := disktest.GptImage(t, 512)
	badGPT[600] ^= 1
	for name, c := range map[string]struct {
		disk  []byte
		want  string
		blank bool
	}{
		"zeros":             {make([]byte, size), "[]", true},
		"old data":          {disktest.OldData(size), "[data]", false},
		"data at the end":   {at(size-1, "x"), "[data]", false},
		"data in the midst": {at(2*blockdev.MiB, "x"), "[]", true},
		"ext":               {at(0x438, "\x53\xef"), "[ext4]", false}, "xfs": {at(0, "XFSB"), "[xfs]", false},
		"btrfs": {at(0x10040, "_BHRfS_M"), "[btrfs]", false},
		"LUKS1": {at(0, "LUKS\xba\xbe\x00\x01"), "[LUKS]", false}, "LUKS2": {at(0, "LUKS\xba\xbe\x00\x02"), "[LUKS]", false},
		"swap": {at(0xff6, "SWAPSPACE2"), "[swap]", false}, "vfat": {at(0x36, "FAT16   "), "[vfat]", false},
		"md 0.90": {made("md 0.90"), "[md]", false}, "md 1.0": {made("md 1.0"), "[md]", false},
		"md 1.1": {made("md 1.1"), "[md]", false}, "md 1.2": {made("md 1.2"), "[md]", false},
		"LVM in sector 0": {at(0x018, "LVM2 001"), "[LVM]", false}, "LVM in sector 1": {made("LVM"), "[LVM]", false},
		"LVM in sector 2": {at(0x418, "LVM2 001"), "[LVM]", false}, "LVM in sector 3": {at(0x618, "LVM2 001"), "[LVM]", false},
		"zfs": {made("zfs"), "[zfs]", false}, "Ceph": {made("Ceph"), "[Ceph]", false}, "Ceph on LVM": {cephOnLVM, "[LVM]", false},
		"gpt": {disktest.GptImage(t, 512), "[gpt 1:data]", false}, "mbr": {mbr, "[mbr 1:xfs]", false},
		"a damaged gpt": {badGPT, "[damaged gpt]", false},
	} {
		names, blank := probe.Signatures(bytes.NewReader(c.disk), int64(len(c.disk)), 512)
		if fmt.Sprint(names) != c.want || blank != c.blank {
			t.Errorf("%s: %v blank=%v, want %s", name, names, blank, c.want)
		}
	}
}

func FuzzSignatures(f *testing.F) {
	f.Add([]byte("EFI PART"), 512)
	f.Add(make([]byte, 70000), 0)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		disk := make([]byte, 256<<10)
		if at >= 0 && at < len(disk) {
			copy(disk[at:], b)
		}
		probe.Signatures(bytes.NewReader(disk), int64(len(disk)), 512)
	})
}
