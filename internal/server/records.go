package server

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/inventory"
)

// openReserve takes the reserve, or gives it up to a disk that is full
// already: a database could not even be opened there.
func (s *server) openReserve() {
	s.reserve = reserve.Open(reserve.Options{Dir: s.cfg.DataDir, Size: s.cfg.Reserve << 20, Log: s.log.With("part", "space"), Changed: s.reserveChanged})
}

// reserveChanged leaves an event for operators, in the room that was made.
func (s *server) reserveChanged(ctx context.Context, held bool) {
	text := "the disk of " + s.cfg.DataDir + " has room again: the reserve is held, new runs and uploads are taken"
	if !held {
		text = "the disk of " + s.cfg.DataDir + " is full: the reserve is in use, new runs and uploads are refused; " + reserve.Remedy
	}
	err := s.store.AppendEvents(ctx, []inventory.Event{{Kind: inventory.EventOperator, Key: rand.Text(), By: "ingot", Message: text}})
	if err != nil && ctx.Err() == nil {
		s.log.Warn("recording what became of the reserve", "error", err)
	}
}

// What is forgotten, and given back to the disk, at once: little, so that no
// agent waits.
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

// keepRecords forgets runs and events that are older than the configuration
// says, in small steps, until ctx ends.
func (s *server) keepRecords(ctx context.Context) error {
	for wait := pruneFirst; ; wait = pruneEvery {
		if !pause(ctx, wait) {
			return nil
		}
		s.forget(ctx)
	}
}

func (s *server) forget(ctx context.Context) {
	before := time.Now().Add(-s.cfg.Records.Retention)
	runs := s.inSteps(ctx, "forgetting old runs", pruneRuns, func() (int, error) {
		return s.store.PruneRuns(ctx, before, s.cfg.Records.Keep, pruneRuns)
	})
	events := s.inSteps(ctx, "forgetting old events", pruneEvents, func() (int, error) {
		return s.store.PruneEvents(ctx, before, pruneEvents)
	})
	s.inSteps(ctx, "forgetting old BMC jobs", pruneEvents, func() (int, error) {
		return s.store.PruneBMCJobs(ctx, before, pruneEvents)
	})
	if s.api != nil { // not in tests of the records alone
		s.api.RemoveUnusedImages(ctx) // those of runs that are over by now
	}
	s.inSteps(ctx, "giving unused space back", 1, func() (int, error) { return s.store.Shrink(ctx, shrinkPages) })
	if runs+events > 0 {
		s.log.Info("old records are forgotten", "runs", runs, "events", events, "before", before.UTC().Format(time.RFC3339))
	}
}

// inSteps repeats a step until it did, or left, less than full, and returns the
// sum.
func (s *server) inSteps(ctx context.Context, what string, full int, step func() (int, error)) (sum int) {
	for {
		n, err := step()
		if err != nil {
			if ctx.Err() == nil {
				s.log.Warn("keeping the inventory small", "what", what, "error", err)
			}
			return sum
		}
		if sum += n; n < full || !pause(ctx, pruneNext) {
			return sum
		}
	}
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
