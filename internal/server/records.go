package server

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/diskreserve"
	"github.com/ingotmetal/ingot/inventory"
)

// newReserve takes the reserve, or releases it on a full disk, where the database
// could not even be opened.
func (s *server) newReserve() *diskreserve.Reserve {
	return diskreserve.Open(diskreserve.Options{
		Dir: s.cfg.DataDir, Size: s.cfg.Reserve << 20, Log: s.log.With("part", "space"), Changed: s.reportReserve,
	})
}

// reportReserve records an event for operators, in the space that was released.
func (s *server) reportReserve(ctx context.Context, held bool) {
	text := " has room again: the reserve is held, new runs and uploads are taken"
	if !held {
		text = " is full: the reserve is in use, new runs and uploads are refused; " + diskreserve.Remedy
	}

	err := s.records.store.Events.AppendEvents(ctx, []inventory.Event{{
		Kind: inventory.EventOperator, Key: rand.Text(), By: "ingot", Message: "the disk of " + s.cfg.DataDir + text,
	}})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("recording the state of the reserve", "error", err)
	}
}

// Sizes of one step: small, so that no agent waits.
const (
	pruneRuns   = 20
	pruneEvents = 500
	shrinkPages = 500
)

// Pauses of keepRecords.
const (
	pruneFirst = time.Minute // after the start
	pruneEvery = time.Hour
	pruneNext  = 50 * time.Millisecond // between two steps
)

// keepRecords deletes runs and events that are older than the configuration allows, in
// small steps, until ctx ends.
func (s *server) keepRecords(ctx context.Context) error {
	for wait := pruneFirst; ; wait = pruneEvery {
		if clock.Sleep(ctx, wait) != nil {
			return nil
		}
		s.deleteOldRecords(ctx)
	}
}

func (s *server) deleteOldRecords(ctx context.Context) {
	before := time.Now().Add(-s.cfg.Records.Retention)
	runs := s.inSteps(ctx, "deleting old runs", pruneRuns, func() (int, error) {
		return s.records.store.Workflows.PruneRuns(ctx, before, s.cfg.Records.Keep, pruneRuns)
	})
	events := s.inSteps(ctx, "deleting old events", pruneEvents, func() (int, error) {
		return s.records.store.Events.PruneEvents(ctx, before, pruneEvents)
	})
	s.inSteps(ctx, "deleting old BMC jobs", pruneEvents, func() (int, error) {
		return s.records.store.BMCJobs.PruneBMCJobs(ctx, before, pruneEvents)
	})
	s.inSteps(ctx, "deleting old lines of syslog", pruneEvents, func() (int, error) {
		return s.records.store.Syslog.PruneSyslog(ctx, before, pruneEvents)
	})
	s.inSteps(ctx, "deleting old Idempotency-Keys", pruneEvents, func() (int, error) {
		return s.records.store.KeyedRequests.PruneKeyedRequests(ctx, pruneEvents)
	})
	if s.api != nil { // not in tests of the records alone
		s.api.RemoveUnusedImages(ctx) // those of runs that are over by now
	}
	s.inSteps(ctx, "returning unused space", 1, func() (int, error) { return s.records.store.Shrink(ctx, shrinkPages) })
	if runs+events > 0 {
		s.log.Info("old records are deleted", "runs", runs, "events", events, "before", before.UTC().Format(time.RFC3339))
	}
}

// inSteps repeats a step until it did less than full, and returns the sum.
func (s *server) inSteps(ctx context.Context, what string, full int, step func() (int, error)) (sum int) {
	for {
		n, err := step()
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("keeping the inventory small", "what", what, "error", err)
			}
			return sum
		}
		if sum += n; n < full || clock.Sleep(ctx, pruneNext) != nil {
			return sum
		}
	}
}
