package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/temporal/payloadcodec"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/workflows"
)

// temporal runs a client and workers on the site's Temporal server, as long as that server is up and verified to be the
// site's own.
type temporal struct {
	cfg     config.Config
	log     *slog.Logger
	child   *temporalchild.Supervisor // nil = Temporal is an external cluster
	tls     *tls.Config               // TLS configuration of connections to the child; nil = without TLS
	cluster client.Options            // options for an external cluster
	records *sqlite.Store
	tracing *tracing.Tracing // nil = no traces are sent
	// codec encrypts payloads in an external cluster, and converter uses it; nil = payloads are not encrypted.
	codec     *payloadcodec.Codec
	converter converter.DataConverter
	underWay  activities.UnderWay
	restored  *restored
	hold      *activities.Hold // holds back the runs that restored lists
	serverID  string
	uiBound   atomic.Bool // this process serves the UI to operators
	uiSocket  string      // of the embedded server's UI; "" = there is no embedded server

	stopping sync.WaitGroup  // waits for clients whose workers are still stopping
	earlier  map[string]bool // identities of workers that polled before this server's workers did

	mu     sync.Mutex
	client client.Client // nil = not connected
	err    error         // reason why client is nil, or why the cluster does not respond
	since  time.Time     // when client was last set with err nil; before that, when this server started
}

func (s *server) newTemporal() (*temporal, error) {
	id, err := serverID(s.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	t := &temporal{
		cfg: s.cfg, serverID: id, log: s.log, records: s.records.store, tracing: s.tracing,
		restored: s.records.restored, hold: activities.NewHold(s.records.restored.get()), since: time.Now(),
	}
	if s.cfg.Temporal.Address != "" {
		opts, err := ClusterOptions(s.cfg.Temporal)
		if err != nil {
			return nil, err
		}
		t.cluster, t.converter = opts, opts.DataConverter
		t.codec, err = payloadCodec(s.cfg.Temporal)
		return t, err
	}
	return t, t.newChild()
}

// newChild configures the embedded server without starting it.
func (t *temporal) newChild() (err error) {
	c := temporalchild.DefaultConfig(filepath.Join(t.cfg.DataDir, "temporal"))
	c.Ports = temporalchild.PortsFrom(t.cfg.Temporal.Port, t.cfg.Temporal.UIPort)
	c.Namespace, c.Retention = t.cfg.Temporal.Namespace, t.cfg.Temporal.Retention
	c.SearchAttributes = searchAttributes
	if c.Identity = t.cfg.TemporalIdentity(); c.Identity != "" {
		if t.tls, err = embeddedTLS(c.Identity); err != nil {
			return err
		}
		c.Ports.UI = 0
		t.log.Info("Temporal requires the site's certificate; ingot temporal env prints the settings for the temporal command",
			"certificate", c.Identity)
	}
	t.uiSocket = c.UISocket()
	t.child, err = temporalchild.New(c, temporalchild.Options{Logger: t.log.With("part", "temporal")})
	return err
}

// embeddedTLS returns the TLS configuration for clients of the embedded server. If file does not exist, it creates the
// certificate there with mode 0600.
func embeddedTLS(file string) (*tls.Config, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	if _, err := identity.LoadCertificate(file); err != nil {
		return nil, err
	}
	return temporalchild.ClientTLS(file)
}

// Client returns the connected client, or false if there is none.
func (t *temporal) Client() (client.Client, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client, t.client != nil
}

// status returns Temporal's addresses for operators, and why Temporal is not ready.
func (t *temporal) status() apitypes.TemporalStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := apitypes.TemporalStatus{
		Address:   t.cfg.Temporal.Address,
		Namespace: t.cfg.Temporal.Namespace,
		UI:        t.cfg.Temporal.UIURL,
		Since:     t.since,
	}
	if t.err != nil {
		out.Error = t.err.Error()
	}
	if t.child == nil {
		return out
	}

	if s := t.child.State(); s.Err != nil && t.client == nil {
		out.Error = s.Err.Error()
	}
	out.UI, out.UILinks = "", t.uiBound.Load() // the embedded server's UI needs a session
	if t.cfg.TemporalIdentity() == "" {
		out.UI = fmt.Sprintf("http://127.0.0.1:%d", t.cfg.Temporal.UIPort)
	}
	out.Address = config.Join("127.0.0.1", t.cfg.Temporal.Port)
	return out
}

// supervise runs the child, if there is one, until stop is called: the end of ctx does not stop it. stop waits until the child has ended,
// and may be called again.
func (t *temporal) supervise(ctx context.Context) (stop func() error) {
	if t.child == nil {
		return func() error { return nil }
	}

	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- t.child.Run(ctx) }()
	return sync.OnceValue(func() error {
		cancel()
		return <-done
	})
}

// Run runs workers until ctx ends. With an embedded server, they run only while that server runs.
func (t *temporal) Run(ctx context.Context, do *activities.Activities) error {
	defer t.stopping.Wait()
	if t.child == nil {
		return t.keepWorking(ctx, do, t.cluster, "")
	}

	return t.child.While(ctx, func(ctx context.Context, srv temporalchild.Server) error {
		return t.keepWorking(ctx, do, client.Options{
			HostPort: srv.Frontend, Namespace: srv.Namespace,
			ConnectionOptions: client.ConnectionOptions{
				TLS:             t.tls,
				DialOptions:     []grpc.DialOption{grpc.WithContextDialer(t.child.DialContext)},
				GrpcCompression: &client.GrpcCompressionNone{}, // compression does not help on loopback
			},
		}, srv.ClusterID)
	})
}

