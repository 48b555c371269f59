package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestSectors: an image for 512-byte sectors is not written to a disk with sectors of 4096 bytes, though an operator names the
// disk. An image of another server, unknown to this one, is refused by the agent before its first write.
func TestSectors(t *testing.T) {
	runInTurn(t, 60, 9)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	m, err := s.Add(ctx, lab.Spec{Name: "large", SectorSize: 4096}, func(doc map[string]any) { doc["image"] = "mini" })
	require.NoError(t, err)
	before, err := DigestOf(m.DiskPath(), size(m.DiskPath()))
	require.NoError(t, err)
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: "large"})
	require.NoError(t, err)

	asks := func(not string) inventory.Question {
		return *s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil && w.Question.ID != not }).Question
	}
	q := asks("")
	const reason = "for disks with 512-byte sectors, and this disk has 4096-byte sectors"
	require.Contains(t, q.Text, reason)
	require.Equal(t, 4096, q.Disks[0].SectorSize)
	require.NoError(t, s.decides(ctx, "large", contract.Decision{
		Question: q.ID, Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "DISK-large"},
	}))
	q = asks(q.ID)
	require.Contains(t, q.Text, reason)
	require.NoError(t, s.decides(ctx, "large", contract.Decision{Question: q.ID, Choice: contract.Abort}))
	s.ended(ctx, t, "large", inventory.StateFailed)

	after, err := DigestOf(m.DiskPath(), size(m.DiskPath()))
	require.NoError(t, err)
	require.Equal(t, before, after, "the disk was not written")
}
