package facts

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

func TestFactsFitAHello(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 60, 180, 400, 5000} {
		var facts action.Facts
		facts.NICs = []action.NIC{{Name: "eth0", MAC: "52:54:00:00:00:01", Up: true}}
		for i := range n {
			facts.Disks = append(facts.Disks, action.Disk{
				Path: fmt.Sprintf("/dev/sd%d", i), Serial: fmt.Sprintf("ZX%08d", i), WWN: fmt.Sprintf("0x5000c500%08x", i),
				Model: "ST20000NM007D-3DJ103", Size: 20 << 40,
				ByID: []string{
					fmt.Sprintf("/dev/disk/by-id/wwn-0x5000c500%08x", i), fmt.Sprintf("/dev/disk/by-id/scsi-35000c500%08x", i),
					fmt.Sprintf("/dev/disk/by-id/scsi-SSEAGATE_ST20000NM007D-3DJ103_ZX%08d", i),
				},
				Rotational: true, Transport: "sas", Signatures: []string{
					"gpt", "zfs_member",
					"a very long label of another host's pool \x00\x01 " + strings.Repeat("<", 200),
				},
			})
		}
		text := func(f action.Facts) string {
			b, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		before := text(facts)
		hello := action.Hello{Protocol: 2, Machine: "m1", Claim: strings.Repeat("c", 64), Nonce: strings.Repeat("n", 64)}
		fitted := Fit(facts, func(f action.Facts) int { hello.Facts = f; return JSONSize(hello) }, action.MaxHello)
		hello.Facts = fitted
		if size := JSONSize(hello); size > action.MaxHello {
			t.Errorf("%d disks: %d bytes", n, size)
		}
		if text(facts) != before {
			t.Errorf("%d disks: the original was changed", n)
		}
		if len(fitted.Disks)+fitted.DisksOmitted != n || len(fitted.NICs) != 1 {
			t.Errorf("%d disks: %d and %d omitted, %d interfaces", n, len(fitted.Disks), fitted.DisksOmitted, len(fitted.NICs))
		}
		if (fitted.Truncated != "") != (text(fitted) != before) || n <= 400 && fitted.DisksOmitted != 0 ||
			n == 5000 && fitted.DisksOmitted == 0 {
			t.Errorf("%d disks: truncated: %q, omitted %d", n, fitted.Truncated, fitted.DisksOmitted)
		}
		for i, d := range fitted.Disks {
			if d.Serial != facts.Disks[i].Serial || d.WWN != facts.Disks[i].WWN || d.Size != facts.Disks[i].Size || d.Path != facts.Disks[i].Path ||
				d.Blank {
				t.Fatalf("%d disks: %+v was %+v", n, d, facts.Disks[i])
			}
		}
	}
}
