// Package memlimit sets how often the Go runtime collects garbage.
package memlimit

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// rarely is the GOGC while there is room; every is how often the limit follows what is in use.
const (
	rarely = 500
	every  = time.Second
)

// CollectRarely has garbage collected only when there is more of it than room, in bytes, and than what is in use, until ctx is
// done. A fixed limit would be wrong: once more than that is in use, the collector runs all the time. GOGC or GOMEMLIMIT in the
// environment disables CollectRarely.
func CollectRarely(ctx context.Context, room int64) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(rarely)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		n := used()
		debug.SetMemoryLimit(n + max(room, n))
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

// used returns the bytes that the last collection has left, and those of the stacks.
func used() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}
