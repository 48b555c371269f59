package memlimit

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimitFollowsWhatIsInUse fills more memory than the room and frees it again.
func TestLimitFollowsWhatIsInUse(t *testing.T) {
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} {
		t.Setenv(name, "")
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	percent := debug.SetGCPercent(100)
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(math.MaxInt64)
	})
	const room, block = 32 << 20, 64 << 20
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go CollectRarely(ctx, room)
		limit := func() int64 {
			runtime.GC()
			time.Sleep(2 * every)
			synctest.Wait()
			return debug.SetMemoryLimit(-1)
		}
		if got := limit(); got < room || got > room+block/2 {
			t.Errorf("with an empty heap: %d, not little more than %d", got, room)
		}
		held := make([]byte, block)
		if got := limit(); got < 2*block {
			t.Errorf("with %d in use: %d", block, got)
		}
		runtime.KeepAlive(held)
		if got := limit(); got > room+block/2 {
			t.Errorf("with an empty heap again: %d, not little more than %d", got, room)
		}
	})
}
