package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ingotmetal/ingot/inventory"
)

// pollers is a cluster that workers poll.
type pollers struct {
	client.Client
	mu      sync.Mutex
	workers map[string]*fakeWorker // by identity
	// Whether a request fails, and whether Temporal knows no worker, by the time since the beginning. nil: never.
	fails, forgets func(time.Duration) bool
	began          time.Time
}

// fakeWorker asks for a task when it begins, and again every minute.
type fakeWorker struct {
	began, ended time.Time
	// broke: it was killed, and Temporal notes the end of its last request. Otherwise it was cut off, and nothing is noted.
	broke bool
}

// noted is when Temporal has noted the worker last.
func (w fakeWorker) noted(now time.Time) time.Time {
	switch {
	case now.Before(w.ended):
	case w.broke && !now.Before(w.began.Add(w.ended.Sub(w.began).Truncate(time.Minute)+time.Minute)):
		return w.began.Add(w.ended.Sub(w.began).Truncate(time.Minute) + time.Minute)
	default:
		now = w.ended
	}
	return w.began.Add(now.Sub(w.began).Truncate(time.Minute))
}

func newPollers() *pollers { return &pollers{workers: map[string]*fakeWorker{}, began: time.Now()} }

// poll lets a worker ask for tasks from a time on until another one, since the beginning.
func (p *pollers) poll(worker string, from, to time.Duration, broke bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[worker] = &fakeWorker{began: p.began.Add(from), ended: p.began.Add(to), broke: broke}
}

// stop ends a worker now.
func (p *pollers) stop(worker string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[worker].ended = time.Now()
}

func (p *pollers) DescribeTaskQueue(
	context.Context, string, enumspb.TaskQueueType,
) (*workflowservice.DescribeTaskQueueResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	out := &workflowservice.DescribeTaskQueueResponse{}
	if p.fails != nil && p.fails(now.Sub(p.began)) {
		return nil, serviceerror.NewUnavailable("connection refused")
	}
	if p.forgets != nil && p.forgets(now.Sub(p.began)) {
		return out, nil
	}
	for name, w := range p.workers {
		if !w.began.After(now) {
			out.Pollers = append(out.Pollers, &taskqueuepb.PollerInfo{Identity: name, LastAccessTime: timestamppb.New(w.noted(now))})
		}
	}
	return out, nil
}

// within returns a function that is true in the times [from, to).
func within(from, to time.Duration) func(time.Duration) bool {
	return func(at time.Duration) bool { return at >= from && at < to }
}

// TestOneServerWorks: a server waits for workers of other hosts that may have ended, and gives up when one goes on. It does not
// wait for the worker of its predecessor, but gives up if that worker goes on: it belongs to a copied host.
func TestOneServerWorks(t *testing.T) {
	const forever, elsewhere = 24 * time.Hour, "ingot serve other on b (/b)"
	for name, c := range map[string]struct {
		worker         string        // "": the predecessor's
		from, to       time.Duration // when it polls, since the start of this server
		cut            bool          // it is cut off at the end, not killed
		fails, forgets func(time.Duration) bool
		refused        bool          // this server ends before it works
		waits          time.Duration // before it works, at least
		givesUp        bool          // this server ends afterwards
	}{
		"alone":                                  {to: -time.Second},
		"its predecessor has ended":              {from: -time.Hour, to: -2 * time.Minute},
		"its predecessor was killed just now":    {from: -time.Second, to: 0},
		"its predecessor was killed a while ago": {from: -time.Hour + time.Second, to: -time.Minute},
		"a copied host works":                    {from: -time.Hour, to: forever, givesUp: true},
		"a copied host starts later":             {from: time.Second, to: forever},
		"a copied host starts just before":       {from: -time.Second, to: forever, givesUp: true},
		"another host has ended":                 {worker: elsewhere, from: -time.Hour, to: -4 * time.Minute, waits: endInterval},
		"another host was killed just now":       {worker: elsewhere, from: -time.Second, to: 0, waits: 59*time.Second + endInterval},
		"another host works":                     {worker: elsewhere, from: -time.Hour, to: forever, refused: true},
		"the operator stops the other host":      {worker: elsewhere, from: -10 * time.Second, to: 80 * time.Second, waits: 110*time.Second + endInterval},
		"another host is cut off, and may still work": {
			worker: elsewhere, from: -2 * time.Second, to: 50 * time.Second, cut: true, waits: 50*time.Second + lease + 2*checkInterval + stopTime,
		},
		"another host has ended, and Temporal is away for a moment": {
			worker: elsewhere, from: -time.Hour, to: -4 * time.Minute, fails: within(30*time.Second, 50*time.Second), waits: 20*time.Second + endInterval,
		},
		"another host works, and Temporal is away for a moment": {
			worker: elsewhere, from: -time.Hour, to: forever, fails: within(30*time.Second, 50*time.Second), refused: true,
		},
		"the operator stops the other host while Temporal is away": {
			worker: elsewhere, from: -time.Second, to: 100 * time.Second, fails: within(20*time.Second, 75*time.Second), waits: endInterval,
		},
		"another host works, and Temporal has just begun": {
			worker: elsewhere, from: -time.Hour, to: forever, forgets: within(0, 10*time.Minute), givesUp: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &temporal{log: slog.New(slog.DiscardHandler), serverID: "own"}
				p := newPollers()
				p.fails, p.forgets = c.fails, c.forgets
				worker := c.worker
				if worker == "" {
					worker = s.workerPrefix()
				}
				worker += since + p.began.Add(c.from).UTC().Format(startFormat)
				if c.from < c.to {
					p.poll(worker, c.from, c.to, !c.cut)
				}
				err := s.requireAlone(t.Context(), p)
				require.Equal(t, c.refused, errors.Is(err, inventory.ErrSecondServer), "%v", err)
				if c.waits > 0 || c.refused {
					require.Contains(t, s.status().Error, worker, "the reason for the wait is shown")
				}
				if c.refused {
					return
				}
				require.NoError(t, err)
				waited := time.Since(p.began)
				require.GreaterOrEqual(t, waited, c.waits)
				if c.waits == 0 {
					require.Zero(t, waited)
				}
				own := s.newWorkerIdentity()
				p.poll(own, waited, forever, true)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err = s.staysAlone(ctx, p, own)
				require.Equal(t, c.givesUp, errors.Is(err, inventory.ErrSecondServer), "%v", err)
			})
		})
	}
}

