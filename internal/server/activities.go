package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/internal/systems/harvester"
	"github.com/ingotmetal/ingot/internal/systems/kubernetes"
	"github.com/ingotmetal/ingot/internal/systems/talos"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

func (s *server) newBMC() (*bmc.Driver, error) {
	networks, err := config.Prefixes(s.cfg.BMC.Networks)
	if err != nil {
		return nil, err
	}

	commands := map[string]bmc.Command{}
	for name, c := range s.cfg.Power.Commands {
		commands[name] = bmc.Command{On: c.On, Off: c.Off, Status: c.Status, Timeout: c.Timeout}
	}

	var authorities *x509.CertPool
	if file := s.cfg.BMC.CAFile; file != "" {
		var err error
		if authorities, err = identity.Authorities(file); err != nil {
			return nil, fmt.Errorf("bmc.ca_file: %w", err)
		}
	}

	return bmc.New(bmc.Config{
		Authorities: authorities, Keys: s.records.store.BMCKeys, Refusals: s.records.store.BMCRefusals, DigestKey: s.secrets.ring.BMCDigestKey(),
		Observe: s.observeBMC, Log: s.log.With("part", "bmc"), Networks: networks, Commands: commands, WakeFrom: s.netboot.address,
		Home: filepath.Join(s.cfg.DataDir, "ipmitool"), LockFile: filepath.Join(s.cfg.DataDir, "bmc.lock"),
	}), nil
}

// checkBMC logs in to the BMC of a machine and reads its state. retry: also with credentials that rest because the BMC
// has refused them.
func (s *server) checkBMC(ctx context.Context, m inventory.Machine, retry bool) (inventory.BMCReport, error) {
	if m.BMC.Manual() {
		return inventory.BMCReport{}, fmt.Errorf("machine %q has no BMC: %w", m.Name, inventory.ErrUnsupported)
	}
	if retry {
		if err := s.bmc.AllowRetry(ctx, m.Controller()); err != nil {
			return inventory.BMCReport{}, err
		}
	}

	password, err := s.rotation().Password(ctx, m)
	if err != nil {
		return inventory.BMCReport{}, err
	}
	if can := m.BMC.Capabilities(); can.SelfTest || can.Inspects {
		return s.bmc.Check(ctx, m.Controller(), password)
	}
	power, err := s.bmc.State(ctx, m.Controller(), password)
	return inventory.BMCReport{Power: power}, err
}

// rotation changes passwords of BMCs, and knows which one is in force.
func (s *server) rotation() *activities.Rotation {
	return &activities.Rotation{Store: s.records.store.BMCPasswords, BMC: s.bmc}
}

// passwords are those that BMCs accept, where a rotation is unfinished, too.
type passwords struct {
	machines sqlite.Machines
	rotation *activities.Rotation
}

// BMCPassword is as in activities.Passwords.
func (m passwords) BMCPassword(ctx context.Context, name string) (inventory.Secret, error) {
	machine, err := m.machines.Machine(ctx, name)
	if err != nil {
		return inventory.Secret{}, err
	}
	return m.rotation.Password(ctx, machine)
}

// siteOf is what activities know of this server.
func (s *server) siteOf() activities.Site {
	out := activities.Site{
		ClaimKey: s.secrets.claim, PlanKey: s.secrets.ring.PlanSigner(), RequireDigest: s.cfg.Images.RequireDigest,
		Loader: s.cfg.Netboot.Loader, UploadHosts: s.cfg.Images.UploadHosts,
		ProbeImage:  func(ctx context.Context, address string) error { return s.api.ProbeImage(ctx, address) },
		ImageStored: images{s.records.store.Images, s.files}.stored,
	}
	if s.netboot.on() {
		out.Bootable = s.bootable
		out.ImageURL = s.netboot.imageURL
		out.MediaURL = s.mediaURL
		out.MetadataURL = s.metadataURL(s.netboot.address)
	}
	return out
}

// newActivities builds every side effect of workflows. The API is made later.
func (s *server) newActivities() *activities.Activities {
	store := s.records.store
	out := activities.New(activities.Config{
		Store: activities.Store{
			Agents: store.Agents, Assignments: store.Assignments, BMCJobs: store.BMCJobs, Disks: store.Disks, Events: store.Events,
			Genesis: store.Genesis, Grants: store.Grants, HandOvers: store.HandOvers, Images: store.Images, Keys: store.Keys,
			Machines: store.Machines, Media: store.Media, Operations: store.Operations,
			Passwords: passwords{store.Machines, s.rotation()}, Plans: store.Plans, Relays: store.Relays,
			Templates: store.Templates, Windows: store.Grants, Workflows: store.Workflows,
		},
		Systems: activities.Systems{
			Presence: endpoint.Presence{}, Routers: vyos.Client{}, Talos: talos.Client{}, Kubernetes: kubernetes.Client{},
			Clusters: harvester.Client{},
		},
		Move: activities.Move{Mover: s.host.Mover, Peers: s.host.Peers, VerifySite: s.verifySite},
		Clocks: activities.Clocks{
			Now: time.Now, Clock: s.clock, ProbeEvery: s.cfg.ProbeEvery,
			Silence: func(o inventory.Owner, boot int) (time.Duration, bool) { return s.engine.Agents.Silence(o, boot) },
		},
		BMC: s.bmc, Rotation: s.rotation(), Site: s.siteOf(), Log: s.log.With("part", "activities"), Troubles: activities.NewTroubles(time.Now),
	})
	if s.tracing != nil {
		out.TraceOf = tracing.TraceOf
	}
	return out
}
