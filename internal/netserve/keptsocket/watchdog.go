package keptsocket

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// A Check returns an error if a part of the service does not work. It must return soon after ctx ends; a check that
// hangs has the same effect as one that fails.
type Check struct {
	Part string
	Run  func(ctx context.Context) error
}

// A Watchdog tells the service manager at intervals that the service works. The manager kills and restarts a service
// from which it hears nothing for WatchdogSec= (systemd.service(5)).
type Watchdog struct {
	log *slog.Logger

	mu     sync.Mutex
	checks []Check
	pauses int
	silent string // see Silent
}

// NewWatchdog returns a Watchdog without checks.
func NewWatchdog(log *slog.Logger) *Watchdog { return &Watchdog{log: log} }

// SetChecks replaces the checks. Without checks, the service counts as working as long as its process runs.
func (w *Watchdog) SetChecks(checks ...Check) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checks = checks
}

// Pause suspends the checks until resume is called, once: the service does something for which parts of it may not answer.
func (w *Watchdog) Pause() (resume func()) {
	w.add(1)
	return func() { w.add(-1) }
}

func (w *Watchdog) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pauses += n
}

// Silent returns the part that did not answer when the checks last ran, or "" if all did.
func (w *Watchdog) Silent() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.silent
}

// unwatched takes the place of WatchdogSec if the service manager does not watch the service.
const unwatched = 2 * time.Minute

// Run checks the service three times in each WatchdogSec, until ctx ends.
func (w *Watchdog) Run(ctx context.Context) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		w.log.Warn("reading when the service manager expects to hear of this server", "error", err)
	}
	limit = cmp.Or(limit, unwatched)

	tick := time.NewTicker(limit / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.report(ctx, limit/3)
		}
	}
}

// report runs the checks, each for at most limit, and tells the service manager that the service works, unless one fails.
func (w *Watchdog) report(ctx context.Context, limit time.Duration) {
	w.mu.Lock()
	checks := w.checks
	if w.pauses > 0 {
		checks = nil
	}
	w.mu.Unlock()

	silent := ""
	for _, c := range checks {
		if err := c.within(ctx, limit); err != nil {
			w.log.Warn("a part of this server does not answer; a service manager restarts the server if this lasts",
				"part", c.Part, "error", err)
			silent = c.Part
			break
		}
	}
	w.mu.Lock()
	w.silent = silent
	w.mu.Unlock()
	if silent != "" {
		return
	}
	if err := notify("WATCHDOG=1", nil); err != nil {
		w.log.Warn("telling the service manager that this server works", "error", err)
	}
}

func (c Check) within(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.Run(ctx)
}
