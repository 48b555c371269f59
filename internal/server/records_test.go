package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// Whatever is older than the configuration says is forgotten in one go, in
// however many steps that takes.
func TestForgetsOldRecords(t *testing.T) {
	ctx := t.Context()
	store, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "ingot.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	now := time.Now()
	for i := range 2*pruneRuns + 5 {
		at := now.Add(-time.Duration(i) * 24 * time.Hour)
		require.NoError(
			t,
			store.Workflows.PutWorkflow(
				ctx,
				inventory.Workflow{Run: fmt.Sprintf("run-%d", i), Machine: "m1", State: inventory.StateSuccess, Started: at, Ended: at, Updated: at},
			),
		)
	}
	var events []inventory.Event
	for i := range pruneEvents + 5 {
		events = append(
			events,
			inventory.Event{Machine: "m1", Kind: inventory.EventOperator, Key: fmt.Sprint(i), At: now.Add(-30 * 24 * time.Hour)},
		)
	}
	events = append(events, inventory.Event{Machine: "m1", Kind: inventory.EventOperator, Key: "new", At: now})
	require.NoError(t, store.Events.AppendEvents(ctx, events))

	var log bytes.Buffer
	r := &records{
		store:    store,
		log:      slog.New(slog.NewTextHandler(&log, nil)),
		cfg:      config.Config{Records: config.Records{Retention: 48 * time.Hour, Keep: 3}},
		watchdog: keptsocket.NewWatchdog(slog.New(slog.DiscardHandler)),
	}
	removeImages := func(context.Context) {}
	r.deleteOld(ctx, removeImages)
	left, err := store.Workflows.Workflows(ctx, inventory.WorkflowFilter{Limit: 100})
	require.NoError(t, err)
	require.Len(t, left, 3, "the newest of the machine")
	es, err := store.Events.Events(ctx, inventory.EventFilter{})
	require.NoError(t, err)
	require.Len(t, es, 1)
	unused, err := store.Shrink(ctx, 1)
	require.NoError(t, err)
	require.Zero(t, unused, "the file shrank")
	require.Contains(t, log.String(), fmt.Sprintf("runs=%d events=%d", 2*pruneRuns+2, pruneEvents+5))

	ended, cancel := context.WithCancel(ctx)
	cancel()
	require.NoError(t, r.keepSmall(ended, removeImages))
}
