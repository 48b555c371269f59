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

// serverID returns the random id of the data directory, and creates it if there is none. No backup contains the id. It distinguishes
// hosts of the same name, and containers, which have no machine id.
func serverID(dataDir string) (string, error) {
	file := filepath.Join(dataDir, "server-id")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text()[:8])
		err = durablefile.Replace(file, text)
	}
	return strings.TrimSpace(string(text)), err
}

// workerPrefix returns the beginning of the identities of all workers of this data directory.
func (t *temporal) workerPrefix() string { return fmt.Sprintf("ingot serve %s ", t.serverID) }

// newWorkerIdentity returns an identity that no worker had before. Temporal shows it to operators.
func (t *temporal) newWorkerIdentity() string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return fmt.Sprintf("%son %s (%s)%s%s, process %d, %s", t.workerPrefix(), host, t.cfg.DataDir,
		since, time.Now().UTC().Format(startFormat), os.Getpid(), rand.Text()[:8])
}

// The identity of a worker contains " since " and then the worker's start time in startFormat.
const (
	since       = " since "
	startFormat = "2006-01-02T15:04:05.000Z"
)

// startedLater reports whether the worker identity started later than the worker other.
func startedLater(identity, other string) bool {
	_, mine, _ := strings.Cut(identity, since)
	_, theirs, _ := strings.Cut(other, since)
	return mine > theirs
}

const (
	// pollInterval is longer than one poll of a worker (60 s). Temporal records the time at which each poll begins. After a connection
	// breaks, some versions also record when the poll ends, up to 60 s after the death of the worker. So a worker is alive if Temporal
	// records a poll more than pollInterval after this server has first seen that worker.
	pollInterval = 75 * time.Second
	// endInterval is so long that a worker has ended and runs no activity if no poll of it was recorded in that time. It is the sum of: a
	// minute until the worker's next poll, lease, the last check (a pause and a time-out), stopTime, and 5 s to spare.
	endInterval = time.Minute + lease + 2*checkInterval + stopTime + 5*time.Second
	// stopTime is how long activities may continue while their workers stop: a request to Temporal (10 s), then workerStopTimeout.
	stopTime = 15 * time.Second
)

// requireAlone returns nil once no other server can be working in the namespace, or a *secondServer that names the other server. It
// ignores workers of this data directory: on this host their process has ended. Such a worker may still run on a copy of this host;
// staysAlone finds it.
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
		err := fmt.Errorf("waiting until another server in this namespace has certainly ended: %s", p.GetIdentity())
		t.log.Info("this server does not work on runs yet", "reason", err)
		t.set(nil, err)
	}
	// The wait of endInterval gives the operator time to stop the other server.
	return t.awaitEnd(ctx, c, others, func(string) time.Duration { return endInterval })
}

// awaitEnd returns nil when the workers that others selects have ended: Temporal has recorded none of their polls for endInterval. It
// returns a *secondServer if a worker is alive: a poll is recorded more than patience(worker), at least pollInterval, after the worker
// was first seen. Recorded times are by the clock of the cluster, which may differ from this host's clock.
func (t *temporal) awaitEnd(ctx context.Context, c client.Client, others func(worker string) bool,
	patience func(worker string) time.Duration,
) error {
	var (
		watched  time.Duration // time in which requests were answered; time with failed requests proves nothing
		noted    time.Duration // value of watched when a new poll of any of the workers was last found
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
			t.log.Info("cannot look for another server; trying again", "error", err)
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

// staysAlone looks for another server as long as this server works. The other server may run on a copy of this host, or may have started
// at the same time, when the cluster did not know any worker (Temporal keeps workers in memory). One of the two servers gives up: if it
// is this server, staysAlone returns an error. It returns nil when ctx ends.
func (t *temporal) staysAlone(ctx context.Context, c client.Client, identity string) error {
	others := func(worker string) bool { return worker != identity }
	// If one server already found the other when it started, it gives up after 75 s, before the longer patience of the other server ends,
	// so the other server stays. If neither found the other when it started, the server that started later gives up.
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
			t.log.Warn("another server still works in the namespace; it is expected to end", "worker", other.worker)
		case err != nil:
			t.log.Info("cannot look for another server; trying again", "error", err)
		}
		if clock.Sleep(ctx, checkInterval) != nil {
			return nil
		}
	}
}

// secondServer is an inventory.ErrSecondServer with the identity of the other server's worker.
type secondServer struct{ worker, namespace, address string }

func (e *secondServer) Error() string {
	return fmt.Sprintf("another server works for the site in namespace %q of Temporal at %s: %s; stop that server, or give this "+
		"server its own temporal.namespace", e.namespace, e.address, e.worker)
}

func (*secondServer) Unwrap() []error {
	return []error{inventory.ErrSecondServer, inventory.ErrConflict}
}

// polling returns the workers that have polled for workflow tasks in the last minutes.
func polling(ctx context.Context, c client.Client) ([]*taskqueuepb.PollerInfo, error) {
	// DescribeTaskQueue is the older request: unlike the enhanced one, it bypasses a cache. It returns the workers of one partition of the
	// queue; that suffices, because each worker of Ingot polls all partitions.
	d, err := c.DescribeTaskQueue(ctx, workflows.TaskQueue, enumspb.TASK_QUEUE_TYPE_WORKFLOW)
	if err != nil {
		return nil, fmt.Errorf("asking Temporal for other workers: %w", err)
	}
	return d.GetPollers(), nil
}

// latest returns the worker that polled last, among those that the filter which selects, or nil if there is none.
func latest(all []*taskqueuepb.PollerInfo, which func(identity string) bool) (last *taskqueuepb.PollerInfo) {
	for _, p := range all {
		if which(p.GetIdentity()) && (last == nil || p.GetLastAccessTime().AsTime().After(last.GetLastAccessTime().AsTime())) {
			last = p
		}
	}
	return last
}
