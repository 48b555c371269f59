package server

import (
	"context"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/internal/systems/harvester"
	"github.com/ingotmetal/ingot/internal/systems/kubernetes"
	"github.com/ingotmetal/ingot/internal/systems/talos"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
	"github.com/ingotmetal/ingot/inventory"
)

// siteOf returns the configuration, keys and addresses of this server that activities need.
func (s *server) siteOf() activities.Site {
	out := activities.Site{
		ClaimKey: s.secrets.claim, PlanKey: s.secrets.ring.PlanSigner(), RequireDigest: s.cfg.Images.RequireDigest,
		Loader: s.cfg.Netboot.Loader, UploadHosts: s.cfg.Images.UploadHosts,
		ProbeImage: func(ctx context.Context, address string) error { return s.api.ProbeImage(ctx, address) },
		FetchImage: func(ctx context.Context, name, address, by string) error {
			return s.api.FetchImage(ctx, name, address, by)
		},
		ResolveContainer: func(ctx context.Context, r action.ContainerReference) (string, error) {
			return s.api.ResolveContainer(ctx, r)
		},
		PrivilegedContainers: s.cfg.Images.PrivilegedContainers,

		ImageStored: images{s.records.store.Images, s.files}.stored,
	}
	if s.netboot.on() {
		out.Bootable = s.netboot.bootable
		out.ImageURL = s.netboot.imageURL
		out.MediaURL = s.netboot.mediaURL
		out.MetadataURL = s.netboot.metadataURL()
		out.Runtime = (&containerRuntime{path: agentFile(s.cfg.Netboot.AgentOS, action.RuntimeFile)}).sum
		out.MetadataHosts = joinAll(s.netboot.address.String(), append(slices.Clone(s.cfg.Netboot.Metadata), s.cfg.Netboot.HTTP...))
	}
	return out
}

// newActivities returns the activities of all workflows. It is called before newAPI: s.api is still nil.
func (s *server) newActivities() *activities.Activities {
	store := s.records.store
	out := activities.New(activities.Config{
		Store: activities.Store{
			Agents: store.Agents, Assignments: store.Assignments, BMCJobs: store.BMCJobs, Disks: store.Disks, Events: store.Events,
			Genesis: store.Genesis, Grants: store.Grants, HandOvers: store.HandOvers, Images: store.Images, Keys: store.Keys,
			Machines: store.Machines, Media: store.Media, Operations: store.Operations,
			Passwords: passwords{store.Machines, s.controllers.rotation()}, Plans: store.Plans, Relays: store.Relays,
			Templates: store.Templates, Installed: store.Views, Windows: store.Grants, Workflows: store.Workflows,
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
		BMC:      s.controllers.driver,
		Rotation: s.controllers.rotation(),
		Site:     s.siteOf(),
		Log:      s.log.With("part", "activities"),
		Troubles: activities.NewTroubles(time.Now),
	})
	if s.tracing != nil {
		out.TraceOf = tracing.TraceOf
	}
	return out
}