// TestClusterIsAwayAtTheStart: a server that waits for another one does not wait for a cluster that is away, but dials again and
// shows why.
func TestClusterIsAwayAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &temporal{log: slog.New(slog.DiscardHandler), serverID: "own"}
		p := newPollers()
		p.poll("ingot serve other ", -time.Second, 24*time.Hour, true)
		p.fails = within(10*time.Second, time.Hour)
		require.ErrorContains(t, s.requireAlone(t.Context(), p), "connection refused")
		require.Less(t, time.Since(p.began), 10*time.Second+lease+checkInterval)
	})
}

// TestOneOfTwoServersWorks: of two servers on hosts with one server id, which start one after the other, one gives up, also if their
// clocks differ, and if the first one has a predecessor that ended just before.
func TestOneOfTwoServersWorks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 10 * time.Second, -10 * time.Second, 2 * time.Hour, -2 * time.Hour} {
		for _, later := range []time.Duration{time.Millisecond, 3 * time.Second, time.Minute, time.Hour} {
			t.Run(fmt.Sprintf("the clock is %s ahead, the other one starts %s later", ahead, later), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPollers()
					p.poll("ingot serve own since 1", -time.Hour+time.Second, 0, true)
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
					defer cancel()
					var gaveUp atomic.Int32
					serve := func(ahead time.Duration) {
						s := &temporal{log: slog.New(slog.DiscardHandler), serverID: "own"}
						require.NoError(t, s.requireAlone(ctx, p))
						own := s.workerPrefix() + since + time.Now().Add(ahead).UTC().Format(startFormat)
						p.poll(own, time.Since(p.began), 24*time.Hour, true)
						if err := s.staysAlone(ctx, p, own); err != nil {
							require.ErrorIs(t, err, inventory.ErrSecondServer)
							gaveUp.Add(1)
							p.stop(own)
						}
					}
					var servers sync.WaitGroup
					servers.Go(func() { serve(ahead) })
					time.Sleep(later)
					servers.Go(func() { serve(0) })
					servers.Wait()
					require.EqualValues(t, 1, gaveUp.Load())
				})
			})
		}
	}
}

func TestTheLaterWorkerGivesUp(t *testing.T) {
	first := "ingot serve x on a (/z)" + since + "2026-01-02T03:04:05.000Z, process 9, AAAAAAAA"
	second := "ingot serve y on b (/a)" + since + "2026-01-02T03:04:06.000Z, process 1, AAAAAAAA"
	require.True(t, startedLater(second, first))
	require.False(t, startedLater(first, second))
}

func TestServerID(t *testing.T) {
	dir := t.TempDir()
	first, err := serverID(dir)
	require.NoError(t, err)
	again, err := serverID(dir)
	require.NoError(t, err)
	require.Equal(t, first, again)
	other, err := serverID(t.TempDir())
	require.NoError(t, err)
	require.NotEqual(t, first, other)
	require.NotEmpty(t, first)
}
