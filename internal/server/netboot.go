package server

import (
	"crypto/ed25519"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/metadatasvc"
)

// netboot are the servers of the provisioning network. The zero netboot is that of a
// server without an interface.
type netboot struct {
	boot     *bootsvc.Server
	metadata *metadatasvc.Server
	address  netip.Addr // of this server on the provisioning network
}

func (n netboot) on() bool { return n.boot != nil }

// imageURL returns the base URL of images.
func (n netboot) imageURL() string { return n.boot.Base() + "/images" }

func (s *server) newNetboot() (out netboot, err error) {
	n := s.cfg.Netboot
	if !n.On() {
		return netboot{}, nil
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
		ImageURL: func() string { return s.netboot.imageURL() }, // the boot server is made later
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
		Fallback: with.metadata.Handler(), MetadataURL: s.metadataURL(with.address),
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

	s.logLoaders(n.Loaders)
	return bootsvc.New(cfg, store.Machines, journal{store.Events, store.Relays, store.Seen, store.Syslog})
}

// logLoaders records the versions of the loaders.
func (s *server) logLoaders(dir string) {
	files, err := sbat.ReadDir(dir)
	if err != nil {
		return // without loaders, "ingot doctor" and "ingot why" say what is missing
	}
	for _, f := range files {
		if f.Err != nil {
			s.log.Warn("reading the version of a loader", "file", f.Name, "error", f.Err)
			continue
		}
		s.log.Info("loader", "file", f.Name, "version", f.Program.String())
	}
}

// syslogAddr returns where syslog is received; "" = nowhere.
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

// metadataURL is the base of the metadata server's URLs.
func (s *server) metadataURL(address netip.Addr) string {
	return "http://" + config.Join(address.String(), s.cfg.Netboot.Metadata[0])
}

// bootable says which file of the agent's system is missing, if one is.
func (s *server) bootable() error {
	for _, name := range []string{"vmlinuz", "initramfs"} {
		if _, err := os.Stat(agentFile(s.cfg.Netboot.AgentOS, name)); err != nil {
			return fmt.Errorf("no machine can boot the agent, because there is no %s (ingot doctor says where it belongs): %w",
				name, inventory.ErrInvalid)
		}
	}
	return nil
}
