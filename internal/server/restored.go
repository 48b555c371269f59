package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// restored stores which runs are held, that is, may not act, since the server was restored from a backup. A nil restored holds none.
type restored struct {
	store *sqlite.Store
	log   *slog.Logger
	now   atomic.Pointer[inventory.Restore]
}

func newRestored(ctx context.Context, store *sqlite.Store, log *slog.Logger) (*restored, error) {
	last, err := store.Restores.LastRestore(ctx)
	r := &restored{store: store, log: log}
	r.now.Store(&last)
	return r, err
}

// get returns the last restore, or the zero Restore if there was none.
func (r *restored) get() inventory.Restore {
	if r == nil {
		return inventory.Restore{}
	}
	return *r.now.Load()
}

func (r *restored) held() []inventory.HeldRun { return r.get().Held }

// listPause is the pause between two requests for the open runs of a cluster: the cluster's list may be some seconds old.
const listPause = 5 * time.Second

// holdOpen holds runs in the cluster after a restore, so that they do nothing. When it is called first, it holds all open runs, because
// the backup knows only the runs that were open when it was made. Later it holds runs that come from a held run: its child workflows and
// its continuations. No worker may start before holdOpen has returned nil.
func (r *restored) holdOpen(ctx context.Context, c client.Client) error {
	last := r.get()
	if !last.AwaitsCluster && len(last.Held) == 0 {
		return nil
	}
	list := func() ([]inventory.HeldRun, error) {
		open, err := engine.OpenRuns(ctx, c)
		if err != nil {
			return nil, fmt.Errorf("listing the runs to hold after the restore: %w", err)
		}
		return toHold(last, open), nil
	}

	there, err := list()
	for seen := -1; err == nil && last.AwaitsCluster && len(there) != seen; {
		seen = len(there)
		if err := clock.Sleep(ctx, listPause); err != nil {
			return err
		}
		there, err = list()
	}
	if err != nil || !last.AwaitsCluster && len(there) == 0 {
		return err
	}

	now, err := r.store.Restores.HoldRuns(ctx, there)
	if err != nil {
		return err
	}
	r.now.Store(&now)
	r.log.Warn("runs from before the restore are held", "open", len(there), "held", len(now.Held), "backup", now.Taken)
	return nil
}

// toHold returns the open runs that must be held and are not held yet.
func toHold(last inventory.Restore, open []*workflowpb.WorkflowExecutionInfo) (there []inventory.HeldRun) {
	held := map[string]bool{}
	for _, h := range last.Held {
		held[h.Run] = true
	}
	for _, e := range open {
		run := e.GetExecution().GetRunId()
		from := held[e.GetParentExecution().GetRunId()] || held[e.GetRootExecution().GetRunId()] || held[e.GetFirstRunId()]
		if !held[run] && (last.AwaitsCluster || from) {
			there = append(there, inventory.NewHeldRun(run, e.GetExecution().GetWorkflowId()))
		}
	}
	return there
}
