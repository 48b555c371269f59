package server

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/agentapi"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/inventory"
)

// newAPI makes the engine and the interfaces for operators and agents. baseURL is
// where operators reach this server, imageURL where agents fetch an image, and
// checkBMC logs in to a machine's BMC.
func (s *server) newAPI(
	claimKey []byte, baseURL string, imageURL func(inventory.Image) string,
	checkBMC func(context.Context, inventory.Machine) (string, error),
) (err error) {
	log := s.log.With("part", "api")
	s.engine = engine.New(engine.Config{
		Stores: engine.Stores{
			Events: s.store, Grants: s.store, Workflows: s.store, Operations: s.store, Agents: s.store, Assignments: s.store,
		},
		Temporal: s.temporal.Client, Namespace: s.cfg.Temporal.Namespace, Guard: s.guard, Log: log,
		Elapsed: s.clock.Elapsed, Up: s.clock.Up, Held: s.restored.Held,
	})
	s.agents = agentapi.New(agentapi.Config{
		Stores: agentapi.Stores{Claims: s.store, Tokens: s.store, Work: s.store, Images: s.store},
		Agents: s.engine.Agents, Stopping: s.engine.Stopping, ClaimKey: claimKey, ImageDir: s.cfg.ImageDir(),
		Guard: s.guard, Log: log, Now: time.Now, Heartbeat: activities.Heartbeat,
	})

	s.api, err = api.New(api.Config{
		Stores: api.Stores{
			Machines: s.store, Windows: s.store, Views: s.store, Templates: s.store, Images: s.store, ImageUsers: s.store,
			Workflows: s.store, Events: s.store, Operations: s.store, Genesis: s.store, BMCJobs: s.store, Sessions: s.store,
			Status: s.store, Changes: s.store,
		},
		Engine: s.engine,
		Access: api.Access{
			TokenSHA256: sha256.Sum256([]byte(s.token)), ClaimKey: claimKey, AllowedHosts: operatorHosts(s.cfg), BaseURL: baseURL,
		},
		Images:  api.ImageConfig{Dir: s.cfg.ImageDir(), FetchHosts: s.cfg.Images.FetchHosts, URL: imageURL},
		Space:   api.SpaceConfig{DataDir: s.cfg.DataDir, MinFree: max(s.cfg.MinFree<<20, 1), Reserve: s.reserve.State},
		Netboot: s.netbootFacts(),
		BMC:     api.BMC{CheckHost: s.bmc.CheckHost, CheckCommand: s.bmc.CheckCommand, Check: checkBMC},
		Upkeep:  api.Upkeep{Backup: s.backup, RotateKeys: s.rotateKeys, TestNotice: s.testNotice()},
		Process: api.Process{
			Version: s.version, Status: s.status, Restored: s.restored, NoSecretKey: s.keys == nil, Retrying: s.do.Troubles.Of,
		},
		Site: s, Intake: s.store.Intake, Guard: s.guard, Log: log,
	})

	return err
}

// netbootFacts is what the API asks the servers of the provisioning network.
func (s *server) netbootFacts() api.Netboot {
	return api.Netboot{
		Network: func() inventory.Network { return NetworkOf(s.cfg.Netboot) },
		UnknownDropped: func() int64 {
			if s.boot == nil {
				return 0
			}
			return s.boot.Stats().SeenDropped
		},
		Why: func(ctx context.Context, mac string) (any, error) {
			if s.boot == nil {
				return whyOff(ctx, s.store, mac)
			}
			return s.boot.Why(ctx, mac)
		},
	}
}
