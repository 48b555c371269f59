package server

import (
	"context"
	"errors"
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
	until map[string]time.Time // when a worker polls last, by identity
}

func (p pollers) DescribeTaskQueue(
	context.Context, string, enumspb.TaskQueueType,
) (*workflowservice.DescribeTaskQueueResponse, error) {
	out := &workflowservice.DescribeTaskQueueResponse{}
	for worker, until := range p.until {
		at := time.Now()
		if at.After(until) {
			at = until
		}
		out.Pollers = append(out.Pollers, &taskqueuepb.PollerInfo{Identity: worker, LastAccessTime: timestamppb.New(at)})
	}
	return out, nil
}

// TestOneServerWorks: a server waits for workers of other hosts that may have ended, and gives up when one goes on. It does not
// wait for the worker of its predecessor, but gives up if that worker goes on: it is that of a copied host. Temporal notes the
// last poll of a worker that was killed a minute later.
func TestOneServerWorks(t *testing.T) {
	const forever, elsewhere = 24 * time.Hour, "ingot serve on b (/b)"
	for name, c := range map[string]struct {
		worker  string        // "": that of the predecessor
		polls   time.Duration // from now on; 0: none
		started time.Duration // of the worker, after this server
		refused bool          // before it works
		waits   time.Duration // before it works, at least
		givesUp bool          // afterwards
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
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &temporal{log: slog.New(slog.DiscardHandler)}
				worker := s.workerName()
				if c.worker != "" {
					worker = c.worker + since
				}
				began := time.Now()
				worker += began.Add(c.started).UTC().Format("2006-01-02T15:04:05.000Z")
				p := pollers{until: map[string]time.Time{}}
				if c.polls != 0 && c.started <= 0 {
					p.until[worker] = began.Add(c.polls)
				}
				err := s.requireAlone(t.Context(), p)
				require.Equal(t, c.refused, errors.Is(err, ErrSecondServer), "%v", err)
				if c.refused {
					return
				}
				require.NoError(t, err)
				require.WithinRange(t, time.Now(), began.Add(c.waits), began.Add(c.waits+5*time.Second))
				own := s.newWorkerIdentity()
				p.until[own] = began.Add(forever)
				if c.started > 0 {
					p.until[worker] = began.Add(c.polls)
				}
				err = s.staysAlone(t.Context(), p, own)
				require.Equal(t, c.givesUp, errors.Is(err, ErrSecondServer), "%v", err)
			})
		})
	}
}

// TestClusterIsAway: the state tells since when and why a cluster does not work, and recovers with it.
func TestClusterIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &temporal{log: slog.New(slog.DiscardHandler)}
		c := pollers{}
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
	})
}

func TestTheLaterWorkerGivesUp(t *testing.T) {
	first := "ingot serve on a (/z)" + since + "2026-01-02T03:04:05.000Z, process 9, AAAAAAAA"
	second := "ingot serve on b (/a)" + since + "2026-01-02T03:04:06.000Z, process 1, AAAAAAAA"
	require.True(t, startedLater(second, first))
	require.False(t, startedLater(first, second))
}
