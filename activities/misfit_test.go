package activities

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// oneImage is a catalogue of one image.
type oneImage struct {
	unused
	image inventory.Image
}

func (s oneImage) Images(context.Context) ([]inventory.Image, error) {
	return []inventory.Image{s.image}, nil
}

// What the server knows of an image is compared with the disk and the machine before anything is written.
func TestBindComparesTheImage(t *testing.T) {
	const uefi = "uefi-x86_64"
	for name, c := range map[string]struct {
		image  inventory.Image
		disk   action.Disk // its size is 1 GiB if it is 0
		facts  action.Facts
		then   string // action after the image
		part   string // partition to which the image is written
		from   int
		named  bool // the operator names the disk
		anyway bool // after the reason was another firmware's
		reason string
	}{
		"nothing is known":                 {},
		"the same sectors":                 {image: inventory.Image{SectorSize: 4096}, disk: action.Disk{SectorSize: 4096}},
		"512 on 4096":                      {image: inventory.Image{SectorSize: 512}, disk: action.Disk{SectorSize: 4096}, reason: "for disks with 512-byte sectors"},
		"4096 on 512":                      {image: inventory.Image{SectorSize: 4096}, disk: action.Disk{SectorSize: 512}, reason: "for disks with 4096-byte sectors"},
		"4096 on 512, named":               {image: inventory.Image{SectorSize: 4096}, disk: action.Disk{SectorSize: 512}, named: true, anyway: true, reason: "4096"},
		"an older agent":                   {image: inventory.Image{SectorSize: 4096}},
		"too large":                        {image: inventory.Image{DiskSize: 1<<30 + 1}, reason: "use a smaller image or a larger disk"},
		"too large, named":                 {image: inventory.Image{DiskSize: 1<<30 + 1}, named: true, reason: "use a smaller image or a larger disk"},
		"just as large":                    {image: inventory.Image{DiskSize: 1 << 30}},
		"done before":                      {image: inventory.Image{DiskSize: 1<<30 + 1}, from: 1},
		"UEFI":                             {image: inventory.Image{Boots: []string{"bios", uefi}}, facts: action.Facts{Firmware: "uefi", Arch: "x86_64"}},
		"UEFI on BIOS":                     {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios", Arch: "x86_64"}, reason: "boots by uefi-x86_64 only, but the machine boots by bios"},
		"UEFI on BIOS, named":              {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios"}, named: true, anyway: true},
		"UEFI on BIOS, for another reason": {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios"}, named: true, reason: "boots by"},
		"BIOS on UEFI":                     {image: inventory.Image{Boots: []string{"bios"}}, facts: action.Facts{Firmware: "uefi", Arch: "x86_64"}, reason: "boots by bios only"},
		"another architecture":             {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "uefi", Arch: "aarch64"}, reason: "the machine boots by uefi-aarch64"},
		"firmware not known":               {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Arch: "x86_64"}},
		"with a file":                      {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios"}, then: action.WriteFile, reason: "boots by"},
		"with GRUB":                        {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios"}, then: action.Grub2Disk},
		"UEFI on BIOS, to a partition":     {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios"}, part: "2"},
		"too large for any partition":      {image: inventory.Image{DiskSize: 1<<30 + 1}, part: "2", reason: "use a smaller image or a larger disk"},
		"kexec":                            {image: inventory.Image{Boots: []string{uefi}}, facts: action.Facts{Firmware: "bios"}, then: action.Kexec},
	} {
		t.Run(name, func(t *testing.T) {
			c.disk.Path, c.disk.Serial, c.disk.Blank = "/dev/sda", "S1", true
			if c.disk.Size == 0 {
				c.disk.Size = 1 << 30
			}
			c.facts.Disks = []action.Disk{c.disk}
			c.image.Name, c.image.SHA256 = "debian", "d1"
			m := &crowded{facts: c.facts}
			m.plan.Actions = []action.Action{
				{Image: action.Image2Disk, Environment: map[string]string{"IMG_SHA256": "d1", "PARTITION": c.part}}, {Image: action.Noop},
			}
			if c.then != "" {
				m.plan.Actions[1].Image = c.then
			}
			store := storeOf(m)
			store.Images = oneImage{image: c.image}
			a := New(Config{
				Store:  store,
				Clocks: Clocks{Now: time.Now},
			})
			q := BindRequest{Owner: inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}, From: c.from}
			if q.Anyway = c.anyway; c.named {
				q.Selector = &inventory.DiskSelector{Serial: "S1"}
			}
			b, err := a.Bind(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, c.reason == "", b.Disk != nil, b.Reason)
			require.Contains(t, b.Reason, c.reason)
			require.Equal(t, strings.Contains(b.Reason, "boots by"), b.CanConfirm)
		})
	}
}
