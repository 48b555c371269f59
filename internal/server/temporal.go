package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"google.golang.org/grpc"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporalserver"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// RunTemporalChild is the embedded Temporal server, which the server starts as a
// process of its own under [temporalchild.Subcommand].
func RunTemporalChild() error {
	return temporalserver.ChildMain(os.Stdin, os.NewFile(temporalchild.ReadyFD, "ready"), os.Stderr)
}

// temporal keeps a client and a worker on the site's Temporal server, while
// that server is up and proven to be ours.
type temporal struct {
	cfg   config.Config
	log   *slog.Logger
	child *temporalchild.Supervisor // nil: a cluster by address
	// cluster returns the id of the cluster in which the site's runs live; the
	// first one that is given is kept.
	cluster func(ctx context.Context, id string) (string, error)
	// neverRan reports whether the inventory knows of no cluster yet.
	neverRan func(ctx context.Context) (bool, error)
	effects  activities.Effects // under way
	hold     *activities.Hold   // of runs that a restore from a backup has left behind
	// tlsConfig is how the child is spoken to; nil: without TLS.
	tlsConfig *tls.Config

	mu     sync.Mutex
	client client.Client
	err    error
}

func newTemporal(cfg config.Config, log *slog.Logger, cluster func(context.Context, string) (string, error)) (*temporal, error) {
	t := &temporal{cfg: cfg, log: log, cluster: cluster}
	if cfg.Temporal.Address != "" {
		if !config.Loopback(cfg.Temporal.Address) && cfg.Temporal.TLSCert == "" && cfg.Temporal.TLSCA == "" {
			return nil, fmt.Errorf("temporal.address %q is beyond loopback: set temporal.tls_ca, and tls_cert and tls_key if it asks for them", cfg.Temporal.Address)
		}
		return t, nil
	}
	c := temporalchild.DefaultConfig(filepath.Join(cfg.DataDir, "temporal"))
	c.Ports = temporalchild.PortsFrom(cfg.Temporal.Port, cfg.Temporal.UIPort)
	c.Namespace, c.Retention = cfg.Temporal.Namespace, cfg.Temporal.Retention
	var err error
	if c.Identity = cfg.TemporalIdentity(); c.Identity != "" {
		if t.tlsConfig, err = embeddedTLS(c.Identity); err != nil {
			return nil, err
		}
		c.Ports.UI = 0
		log.Info("Temporal requires the site's certificate, and its UI is off; ingot temporal env prints what the temporal command needs", "certificate", c.Identity)
	}
	c.SearchAttributes = []string{workflows.AttrMachine, workflows.AttrTemplate, workflows.AttrPhase, workflows.AttrCluster}
	t.child, err = temporalchild.New(c, temporalchild.Options{Logger: log.With("part", "temporal")})
	return t, err
}

// embeddedTLS returns the TLS configuration of clients of the embedded server.
// It makes the certificate if there is none, with mode 0600.
func embeddedTLS(file string) (*tls.Config, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	if _, err := identity.LoadCertificate(file); err != nil {
		return nil, err
	}
	return temporalchild.ClientTLS(file)
}

// Client returns the connected client, or false while there is none.
func (t *temporal) Client() (client.Client, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.client, t.client != nil
}

// where returns the addresses for people, and why Temporal is not ready.
func (t *temporal) where() (frontend, ui, problem string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		problem = t.err.Error()
	}
	if t.child == nil {
		return t.cfg.Temporal.Address, "", problem
	}
	s := t.child.State()
	if s.Err != nil {
		problem = s.Err.Error()
	}
	if t.cfg.TemporalIdentity() == "" {
		ui = fmt.Sprintf("http://127.0.0.1:%d", t.cfg.Temporal.UIPort)
	}
	return config.Join("127.0.0.1", t.cfg.Temporal.Port), ui, problem
}

// supervise runs the child, if there is one, whatever becomes of ctx, until stop
// is called; that returns when the child is gone, and may be called again. The
// child goes last: it outlives the worker and everybody else.
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

// Run works for as long as ctx lives, whenever the child, if there is one, does.
func (t *temporal) Run(ctx context.Context, do *activities.Activities) error {
	if t.child == nil {
		return t.workAt(ctx, do)
	}
	return t.child.While(ctx, func(ctx context.Context, srv temporalchild.Server) error {
		return t.keepWorking(ctx, do, client.Options{
			HostPort: srv.Frontend, Namespace: srv.Namespace,
			ConnectionOptions: client.ConnectionOptions{
				TLS:             t.tlsConfig,
				DialOptions:     []grpc.DialOption{grpc.WithContextDialer(t.child.DialContext)},
				GrpcCompression: &client.GrpcCompressionNone{}, // the way is loopback
			},
		}, srv.ClusterID)
	})
}

func (t *temporal) workAt(ctx context.Context, do *activities.Activities) error {
	opts := client.Options{HostPort: t.cfg.Temporal.Address, Namespace: t.cfg.Temporal.Namespace}
	tlsConfig, err := t.tls()
	if err != nil {
		return err
	}
	opts.ConnectionOptions.TLS = tlsConfig
	return t.keepWorking(ctx, do, opts, "")
}

