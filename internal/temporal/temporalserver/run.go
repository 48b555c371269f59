// Package temporalserver contains the embedded Temporal: the server and its web UI, on loopback, with one SQLite file. No other
// package imports the server or its UI.
//
// The server ends its whole process on some errors. Ingot therefore runs it in a child process (package temporalchild);
// [ChildMain] is the child's side of the protocol.
package temporalserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/cluster"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	"go.temporal.io/server/common/primitives"
	"go.temporal.io/server/temporal"

	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
)

const storeName = "sqlite"

// Run serves Temporal in this process until ctx ends; then it stops the server (about 1 s) and returns nil. It calls ready once, when
// clients can start workflows. Before that, it calls busy with a description of each task whose time grows with the database, and with ""
// when this work is done. If an operator can correct the error (an occupied port, a locked or newer file, an invalid configuration), it is
// a *[temporalchild.Failure].
//
// On some other errors, the server ends the process with status 1. It can run only once in a process, because its database connection is
// never closed. Outside the child, only tests of this package call Run.
func Run(
	ctx context.Context, cfg temporalchild.Config, logger *slog.Logger, busy func(with string),
	ready func(temporalchild.Server),
) error {
	if err := cfg.Validate(); err != nil {
		first, _ := errors.AsType[*temporalchild.Failure](err)
		return &temporalchild.Failure{Key: first.Key, Message: err.Error()}
	}
	if err := os.MkdirAll(filepath.Dir(cfg.File), 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}

	lock, err := takeLock(ctx, cfg.File+".lock", cfg.LockWait)
	if err != nil {
		return err
	}

	// The deferred call keeps the *os.File referenced: otherwise its finalizer would release the lock.
	defer lock.release()
	if err := waitForPorts(ctx, cfg); err != nil {
		return err
	}

	id, err := prepareDatabase(ctx, cfg, logger, busy)
	if err != nil {
		return err
	}
	e := &embedded{cfg: cfg, id: id, logger: logger, settings: newSettings()}
	if err := e.createNamespace(); err != nil {
		return err
	}

	if ctx.Err() != nil {
		return nil
	}

	srv, err := e.newServer(ctx)
	if err != nil {
		return fmt.Errorf("making the Temporal server: %w", err)
	}
	if err := srv.Start(); err != nil {
		return fmt.Errorf("starting the Temporal server: %w", err)
	}

	runErr := e.whileStarted(ctx, ready)
	if err := srv.Stop(); err != nil {
		return errors.Join(runErr, fmt.Errorf("stopping the Temporal server: %w", err))
	}

	return runErr
}

// embedded is the state of one run of the server.
type embedded struct {
	cfg      temporalchild.Config
	id       identity
	logger   *slog.Logger
	settings *dynamicconfig.MemoryClient
}

// whileStarted runs everything between the start and the stop of the server.
func (e *embedded) whileStarted(ctx context.Context, ready func(temporalchild.Server)) error {
	cfg := e.cfg
	if err := e.settle(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}

	srv := temporalchild.Server{
		Frontend: hostPort(cfg.Host, cfg.Ports.Frontend), Namespace: cfg.Namespace, Identity: cfg.Identity,
		ClusterID: e.id.ClusterID, ClusterName: e.id.ClusterName, PID: os.Getpid(),
	}

	if cfg.Ports.UI != 0 {
		srv.UI = hostPort(cfg.Host, cfg.Ports.UI)
	}

	db, err := openForVacuum(cfg)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }() // this closes only a reference to the server's connection

	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() {
		if err := e.serveUI(ctx); err != nil {
			e.logger.Error("temporal web UI ended", "err", err)
		}
	})
	parts.Go(func() { e.vacuum(ctx, db) })
	ready(srv)
	<-ctx.Done()
	return nil
}

