package disk

import (
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

func TestOnlyTheBoundDiskIsWritten(t *testing.T) {
	t.Parallel()
	bound := action.Disk{Path: "/dev/sda", Serial: "S1", WWN: "0x5000", Size: 24 << 20}
	with := func(f func(*action.Disk)) action.Disk { d := bound; f(&d); return d }
	for name, c := range map[string]struct {
		disks []action.Disk
		path  string
		text  string
	}{
		"it has another name now": {disks: []action.Disk{
			with(func(d *action.Disk) { d.Serial = "S2" }),
			with(func(d *action.Disk) { d.Path = "/dev/sdb" }),
		}, path: "/dev/sdb"},
		"other serial": {disks: []action.Disk{with(func(d *action.Disk) { d.Serial = "S2" })}, text: "not found among the machine's disks"},
		"other WWN":    {disks: []action.Disk{with(func(d *action.Disk) { d.WWN = "0x5001" })}, text: "not found among the machine's disks"},
		"other size":   {disks: []action.Disk{with(func(d *action.Disk) { d.Size++ })}, text: "bytes instead of"},
		"gone":         {text: "not found among the machine's disks"},
		"two of them":  {disks: []action.Disk{bound, with(func(d *action.Disk) { d.Path = "/dev/sdb" })}, text: "both match"},
		"read-only":    {disks: []action.Disk{with(func(d *action.Disk) { d.ReadOnly = true })}, text: "read-only"},
	} {
		got, err := Identify(bound, c.disks)
		if c.text == "" && (err != nil || got.Path != c.path) || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%s: %v, %v", name, got.Path, err)
		}
	}
	nameless := action.Disk{Path: "/dev/vda", Size: 5}
	if _, err := Identify(nameless, []action.Disk{{Path: "/dev/vdb", Size: 5}}); err == nil {
		t.Error("a disk without serial number was found at another path")
	}
	if _, err := Identify(nameless, []action.Disk{{Path: "/dev/vda", Size: 5, Serial: "new"}}); err == nil {
		t.Error("a disk without serial number matched one that has it")
	}
}
