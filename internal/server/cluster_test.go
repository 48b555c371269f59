package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/inventory"
)

func TestClusterOptions(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("first\n"), 0o600))

	for name, c := range map[string]struct {
		config config.Temporal
		fails  string // "": works
		server string // the name that TLS expects; "": without TLS
	}{
		"loopback":               {config: config.Temporal{Address: "127.0.0.1:7233"}},
		"beyond loopback":        {config: config.Temporal{Address: "192.0.2.1:7233"}, fails: "is beyond loopback"},
		"with an API key":        {config: config.Temporal{Address: "192.0.2.1:7233", APIKeyFile: key}, server: "192.0.2.1"},
		"API key on loopback":    {config: config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: key}},
		"another name":           {config: config.Temporal{Address: "192.0.2.1:7233", TLSServerName: "t.example"}, server: "t.example"},
		"no such key":            {config: config.Temporal{Address: "127.0.0.1:7233", APIKeyFile: key + "x"}, fails: "temporal.api_key_file"},
		"no such certificate":    {config: config.Temporal{Address: "192.0.2.1:7233", TLSCert: key, TLSKey: key}, fails: "temporal.tls_cert"},
		"an authority of no use": {config: config.Temporal{Address: "192.0.2.1:7233", TLSCA: key}, fails: "holds no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := ClusterOptions(c.config)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.server == "", o.ConnectionOptions.TLSDisabled)
			if c.server != "" {
				require.Equal(t, c.server, o.ConnectionOptions.TLS.ServerName)
			}
			require.Equal(t, c.config.APIKeyFile != "", o.Credentials != nil)
		})
	}
}

// TestAPIKeyIsReadAgain: a key can be replaced while the server runs; an empty file is refused.
func TestAPIKeyIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	for _, key := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(file, []byte(key+"\n"), 0o600))
		got, err := readAPIKey(file)
		require.NoError(t, err)
		require.Equal(t, key, got)
	}
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err := readAPIKey(file)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}

func TestSetupOfTheEmbeddedServerIsRefused(t *testing.T) {
	_, err := SetUpCluster(t.Context(), config.Temporal{}, false)
	require.ErrorContains(t, err, "the embedded server sets itself up")
}

// TestCertificateIsReadAgain: the certificate for the cluster can be replaced while the server runs.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	c := config.Temporal{Address: "192.0.2.1:7233", TLSCert: filepath.Join(dir, "pem"), TLSKey: filepath.Join(dir, "pem")}
	shown := func(o client.Options) []byte {
		t.Helper()
		pair, err := o.ConnectionOptions.TLS.GetClientCertificate(nil)
		require.NoError(t, err)
		return pair.Certificate[0]
	}
	_, err := identity.LoadCertificate(c.TLSCert) // makes one
	require.NoError(t, err)
	o, err := ClusterOptions(c)
	require.NoError(t, err)
	first := shown(o)
	require.NoError(t, os.Remove(c.TLSCert))
	_, err = identity.LoadCertificate(c.TLSCert)
	require.NoError(t, err)
	require.NotEqual(t, first, shown(o))
}

// pollers is a cluster that workers poll.
type pollers struct {
	client.Client
	mu    sync.Mutex
	until map[string]time.Time // when a worker polls last, by identity
	// Whether a request fails, and whether Temporal knows no worker, by the time since the beginning. nil: never.
	fails, forgets func(time.Duration) bool
	began          time.Time
}

func newPollers() *pollers { return &pollers{until: map[string]time.Time{}, began: time.Now()} }

func (p *pollers) poll(worker string, until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until[worker] = until
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
	for worker, until := range p.until {
		at := now
		if at.After(until) {
			at = until
		}
		out.Pollers = append(out.Pollers, &taskqueuepb.PollerInfo{Identity: worker, LastAccessTime: timestamppb.New(at)})
	}
	return out, nil
}

// within returns a function that is true in the times [from, to).
func within(from, to time.Duration) func(time.Duration) bool {
	return func(at time.Duration) bool { return at >= from && at < to }
}