// keepWorking works until ctx ends, again after whatever stood in the way.
func (t *temporal) keepWorking(ctx context.Context, do *activities.Activities, opts client.Options, clusterID string) error {
	for {
		err := t.work(ctx, do, opts, clusterID)
		if ctx.Err() != nil {
			return nil
		}
		t.set(nil, err)
		t.log.Warn("Temporal is not reachable", "address", opts.HostPort, "error", err)
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

func (t *temporal) tls() (*tls.Config, error) {
	c := t.cfg.Temporal
	if c.TLSCert == "" && c.TLSCA == "" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return nil, fmt.Errorf("temporal.address %q: %w", c.Address, err)
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("temporal.tls_cert: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	if c.TLSCA != "" {
		pem, err := os.ReadFile(c.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("temporal.tls_ca: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("temporal.tls_ca %q holds no certificate", c.TLSCA)
		}
	}
	return out, nil
}

func (t *temporal) set(c client.Client, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.client, t.err = c, err
}

// prove makes sure that the server is the site's own: the child that was
// started, and the cluster in which the site's runs live.
func (t *temporal) prove(ctx context.Context, c client.Client, childID string) error {
	info, err := c.WorkflowService().GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	if err != nil {
		return fmt.Errorf("asking Temporal who it is: %w", err)
	}
	if childID != "" {
		if err := temporalchild.Verify(ctx, c.WorkflowService(), childID); err != nil {
			return err
		}
	}
	if t.child == nil {
		if err := t.refuseUsed(ctx, c); err != nil {
			return err
		}
	}
	kept, err := t.cluster(ctx, info.GetClusterId())
	if err != nil {
		return err
	}
	if kept != info.GetClusterId() {
		return fmt.Errorf("this site's runs live in the Temporal cluster %s, and %s answers here: set temporal.address, or put the database back that belongs to this inventory", kept, info.GetClusterId())
	}
	return nil
}

// deadlockTimeout is how long workflow code may run without yielding before the
// SDK calls it a deadlock. It does no I/O; the processor may be elsewhere.
const deadlockTimeout = time.Minute

// refuseUsed refuses a cluster that has runs of a site while the inventory knows
// of none: it took the place of one that was lost.
func (t *temporal) refuseUsed(ctx context.Context, c client.Client) error {
	fresh, err := t.neverRan(ctx)
	if err != nil || !fresh {
		return err
	}
	runs, err := c.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: "TaskQueue = '" + workflows.TaskQueue + "'"})
	if err != nil {
		return fmt.Errorf("counting the site's runs: %w", err)
	}
	if n := runs.GetCount(); n > 0 {
		return fmt.Errorf("the inventory is empty, and namespace %q here has %s of a site: bring the inventory back with ingot restore, or set temporal.namespace to begin a new site: %w",
			t.cfg.Temporal.Namespace, human.Count(int(n), "run"), inventory.ErrConflict)
	}
	return nil
}

// work dials, proves the server's identity when it is known, and carries out
// workflows until ctx ends.
func (t *temporal) work(ctx context.Context, do *activities.Activities, opts client.Options, clusterID string) error {
	opts.Logger = sdklog.NewStructuredLogger(t.log.With("part", "worker"))
	c, err := client.DialContext(ctx, opts)
	if err != nil {
		return fmt.Errorf("dialling Temporal at %s: %w", opts.HostPort, err)
	}
	defer c.Close()
	if err := t.prove(ctx, c, clusterID); err != nil {
		return err
	}
	// A worker that gives up (its namespace was deleted, say) must be replaced,
	// or everything would wait for it until somebody restarts this server.
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	failed := func(err error) { giveUp(fmt.Errorf("the worker gave up: %w", err)) }
	interceptors := []interceptor.WorkerInterceptor{do.Troubles, t.hold, &t.effects}
	w := worker.New(c, workflows.TaskQueue, worker.Options{
		WorkerStopTimeout: 5 * time.Second,
		// The answer to a poll comes after the server has written to its disk: two
		// pollers, which is the default, stand idle for most of the time.
		MaxConcurrentWorkflowTaskPollers: 8,
		MaxConcurrentActivityTaskPollers: 8,
		// What waits for slow BMCs must not take all the memory; the rest waits at
		// Temporal, where no time-out of it has begun.
		MaxConcurrentActivityExecutionSize: 400,
		// The deadlock detector's one second is not much for a NAS that is busy.
		DeadlockDetectionTimeout: deadlockTimeout,
		// In a rush of two hundred runs a task waits for longer than the default
		// of 5 s. One that goes back after that is replayed from its run's first
		// event, which makes the rush longer.
		StickyScheduleToStartTimeout: 10 * time.Second,
		Interceptors:                 interceptors,
		OnFatalError:                 failed,
	})
	workflows.Register(w)
	w.RegisterActivity(do)
	// What waits for a record costs little memory. The limit is above Temporal's, of
	// pending activities per workflow.
	waits := worker.New(c, workflows.WaitQueue, worker.Options{
		WorkerStopTimeout:                  5 * time.Second,
		DisableWorkflowWorker:              true,
		MaxConcurrentActivityExecutionSize: 20_000,
		Interceptors:                       interceptors,
		OnFatalError:                       failed,
	})
	waits.RegisterActivity(do)
	for _, x := range []worker.Worker{w, waits} {
		if err := x.Start(); err != nil {
			return fmt.Errorf("starting the worker: %w", err)
		}
		defer x.Stop()
	}
	t.set(c, nil)
	t.log.Info("Temporal is ready", "address", opts.HostPort)
	<-ctx.Done()
	t.set(nil, nil)
	return context.Cause(ctx)
}
