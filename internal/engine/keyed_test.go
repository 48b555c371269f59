package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// TestRequestFindsItsRun: by the memo of the newest run, under the run id by which a workflow is known that has continued as new.
func TestRequestFindsItsRun(t *testing.T) {
	s := newSite(t)
	k := inventory.KeyedRequest{ID: "mine", Workflow: "recover/all", Before: "old"}
	found := func() string {
		run, err := s.Runs.StartedBy(t.Context(), k)
		require.NoError(t, err)
		return run
	}
	s.Temporal.Open("recover/all", "old")
	s.Temporal.End("old", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
	require.Empty(t, found())
	s.Temporal.Open("recover/all", "new")
	_, err := s.Runs.StartedBy(t.Context(), k)
	require.ErrorIs(t, err, inventory.ErrConflict, "another request has started it")
	s.Temporal.Runs["new"].Memo = map[string]any{workflows.MemoKeyedRequest: "mine"}
	require.Equal(t, "new", found())
	s.Temporal.Runs["new"].First = "first"
	require.Equal(t, "first", found())

	s.Temporal.Open("machine/m1", "r1")
	require.NoError(t, s.Runs.Recall(t.Context(), "machine/m1", "r1"))
	_, err = s.Runs.Find(t.Context(), "r1")
	require.NoError(t, err)
	s.Temporal.Open("machine/m1", "r2")
	s.Temporal.End("r2", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
	require.NoError(t, s.Runs.Recall(t.Context(), "machine/m1", "r2"))
	_, err = s.Runs.Find(t.Context(), "r2")
	require.ErrorIs(t, err, inventory.ErrNotFound, "a deleted record stays deleted")

	s.Temporal.Down = true
	_, err = s.Runs.StartedBy(t.Context(), k)
	require.ErrorIs(t, err, inventory.ErrUnavailable)
}
