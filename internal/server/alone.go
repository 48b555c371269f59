package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// serverID returns a random id that is kept in the data directory, and in no backup of it: it distinguishes hosts of the same name,
// and containers, which have no machine id.
func serverID(dataDir string) (string, error) {
	file := filepath.Join(dataDir, "server-id")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text()[:8])
		err = durablefile.Replace(file, text)
	}
	return strings.TrimSpace(string(text)), err
}

// workerPrefix begins the identities of all workers of this data directory.
func (t *temporal) workerPrefix() string { return fmt.Sprintf("ingot serve %s ", t.serverID) }

// newWorkerIdentity returns a name that no worker had before. Temporal shows it to operators.
func (t *temporal) newWorkerIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("%son %s (%s)%s%s, process %d, %s", t.workerPrefix(), host, t.cfg.DataDir,
		since, time.Now().UTC().Format(startFormat), os.Getpid(), rand.Text()[:8])
}

// A worker's name has since and, in startFormat, the time of its start.
const (
	since       = " since "
	startFormat = "2006-01-02T15:04:05.000Z"
)

// startedLater reports whether a worker has started after another one, by their identities.
func startedLater(identity, other string) bool {
	_, mine, _ := strings.Cut(identity, since)
	_, theirs, _ := strings.Cut(other, since)
	return mine > theirs
}

const (
	// pollInterval is longer than a worker waits for a task before it asks again (60 s). Temporal notes the beginning of each wait,
	// and some versions note its end after the connection broke, up to 60 s after the death of a worker. So a worker lives if it
	// is noted more than pollInterval after it was seen first.
	pollInterval = 75 * time.Second
	// endInterval without a note means that a worker has ended and has nothing under way: a minute to its next note, then lease, a
	// last check (a pause and a time-out), stopTime, and 5 s to spare.
	endInterval = time.Minute + lease + 2*checkInterval + stopTime + 5*time.Second
	// stopTime is how long activities may go on while workers stop: a request to Temporal (10 s), then workerStopTimeout.
	stopTime = 15 * time.Second
)

// requireAlone waits until it is certain that no other server works on the namespace, or returns an error that names it. It does
// not wait for workers of this data directory: their process has ended. On a copy of this host that is not so; staysAlone finds them.
func (t *temporal) requireAlone(ctx context.Context, c client.Client) error {
	all, err := polling(ctx, c)
	if err != nil {
		return err
	}
	t.earlier = map[string]bool{}
	for _, p := range all {
		t.earlier[p.GetIdentity()] = true
	}
	own := t.workerPrefix()
	others := func(worker string) bool { return !strings.HasPrefix(worker, own) }
	if p := latest(all, others); p != nil {
		err := fmt.Errorf("waiting until it is certain that another server of this namespace has ended: %s", p.GetIdentity())
		t.log.Info("runs are not worked on yet", "reason", err)
		t.set(nil, err)
	}
	// The operator has time to stop the other server after the start of this one.
	return t.awaitEnd(ctx, c, others, func(string) time.Duration { return endInterval })
}

// awaitEnd returns nil when no worker that others selects has been noted for endInterval: all of them have ended. It returns a
// *secondServer if one is noted more than patience, at least pollInterval, after it was seen first. Times of workers are by the
// clock of the cluster, which may differ from the clock of this host.
func (t *temporal) awaitEnd(ctx context.Context, c client.Client, others func(worker string) bool,
	patience func(worker string) time.Duration,
) error {
	var (
		watched  time.Duration // without the times of requests that failed, which show nothing
		noted    time.Duration // the last new note of any worker, in watched
		seen     = map[string]time.Duration{}
		last     *taskqueuepb.PollerInfo
		answered = time.Now()
	)
	for asked := time.Now(); ; {
		all, err := polling(ctx, c)
		now := latest(all, others)
		if err == nil {
			answered = time.Now()
			watched += answered.Sub(asked)
		}
		asked = time.Now()
		switch {
		case err != nil && (last == nil || time.Since(answered) > lease):
			return err
		case err != nil:
			t.log.Info("looking for another server", "error", err)
		case last == nil && now == nil:
			return nil
		case now.GetLastAccessTime().AsTime().After(last.GetLastAccessTime().AsTime()):
			worker := now.GetIdentity()
			if _, ok := seen[worker]; !ok {
				seen[worker] = watched
			}
			if watched-seen[worker] > patience(worker) {
				return &secondServer{worker: worker, namespace: t.cfg.Temporal.Namespace, address: t.cfg.Temporal.Address}
			}
			last, noted = now, watched
		case watched-noted > endInterval:
			return nil
		}
		if err := clock.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
	}
}

// staysAlone looks for another server for as long as this one works: it may have started at the same time, while the cluster knew
// no worker (Temporal keeps them in memory), or on a copy of this host. One of the two gives up. staysAlone returns an error if that
// is this server, and nil when ctx ends.
func (t *temporal) staysAlone(ctx context.Context, c client.Client, identity string) error {
	others := func(worker string) bool { return worker != identity }
	// A server that found the other one at its start gives up after 75 s, and its last note is before the end of the other one's
	// patience, so one of them stays. If neither found the other one, the later one gives up.
	patience := func(worker string) time.Duration {
		if t.earlier[worker] {
			return pollInterval
		}
		return 3 * pollInterval
	}
	for {
		err := t.awaitEnd(ctx, c, others, patience)
		var other *secondServer
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &other) && (t.earlier[other.worker] || startedLater(identity, other.worker)):
			return err
		case other != nil:
			t.log.Warn("another server works in the namespace, and is expected to end", "worker", other.worker)
		case err != nil:
			t.log.Info("looking for another server", "error", err)
		}
		if clock.Sleep(ctx, checkInterval) != nil {
			return nil
		}
	}
}

// secondServer is inventory.ErrSecondServer, with the worker of the other server.
type secondServer struct{ worker, namespace, address string }

func (e *secondServer) Error() string {
	return fmt.Sprintf("another server works for the site in namespace %q of Temporal at %s: %s. Stop it, or give this one a namespace "+
		"of its own (temporal.namespace)", e.namespace, e.address, e.worker)
}

func (*secondServer) Unwrap() []error {
	return []error{inventory.ErrSecondServer, inventory.ErrConflict}
}

// polling returns the workers that have asked for workflow tasks in the last minutes.
func polling(ctx context.Context, c client.Client) ([]*taskqueuepb.PollerInfo, error) {
	// The older form of the request, without a cache. It sees the workers of one partition of the queue, and a worker of Ingot
	// asks at all of them.
	d, err := c.DescribeTaskQueue(ctx, workflows.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW)
	if err != nil {
		return nil, fmt.Errorf("asking Temporal for other workers: %w", err)
	}
	return d.GetPollers(), nil
}

// latest returns the worker that has asked last, of those that which selects; nil if it selects none.
func latest(all []*taskqueuepb.PollerInfo, which func(identity string) bool) (last *taskqueuepb.PollerInfo) {
	for _, p := range all {
		if which(p.GetIdentity()) && (last == nil || p.GetLastAccessTime().AsTime().After(last.GetLastAccessTime().AsTime())) {
			last = p
		}
	}
	return last
}
