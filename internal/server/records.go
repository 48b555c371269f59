package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// records are the inventory, its checks, its reserved disk space, and the deletion of old records.
type records struct {
	cfg      config.Config
	log      *slog.Logger
	store    *sqlite.Store
	reserve  *diskreserve.Reserve
	checked  inventoryCheck
	restored *restored
	watchdog *keptsocket.Watchdog
}

// open checks and opens the database. It refuses a damaged database, and a new database in the place of a lost one (refuseLost).
func (r *records) open(ctx context.Context, sealer sqlite.Sealer) error {
	err := r.checkFile(ctx)
	if err == nil {
		// On a full disk, this releases the reserve: otherwise the database could not be opened.
		r.reserve = diskreserve.Open(diskreserve.Options{
			Dir: r.cfg.DataDir, Size: r.cfg.Reserve << 20, Log: r.log.With("part", "space"), Changed: r.reportReserve,
		})
		r.store, err = sqlite.Open(ctx, InventoryFile(r.cfg), sealer,
			append(noticeOptions(r.cfg.Notify), sqlite.WithFull(r.reserve.Release))...)
	}
	if errors.Is(err, sqlite.ErrDamaged) {
		return adviseRestore(r.cfg, err)
	}
	if err != nil {
		return fmt.Errorf("opening the inventory: %w", err)
	}
	if err := r.refuseLost(ctx); err != nil {
		return adviseRestore(r.cfg, errors.Join(err, r.store.Close()))
	}

	return nil
}

// finish completes the work that an earlier process has left unfinished: renaming images and replacing keys.
func (r *records) finish(ctx context.Context, secrets *secrets) (err error) {
	if err := adoptImages(ctx, r.store.Images, r.cfg.ImageDir()); err != nil {
		return err
	}
	if err := r.store.Keys.KeyCheck(ctx); err != nil {
		r.log.Error("secrets cannot be opened: DHCP continues, but no machine can be armed; ingot secret status shows more",
			"key_file", r.cfg.KeyFile, "error", err)
	} else {
		secrets.resumeRotation(ctx, r.store.Keys, r.log)
	}
	r.restored, err = newRestored(ctx, r.store, r.log)
	return err
}

// reportReserve records an event for operators. On a full disk, the event is written into the space that was released.
func (r *records) reportReserve(ctx context.Context, held bool) {
	text := " has free space again: the reserve is restored, and new runs and uploads are accepted"
	if !held {
		text = " is full: the reserve is in use, and new runs and uploads are refused; " + diskreserve.Remedy
	}

	err := r.store.Events.AppendEvents(ctx, []inventory.Event{{
		Kind: inventory.EventOperator, Key: rand.Text(), By: "ingot", Message: "the disk of " + r.cfg.DataDir + text,
	}})
	if err != nil && ctx.Err() == nil {
		r.log.Warn("recording the state of the reserve", "error", err)
	}
}

// Maximum numbers for one step. They are small, so that no agent waits for the database.
const (
	pruneRuns   = 20
	pruneEvents = 500
	shrinkPages = 500
)

// Pauses of keepSmall.
const (
	pruneFirst = time.Minute // after the start
	pruneEvery = time.Hour
	pruneNext  = 50 * time.Millisecond // between two steps
)

// keepSmall deletes old records (runs and events older than records.retention, for example) at intervals, in small steps, until ctx ends.
// Each time it then calls removeImages, because a deleted run may have been the last one that needed an image.
func (r *records) keepSmall(ctx context.Context, removeImages func(context.Context)) error {
	for wait := pruneFirst; ; wait = pruneEvery {
		if clock.Sleep(ctx, wait) != nil {
			return nil
		}
		r.deleteOld(ctx, removeImages)
	}
}

func (r *records) deleteOld(ctx context.Context, removeImages func(context.Context)) {
	before := time.Now().Add(-r.cfg.Records.Retention)
	runs := r.inSteps(ctx, "deleting old runs", pruneRuns, func() (int, error) {
		return r.store.Workflows.PruneRuns(ctx, before, r.cfg.Records.Keep, pruneRuns)
	})
	events := r.inSteps(ctx, "deleting old events", pruneEvents, func() (int, error) {
		return r.store.Events.PruneEvents(ctx, before, pruneEvents)
	})
	r.inSteps(ctx, "deleting old BMC jobs", pruneEvents, func() (int, error) {
		return r.store.BMCJobs.PruneBMCJobs(ctx, before, pruneEvents)
	})
	r.inSteps(ctx, "deleting old lines of syslog", pruneEvents, func() (int, error) {
		return r.store.Syslog.PruneSyslog(ctx, before, pruneEvents)
	})
	r.inSteps(ctx, "deleting old Idempotency-Keys", pruneEvents, func() (int, error) {
		return r.store.KeyedRequests.PruneKeyedRequests(ctx, pruneEvents)
	})
	removeImages(ctx)
	r.inSteps(ctx, "returning unused space", 1, func() (int, error) {
		defer r.watchdog.Pause()()
		return r.store.Shrink(ctx, shrinkPages)
	})
	if runs+events > 0 {
		r.log.Info("deleted old records", "runs", runs, "events", events, "before", before.UTC().Format(time.RFC3339))
	}
}

// inSteps repeats step until one step handles fewer items than full, a step fails, or ctx ends. It returns how many items were handled.
func (r *records) inSteps(ctx context.Context, what string, full int, step func() (int, error)) (sum int) {
	for {
		n, err := step()
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("cleaning up the inventory", "what", what, "error", err)
			}
			return sum
		}
		if sum += n; n < full || clock.Sleep(ctx, pruneNext) != nil {
			return sum
		}
	}
}