// newServer returns the server. After ctx has ended, the server logs only at debug level.
func (e *embedded) newServer(ctx context.Context) (temporal.Server, error) {
	cfg, id := e.cfg, e.id
	frontend := hostPort(cfg.Host, cfg.Ports.Frontend)
	service := func(port int) config.Service {
		var s config.Service
		// HTTPPort stays 0: the frontend's HTTP API is not used.
		s.RPC.GRPCPort, s.RPC.BindOnIP = port, cfg.Host
		return s
	}

	var c config.Config
	c.Global.Membership.MaxJoinDuration = 30 * time.Second
	c.Global.Membership.BroadcastAddress = cfg.Host
	c.Persistence.DefaultStore, c.Persistence.VisibilityStore = storeName, storeName
	c.Persistence.NumHistoryShards = 1
	c.Persistence.DataStores = map[string]config.DataStore{storeName: {SQL: sqlConfig(cfg)}}
	c.ClusterMetadata = &cluster.Config{
		EnableGlobalNamespace:    true,
		FailoverVersionIncrement: failoverVersionIncrement,
		MasterClusterName:        id.ClusterName,
		CurrentClusterName:       id.ClusterName,
		ClusterInformation: map[string]cluster.ClusterInformation{id.ClusterName: {
			Enabled: true, InitialFailoverVersion: id.FailoverVersion, RPCAddress: frontend, ClusterID: id.ClusterID,
		}},
	}

	c.DCRedirectionPolicy.Policy = "noop"
	c.Services = map[string]config.Service{
		string(primitives.FrontendService): service(cfg.Ports.Frontend),
		string(primitives.HistoryService):  service(cfg.Ports.History),
		string(primitives.MatchingService): service(cfg.Ports.Matching),
		string(primitives.WorkerService):   service(cfg.Ports.Worker),
	}

	c.Archival.History.State, c.Archival.Visibility.State = "disabled", "disabled"
	c.NamespaceDefaults.Archival.History.State, c.NamespaceDefaults.Archival.Visibility.State = "disabled", "disabled"
	c.PublicClient.HostPort = frontend
	if cfg.Identity != "" {
		c.Global.TLS = mutualTLS(cfg.Identity)
	}

	authorizer, err := authorization.GetAuthorizerFromConfig(&c.Global.Authorization)
	if err != nil {
		return nil, err
	}

	host := func(port int) static.Hosts { return static.SingleLocalHost(hostPort(cfg.Host, port)) }
	return temporal.NewServer(
		temporal.WithConfig(&c),
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithStaticHosts(map[primitives.ServiceName]static.Hosts{
			primitives.FrontendService: host(cfg.Ports.Frontend),
			primitives.HistoryService:  host(cfg.Ports.History),
			primitives.MatchingService: host(cfg.Ports.Matching),
			primitives.WorkerService:   host(cfg.Ports.Worker),
		}),
		temporal.WithLogger(&serverLog{logger: e.logger, stopping: ctx}),
		temporal.WithAuthorizer(authorizer),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return authorization.NewNoopClaimMapper() }),
		temporal.WithDynamicConfigClient(e.settings),
	)
}

// mutualTLS returns a TLS configuration with the certificate in file. Every port of the server, and every client inside the server,
// presents this certificate and accepts no other.
func mutualTLS(file string) config.RootTLS {
	server := config.ServerTLS{CertFile: file, KeyFile: file, ClientCAFiles: []string{file}, RequireClientAuth: true}
	client := config.ClientTLS{ServerName: temporalchild.ServerName, RootCAFiles: []string{file}}
	return config.RootTLS{
		Internode:    config.GroupTLS{Server: server, Client: client},
		Frontend:     config.GroupTLS{Server: server},
		SystemWorker: config.WorkerTLS{CertFile: file, KeyFile: file, Client: client},
	}
}

// newSettings returns the server's settings for one small host. The caches are smaller than the defaults, which assume gigabytes of
// memory. hostLevelCacheMaxSize is the number of runs in the cache, including ended ones; each needs about 35 kB.
func newSettings() *dynamicconfig.MemoryClient {
	out := dynamicconfig.NewMemoryClient()
	for name, value := range map[string]any{
		"history.hostLevelCacheMaxSize":            2048,
		"history.enableHostLevelEventsCache":       true,
		"history.eventsHostLevelCacheMaxSizeBytes": 16 << 20,
		// How long the server waits for the result of a workflow task before it gives the task to another worker (default 10 s): the first worker
		// may have been killed. A worker that runs long local activities requests more time.
		"history.defaultWorkflowTaskTimeout": 5 * time.Second,
		// A recovery (ingot recover) has one pending activity for each machine with an open question.
		"limit.numPendingActivities.error": 10000,
		"frontend.persistenceMaxQPS":       10000,
		"history.persistenceMaxQPS":        45000,
		"frontend.namespaceRPS.visibility": 100,
		// Send no version check to Temporal's own servers.
		"frontend.enableServerVersionCheck": false,
	} {
		out.OverrideValue(dynamicconfig.MakeKey(name), value)
	}
	return out
}

// refreshAttributes makes the server read search attributes from the database at each use. Attributes that are added to an existing
// namespace can then be used at once instead of after a minute.
var refreshAttributes = dynamicconfig.MakeKey("system.forceSearchAttributesCacheRefreshOnRead")

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