// TestOneServerWorks: a server waits for workers of other hosts that may have ended, and gives up when one goes on. It does not
// wait for the worker of its predecessor, but gives up if that worker goes on: it is that of a copied host. Temporal notes the
// last poll of a worker that was killed a minute later.
func TestOneServerWorks(t *testing.T) {
	const forever, elsewhere = 24 * time.Hour, "ingot serve on b (/b)"
	for name, c := range map[string]struct {
		worker         string        // "": that of the predecessor
		polls          time.Duration // from now on; 0: none
		started        time.Duration // of the worker, after this server
		fails, forgets func(time.Duration) bool
		refused        bool          // before it works
		waits          time.Duration // before it works, at least
		givesUp        bool          // afterwards
	}{
		"alone":                               {},
		"its predecessor has ended":           {polls: -time.Second},
		"its predecessor was killed just now": {polls: time.Minute},
		"a copied host works":                 {polls: forever, givesUp: true},
		"a copied host starts later":          {polls: forever, started: time.Second},
		"a copied host starts just before":    {polls: forever, started: -time.Second, givesUp: true},
		"another host has ended":              {worker: elsewhere, polls: -time.Second, waits: pollInterval},
		"another host was killed just now":    {worker: elsewhere, polls: time.Minute, waits: time.Minute + pollInterval},
		"another host works":                  {worker: elsewhere, polls: forever, refused: true},
		"another host has ended, and Temporal is away for a moment": {
			worker: elsewhere, polls: -time.Second, fails: within(30*time.Second, 50*time.Second), waits: 20*time.Second + pollInterval,
		},
		"another host works, and Temporal is away for a moment": {
			worker: elsewhere, polls: forever, fails: within(30*time.Second, 50*time.Second), refused: true,
		},
		"another host works, and Temporal has just begun": {
			worker: elsewhere, polls: forever, started: -time.Hour, forgets: within(0, 10*time.Minute), givesUp: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &temporal{log: slog.New(slog.DiscardHandler)}
				worker := s.workerName()
				if c.worker != "" {
					worker = c.worker + since
				}
				p := newPollers()
				p.fails, p.forgets = c.fails, c.forgets
				worker += p.began.Add(c.started).UTC().Format("2006-01-02T15:04:05.000Z")
				if c.polls != 0 && c.started <= 0 {
					p.poll(worker, p.began.Add(c.polls))
				}
				err := s.requireAlone(t.Context(), p)
				require.Equal(t, c.refused, errors.Is(err, ErrSecondServer), "%v", err)
				if c.waits > 0 || c.refused {
					require.Contains(t, s.status().Error, worker, "the reason for the wait is shown")
				}
				if c.refused {
					return
				}
				require.NoError(t, err)
				require.WithinRange(t, time.Now(), p.began.Add(c.waits), p.began.Add(c.waits+5*time.Second))
				own := s.newWorkerIdentity()
				p.poll(own, p.began.Add(forever))
				if c.started > 0 {
					p.poll(worker, p.began.Add(c.polls))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err = s.staysAlone(ctx, p, own)
				require.Equal(t, c.givesUp, errors.Is(err, ErrSecondServer), "%v", err)
			})
		})
	}
}

// TestOneOfTwoServersWorks: of two servers on hosts with one name and machine id, which start one after the other, one gives up,
// also if their clocks differ.
func TestOneOfTwoServersWorks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 10 * time.Second, -10 * time.Second} {
		for _, later := range []time.Duration{time.Millisecond, 3 * time.Second, time.Hour} {
			t.Run(fmt.Sprintf("the clock is %s ahead, the other one starts %s later", ahead, later), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPollers()
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
					defer cancel()
					var gaveUp atomic.Int32
					serve := func(ahead time.Duration) {
						s := &temporal{log: slog.New(slog.DiscardHandler)}
						require.NoError(t, s.requireAlone(ctx, p))
						own := s.workerName() + time.Now().Add(ahead).UTC().Format("2006-01-02T15:04:05.000Z")
						p.poll(own, time.Now().Add(24*time.Hour))
						if err := s.staysAlone(ctx, p, own); err != nil {
							require.ErrorIs(t, err, ErrSecondServer)
							gaveUp.Add(1)
							p.poll(own, time.Now().Add(workerStopTimeout))
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

// TestClusterIsAway: the state tells since when and why a cluster does not work, and recovers with it. After a minute this server
// stops working, before another one may be certain that it has ended.
func TestClusterIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &temporal{log: slog.New(slog.DiscardHandler)}
		c := newPollers()
		s.set(c, nil)
		var answer atomic.Pointer[error]
		answers := func(err error) { answer.Store(&err) }
		answers(nil)
		var watching sync.WaitGroup
		watching.Go(func() {
			require.ErrorIs(t, s.watch(t.Context(), c, func(context.Context) error { return *answer.Load() }), errOtherCluster)
		})
		check := func(up bool, problem string) {
			t.Helper()
			time.Sleep(2*checkInterval + time.Second)
			require.Equal(t, up, s.metrics().Up)
			require.Equal(t, problem, s.status().Error)
		}
		check(true, "")
		away := time.Now()
		answers(serviceerror.NewUnavailable("connection refused"))
		check(false, "connection refused")
		require.WithinRange(t, s.status().Since, away.Add(-checkInterval), away.Add(2*checkInterval))
		since := s.status().Since
		check(false, "connection refused")
		require.Equal(t, since, s.status().Since)
		answers(nil)
		check(true, "")
		answers(serviceerror.NewResourceExhausted(0, "too many requests"))
		check(true, "")
		answers(serviceerror.NewPermissionDenied("the key has expired", ""))
		check(false, "the key has expired")
		answers(errOtherCluster)
		watching.Wait()
		answers(serviceerror.NewUnavailable("connection refused"))
		away = time.Now()
		require.ErrorContains(t, s.watch(t.Context(), c, func(context.Context) error { return *answer.Load() }), "connection refused")
		require.WithinRange(t, time.Now(), away.Add(lease), away.Add(pollInterval))
	})
}

func TestTheLaterWorkerGivesUp(t *testing.T) {
	first := "ingot serve on a (/z)" + since + "2026-01-02T03:04:05.000Z, process 9, AAAAAAAA"
	second := "ingot serve on b (/a)" + since + "2026-01-02T03:04:06.000Z, process 1, AAAAAAAA"
	require.True(t, startedLater(second, first))
	require.False(t, startedLater(first, second))
}
