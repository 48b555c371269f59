package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// TestTracedEvents: events of runs come with the phase in which they happened, and the end of an action with its beginning.
func TestTracedEvents(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	o := w.take("run-1")
	after, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)
	phase := func(seq int64, name string) {
		w.clock.Add(time.Second)
		require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{
			Run: o.Run, Machine: o.Machine, Epoch: o.Epoch, State: inventory.StateRunning, Phase: name, Seq: seq, Updated: w.clock.Now(),
			Trace: &inventory.Trace{ID: "0af7651916cd43dd8448eb211c80319c"},
		}))
	}
	event := func(kind, key string) time.Time {
		w.clock.Add(time.Second)
		require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{o.Event(1, kind, key, "")}))
		return w.clock.Now().UTC()
	}
	key := action.Key{Epoch: o.Epoch, Action: 2, Attempt: 1}.String()
	event(inventory.EventDHCP, "")
	phase(1, inventory.PhasePlan)
	phase(2, inventory.PhaseAction)
	began := event(inventory.EventActionStarted, key)
	event(inventory.EventActionStarted, "another")
	event(inventory.EventActionDone, key+" report-1")
	event(inventory.EventDecision, "is not traced")
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{{Machine: "m1", Kind: inventory.EventDHCP}}), "of no run")

	got, last, err := w.Traces.TracedEvents(ctx, after)
	require.NoError(t, err)
	require.Len(t, got, 4)
	require.Equal(t, inventory.EventDHCP, got[0].Kind)
	require.Zero(t, got[0].Phase)
	require.Zero(t, got[1].Phase, "the first phase begins")
	require.Equal(t, got[1].At, got[2].Phase.At, "plan ends")
	require.Equal(t, got[1].Key, got[2].Phase.Key)
	require.Equal(t, inventory.EventActionDone, got[3].Kind)
	require.Equal(t, began, got[3].Since)
	require.Equal(t, got[2].Key, got[3].Phase.Key)
	require.JSONEq(t, string(got[2].Detail), string(got[3].Phase.Detail))

	got, again, err := w.Traces.TracedEvents(ctx, last)
	require.NoError(t, err)
	require.Empty(t, got)
	require.Equal(t, last, again)

	r, err := w.Workflows.Workflow(ctx, o.Run)
	require.NoError(t, err)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", r.Trace.ID)
}

// TestTracesSent: what was sent is remembered; before the first time, everything that is there counts as sent.
func TestTracesSent(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t), t.Context()
	last, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)
	require.Positive(t, last)
	sent, err := w.Traces.TracesSent(ctx)
	require.NoError(t, err)
	require.Equal(t, last, sent)

	require.NoError(t, w.Traces.SetTracesSent(ctx, last+5))
	w.reopen(w.keys)
	sent, err = w.Traces.TracesSent(ctx)
	require.NoError(t, err)
	require.Equal(t, last+5, sent)
}
