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

// onceLog remembers which boots were logged, because a client that has captured a claim
// decides how often it sends it.
type onceLog struct {
	mu    sync.Mutex
	lines map[string]struct{}
}

// maxLogged limits how many boots onceLog remembers.
const maxLogged = 4096

// first reports whether the boot of g was not logged before.
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
	// discoverPause is how long reports of a guest, and of its address, are refused after one.
	discoverPause = 30 * time.Second
	// maxReported is how many guests and addresses are remembered for that.
	maxReported = 4096
)

// reported is when guests have reported last, by MAC and by source address.
type reported struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// isRecent reports whether a MAC or an address has reported a short time ago.
func (r *reported) isRecent(key string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.isRecentLocked(key, now)
}

// isRecentLocked is isRecent with r.mu locked. After the clock was set back, no report is recent.
func (r *reported) isRecentLocked(key string, now time.Time) bool {
	last, ok := r.last[key]
	return ok && !now.Before(last) && now.Sub(last) < discoverPause
}

// begin remembers a report. It returns false if it must be refused.
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
	return httpapi.Refuse(http.StatusTooManyRequests, httpapi.CodeUnavailable, "an unknown machine reports at most every 30 s", "")
}
