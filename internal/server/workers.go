package server

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/stats"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/workflows"
)

// deadlockTimeout is how long workflow code may run without yielding before the SDK reports a deadlock. Workflow code does no
// I/O, but the processor may be busy: the default of one second is too short for a NAS.
const deadlockTimeout = time.Minute

const workerStopTimeout = 5 * time.Second

// reconnect shortens the pauses between attempts to reconnect; the SDK's longest pause is 10 s.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 20 * time.Second, // the SDK's default
}

// pollsWait lets a worker's poll wait until there is a connection. Otherwise the poll fails at once, and the SDK's pauses
// between polls grow to 10 s.
func pollsWait(ctx context.Context, method string, request, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	if _, name, _ := strings.Cut(method, "WorkflowService/"); strings.HasPrefix(name, "Poll") {
		opts = append(opts, grpc.WaitForReady(true))
	}
	return invoke(ctx, method, request, reply, c, opts...)
}

// work connects to the cluster, verifies it, and runs the workers until ctx ends or they fail.
func (t *temporal) work(ctx context.Context, do *activities.Activities, opts client.Options, clusterID string) error {
	opts.Logger = sdklog.NewStructuredLogger(slog.New(sdkHandler{Handler: t.log.Handler()}).With("part", "worker"))
	opts.Identity = t.newWorkerIdentity()
	broken := make(brokenConnections, 1)
	opts.ConnectionOptions.DialOptions = append(slices.Clone(opts.ConnectionOptions.DialOptions), grpc.WithStatsHandler(broken),
		grpc.WithConnectParams(reconnect), grpc.WithChainUnaryInterceptor(pollsWait))
	opts, err := t.traced(opts)
	if err != nil {
		return err
	}
	c, err := client.DialContext(ctx, opts)
	if err != nil {
		return fmt.Errorf("dialling Temporal at %s: %w", opts.HostPort, err)
	}
	var started []worker.Worker
	defer func() { t.stop(c, started) }()
	kept, err := t.verifyCluster(ctx, c, clusterID)
	if err != nil {
		return err
	}
	if err := t.restored.holdOpen(ctx, c); err != nil {
		return err
	}
	t.hold.Add(t.restored.held())

	// If a worker gives up (because its namespace was deleted, for example), keepWorking must replace it. Otherwise every run
	// would wait until a restart of this server.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for _, w := range t.newWorkers(c, do, func(err error) { giveUp(fmt.Errorf("the worker gave up: %w", err)) }) {
		if err := w.Start(); err != nil {
			return fmt.Errorf("starting the worker: %w", err)
		}
		started = append(started, w)
	}

	t.set(c, nil)
	var watching sync.WaitGroup
	if t.child == nil {
		watching.Go(func() {
			if err := t.staysAlone(ctx, c, opts.Identity); err != nil {
				giveUp(err)
			}
		})
		watching.Go(func() {
			err := t.watch(ctx, c, func(ctx context.Context) error {
				id, err := t.identify(ctx, c)
				if err != nil {
					return err
				}
				return requireOwn(kept, id)
			})
			if err != nil {
				giveUp(err)
			}
		})
	}
	t.log.Info("Temporal is ready", "address", opts.HostPort, "worker", opts.Identity)
	lost := engine.LostAttempts{
		Client: c, Namespace: opts.Namespace, Identity: opts.Identity, Log: t.log.With("part", "worker"),
		UnderWay: func(a engine.Attempt) bool { return t.underWay.Has(activities.Attempt(a)) },
	}
	lost.Run(ctx, broken)
	watching.Wait()
	t.set(nil, nil)
	return context.Cause(ctx)
}

// stop ends the workers and then their client, in the background, and Run waits for it. Activities may continue for stopTime. The next
// workers start without waiting for these activities, and do not start the same attempts (see LostAttempts).
func (t *temporal) stop(c client.Client, workers []worker.Worker) {
	t.stopping.Go(func() {
		var all sync.WaitGroup
		for _, w := range workers {
			all.Go(w.Stop)
		}
		all.Wait()
		c.Close()
	})
}

// brokenConnections receives a value when a gRPC connection has ended.
type brokenConnections chan struct{}

// TagRPC implements stats.Handler.
func (brokenConnections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (brokenConnections) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn implements stats.Handler.
func (brokenConnections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}

// HandleConn implements stats.Handler.
func (b brokenConnections) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ended := s.(*stats.ConnEnd); !ended {
		return
	}
	select {
	case b <- struct{}{}:
	default: // a value is already waiting
	}
}

// newWorkers returns two workers: one for workflows and activities, and one for activities that only wait.
func (t *temporal) newWorkers(c client.Client, do *activities.Activities, failed func(error)) []worker.Worker {
	interceptors := []interceptor.WorkerInterceptor{&t.underWay, do.Troubles, t.hold, &activities.Errors{}}
	w := worker.New(c, workflows.TaskQueue, worker.Options{
		WorkerStopTimeout: workerStopTimeout,
		// Temporal answers a poll after it has written to its disk. The default of two pollers would be idle most of the time.
		MaxConcurrentWorkflowTaskPollers: 8,
		MaxConcurrentActivityTaskPollers: 8,
		// Activities that wait for slow BMCs must not use up the memory. If more activities than this are due, the rest wait in the task
		// queue, where none of their time-outs has begun.
		MaxConcurrentActivityExecutionSize: 400,
		DeadlockDetectionTimeout:           deadlockTimeout,
		// In a rush of two hundred runs, a task waits longer than the default of 5 s. After this time-out, another worker
		// replays the run from its first event, which makes the rush longer.
		StickyScheduleToStartTimeout: 10 * time.Second,
		Interceptors:                 interceptors,
		OnFatalError:                 failed,
	})
	workflows.Register(w)
	w.RegisterActivity(do)

	// An activity that waits for a record uses little memory, so this limit is above Temporal's limit for pending activities of a
	// workflow.
	waits := worker.New(c, workflows.WaitQueue, worker.Options{
		WorkerStopTimeout:                  workerStopTimeout,
		DisableWorkflowWorker:              true,
		MaxConcurrentActivityExecutionSize: 20_000,
		Interceptors:                       interceptors,
		OnFatalError:                       failed,
	})
	waits.RegisterActivity(do)
	return []worker.Worker{w, waits}
}
