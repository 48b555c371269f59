package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestNoticesUseTheOutbox: a notice is open, and then sent, dropped or closed.
func TestNoticesUseTheOutbox(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	WithNotices()(w.db)
	ctx := t.Context()
	for _, run := range []string{"run-1", "run-2", "run-3"} {
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
			Run: run, ID: "machine/m1", Machine: "m1", State: inventory.StateFailed,
			Message: run + " failed",
		}))
	}
	n, err := w.Notices.NextNotice(ctx)
	require.NoError(t, err)
	require.Equal(t, "run-1", n.Run)
	require.NoError(t, w.Notices.NoticeSent(ctx, n.ID))
	n, err = w.Notices.NextNotice(ctx)
	require.NoError(t, err)
	require.NoError(t, w.Notices.NoticeFailed(ctx, n.ID, "no route", time.Time{}))
	counts, err := w.Notices.Notices(ctx)
	require.NoError(t, err)
	require.Equal(t, []int{1, 1}, []int{counts.Waiting, counts.Dropped})
	closed, err := w.Notices.CloseNotices(ctx, "test")
	require.NoError(t, err)
	require.Equal(t, 1, closed)
	_, err = w.Notices.NextNotice(ctx)
	require.ErrorIs(t, err, inventory.ErrNotFound)
}
