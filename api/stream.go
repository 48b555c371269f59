package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

func (b *board) routes() []httpapi.Route {
	return []httpapi.Route{{Method: "GET", Path: "/v1/events/stream", Needs: inventory.RoleRead, Handler: b.stream}}
}

const (
	maxStreams = 64
	// maxTokenStreams leaves others a place beside a token that opens as many streams as it can.
	maxTokenStreams = maxStreams / 4
	commentEvery    = 15 * time.Second
	streamWrite     = 10 * time.Second // a client that accepts no data for this long is disconnected
	// streamLife is how long a stream may last. After that, the browser reconnects, and is refused if its session has
	// ended.
	streamLife = time.Hour
)

// stream sends the items of the board as server-sent events: first the caller, then all items, then those that change, with at most one
// update every 200 ms. A client that reconnects gets all items again.
func (b *board) stream(c *gin.Context) {
	token := callerOf(c.Request.Context()).ID
	if !b.streams.enter(token) {
		httpapi.Fail(c, fmt.Errorf("too many open pages follow this server, %d with this token at most; close one: %w",
			maxTokenStreams, inventory.ErrUnavailable))
		return
	}
	defer b.streams.leave(token)
	who, err := json.Marshal(callerOf(c.Request.Context()).Token)
	if err != nil {
		httpapi.Fail(c, err)
		return
	}
	changed, cancel := b.changed.Subscribe()
	defer cancel()
	defer b.join()()

	h := c.Writer.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	c.Status(http.StatusOK)
	out := newSender(c.Writer)

	comment := time.NewTicker(commentEvery)
	defer comment.Stop()
	life := time.NewTimer(streamLife)
	defer life.Stop()
	// Send at once whose session this is. The headers go out with it, so the page learns that it is connected.
	text, version := fmt.Appendf(nil, "event: caller\ndata: %s\n\n", who), int64(0)
	for {
		more, newest, err := b.since(version)
		if err != nil {
			return // the browser reconnects
		}
		if text, version = append(text, more...), newest; len(text) > 0 {
			if _, err := out.Write(text); err != nil {
				return // the client has disconnected
			}
		}
		text = nil
		select {
		case <-changed:
		case <-comment.C:
			text = []byte(": still here\n\n")
		case <-life.C:
			return
		case <-b.engine.Stopping:
			return
		case <-c.Request.Context().Done():
			return
		}
	}
}

// streams counts the open streams, in all and of each token.
type streams struct {
	mu    sync.Mutex
	total int
	of    map[string]int // by the ID of the token
}

// enter reports whether one more stream of the token may open, and counts it.
func (s *streams) enter(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= maxStreams || s.of[token] >= maxTokenStreams {
		return false
	}
	s.total++
	s.of[token]++
	return true
}

func (s *streams) leave(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.of[token]--; s.of[token] == 0 {
		delete(s.of, token)
	}
}

// sender is a writer that flushes after each write. One write may take at most streamWrite.
type sender struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func newSender(w http.ResponseWriter) sender { return sender{w, http.NewResponseController(w)} }

// Write implements io.Writer.
func (o sender) Write(text []byte) (int, error) {
	// The error is ignored: if a writer has no deadlines (for example the recorder of a test), its writes do not block.
	_ = o.rc.SetWriteDeadline(time.Now().Add(streamWrite))
	n, err := o.w.Write(text)
	if err != nil {
		return n, err
	}
	return n, o.rc.Flush()
}
