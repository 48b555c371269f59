package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/agentapi"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/inventory"
)

// newEngine returns the engine that connects the machines' events, the workflows and the inventory.
func (s *server) newEngine() *engine.Engine {
	store := s.records.store
	parallel := 0
	if s.cfg.Temporal.Address != "" {
		parallel = 16 // a cluster handles more signals at once than the embedded server, but each signal takes longer
	}
	return engine.New(engine.Config{
		Stores: engine.Stores{
			Agents: store.Agents, Assignments: store.Assignments, Changes: store.Changes, Events: store.Events,
			Grants: store.Grants, Intake: store.HandOvers, Operations: store.Operations, Workflows: store.Workflows,
			Keyed: store.KeyedRequests,
		},
		Temporal: s.temporal.Client, Namespace: s.cfg.Temporal.Namespace, Converter: s.temporal.converter, Parallel: parallel,
		Guard: s.host.Guard(), Log: s.log.With("part", "api"),
		Elapsed: s.clock.Elapsed, Up: s.clock.Up, Held: s.records.restored.held, IsBooting: s.netboot.isBooting,
	})
}

// newAgentAPI returns the handler of the agents' requests.
func (s *server) newAgentAPI() http.Handler {
	store := s.records.store
	return agentapi.New(agentapi.Config{
		Stores: agentapi.Stores{
			Agents: store.Agents, Changes: store.Changes, Grants: store.Grants, Images: store.Images, Machines: store.Machines,
			Work: store.Assignments,
		},
		Agents: s.engine.Agents, Stopping: s.engine.Stopping, ClaimKey: s.secrets.claim, OpenImage: s.files.Open,
		RuntimePath: agentFile(s.cfg.Netboot.AgentOS, action.RuntimeFile),
		Guard:       s.host.Guard(), Log: s.log.With("part", "api"), Now: time.Now, Heartbeat: activities.Heartbeat,
		Discovery: newcomers{s.cfg.Netboot, s.netboot, s.records.store, s.log}.discovery(),
	})
}

// newAPI returns the API for operators.
func (s *server) newAPI() (*api.API, error) {
	store := s.records.store
	if _, err := catalog.Read(s.cfg.Images.Catalog); err != nil {
		return nil, fmt.Errorf("images.catalog: %w", err)
	}
	site := s.siteOf()
	c := api.Config{
		Stores: api.Stores{
			Agents:     store.Agents,
			Applied:    store.Applications,
			BMCJobs:    store.BMCJobs,
			Changes:    store.Changes,
			Disks:      store.Disks,
			Events:     store.Events,
			Genesis:    store.Genesis,
			Images:     store.Images,
			Keyed:      store.KeyedRequests,
			Keys:       store.Keys,
			Machines:   store.Machines,
			Operations: store.Operations,
			Seen:       store.Seen,
			Sessions:   store.Sessions,
			Syslog:     store.Syslog,
			Templates:  store.Templates,
			Tokens:     store.Tokens,
			Views:      store.Views,
			Windows:    store.Grants,
			Workflows:  store.Workflows,
		},
		Engine: s.engine,
		Access: api.Access{
			TokenSHA256: sha256.Sum256([]byte(s.secrets.token)), ClaimKey: s.secrets.claim,
			CodecOrigin:  s.cfg.Temporal.UIOrigin,
			AllowedHosts: listener.OperatorHosts(s.cfg), BaseURL: hostnet.LocalURL(s.cfg),
		},
		Images: api.ImageConfig{
			Dir: s.cfg.ImageDir(), Files: s.files, FetchHosts: s.cfg.Images.FetchHosts, Catalog: s.cfg.Images.Catalog, URL: site.URLOf,
			Registries: registriesOf(s.cfg), BaseURL: site.ImageURL, RequireDigest: site.RequireDigest, UploadHosts: site.UploadHosts,
		},
		Space: api.SpaceConfig{
			DataDir: s.cfg.DataDir, MinFree: max(s.cfg.MinFree<<20, 1), Reserve: s.records.reserve.State,
		},
		Netboot: api.Netboot{
			Network:        func() inventory.Network { return NetworkOf(s.cfg.Netboot) },
			UnknownDropped: s.netboot.unknownDropped, Why: s.netboot.why, Leases: s.netboot.leases, Capture: s.netboot.capture(),
		},
		BMC: api.BMC{
			CheckHost: s.controllers.driver.CheckHost, CheckCommand: s.controllers.driver.CheckCommand, Check: s.controllers.check,
			ForgetKey: s.controllers.forgetKey,
		},
		Upkeep: api.Upkeep{
			Backup: s.backups.create, StoreBackup: s.backups.storeInDir, RotateKeys: s.RotateKeys, TestNotice: s.notices.test(),
			Silent: s.watchdog.Silent,
		},
		Process: api.Process{
			Version: s.Version, Status: s.status, Restored: s.records.restored.get,
			NoSecretKey: s.secrets.ring == nil, Retrying: s.do.Troubles.Of,
		},
		TemporalUI: describeTemporalUI(s.cfg, s.temporal.uiSocket, &s.temporal.uiBound),
		Metrics:    s.metrics.Handler(), Codec: s.temporal.codecHandler(),
		Site: sites{s.host, s.host.Peers}, Intake: store.HandOvers.Intake, Guard: s.host.Guard(), Log: s.log.With("part", "api"),
	}
	if s.tracing != nil {
		c.Trace = s.tracing.Request
	}
	return api.New(c)
}

// registriesOf returns the registries of the configuration.
func registriesOf(cfg config.Config) (out []api.Registry) {
	for _, r := range cfg.Images.Registries {
		out = append(out, api.Registry(r))
	}
	return out
}

func (s *server) status(ctx context.Context) api.StatusExtra {
	n := s.cfg.Netboot
	x := api.StatusExtra{
		Temporal: s.temporal.status(), Netboot: apitypes.NetbootStatus{Interfaces: n.Interfaces},
		Notify: s.notices.status(ctx), Inventory: s.records.checked.status(), Backup: s.backups.status(),
	}
	if n.RelayOnly {
		x.Netboot.Relays, x.Netboot.Address = n.Relays, n.Address
	}
	if !s.netboot.on() {
		x.Netboot.Off, x.Netboot.Message = true, "DHCP off: run ingot init"
		return x
	}
	x.Netboot.Rivals = s.netboot.boot.Rivals.Recent()
	stats := s.netboot.boot.Stats()
	x.Netboot.SyslogDropped, x.Netboot.SyslogUnknown = stats.SyslogDropped, stats.SyslogUnknown
	if err := s.netboot.bootable(); err != nil {
		x.Netboot.Message = "but " + err.Error()
	}

	return x
}
