package engine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
)

// failing is a store that cannot be written.
type failing struct {
	AgentStore
	err         error
	duringWrite func() // called while it fails
}

func (f *failing) AppendLog(ctx context.Context, o inventory.Owner, k action.Key, text string) error {
	if f.err != nil {
		f.duringWrite()
		return f.err
	}
	return f.AgentStore.AppendLog(ctx, o, k, text)
}

// TestLogOutlivesAFullDisk: log that could not be written is written later, in order, and
// the pending log is limited.
func TestLogOutlivesAFullDisk(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", fakesite.MAC)
	o := s.Arm("m1", "r1")
	s.welcome(o)
	k := s.Assign(o)
	g, a := s.Agents, inventory.Agent{Owner: o, Boot: 1}
	disk := &failing{AgentStore: g.store, err: inventory.ErrFull}
	disk.duringWrite = func() {}
	g.store = disk
	says := func(text string) {
		g.Beat(a, action.Heartbeat{Running: &action.Progress{Key: k, Log: text}}, s.Clock.Now())
	}
	says("one\n")
	require.ErrorIs(t, g.Flush(t.Context()), disk.err)
	disk.duringWrite = func() { says("two\n") }
	require.ErrorIs(t, g.Flush(t.Context()), disk.err)
	disk.duringWrite = func() {}
	require.ErrorIs(t, g.Flush(t.Context()), disk.err)
	s.Clock.Move(2 * time.Hour) // of silence
	g.forget(time.Hour)
	says("three\n")
	disk.err = nil
	require.NoError(t, g.Flush(t.Context()))
	text, err := s.Store.Workflows.Log(t.Context(), "r1", k.Action, k.Attempt)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\n", text)
	require.NoError(t, g.Flush(t.Context()), "once")
	text, err = s.Store.Workflows.Log(t.Context(), "r1", k.Action, k.Attempt)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\n", text)

	disk.err = inventory.ErrFull
	disk.duringWrite = func() { says(strings.Repeat("x", MaxLogTail-5) + "\nend\n") }
	for range 20 {
		disk.duringWrite()
		require.ErrorIs(t, g.Flush(t.Context()), disk.err)
	}
	waiting := g.TakeLog(a, k)
	require.True(t, len(waiting) > MaxLogTail && len(waiting) <= maxPendingLog)
	require.True(t, strings.HasSuffix(waiting, "end\n"))

	says("late\n")
	disk.err, disk.duringWrite = inventory.ErrFenced, func() {}
	require.NoError(t, g.Flush(t.Context()))
	require.Empty(t, g.TakeLog(a, k), "the run has ended: no one waits for it")
}
