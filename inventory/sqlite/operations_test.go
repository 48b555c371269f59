package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestOperations(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	put := func(run, id, typ, state string, seq int64, message string) {
		t.Helper()
		require.NoError(t, w.Operations.PutOperation(ctx, inventory.Operation{
			Run: run, ID: id, Type: typ, Name: "lab", State: state, Message: message, Seq: seq, Started: w.clock.Now(),
			Steps: []inventory.OperationStep{{Name: "preflight", State: inventory.StepRunning}},
		}))
	}
	put("r1", "genesis/lab", "Genesis", inventory.StateRunning, 1, "first")
	put("r1", "genesis/lab", "Genesis", inventory.StateRunning, 3, "third")
	put("r1", "genesis/lab", "Genesis", inventory.StateRunning, 2, "second, late")
	o, err := w.Operations.Operation(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, "third", o.Message)
	require.Equal(t, inventory.StepRunning, o.Steps[0].State)

	put("r1", "genesis/lab", "Genesis", inventory.StateFailed, 4, "broken")
	put("r1", "genesis/lab", "Genesis", inventory.StateRunning, 5, "risen")
	o, err = w.Operations.Operation(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, "broken", o.Message, "what is final stays")

	put("r2", "recover/rack-1", "Recover", inventory.StateRunning, 1, "")
	for _, c := range []struct {
		filter inventory.OperationFilter
		want   []string
	}{
		{inventory.OperationFilter{}, []string{"r2", "r1"}},
		{inventory.OperationFilter{Open: true}, []string{"r2"}},
		{inventory.OperationFilter{Type: "Genesis"}, []string{"r1"}},
		{inventory.OperationFilter{ID: "recover/rack-1"}, []string{"r2"}},
		{inventory.OperationFilter{Limit: 1}, []string{"r2"}},
	} {
		list, err := w.Operations.Operations(ctx, c.filter)
		require.NoError(t, err)
		var runs []string
		for _, o := range list {
			runs = append(runs, o.Run)
		}
		require.Equal(t, c.want, runs, "%+v", c.filter)
	}
	_, err = w.Operations.Operation(ctx, "unknown")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.ErrorIs(t, w.Operations.PutOperation(ctx, inventory.Operation{ID: "x"}), inventory.ErrInvalid)
}
