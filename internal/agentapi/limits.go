package agentapi

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// onceLog remembers which log lines were written for which boot. Without onceLog, a client that has captured a claim
// could cause a log line with each request.
type onceLog struct {
	mu    sync.Mutex
	lines map[string]struct{}
}

// maxLogged limits how many lines onceLog remembers. When there are more, it forgets all.
const maxLogged = 4096

// first reports whether line is logged for the first time for the boot of g, and remembers the line.
func (l *onceLog) first(g inventory.Grant, line string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := fmt.Sprintf("%s\x00%d\x00%d\x00%s", g.Machine, g.Epoch, g.Boot, line)
	_, known := l.lines[key]
	if len(l.lines) >= maxLogged || l.lines == nil {
		l.lines = map[string]struct{}{}
	}
	l.lines[key] = struct{}{}

	return !known
}

const (
	// discoverPause is how long after a report further reports from the same MAC, or the same source address, are
	// refused.
	discoverPause = 30 * time.Second
	// maxReported is how many MACs and source addresses are remembered. While all of them are recent, reports from
	// others are refused.
	maxReported = 4096
)

// reported holds the time of the last report of each unknown machine, by MAC and by source address.
type reported struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// isRecent reports whether the MAC or source address key has reported within discoverPause.
func (r *reported) isRecent(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isRecentLocked(key, now)
}

// isRecentLocked does what isRecent does, for a caller that holds r.mu. A report that seems to lie in the future,
// because the clock was set back, is not recent.
func (r *reported) isRecentLocked(key string, now time.Time) bool {
	last, ok := r.last[key]
	return ok && !now.Before(last) && now.Sub(last) < discoverPause
}

// begin remembers a report and returns true, or returns false if the report must be refused.
func (r *reported) begin(mac, source string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = map[string]time.Time{}
	}
	if len(r.last) >= maxReported {
		maps.DeleteFunc(r.last, func(key string, _ time.Time) bool { return !r.isRecentLocked(key, now) })
	}
	if r.isRecentLocked(mac, now) || r.isRecentLocked(source, now) || len(r.last) >= maxReported {
		return false
	}
	r.last[mac], r.last[source] = now, now
	return true
}

func refuseReport() error {
	return httpapi.Refuse(http.StatusTooManyRequests, httpapi.CodeUnavailable, "an unknown machine may report its hardware only once in 30 s",
		"")
}
