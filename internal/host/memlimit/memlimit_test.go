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

// TestCollectsRarely: without CollectRarely, a small heap is collected again after each few MiB, which costs processor time in a
// rush of requests.
func TestCollectsRarely(t *testing.T) {
	setDefaults(t)
	collections := func() uint32 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 256 {
			garbage = make([]byte, 1<<20)
		}
		runtime.ReadMemStats(&after)
		return after.NumGC - before.NumGC
	}
	often := collections()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	CollectRarely(ctx, 128<<20) // sets the limits once
	if rarely := collections(); 2*rarely > often {
		t.Errorf("%d collections for 256 MiB of garbage, and %d by default", rarely, often)
	}
}

// TestLimitFollowsWhatIsInUse fills more memory than the room and frees it again.
func TestLimitFollowsWhatIsInUse(t *testing.T) {
	setDefaults(t)
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

// garbage keeps the compiler from leaving an allocation out.
var garbage []byte

// setDefaults sets what the runtime does without settings, and restores the settings when the test ends.
func setDefaults(t *testing.T) {
	t.Helper()
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
}
