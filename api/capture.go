package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	captureFor    = 5 * time.Minute
	maxCaptureFor = time.Hour
	// maxCaptures is how many captures may run at the same time.
	maxCaptures = 4
)

type captureMachine struct {
	byName
	For string `query:"for" json:"-"`
	All bool   `query:"all" json:"-"`

	duration time.Duration
}

// Validate checks and parses the field For.
func (q *captureMachine) Validate() (err error) {
	q.duration, err = parseFor(q.For, captureFor, maxCaptureFor)
	return err
}

// capture streams a machine's packets as a pcap file. It ends when the time is up, when the file has its full size,
// when the client disconnects or when the server stops.
func (m *machines) capture(c *gin.Context) {
	var q captureMachine
	err := httpapi.Decode(c, httpapi.NoBody, &q)
	var found inventory.Machine
	if err == nil {
		found, err = m.find(c.Request.Context(), q.Name)
	}
	if err == nil && m.netboot.Capture == nil {
		err = fmt.Errorf("this server answers no machines, so there are no packets to capture (run ingot init on its host): %w",
			inventory.ErrUnavailable)
	}
	if err == nil {
		err = m.streamCapture(c, found, q)
	}
	switch {
	case err == nil:
	case c.Writer.Written():
		panic(http.ErrAbortHandler) // break the connection, so that the client sees that the file is not complete
	default:
		httpapi.Fail(c, err)
	}
}

func (m *machines) streamCapture(c *gin.Context, found inventory.Machine, q captureMachine) error {
	select {
	case m.captures <- struct{}{}:
		defer func() { <-m.captures }()
	default:
		return fmt.Errorf("%d captures are already running; try again when one has ended: %w", maxCaptures, inventory.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), q.duration)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-m.stopping:
			cancel()
		case <-over:
		}
	}()
	h := c.Writer.Header()
	h.Set("Content-Type", "application/vnd.tcpdump.pcap")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	return m.netboot.Capture(ctx, newSender(c.Writer), found, q.All)
}
