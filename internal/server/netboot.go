package server

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/metadatasvc"
)

// netboot holds the servers of the provisioning network. The zero value is for a server without netboot.
type netboot struct {
	cfg      config.Netboot
	machines sqlite.Machines
	boot     *bootsvc.Server
	metadata *metadatasvc.Server
	address  netip.Addr // address of this server on the provisioning network
}

func (n netboot) on() bool { return n.boot != nil }

// imageURL returns the base URL of images.
func (n netboot) imageURL() string { return n.boot.Base() + "/images" }

func (s *server) newNetboot() (out netboot, err error) {
	n := s.cfg.Netboot
	out.cfg, out.machines = n, s.records.store.Machines
	if !n.On() {
		return out, nil
	}
	if out.address, err = hostnet.ProvisioningAddress(n); err != nil {
		return netboot{}, err
	}
	if out.metadata, err = s.newMetadata(out.address); err != nil {
		return netboot{}, err
	}
	out.boot, err = s.newBoot(out)
	return out, err
}

func (s *server) newMetadata(address netip.Addr) (*metadatasvc.Server, error) {
	n, store := s.cfg.Netboot, s.records.store
	proxies, err := config.Prefixes(n.Proxies)
	if err != nil {
		return nil, err
	}

	return metadatasvc.New(metadatasvc.Config{
		Address: address, Addrs: joinAll(n.Bind(address), n.Metadata), Proxies: proxies,
		Key: s.secrets.claim, Installers: store.Plans, Guard: s.host.Guard(),
		ImageURL: func() string { return s.netboot.imageURL() }, // s.netboot is set after this server is created
		Log:      s.log.With("part", "metadata"), Now: time.Now,
	}, metadataStore{store.Machines, store.Grants}, store.Events)
}

func (s *server) newBoot(with netboot) (*bootsvc.Server, error) {
	n, store := s.cfg.Netboot, s.records.store
	agentPin, err := identity.Pin(s.secrets.agentTLS)
	if err != nil {
		return nil, err
	}

	host := n.Bind(with.address)
	cfg := bootsvc.Config{
		Interfaces: n.Interfaces, Modes: n.DHCP, RelayOnly: n.RelayOnly, LinkLocal: n.LinkLocal,
		Discovery: n.Discovery.Ranges, DiscoverBeside: n.Discovery.Beside,
		Address: with.address, TFTPAddr: config.Join(host, n.TFTP), HTTPAddr: joinAll(host, n.HTTP),
		SyslogAddr: syslogAddr(host, n.Syslog),
		AgentURL:   "https://" + config.Join(with.address.String(), n.Agent), AgentPin: agentPin, ClaimKey: s.secrets.claim,
		Loader: n.Loader, LoaderDir: n.Loaders, KernelPath: agentFile(n.AgentOS, "vmlinuz"), InitramfsPath: agentFile(n.AgentOS, "initramfs"),
		MinimumSBAT: n.MinimumSBAT, Images: images{store.Images, s.files}, Installers: store.Plans,
		Fallback: with.metadata.Handler(), MetadataURL: with.metadataURL(),
		Guard: s.host.Guard(), Log: s.log.With("part", "boot"), Now: time.Now,
	}
	if s.tracing != nil {
		cfg.Delivered = s.tracing.Delivered
	}
	if signer := s.secrets.ring.PlanSigner(); signer != nil {
		cfg.PlanKey = action.FormatPlanKey(signer.Public().(ed25519.PublicKey))
	}
	if cfg.Relays, err = config.Prefixes(n.Relays); err != nil {
		return nil, err
	}
	if n.Listen != "" {
		if cfg.Listen, err = netip.ParseAddr(n.Listen); err != nil {
			return nil, err
		}
	}

	logLoaders(n.Loaders, s.log)
	return bootsvc.New(cfg, store.Machines, journal{store.Events, store.Relays, store.Seen, store.Syslog})
}

// logLoaders logs the versions of the loaders in dir.
func logLoaders(dir string, log *slog.Logger) {
	files, err := sbat.ReadDir(dir)
	if err != nil {
		return // "ingot doctor" and "ingot why" report missing loaders
	}
	for _, f := range files {
		if f.Err != nil {
			log.Warn("reading the version of a loader", "file", f.Name, "error", f.Err)
			continue
		}
		log.Info("loader", "file", f.Name, "version", f.Program.String())
	}
}

// syslogAddr returns the address on which syslog is received, or "" if port is 0.
func syslogAddr(host string, port int) string {
	if port == 0 {
		return ""
	}
	return config.Join(host, port)
}

func joinAll(host string, ports []int) (out []string) {
	for _, p := range ports {
		out = append(out, config.Join(host, p))
	}
	return out
}

// metadataURL returns the base URL of the metadata server.
func (n netboot) metadataURL() string {
	return "http://" + config.Join(n.address.String(), n.cfg.Metadata[0])
}

// bootable returns nil if the files of the agent's system exist, and otherwise an error that names the missing file.
func (n netboot) bootable() error {
	for _, name := range []string{"vmlinuz", "initramfs"} {
		if _, err := os.Stat(agentFile(n.cfg.AgentOS, name)); err != nil {
			return fmt.Errorf("no machine can boot the agent, because the agent's %s is missing (ingot doctor shows where to put it): %w",
				name, inventory.ErrInvalid)
		}
	}
	return nil
}

// mediaURL returns the URL of the image for virtual CD drives, or inventory.ErrUnsupported if the image is missing.
func (n netboot) mediaURL() (string, error) {
	if _, err := os.Stat(filepath.Join(n.cfg.Loaders, bootsvc.MediaName)); err != nil {
		return "", fmt.Errorf("netboot.loaders has no %s (Debian's package ipxe has it since version 1.21): %w: %w", bootsvc.MediaName,
			inventory.ErrUnsupported, err)
	}
	return n.boot.Base() + "/media/" + bootsvc.MediaName, nil
}

// isBooting reports whether the machine has sent a request to the boot servers since the given time, or is downloading a
// file. It returns true if that cannot be determined.
func (n netboot) isBooting(ctx context.Context, machine string, since time.Time) (bool, error) {
	if !n.on() {
		return true, nil
	}
	m, err := n.machines.Machine(ctx, machine)
	if err != nil {
		return true, fmt.Errorf("looking up machine %q: %w", machine, err)
	}
	return slices.ContainsFunc(m.Interfaces, func(i inventory.Interface) bool { return n.boot.History.HasAskedSince(i.MAC, since) }), nil
}

// unknownDropped returns how many unknown machines were not recorded.
func (n netboot) unknownDropped() int64 {
	if !n.on() {
		return 0
	}
	return n.boot.Stats().SeenDropped
}

// leases returns the leases of this server's DHCP.
func (n netboot) leases() []inventory.DHCPLease {
	if !n.on() {
		return nil
	}
	return n.boot.Leases()
}

// capture returns the function that captures a machine's packets, or nil if netboot is off.
func (n netboot) capture() func(ctx context.Context, w io.Writer, m inventory.Machine, all bool) error {
	if !n.on() {
		return nil
	}
	return func(ctx context.Context, w io.Writer, m inventory.Machine, all bool) error {
		return n.boot.Capture(ctx, w, wire.CaptureOf(m, all))
	}
}

// why returns the explanation of how the machine with that MAC address is answered.
func (n netboot) why(ctx context.Context, mac string) (any, error) {
	if !n.on() {
		return whyOff(ctx, n.machines, mac)
	}
	return n.boot.Why(ctx, mac)
}
