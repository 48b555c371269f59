package actions

import (
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
