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
