package e2e

import (
	"context"
	"flag"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
)

// core is the load of one processor that is busy all the time.
const core = 10

// besides are the tests that called beside: nothing but the package is common to
// them.
var besides queue

// A queue is where tests that may run beside others wait for their turn. Go
// starts parallel tests in an order of its own. Here those that take longest
// begin first, so that none of them is left over at the end, and as many run at
// a time as the processors carry: a machine in QEMU keeps one busy, what waits
// for a time-out does not.
type queue struct {
	mu    sync.Mutex
	turns []turn
	begin sync.Once
	free  *semaphore.Weighted
}

type turn struct {
	seconds int
	load    int64
	came    chan struct{}
}

// beside is t.Parallel for a test of the lab. On idle processors it takes about
// so many seconds, and load on the average. Tests that do not call it run before
// these, each alone: they measure, or look at all processes there are.
//
// With -parallel below 64 it is t.Parallel and no more: the tests that wait here
// could take all places from the one whose turn it is.
func beside(t *testing.T, seconds int, load int64) {
	t.Helper()
	places, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String())
	require.NoError(t, err)
	if !*inLab || places < 64 {
		t.Parallel()
		return
	}
	carry := int64(runtime.NumCPU() * core)
	mine := turn{seconds, min(load, carry), make(chan struct{})}
	besides.mu.Lock()
	besides.turns = append(besides.turns, mine)
	besides.mu.Unlock()
	t.Parallel() // returns when the tests that run alone are over, and all others stand in the queue
	began := time.Now()
	besides.begin.Do(func() {
		besides.free = semaphore.NewWeighted(carry)
		go besides.call()
	})
	<-mine.came
	t.Cleanup(func() { besides.free.Release(mine.load) })
	if waited := time.Since(began); waited > time.Second {
		t.Logf("%.0f s of its time it has waited for its turn", waited.Seconds())
	}
}

// call calls one after the other, until all have come.
func (q *queue) call() {
	slices.SortStableFunc(q.turns, func(a, b turn) int { return b.seconds - a.seconds })
	for _, next := range q.turns {
		_ = q.free.Acquire(context.Background(), next.load) // ends without an error: this context is never done
		close(next.came)
	}
}
