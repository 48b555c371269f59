package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestKeyedRequestIsFoundUntilItExpires(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	r := inventory.KeyedRequest{ID: "id", Fingerprint: "f"}
	begin := func() inventory.KeyedRequest {
		found, err := w.KeyedRequests.BeginKeyedRequest(ctx, inventory.KeyedRequest{ID: "id", Fingerprint: "other"})
		require.NoError(t, err)
		return found
	}
	got, err := w.KeyedRequests.BeginKeyedRequest(ctx, r)
	require.NoError(t, err)
	require.Equal(t, r, got)
	require.Equal(t, r, begin())

	require.NoError(t, w.KeyedRequests.SetKeyedWorkflow(ctx, "id", "machine/m1", "r0"))
	require.NoError(t, w.KeyedRequests.AnswerKeyedRequest(ctx, inventory.KeyedRequest{ID: "id", Status: 202, Answer: []byte("{}")}))
	r.Workflow, r.Before, r.Status, r.Answer = "machine/m1", "r0", 202, []byte("{}")
	require.Equal(t, r, begin())
	require.NoError(t, w.KeyedRequests.AnswerKeyedRequest(ctx, inventory.KeyedRequest{ID: "id", Status: 202}))
	require.Nil(t, begin().Answer)
	require.NoError(t, w.KeyedRequests.AnswerKeyedRequest(ctx, inventory.KeyedRequest{ID: "id", Status: 202, Answer: []byte{}}))
	require.NotNil(t, begin().Answer, "an empty answer is one")

	w.clock.Add(keyedFor)
	require.Equal(t, "other", begin().Fingerprint)
	w.clock.Add(keyedFor)
	n, err := w.KeyedRequests.PruneKeyedRequests(ctx, 10)
	require.NoError(t, err)
	require.Zero(t, n)
	w.clock.Add(time.Second)
	n, err = w.KeyedRequests.PruneKeyedRequests(ctx, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestS63KeyedRequestsAreBounded(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	require.NoError(t, w.write(ctx, "test", func(tx *transaction) error {
		for i := range maxKeyedRequests {
			err := do(ctx, tx, "INSERT INTO keyed_request (id, fingerprint, created) VALUES (?, ?, ?)", fmt.Sprint(i), "", nanos(w.clock.Now()))
			if err != nil {
				return err
			}
		}
		return nil
	}))
	_, err := w.KeyedRequests.BeginKeyedRequest(ctx, inventory.KeyedRequest{ID: "id"})
	require.ErrorIs(t, err, inventory.ErrTooManyKeys)
	_, err = w.KeyedRequests.BeginKeyedRequest(ctx, inventory.KeyedRequest{ID: "1"})
	require.NoError(t, err, "one that is there is found")
	w.clock.Add(keyedFor)
	_, err = w.KeyedRequests.BeginKeyedRequest(ctx, inventory.KeyedRequest{ID: "id"})
	require.NoError(t, err)
}

func TestKeyedRequestChangesTheInventoryOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.KeyedRequests.BeginKeyedRequest(t.Context(), inventory.KeyedRequest{ID: "id"})
	require.NoError(t, err)
	ctx := inventory.WithKeyedRequest(t.Context(), "id")

	require.ErrorIs(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m1", 1)}, false, "test"), inventory.ErrConflict)
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2)}, false, "test"), "a refused change is none")
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2)}, false, "test"), "it is made already")
	require.NoError(t, w.Machines.DeleteMachine(t.Context(), "m2", "test"))
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m2", 2)}, false, "test"))
	_, err = w.Machines.Machine(t.Context(), "m2")
	require.ErrorIs(t, err, inventory.ErrNotFound, "what another request changed since stays")
	require.Error(t, w.Templates.PutTemplate(ctx, inventory.Template{Name: "t"}, "test"), "a second change")
	require.ErrorIs(t, w.Templates.PutTemplate(inventory.WithKeyedRequest(t.Context(), "expired"), inventory.Template{Name: "t"}, "test"),
		inventory.ErrNotFound)
}
