// Package memlimit sets how often the Go runtime collects garbage.
package memlimit

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// rarely is the GOGC below the soft limit; every is how often the limit follows what is in use.
const (
	rarely = 500
	every  = time.Second
)

// CollectRarely lets the garbage collector run rarely while the process uses less memory than soft, in bytes, and until ctx is
// done. Above that, memory may grow to twice what is in use, as by default: if it stayed at soft, the collector would run all
// the time. GOGC or GOMEMLIMIT in the environment disables CollectRarely.
func CollectRarely(ctx context.Context, soft int64) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(rarely)
	debug.SetMemoryLimit(soft)
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			debug.SetMemoryLimit(max(soft, 2*used()))
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
