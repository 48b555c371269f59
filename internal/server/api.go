package server

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/agentapi"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/images/catalog"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// newEngine makes what connects machines' events, workflows and the inventory.
func (s *server) newEngine() *engine.Engine {
	store := s.records.store
	parallel := 0
	if s.cfg.Temporal.Address != "" {
		parallel = 16 // a cluster takes more at once, and each signal takes longer
	}
	return engine.New(engine.Config{
		Stores: engine.Stores{
			Agents: store.Agents, Assignments: store.Assignments, Changes: store.Changes, Events: store.Events,
			Grants: store.Grants, Intake: store.HandOvers, Operations: store.Operations, Workflows: store.Workflows,
			Keyed: store.KeyedRequests,
		},
		Temporal: s.temporal.Client, Namespace: s.cfg.Temporal.Namespace, Converter: s.temporal.converter, Parallel: parallel,
		Guard: s.host.Guard(), Log: s.log.With("part", "api"),
		Elapsed: s.clock.Elapsed, Up: s.clock.Up, Held: s.records.restored.held, IsBooting: s.heardBooting,
	})
}

// heardBooting reports whether a machine has asked the boot servers for anything since then, or is being sent a file.
func (s *server) heardBooting(ctx context.Context, machine string, since time.Time) (bool, error) {
	if !s.netboot.on() {
		return true, nil
	}
	m, err := s.records.store.Machines.Machine(ctx, machine)
	if err != nil {
		return true, fmt.Errorf("looking up machine %q: %w", machine, err)
	}
	return slices.ContainsFunc(
		m.Interfaces,
		func(i inventory.Interface) bool { return s.netboot.boot.History.HasAskedSince(i.MAC, since) },
	), nil
}

// newAgentAPI makes the handler of the agents' requests.
func (s *server) newAgentAPI() http.Handler {
	store := s.records.store
	return agentapi.New(agentapi.Config{
		Stores: agentapi.Stores{
			Agents: store.Agents, Changes: store.Changes, Grants: store.Grants, Images: store.Images, Machines: store.Machines,
			Work: store.Assignments,
		},
		Agents: s.engine.Agents, Stopping: s.engine.Stopping, ClaimKey: s.secrets.claim, OpenImage: s.files.Open,
		Guard: s.host.Guard(), Log: s.log.With("part", "api"), Now: time.Now, Heartbeat: activities.Heartbeat,
		Discovery: s.discovery(),
	})
}

// newAPI makes the interface for operators.
func (s *server) newAPI() (*api.API, error) {
	store := s.records.store
	if _, err := catalog.Read(s.cfg.Images.Catalog); err != nil {
		return nil, fmt.Errorf("images.catalog: %w", err)
	}
	site := s.siteOf()
	c := api.Config{
		Stores: api.Stores{
			Agents: store.Agents, BMCJobs: store.BMCJobs, Changes: store.Changes, Disks: store.Disks, Events: store.Events,
			Genesis: store.Genesis, Images: store.Images, Keyed: store.KeyedRequests, Keys: store.Keys,
			Machines: store.Machines, Operations: store.Operations, Seen: store.Seen, Sessions: store.Sessions,
			Syslog: store.Syslog, Templates: store.Templates, Views: store.Views, Windows: store.Grants,
			Workflows: store.Workflows,
		},
		Engine: s.engine,
		Access: api.Access{
			TokenSHA256: sha256.Sum256([]byte(s.secrets.token)), ClaimKey: s.secrets.claim,
			MetricsSHA256: sha256.Sum256([]byte(identity.MetricsToken(s.secrets.token))),
			CodecSHA256:   sha256.Sum256([]byte(identity.CodecToken(s.secrets.token))), CodecOrigin: s.cfg.Temporal.UIOrigin,
			AllowedHosts: listener.OperatorHosts(s.cfg), BaseURL: hostnet.LocalURL(s.cfg),
		},
		Images: api.ImageConfig{
			Dir: s.cfg.ImageDir(), Files: s.files, FetchHosts: s.cfg.Images.FetchHosts, Catalog: s.cfg.Images.Catalog, URL: site.URLOf,
			BaseURL: site.ImageURL, RequireDigest: site.RequireDigest, UploadHosts: site.UploadHosts,
		},
		Space: api.SpaceConfig{
			DataDir: s.cfg.DataDir, MinFree: max(s.cfg.MinFree<<20, 1), Reserve: s.records.reserve.State,
		},
		Netboot: api.Netboot{
			Network:        func() inventory.Network { return NetworkOf(s.cfg.Netboot) },
			UnknownDropped: s.unknownDropped, Why: s.why, Leases: s.leases, Capture: s.capture(),
		},
		BMC:    api.BMC{CheckHost: s.bmc.CheckHost, CheckCommand: s.bmc.CheckCommand, Check: s.checkBMC, ForgetKey: s.forgetBMCKey},
		Upkeep: api.Upkeep{Backup: s.backup, RotateKeys: s.RotateKeys, TestNotice: s.testNotice()},
		Process: api.Process{
			Version: s.Version, Status: s.status, Restored: s.records.restored.get,
			NoSecretKey: s.secrets.ring == nil, Retrying: s.do.Troubles.Of,
		},
		Metrics: s.metrics.Handler(), Codec: s.temporal.codecHandler(),
		Site: sites{s.host, s.host.Peers}, Intake: store.HandOvers.Intake, Guard: s.host.Guard(), Log: s.log.With("part", "api"),
	}
	if s.tracing != nil {
		c.Trace = s.tracing.Request
	}
	return api.New(c)
}

// unknownDropped is how many unknown machines were not recorded.
func (s *server) unknownDropped() int64 {
	if !s.netboot.on() {
		return 0
	}
	return s.netboot.boot.Stats().SeenDropped
}

// leases are those that DHCP has given.
func (s *server) leases() []inventory.DHCPLease {
	if !s.netboot.on() {
		return nil
	}
	return s.netboot.boot.Leases()
}

// capture returns what captures a machine's packets, or nil where no machine is answered.
func (s *server) capture() func(ctx context.Context, w io.Writer, m inventory.Machine, all bool) error {
	if !s.netboot.on() {
		return nil
	}
	return func(ctx context.Context, w io.Writer, m inventory.Machine, all bool) error {
		return s.netboot.boot.Capture(ctx, w, wire.CaptureOf(m, all))
	}
}

// why explains how a machine is answered.
func (s *server) why(ctx context.Context, mac string) (any, error) {
	if !s.netboot.on() {
		return whyOff(ctx, s.records.store.Machines, mac)
	}
	return s.netboot.boot.Why(ctx, mac)
}

func (s *server) status(ctx context.Context) api.StatusExtra {
	n := s.cfg.Netboot
	x := api.StatusExtra{
		Temporal: s.temporal.status(), Netboot: api.NetbootStatus{Interfaces: n.Interfaces},
		Notify: s.noticeStatus(ctx), Inventory: s.records.checked.status(),
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
	if err := s.bootable(); err != nil {
		x.Netboot.Message = "but " + err.Error()
	}

	return x
}
