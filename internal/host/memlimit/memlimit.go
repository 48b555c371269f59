// Package memlimit sets how often the Go runtime collects garbage.
package memlimit

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The constant rarely is the value of GOGC, which applies until the memory limit is reached. The constant every is how
// often the memory limit is adapted to the memory in use.
const (
	rarely = 500
	every  = time.Second
)

// CollectRarely adapts the memory limit, until ctx ends. Garbage is then collected only when its size exceeds
// both room (in bytes) and the memory in use. A fixed limit would be wrong: once the memory in use exceeds it,
// the collector runs all the time. If GOGC or GOMEMLIMIT is set in the environment, CollectRarely does nothing.
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

// used returns the bytes that were live after the last collection, plus the bytes of stacks.
func used() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}
