package agentapi

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// discoverEvery is how often the agent of an unknown machine reports, in seconds.
const discoverEvery = 60

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

func tooMany() error {
	return httpapi.Refuse(http.StatusTooManyRequests, httpapi.CodeUnavailable, "an unknown machine reports at most every 30 s", "")
}

// Discovery receives the reports of unknown machines.
type Discovery struct {
	// Guest reports whether DHCP has given this address to this unknown MAC.
	Guest func(ctx context.Context, mac string, address netip.Addr) bool
	// Report stores the hardware of an unknown machine. It returns the machine's name if the
	// machine is in the inventory now.
	Report func(ctx context.Context, mac string, facts action.Facts) (machine string, err error)
}

// discover stores the hardware of an unknown machine. It is an unknown path for everyone else: for
// a MAC and a source address that DHCP has not admitted together (security S3, S7). Reports are limited
// by address before the body is read, and by MAC.
func (s *server) discover(c *gin.Context) {
	source, addrErr := netip.ParseAddrPort(c.Request.RemoteAddr)
	address := source.Addr().Unmap()
	if s.reported.isRecent(address.String(), s.Now()) {
		httpapi.Fail(c, tooMany())
		return
	}
	var d action.Discovery
	if err := httpapi.Decode(c, lenient(maxHello), &d); err != nil {
		httpapi.Fail(c, err)
		return
	}
	mac, err := inventory.ParseMAC(d.MAC)
	if err != nil || addrErr != nil || s.Discovery.Guest == nil || !s.Discovery.Guest(c.Request.Context(), mac, address) {
		httpapi.Fail(c, httpapi.NotFound())
		return
	}
	if !s.reported.begin(mac, address.String(), s.Now()) {
		httpapi.Fail(c, tooMany())
		return
	}
	if err := checkProtocol(d.Protocol); err != nil {
		httpapi.Fail(c, err)
		return
	}
	machine, err := s.Discovery.Report(c.Request.Context(), mac, d.Facts)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	c.JSON(http.StatusOK, action.Discovered{Known: machine != "", Machine: machine, Again: discoverEvery})
}
