package actions

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"

	"github.com/ingotmetal/ingot/action"
)

// A heartbeat stays below the server's limit of 64 KiB, even if JSON makes the log longer.
func TestHeartbeatIsBounded(t *testing.T) {
	t.Parallel()
	log := NewReport(action.Key{}, slog.New(slog.DiscardHandler))
	line := strings.Repeat("\x01", 999)
	for range 16 {
		log.logf("%s", line)
	}
	got := 0
	for range 16 {
		p, n := log.Now()
		b, err := json.Marshal(action.Heartbeat{Running: p})
		if err != nil || len(b) > 64<<10 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		got += n
		log.Sent(n)
	}
	if got != 16*1000 {
		t.Fatalf("%d bytes of the log were sent", got)
	}
}

// A program that prints without end does not wait for a serial console.
func TestConsoleShowsTheBeginningOfALongLog(t *testing.T) {
	t.Parallel()
	var console bytes.Buffer
	log := NewReport(action.Key{}, slog.New(slog.NewTextHandler(&console, nil)))
	for range 1000 {
		log.logf("%s", strings.Repeat("x", 1000))
	}
	if console.Len() > 2*maxShown || !strings.Contains(console.String(), "to the server only") {
		t.Fatalf("%d bytes went to the console", console.Len())
	}
}