// keepWorking calls work until ctx ends, and retries after errors, except after inventory.ErrSecondServer, which it returns.
func (t *temporal) keepWorking(ctx context.Context, do *activities.Activities, opts client.Options, clusterID string) error {
	for {
		err := t.work(ctx, do, opts, clusterID)
		if ctx.Err() != nil {
			return nil
		}
		t.set(nil, err)
		if errors.Is(err, inventory.ErrSecondServer) {
			return err
		}
		t.log.Warn("cannot work on runs; trying again", "address", opts.HostPort, "error", err)
		if clock.Sleep(ctx, 5*time.Second) != nil {
			return nil
		}
	}
}

func (t *temporal) set(c client.Client, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client != nil && t.err == nil {
		t.since = time.Now()
	}
	t.client, t.err = c, err
}

const (
	// checkInterval is the pause between two requests with which watch checks the cluster, and the time limit of each request.
	checkInterval = 5 * time.Second
	// failedChecks is how many checks must fail in a row before the cluster counts as away.
	failedChecks = 2
	// lease is how long this server continues to work while the cluster is away. After that, no poll of this server may have been
	// recorded for endInterval, so another server may have started: this server must look for another server before it works again. A
	// busy cluster is not away.
	lease = time.Minute
)

// watch checks, until ctx ends, whether the cluster answers this client, because the SDK retries without reporting failures. It returns
// errOtherCluster if the namespace was replaced, and another error if the cluster has been away for longer than lease.
func (t *temporal) watch(ctx context.Context, c client.Client, check func(context.Context) error) error {
	answered := time.Now()
	for failures := 0; ; {
		if clock.Sleep(ctx, checkInterval) != nil {
			return nil
		}
		asked := time.Now()
		limited, cancel := context.WithTimeout(ctx, checkInterval)
		err := check(limited)
		cancel()
		var busy *serviceerror.ResourceExhausted
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errOtherCluster):
			return err
		case err == nil || errors.As(err, &busy):
			if failures >= failedChecks {
				t.log.Info("Temporal is ready again", "address", t.cfg.Temporal.Address)
			}
			answered, failures = asked, 0
			t.set(c, nil)
			continue
		}
		if failures++; failures == failedChecks {
			t.log.Warn("Temporal does not answer, or refuses this server: runs wait", "address", t.cfg.Temporal.Address, "error", err)
		}
		if failures >= failedChecks {
			t.set(c, err)
		}
		if time.Since(answered) > lease {
			return fmt.Errorf("for %s, Temporal has answered no request of this server: %w", human.Span(lease), err)
		}
	}
}

// verifyCluster returns the stored id of the cluster or namespace, or an error if the Temporal server behind c is not the site's own. The
// site's own is the child of this process, or the cluster and namespace in which the site's runs live, if no other server works there.
func (t *temporal) verifyCluster(ctx context.Context, c client.Client, childID string) (kept string, err error) {
	id, err := t.identify(ctx, c)
	if err != nil {
		return "", fmt.Errorf("asking Temporal for its identity: %w", err)
	}
	if t.child != nil {
		if err := temporalchild.Verify(ctx, c.WorkflowService(), childID); err != nil {
			return "", err
		}
	} else {
		for _, require := range []func(context.Context, client.Client) error{t.requireSetUp, t.requireAlone, t.refuseUsed} {
			if err := require(ctx, c); err != nil {
				return "", err
			}
		}
	}

	if kept, err = t.records.TemporalCluster(ctx, id); err != nil {
		return "", err
	}
	return kept, requireOwn(kept, id)
}

// errOtherCluster means that the site's runs live in another cluster or namespace.
var errOtherCluster = errors.New("another Temporal")

// requireOwn compares id with the stored id (kept), and returns errOtherCluster if they differ.
func requireOwn(kept, id string) error {
	if kept != id {
		return human.WithKind(fmt.Errorf("this site's runs are in the Temporal cluster %s, but this is the Temporal cluster %s: "+
			"correct temporal.address, or restore the Temporal database that belongs to this inventory", kept, id), errOtherCluster)
	}
	return nil
}

// identify returns the id of the embedded server's cluster, or the id of the namespace in an external cluster: a client that is
// limited to one namespace cannot read the id of the cluster.
func (t *temporal) identify(ctx context.Context, c client.Client) (string, error) {
	if t.child != nil {
		info, err := c.WorkflowService().GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
		return info.GetClusterId(), err
	}
	d, err := c.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{Namespace: t.cfg.Temporal.Namespace})
	return d.GetNamespaceInfo().GetId(), err
}

// refuseUsed returns an error if the cluster has runs of a site, but the inventory has never had a run. Such an inventory is a new one in
// the place of a lost one.
func (t *temporal) refuseUsed(ctx context.Context, c client.Client) error {
	fresh, err := t.records.NeverRan(ctx)
	if err != nil || !fresh {
		return err
	}

	runs, err := c.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{
		Query: "TaskQueue = '" + workflows.TaskQueue + "'",
	})
	if err != nil {
		return fmt.Errorf("counting the site's runs: %w", err)
	}
	if n := runs.GetCount(); n > 0 {
		return fmt.Errorf("the inventory is empty, but namespace %q has %s of an earlier site: "+
			"restore the inventory with ingot restore, or set another temporal.namespace to begin a new site: %w",
			t.cfg.Temporal.Namespace, human.Count(int(n), "run"), inventory.ErrConflict)
	}

	return nil
}
