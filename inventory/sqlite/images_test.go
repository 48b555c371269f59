package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A file is unused when no image has it and no plan of an open run names it.
func TestUnusedImageFiles(t *testing.T) {
	w := newWorld(t)
	digest := func(c string) string {
		out := ""
		for len(out) < 64 {
			out += c
		}
		return out
	}
	stored, planned, over, unused := digest("a"), digest("b"), digest("c"), digest("d")
	require.NoError(t, w.PutImage(t.Context(), inventory.Image{Name: "x", File: "old", Size: 1, SHA256: stored, Format: "raw"}, "test"))
	require.NoError(t, w.SetImageFile(t.Context(), "x", stored))
	image, err := w.Image(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, stored, image.File)

	for run, sum := range map[string]string{"open": planned, "over": over} {
		require.NoError(t, w.PutPlan(t.Context(), inventory.Plan{Run: run, ImagesURL: "http://10.0.0.1/images", Actions: []action.Action{
			{Name: "write", Image: action.Image2Disk, Environment: map[string]string{"IMG_URL": "http://10.0.0.1/images/" + sum + "/x", "IMG_SHA256": sum}},
		}}))
		require.NoError(t, w.PutWorkflow(t.Context(), inventory.Workflow{Run: run, Machine: "m1", State: inventory.StateRunning}))
	}
	require.NoError(t, w.PutWorkflow(t.Context(), inventory.Workflow{Run: "over", Machine: "m1", State: inventory.StateFailed, Ended: w.in(time.Minute)}))

	found, err := w.PlannedImages(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, planned, found[0].SHA256)
	require.Equal(t, "open", found[0].Run)

	var removed []string
	require.NoError(t, w.UnusedImageFiles(t.Context(), []string{stored, planned, over, unused}, func(d string) error {
		removed = append(removed, d)
		return nil
	}))
	require.Equal(t, []string{over, unused}, removed)
}

// A run is resumed if its plan is stored and no later run has written.
func TestResumable(t *testing.T) {
	w := newWorld(t)
	require.ErrorIs(t, w.Resumable(t.Context(), "none"), inventory.ErrNotFound)
	require.NoError(t, w.PutWorkflow(t.Context(), inventory.Workflow{Run: "r1", Machine: "m1", State: inventory.StateFailed}))
	require.ErrorContains(t, w.Resumable(t.Context(), "r1"), "its plan is not stored")
	require.NoError(t, w.PutPlan(t.Context(), inventory.Plan{Run: "r1"}))
	require.NoError(t, w.Resumable(t.Context(), "r1"))

	require.NoError(t, w.PutWorkflow(t.Context(), inventory.Workflow{Run: "r2", Machine: "m1", State: inventory.StateRunning}))
	o := w.take("r2")
	require.NoError(t, w.DiskWritten(t.Context(), o, action.Disk{Serial: "D1"}))
	err := w.Resumable(t.Context(), "r1")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, `run "r2" has written`)
}
