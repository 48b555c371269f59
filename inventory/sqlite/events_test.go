package sqlite

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// S46, S48: a flood of forged packets creates one row and one signal.
func TestSpoofedEventsAreBounded(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.armed()
	before, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)
	const n = 20000
	batch := make([]inventory.Event, 0, 500)
	for i := range n {
		batch = append(batch, inventory.Event{
			Machine: "m1", Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventDHCP, Key: strings.Repeat("k", i%50),
			At: w.in(time.Duration(i) * time.Millisecond), Message: strings.Repeat("m", 4000),
			Detail: json.RawMessage(`"` + strings.Repeat("d", 9000) + `"`),
		})
		if len(batch) == cap(batch) {
			require.NoError(t, w.Events.AppendEvents(ctx, batch))
			batch = batch[:0]
		}
		if i == n/2 {
			unsent, err := w.Events.Unsignalled(ctx, 0, 10)
			require.NoError(t, err)
			require.Len(t, unsent, 1)
			require.NoError(t, w.Events.MarkSignalled(ctx, []int64{unsent[0].Seq}))
		}
	}
	es := w.events(inventory.EventDHCP)
	require.Len(t, es, 1)
	require.Equal(t, int64(n), es[0].Count)
	require.Equal(t, w.in((n-1)*time.Millisecond), es[0].At)
	require.LessOrEqual(t, len(es[0].Message)+len(es[0].Detail), 2*maxWireText)
	unsent, err := w.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)
	require.Empty(t, unsent, "signalled once, and never again")
	last, err := w.Events.LastSeq(ctx)
	require.NoError(t, err)
	require.Equal(t, before+1, last)
	st, err := os.Stat(w.path)
	require.NoError(t, err)
	require.Less(t, st.Size(), int64(1<<20))
}

func TestEventsAreUniqueByKey(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	e := inventory.Event{
		Machine: "m1", Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventPhoneHome, Key: "a", At: w.clock.Now(),
		Count: 1, Message: "first", By: "x", Detail: json.RawMessage(`{"a":1}`),
	}
	again := e
	again.Message = "second"
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{e, again}))
	got := w.events(inventory.EventPhoneHome)
	require.Len(t, got, 1)
	e.Seq = got[0].Seq
	require.Equal(t, e, got[0])
	again.Key = "b"
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{again}))
	require.Len(t, w.events(inventory.EventPhoneHome), 2)

	es, err := w.Events.Events(ctx, inventory.EventFilter{Run: o.Run, After: e.Seq, Limit: 5})
	require.NoError(t, err)
	require.Len(t, es, 1)
	es, err = w.Events.Events(ctx, inventory.EventFilter{Machine: "m2"})
	require.NoError(t, err)
	require.Empty(t, es)
}

func TestUnsignalled(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.armed()
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{
		{Machine: "m1", Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventKernel},
		{Machine: "m1", Run: o.Run, Epoch: o.Epoch, Boot: 1, Kind: inventory.EventOS},           // no signal
		{Machine: "m1", Kind: inventory.EventDHCP},                                              // no run
		{Machine: "m1", Run: "run-0", Epoch: 1, Boot: 1, Kind: inventory.EventDHCP},             // not the holder
		{Machine: "m1", Run: o.Run, Epoch: o.Epoch - 1, Boot: 1, Kind: inventory.EventDHCP},     // an earlier epoch
		{Machine: "m1", Run: "operator:ann", Epoch: 1, Boot: 1, Kind: inventory.EventPhoneHome}, // an operator's
	}))
	n, err := w.Events.PendingSignals(ctx, o)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	unsent, err := w.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)
	require.Len(t, unsent, 2)
	require.Equal(t, inventory.EventHello, unsent[0].Kind)
	require.Equal(t, inventory.EventKernel, unsent[1].Kind)
	ch, cancel := w.Changes.Subscribe()
	defer cancel()
	one, err := w.Events.Unsignalled(ctx, 0, 1)
	require.NoError(t, err)
	require.Len(t, one, 1)
	require.Empty(t, ch, "asking again writes nothing: otherwise the pump would wake itself")
	require.NoError(t, w.Events.MarkSignalled(ctx, []int64{unsent[0].Seq}))
	n, err = w.Events.PendingSignals(ctx, o)
	require.NoError(t, err)
	require.Equal(t, 1, n)

	// When the run ends, its remaining events need no signal.
	require.NoError(t, w.Grants.EndGrant(ctx, o))
	unsent, err = w.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)
	require.Empty(t, unsent)
	n, err = w.Events.PendingSignals(ctx, o)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestNewestEvent(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	at := w.in(3 * time.Hour)
	require.NoError(t, w.Events.AppendEvents(ctx, []inventory.Event{
		{Machine: "m1", Kind: inventory.EventOS, At: at},
		{Machine: "m1", Kind: inventory.EventDHCP, At: w.clock.Now()},
	}))
	got, err := w.Events.NewestEvent(ctx)
	require.NoError(t, err)
	require.Equal(t, at, got)
}

func TestTouchAgents(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	seen := inventory.AgentSeen{Owner: o, Boot: 1, LastSeen: w.in(time.Minute), Wrote: true}
	earlier := inventory.AgentSeen{Owner: o, Boot: 1, LastSeen: w.in(time.Second)}
	require.NoError(t, w.Agents.TouchAgents(ctx, []inventory.AgentSeen{seen, earlier, {Owner: inventory.Owner{Machine: "unknown"}}}))
	a, err := w.Agents.MachineAgent(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, w.in(time.Minute), a.LastSeen)
	require.True(t, a.Wrote)
	_, err = w.Agents.MachineAgent(ctx, "m2")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}
