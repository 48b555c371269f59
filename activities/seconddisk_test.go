package activities

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// recorded is a store that keeps which disks were recorded as written.
type recorded struct {
	crowded
	written []action.Disk
}

func (r *recorded) DiskWritten(_ context.Context, _ inventory.Owner, d action.Disk) error {
	r.written = append(r.written, d)
	return nil
}

// An action on a second disk gets this disk's identity in its signed order. Its disk is recorded as written only if the action replaces all
// of it. A disk that is missing, ambiguous, protected or the bound one ends before anything is written: when the run chooses its disk, and
// when the action is assigned.
func TestSecondDiskByIdentity(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	first := action.Disk{Path: "/dev/vda", Serial: "S1", Size: 1 << 30, Blank: true}
	second := action.Disk{Path: "/dev/vdb", Serial: "S2", WWN: "0xab", Size: 1 << 20}

	for name, c := range map[string]struct {
		second action.DiskID
		part   string // partition to which the image is written
		size   int64  // of the image
		disks  []action.Disk
		spared []action.DiskID
		want   string // "" = it is assigned
		fits   bool   // only Bind compares the image with the disk
	}{
		"by serial":    {second: action.DiskID{Serial: "S2"}, disks: []action.Disk{first, second}},
		"by WWN":       {second: action.DiskID{WWN: "0xAB"}, disks: []action.Disk{second, first}},
		"a partition":  {second: action.DiskID{WWN: "0xAB"}, part: "1", disks: []action.Disk{second, first}},
		"missing":      {second: action.DiskID{Serial: "S3"}, disks: []action.Disk{first, second}, want: "no disk matches"},
		"differs":      {second: action.DiskID{Serial: "S2", WWN: "0xcd"}, disks: []action.Disk{first, second}, want: "no disk matches"},
		"two match":    {second: action.DiskID{Serial: "S2"}, disks: []action.Disk{first, second, {Path: "/dev/vdc", Serial: "S2"}}, want: "2 disks match"},
		"protected":    {second: action.DiskID{Serial: "S2"}, disks: []action.Disk{first, second}, spared: []action.DiskID{{WWN: "0xAB"}}, want: "protected, so never written"},
		"the bound":    {second: action.DiskID{Serial: "S1"}, disks: []action.Disk{first, second}, want: "it is the run's disk"},
		"does not fit": {second: action.DiskID{Serial: "S2"}, size: 1<<20 + 1, disks: []action.Disk{first, second}, want: "use a smaller image or a larger disk", fits: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &recorded{}
			s.facts, s.spared = action.Facts{Disks: c.disks}, c.spared
			s.plan = inventory.Plan{Run: "r1", DiskAlias: "/dev/sda", Actions: []action.Action{{
				Name: "write", Image: action.Image2Disk, Timeout: 60, Second: &action.SecondDisk{Device: "/dev/sdb", DiskID: c.second},
				Environment: map[string]string{"IMG_SHA256": "d1", "DEST_DISK": "/dev/sdb" + c.part},
			}}}
			s.plan.Digest, err = digest(s.plan.Actions)
			require.NoError(t, err)
			store := storeOf(s)
			store.Images = oneImage{image: inventory.Image{Name: "data", SHA256: "d1", DiskSize: c.size}}
			a := New(Config{Store: store, Site: Site{PlanKey: private}, Clocks: Clocks{Now: time.Now}})
			owner := inventory.Owner{Machine: "m1", Run: "r1", Epoch: 1}

			b, err := a.Bind(t.Context(), BindRequest{Owner: owner, Selector: &inventory.DiskSelector{Serial: "S1"}})
			require.NoError(t, err)
			require.Contains(t, b.Reason, c.want)
			require.Equal(t, c.want == "", b.Disk != nil, b.Reason)

			err = a.Assign(t.Context(), AssignRequest{Owner: owner, Boot: 1, Key: action.Key{Epoch: 1, Attempt: 1}, Disk: &first})
			if c.want != "" && !c.fits {
				require.ErrorContains(t, err, c.want)
				require.Empty(t, s.assigned)
				require.Empty(t, s.written)
				return
			}
			require.NoError(t, err)
			o, err := s.assigned[0].Payload.Signed.Verify(public)
			require.NoError(t, err)
			require.Equal(t, &second, o.Disk)
			require.Equal(t, "/dev/sdb", o.DiskAlias)
			if c.part != "" {
				require.Empty(t, s.written)
				return
			}
			require.Equal(t, []action.Disk{second}, s.written)
		})
	}
}
