package server

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/workflows"
)

// deadlockTimeout is how long workflow code may run without yielding before the SDK
// calls it a deadlock. That code does no I/O, but the processor may be busy: the
// default of one second is too short for a NAS.
const deadlockTimeout = time.Minute

const workerStopTimeout = 5 * time.Second

// work dials, verifies the cluster, and carries out workflows until ctx ends.
func (t *temporal) work(ctx context.Context, do *activities.Activities, opts client.Options, clusterID string) error {
	opts.Logger = sdklog.NewStructuredLogger(t.log.With("part", "worker"))
	c, err := client.DialContext(ctx, opts)
	if err != nil {
		return fmt.Errorf("dialling Temporal at %s: %w", opts.HostPort, err)
	}
	defer c.Close()
	if err := t.verifyCluster(ctx, c, clusterID); err != nil {
		return err
	}

	// A worker that gives up (after its namespace was deleted, for example) must be
	// replaced, or every run would wait until this server is restarted.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	for _, w := range t.newWorkers(c, do, func(err error) { giveUp(fmt.Errorf("the worker gave up: %w", err)) }) {
		if err := w.Start(); err != nil {
			return fmt.Errorf("starting the worker: %w", err)
		}
		defer w.Stop()
	}

	t.set(c, nil)
	t.log.Info("Temporal is ready", "address", opts.HostPort)
	<-ctx.Done()
	t.set(nil, nil)
	return context.Cause(ctx)
}

// newWorkers makes one worker for workflows and activities, and one for activities that
// wait.
func (t *temporal) newWorkers(c client.Client, do *activities.Activities, failed func(error)) []worker.Worker {
	interceptors := []interceptor.WorkerInterceptor{do.Troubles, t.hold, &t.effects, &activities.Errors{}}
	w := worker.New(c, workflows.TaskQueue, worker.Options{
		WorkerStopTimeout: workerStopTimeout,
		// A poll is answered after the server has written to its disk. The default of
		// two pollers would be idle for most of the time.
		MaxConcurrentWorkflowTaskPollers: 8,
		MaxConcurrentActivityTaskPollers: 8,
		// Activities that wait for slow BMCs must not take all the memory. The others
		// wait at Temporal, where none of their time-outs has begun.
		MaxConcurrentActivityExecutionSize: 400,
		DeadlockDetectionTimeout:           deadlockTimeout,
		// In a rush of two hundred runs a task waits for longer than the default of 5 s.
		// A task that times out is replayed from the first event of its run, which
		// makes the rush longer.
		StickyScheduleToStartTimeout: 10 * time.Second,
		Interceptors:                 interceptors,
		OnFatalError:                 failed,
	})
	workflows.Register(w)
	w.RegisterActivity(do)

	// An activity that waits for a record costs little memory. The limit is above that
	// of Temporal on pending activities per workflow.
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
