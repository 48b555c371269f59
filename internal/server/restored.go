package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// restored knows which runs are held since the server was restored from a backup.
type restored struct {
	store *sqlite.Store
	log   *slog.Logger
	now   atomic.Pointer[inventory.Restore]
}

func newRestored(ctx context.Context, store *sqlite.Store, log *slog.Logger) (*restored, error) {
	last, err := store.LastRestore(ctx)
	r := &restored{store: store, log: log}
	r.now.Store(&last)
	return r, err
}

// get returns the last restore, or the zero Restore.
func (r *restored) get() inventory.Restore { return *r.now.Load() }

func (r *restored) held() []inventory.HeldRun { return r.get().Held }

// holdCluster holds all runs that are open in the cluster when a restored server reaches it for the first time. The backup knows
// only those that were open when it was made. Until it has returned nil, no worker may run.
func (r *restored) holdCluster(ctx context.Context, c client.Client) error {
	if !r.get().AwaitsCluster {
		return nil
	}
	open, err := engine.OpenRuns(ctx, c)
	if err != nil {
		return fmt.Errorf("holding the runs of the earlier server: %w", err)
	}

	there := make([]inventory.HeldRun, 0, len(open))
	for _, e := range open {
		there = append(there, inventory.NewHeldRun(e.GetExecution().GetRunId(), e.GetExecution().GetWorkflowId()))
	}
	now, err := r.store.HoldRuns(ctx, there)
	if err != nil {
		return err
	}
	r.now.Store(&now)
	r.log.Warn("the runs of the earlier server are held", "open", len(open), "held", len(now.Held), "backup", now.Taken)
	return nil
}
