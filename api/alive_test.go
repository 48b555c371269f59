package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// failing is a store that cannot be written.
type failing struct {
	agentStore
	err       error
	meanwhile func() // called while it fails
}

func (f *failing) AppendLog(ctx context.Context, o inventory.Owner, k action.Key, text string) error {
	if f.err != nil {
		f.meanwhile()
		return f.err
	}
	return f.agentStore.AppendLog(ctx, o, k, text)
}

// TestLogOutlivesAFullDisk: what could not be written is written later, in its
// order, and what waits is bounded.
func TestLogOutlivesAFullDisk(t *testing.T) {
	s := newSite(t)
	s.addMachine("m1", mac)
	o := s.armed("m1", "r1")
	s.welcome(o, nonceA)
	k := s.assign(o)
	g, a := s.server.agents, inventory.Agent{Owner: o, Boot: 1}
	disk := &failing{agentStore: g.store, err: inventory.ErrFull}
	disk.meanwhile = func() {}
	g.store = disk
	says := func(text string) {
		g.beat(a, action.Heartbeat{Running: &action.Progress{Key: k, Log: text}}, s.clock.now())
	}
	says("one\n")
	require.ErrorIs(t, g.flush(t.Context()), disk.err)
	disk.meanwhile = func() { says("two\n") }
	require.ErrorIs(t, g.flush(t.Context()), disk.err)
	disk.meanwhile = func() {}
	require.ErrorIs(t, g.flush(t.Context()), disk.err)
	s.clock.move(2 * time.Hour) // of silence
	g.forget(time.Hour)
	says("three\n")
	disk.err = nil
	require.NoError(t, g.flush(t.Context()))
	text, err := s.store.Log(t.Context(), "r1", k.Action, k.Attempt)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\n", text)
	require.NoError(t, g.flush(t.Context()), "once")
	text, err = s.store.Log(t.Context(), "r1", k.Action, k.Attempt)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\n", text)

	disk.err = inventory.ErrFull
	disk.meanwhile = func() { says(strings.Repeat("x", maxLogTail-5) + "\nend\n") }
	for range 20 {
		disk.meanwhile()
		require.ErrorIs(t, g.flush(t.Context()), disk.err)
	}
	waiting := g.take(a, k)
	require.True(t, len(waiting) > maxLogTail && len(waiting) <= maxPendingLog)
	require.True(t, strings.HasSuffix(waiting, "end\n"))

	says("late\n")
	disk.err, disk.meanwhile = inventory.ErrFenced, func() {}
	require.NoError(t, g.flush(t.Context()))
	require.Empty(t, g.take(a, k), "the run is over: nobody waits for it")
}
