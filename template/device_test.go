package template

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// renderStep renders a template of one action.
func renderStep(t *testing.T, d Data, step string) (Rendered, error) {
	t.Helper()
	return Render(t.Context(), "it", "version: \"0.1\"\nname: it\ntasks:\n- name: install\n  actions:\n  - {name: it, "+step+"}\n", d)
}

// A plan refuses an image that its partition cannot hold, as far as the server knows both.
func TestImageForPartition(t *testing.T) {
	d := data()
	d.Machine.Storage = &action.Storage{Disks: []action.StorageDisk{{
		Device: "/dev/nvme0n1", Partitions: []action.StoragePartition{{Label: "EFI", Size: 2048}, {Label: "root", Size: 8192}, {Label: "rest"}},
	}}}
	for name, c := range map[string]struct {
		image inventory.Image
		env   string
		whole bool
		want  string
	}{
		"disk":          {image: inventory.Image{SectorSize: 512}, env: "{}", whole: true},
		"partition":     {env: "{DEST_DISK: /dev/nvme0n1p2}"},
		"by number":     {env: "{PARTITION: '2'}"},
		"a table":       {image: inventory.Image{SectorSize: 512, Contents: "GPT, 2 partitions"}, env: "{PARTITION: '3'}", want: "has a partition table (GPT, 2 partitions), so it cannot be written to a partition"},
		"as large":      {image: inventory.Image{DiskSize: 4 << 20}, env: "{PARTITION: '2'}"},
		"too large":     {image: inventory.Image{DiskSize: 4<<20 + 1}, env: "{DEST_DISK: /dev/nvme0n1p2}", want: "needs 4194305 bytes, but partition 2 has only 4194304"},
		"the rest":      {image: inventory.Image{DiskSize: 1 << 40}, env: "{PARTITION: '3'}"},
		"by label":      {image: inventory.Image{DiskSize: 1 << 40}, env: "{PARTITION: LABEL=root}"},
		"named twice":   {env: "{DEST_DISK: /dev/nvme0n1p2, PARTITION: '2'}", want: "names a partition already"},
		"no such value": {env: "{PARTITION: root}", want: "invalid PARTITION"},
	} {
		t.Run(name, func(t *testing.T) {
			c.image.Name, c.image.SHA256 = d.Image.Name, d.Image.SHA256
			d := d
			d.Image, d.Images = &c.image, nil
			r, err := renderStep(t, d, "image: image2disk, environment: "+c.env)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.whole, r.Actions[0].WritesWhole(r.DiskAlias))
		})
	}
}

// An action may use a second disk that the machine declares by its identity; each other target is refused, with what to do about it.
func TestSecondDisk(t *testing.T) {
	d := data()
	d.Machine.Disks = []inventory.DeclaredDisk{
		{Device: "/dev/nvme0n1"},
		{Device: "/dev/sdb", DiskID: action.DiskID{Serial: "S2"}},
		{Device: "/dev/sdc"},
		{Device: "/dev/sdd", DiskID: action.DiskID{WWN: "0xAA"}},
		{Device: "/dev/sde", DiskID: action.DiskID{Serial: "S1"}},
	}
	d.Machine.DiskSelector = &inventory.DiskSelector{Serial: "S1"}
	d.Machine.ProtectedDisks = []action.DiskID{{WWN: "0xaa"}}
	d.Machine.Storage = &action.Storage{Disks: []action.StorageDisk{
		{Device: "/dev/nvme0n1"}, {Device: "/dev/sdf", DiskID: action.DiskID{WWN: "0xbb"}, Partitions: []action.StoragePartition{{Label: "a"}}},
	}}

	for name, c := range map[string]struct {
		step   string
		second string // path of the second disk; "" = the run's disk
		want   string
	}{
		"the run's disk":          {step: "image: image2disk, environment: {DEST_DISK: /dev/nvme0n1}"},
		"no disk":                 {step: "image: image2disk"},
		"second disk":             {step: "image: image2disk, environment: {DEST_DISK: /dev/sdb}", second: "/dev/sdb"},
		"partition of it":         {step: "image: image2disk, environment: {DEST_DISK: /dev/sdb2}", second: "/dev/sdb"},
		"files":                   {step: "image: writefile, environment: {DEST_DISK: /dev/sdb1, DEST_PATH: /x, CONTENTS: y}", second: "/dev/sdb"},
		"wiped":                   {step: "image: wipe, environment: {BLOCK_DEVICE: /dev/sdb}", second: "/dev/sdb"},
		"of the storage":          {step: "image: image2disk, environment: {DEST_DISK: /dev/sdf1}", second: "/dev/sdf"},
		"files by the storage":    {step: "image: writefile, environment: {DEST_DISK: /dev/sdf1, DEST_PATH: /x, CONTENTS: y}"},
		"partition named twice":   {step: "image: image2disk, environment: {DEST_DISK: /dev/sdb2, PARTITION: '1'}", want: "names a partition already"},
		"partition of a wipe":     {step: "image: wipe, environment: {BLOCK_DEVICE: /dev/sdb1}", want: "wipe takes a whole disk, not partition 1"},
		"not declared":            {step: "image: image2disk, environment: {DEST_DISK: /dev/sdz}", want: `"/dev/sdz" is a second disk next to "/dev/nvme0n1"; a run is bound to one disk (name one disk in all actions, or declare /dev/sdz in the disks of machine ms-02-a with its serial or wwn)`},
		"without identity":        {step: "image: image2disk, environment: {DEST_DISK: /dev/sdc}", want: `"/dev/sdc" is a second disk next to "/dev/nvme0n1"; a run is bound to one disk (give /dev/sdc a serial or wwn in the document of machine ms-02-a)`},
		"protected":               {step: "image: image2disk, environment: {DEST_DISK: /dev/sdd}", want: `"/dev/sdd" is protected, so Ingot never writes to it (name another disk, or remove it from protectedDisks)`},
		"the run's disk, renamed": {step: "image: image2disk, environment: {DEST_DISK: /dev/sde}", want: `"/dev/sde" is the disk that the machine's disk selector names for /dev/nvme0n1 (name the disk as /dev/nvme0n1)`},
		"rootio":                  {step: "image: rootio, command: [wipe], environment: {DEST_DISK: /dev/sdb}", want: "rootio finds its disks in the storage"},
		"handler of another disk": {step: "image: wipe, environment: {BLOCK_DEVICE: /dev/sdb}, on-failure: [wipe, BLOCK_DEVICE=/dev/nvme0n1]", want: `"/dev/nvme0n1" is a second disk next to "/dev/sdb"`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := renderStep(t, d, "image: wipe, environment: {BLOCK_DEVICE: /dev/nvme0n1}}\n  - {name: then, "+c.step)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "/dev/nvme0n1", r.DiskAlias)
			second := r.Actions[1].Second
			if c.second == "" {
				require.Nil(t, second)
				return
			}
			want, _ := d.Machine.SecondDisk(c.second)
			require.Equal(t, &want, second)
			require.Equal(t, c.second, second.Device)
		})
	}
}
