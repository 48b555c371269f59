package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

func (b *board) routes() []httpapi.Route {
	return []httpapi.Route{{Method: "GET", Path: "/v1/events/stream", Handler: b.stream}}
}

const (
	maxStreams   = 64
	commentEvery = 15 * time.Second
	streamWrite  = 10 * time.Second // until a client that does not read is disconnected
	// streamLife ends streams, so that a stream does not outlive its session for long: the
	// browser reconnects if it still may.
	streamLife = time.Hour
)

// stream sends the board as server-sent events: everything first, then the changes, at most
// every 200 ms. A client that reconnects gets everything again.
func (b *board) stream(c *gin.Context) {
	select {
	case b.streams <- struct{}{}:
		defer func() { <-b.streams }()
	default:
		httpapi.Fail(c, fmt.Errorf("%d pages are watching already: %w", maxStreams, inventory.ErrUnavailable))
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
	// Send the headers at once, so that the page knows that it is connected.
	text, version := []byte(": welcome\n\n"), int64(0)
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

// sender writes at once what it is given.
type sender struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

func newSender(w http.ResponseWriter) sender { return sender{w, http.NewResponseController(w)} }

// Write implements io.Writer.
func (o sender) Write(text []byte) (int, error) {
	// A writer without deadlines (a test's recorder) does not block.
	_ = o.rc.SetWriteDeadline(time.Now().Add(streamWrite))
	n, err := o.w.Write(text)
	if err != nil {
		return n, err
	}
	return n, o.rc.Flush()
}
