package sqlite

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// A file is unused if an image once had it, no image has it now and no plan of an open run needs
// it. It is included until it was removed.
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
	for _, sum := range []string{planned, over, stored, unused} {
		require.NoError(t, w.Images.PutImage(t.Context(), inventory.Image{Name: "x", SHA256: sum}, "test"))
	}
	require.NoError(t, w.Images.PutImage(t.Context(), inventory.Image{Name: "x", File: "old", Size: 1, SHA256: stored, Format: "raw"}, "test"))
	require.NoError(t, w.Images.SetImageFile(t.Context(), "x", stored))
	image, err := w.Images.Image(t.Context(), "x")
	require.NoError(t, err)
	require.Equal(t, stored, image.File)

	for run, sum := range map[string]string{"open": planned, "over": over} {
		require.NoError(t, w.Plans.PutPlan(t.Context(), inventory.Plan{Run: run, ImagesURL: "http://10.0.0.1/images", Actions: []action.Action{
			{
				Name: "write", Image: action.Image2Disk,
				Environment: map[string]string{"IMG_URL": "http://10.0.0.1/images/" + sum + "/x", "IMG_SHA256": sum},
			},
		}}))
		require.NoError(t, w.Workflows.PutWorkflow(t.Context(), inventory.Workflow{Run: run, Machine: "m1", State: inventory.StateRunning}))
	}
	require.NoError(t, w.Workflows.PutWorkflow(t.Context(),
		inventory.Workflow{Run: "over", Machine: "m1", State: inventory.StateFailed, Ended: w.in(time.Minute)}))

	found, err := w.Images.PlannedImages(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, planned, found[0].SHA256)
	require.Equal(t, "open", found[0].Run)

	broken := errors.New("the disk is broken")
	require.ErrorIs(t, w.Images.UnusedImageFiles(t.Context(), func(string) error { return broken }), broken)
	var removed []string
	remove := func(d string) error {
		removed = append(removed, d)
		return nil
	}
	require.NoError(t, w.Images.UnusedImageFiles(t.Context(), remove))
	require.Equal(t, []string{over, unused}, removed)
	require.NoError(t, w.Images.ExpectImageFile(t.Context(), stored))
	require.NoError(t, w.Images.DeleteImage(t.Context(), "x", "test"))
	require.NoError(t, w.Images.UnusedImageFiles(t.Context(), remove))
	require.Equal(t, []string{over, unused, stored}, removed)
}

// If the caller's context ends, the call completes: remove sees only data of this transaction.
func TestUnusedImageFilesIgnoresCancellation(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	var removed []string
	for _, d := range []string{"a", "b", ""} {
		require.NoError(t, w.Images.PutImage(t.Context(), inventory.Image{Name: "x", SHA256: d}, "test"))
	}
	require.NoError(t, w.Images.PutImage(t.Context(), inventory.Image{Name: "x", SHA256: "c"}, "test"))
	require.NoError(t, w.Images.UnusedImageFiles(ctx, func(d string) error {
		cancel()
		removed = append(removed, d)
		return nil
	}))
	require.Equal(t, []string{"a", "b"}, removed)
	require.NoError(t, w.Images.UnusedImageFiles(t.Context(), func(d string) error { return errors.New("asked again for " + d) }))
}

// TestSuccessor: inspections, BMC jobs and runs of other machines are none.
func TestSuccessor(t *testing.T) {
	w := newWorld(t)
	for n, r := range []inventory.Workflow{
		{Run: "r1", Machine: "m1", Type: inventory.TypeDecommission},
		{Run: "r2", Machine: "m2", Type: inventory.TypeProvision},
		{Run: "r3", Machine: "m1", Type: "Inspect"},
		{Run: "r4", Machine: "m1", Type: inventory.TypeProvision},
		{Run: "r5", Machine: "m1", Type: inventory.TypeReprovision},
		{Run: "r6", Machine: "m1", Type: "BMCJob"},
		{Run: "r7", Machine: "m1", Type: inventory.TypeProvision, Epoch: -1},
	} {
		r.State, r.Started = inventory.StateSuccess, w.in(-time.Duration(n)*time.Hour) // the clock was set back each time
		r.Epoch++                                                                      // r7 has not taken the machine
		require.NoError(t, w.Workflows.PutWorkflow(t.Context(), r))
	}
	successors := func(want map[string]string) {
		t.Helper()
		for run, later := range want {
			got, err := w.Workflows.Successor(t.Context(), run)
			require.NoError(t, err)
			require.Equal(t, later, got, run)
		}
	}
	successors(map[string]string{"r1": "r5", "r2": "", "r4": "r5", "r5": "", "r6": ""})
	_, err := w.Workflows.Successor(t.Context(), "none")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	for _, run := range []string{"r7", "r6", "r5"} {
		require.NoError(t, w.Workflows.DeleteWorkflow(t.Context(), run, "test"))
	}
	successors(map[string]string{"r1": "r4", "r2": "", "r4": "r5"})
	require.NoError(t, w.Workflows.DeleteWorkflow(t.Context(), "r4", "test"))
	successors(map[string]string{"r1": "r4", "r2": "", "r3": "r4"})
}

// A run can be resumed if its plan is stored and no later run has written.
func TestResumable(t *testing.T) {
	w := newWorld(t)
	require.ErrorIs(t, w.Workflows.Resumable(t.Context(), "none"), inventory.ErrNotFound)
	require.NoError(t, w.Workflows.PutWorkflow(t.Context(), inventory.Workflow{Run: "r1", Machine: "m1", State: inventory.StateFailed}))
	require.ErrorContains(t, w.Workflows.Resumable(t.Context(), "r1"), "its plan is not stored")
	require.NoError(t, w.Plans.PutPlan(t.Context(), inventory.Plan{Run: "r1"}))
	require.NoError(t, w.Workflows.Resumable(t.Context(), "r1"))

	require.NoError(t, w.Workflows.PutWorkflow(t.Context(), inventory.Workflow{Run: "r2", Machine: "m1", State: inventory.StateRunning}))
	o := w.take("r2")
	require.NoError(t, w.Disks.DiskWritten(t.Context(), o, action.Disk{Serial: "D1"}))
	err := w.Workflows.Resumable(t.Context(), "r1")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, `run "r2" has written`)
}
