package e2e

import (
	"cmp"
	"flag"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// core is the load of one fully used processor.
const core = 10

// turns lists the tests that have called runInTurn.
var turns queue

// A queue holds waiting parallel tests. Go starts parallel tests in an arbitrary order. Here the
// largest start first, so that none is left over at the end, and as many run at a time as the
// processors allow: a machine in QEMU uses one, a test that waits for a timeout uses none. Smaller
// tests may start before a test for which there is no capacity yet.
type queue struct {
	mu      sync.Mutex
	waiting []turn
	free    int64 // tenths of a processor
	begin   sync.Once
}

type turn struct {
	seconds int
	load    int64
	came    chan struct{}
}

// work returns the total processor time of a test.
func (t turn) work() int64 { return int64(t.seconds) * t.load }

// runInTurn is t.Parallel for a test of the lab, with its duration in seconds on idle processors and
// its average load. Tests that do not call it run before these, one at a time: they measure, or
// check all processes.
//
// With -parallel below 64 it is only t.Parallel: otherwise the waiting tests could occupy all
// places.
func runInTurn(t *testing.T, seconds int, load int64) {
	t.Helper()
	places, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String())
	require.NoError(t, err)
	if !*inLab || places < 64 {
		t.Parallel()
		return
	}
	// A tenth more than there is: loads are averages, and a test that waits leaves its share.
	carry := int64(runtime.NumCPU() * core * 11 / 10)
	mine := turn{seconds, min(load, carry), make(chan struct{})}
	turns.mu.Lock()
	turns.waiting = append(turns.waiting, mine)
	turns.mu.Unlock()
	t.Parallel() // returns when the serial tests have ended and all others are in the queue
	began := time.Now()
	turns.begin.Do(func() { turns.release(carry) })
	<-mine.came
	t.Cleanup(func() { turns.release(mine.load) })
	if waited := time.Since(began); waited > time.Second {
		t.Logf("%.0f s of its time it has waited for its turn", waited.Seconds())
	}
}

// release returns a load and starts the tests for which there is capacity now.
func (q *queue) release(load int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free += load
	slices.SortStableFunc(q.waiting, func(a, b turn) int { return cmp.Compare(b.work(), a.work()) })
	q.waiting = slices.DeleteFunc(q.waiting, func(next turn) bool {
		if next.load > q.free {
			return false
		}
		q.free -= next.load
		close(next.came)
		return true
	})
}
