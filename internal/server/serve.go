package server

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/bootsvc"
	"github.com/ingotmetal/ingot/internal/archive"
	"github.com/ingotmetal/ingot/internal/clock"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/endpoint"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/httpserve"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/internal/notify"
	"github.com/ingotmetal/ingot/internal/quiet"
	"github.com/ingotmetal/ingot/internal/reserve"
	"github.com/ingotmetal/ingot/internal/systems/harvester"
	"github.com/ingotmetal/ingot/internal/systems/kubernetes"
	"github.com/ingotmetal/ingot/internal/systems/talos"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/metadatasvc"
)

// softMemoryLimit is where the server's collector begins to work for its
// memory. A fleet under installation needs a third of it.
const softMemoryLimit = 256 << 20

// collectRarely gives the time of the garbage collector to the work as long
// as there is room. GOGC and GOMEMLIMIT of the environment have the last word.
func collectRarely() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(softMemoryLimit)
		debug.SetGCPercent(500)
	}
}

// server is everything that runs in one process of "ingot serve".
type server struct {
	cfg      config.Config
	log      *slog.Logger
	store    *sqlite.Store
	reserve  *reserve.Reserve
	keys     *keyring.Ring // nil: missing
	temporal *temporal
	clock    *clock.Clock
	boot     *bootsvc.Server // nil: no interface is configured
	metadata *metadatasvc.Server
	engine   *engine.Engine
	api      *api.API
	agents   http.Handler // of the agents' requests
	do       *activities.Activities
	bmc      *bmc.Driver
	notify   *notify.Sender // nil: nobody is told
	address  netip.Addr     // of this server on the provisioning network
	agentTLS tls.Certificate
	guard    *guard.Guard // of all listeners
	token    string
	rotating sync.Mutex // held while keys are replaced

	configFile string
	version    string // of this program
	restored   inventory.Restore
	backingUp  sync.Mutex // held while a backup is made
	checked    inventoryCheck

	host     *host        // nil in tests of the site alone
	lastDeed func() error // ends the Temporal child
}

// newGuard returns a Guard whose log strangers cannot fill.
func newGuard(log *slog.Logger) *guard.Guard {
	return guard.New(slog.New(quiet.Handler(log.Handler(), time.Now)))
}

func newServer(ctx context.Context, cfg config.Config, version string, log *slog.Logger) (_ *server, err error) {
	s := &server{cfg: cfg, version: version, log: log, clock: clock.New(), guard: newGuard(log)}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if err := s.openInventory(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.store.Close())
		}
	}()
	if err := adoptImages(ctx, s.store, cfg.ImageDir()); err != nil {
		return nil, err
	}
	if err := s.store.KeyCheck(ctx); err != nil {
		log.Error("secrets cannot be opened: DHCP goes on, arming is refused; ingot secret status tells more", "key_file", cfg.KeyFile, "error", err)
	} else {
		s.resumeRotation(ctx)
	}
	if s.restored, err = s.store.LastRestore(ctx); err != nil {
		return nil, err
	}
	if s.notify, err = s.notifier(); err != nil {
		return nil, err
	}
	s.closeNotices(ctx)
	if s.temporal, err = newTemporal(cfg, log, s.store.TemporalCluster); err != nil {
		return nil, err
	}
	s.temporal.hold = activities.NewHold(s.restored)
	s.temporal.neverRan = s.store.NeverRan
	if err := s.netboot(); err != nil {
		return nil, err
	}
	return s, s.control()
}

// openInventory opens the database, after it was checked. One that is damaged, or
// has taken the place of a lost one, is refused.
func (s *server) openInventory(ctx context.Context) error {
	err := s.checkFile(ctx)
	if err == nil {
		s.openReserve()
		s.store, err = sqlite.Open(ctx, InventoryFile(s.cfg), s.keys.Sealer(), append(noticeOptions(s.cfg.Notify), sqlite.WithFull(s.reserve.Release))...)
	}
	if errors.Is(err, sqlite.ErrDamaged) {
		return restoreInstead(s.cfg, err)
	}
	if err != nil {
		return fmt.Errorf("opening the inventory: %w", err)
	}
	if err := s.refuseLost(ctx); err != nil {
		return restoreInstead(s.cfg, errors.Join(err, s.store.Close()))
	}
	return nil
}

// prepare makes what a first start needs, in an empty data directory only,
// and loads the rest.
func (s *server) prepare() error {
	if err := archive.RefuseUnfinishedRestore(s.cfg.DataDir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.cfg.ImageDir(), 0o750); err != nil {
		return err
	}
	_, err := os.Stat(filepath.Join(s.cfg.DataDir, "ingot.db"))
	if errors.Is(err, fs.ErrNotExist) {
		if err := MakeKeys(s.cfg); err != nil {
			return err
		}
	}
	s.keys, err = keyring.Load(s.cfg.KeyFile)
	if err != nil && !errors.Is(err, inventory.ErrSealed) {
		return err
	}
	b, err := os.ReadFile(s.cfg.TokenFile)
	if err != nil {
		return fmt.Errorf("reading the admin token: %w (ingot init makes one)", err)
	}
	if s.token = strings.TrimSpace(string(b)); len(s.token) < 32 {
		return fmt.Errorf("admin token in %q is shorter than 32 characters (remove the file; ingot init makes a new one)", s.cfg.TokenFile)
	}
	s.agentTLS, err = identity.LoadCertificate(filepath.Join(filepath.Dir(s.cfg.KeyFile), identity.AgentFile))
	return err
}

// MakeKeys makes the site's keys and the admin token where there are none. It
// never replaces one: what a lost key had sealed must be entered again.
func MakeKeys(cfg config.Config) error {
	if err := keyring.Outside(cfg.KeyFile, cfg.DataDir); err != nil {
		return err
	}
	if _, err := keyring.Create(cfg.KeyFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return makeAdminToken(cfg)
}

// makeAdminToken makes one where there is none.
func makeAdminToken(cfg config.Config) error {
	err := identity.WritePrivate(cfg.TokenFile, identity.NewToken())
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func (s *server) claimKey() []byte {
	if k := s.keys.Key(keyring.Claim); k != nil {
		return k
	}
	// Without the key file nothing can be armed; what is derived from this
	// key is never handed out.
	k := make([]byte, 32)
	if _, err := rand.Read(k); err != nil {
		panic(err) // never returns an error, says its documentation
	}
	return k
}

// netboot makes the servers of the provisioning network.
func (s *server) netboot() error {
	n := s.cfg.Netboot
	key := s.claimKey()
	if !n.On() {
		return nil
	}
	var err error
	if s.address, err = hostnet.ProvisioningAddress(n); err != nil {
		return err
	}
	m := metadatasvc.Config{Address: s.address, Key: key, Installers: s.store, Guard: s.guard, Log: s.log.With("part", "metadata"), Now: time.Now}
	m.ImageURL = func() string { return s.boot.Base() + "/images" } // of what is made below
	for _, p := range n.Metadata {
		m.Addrs = append(m.Addrs, config.Join(n.Bind(s.address), p))
	}
	if m.Proxies, err = config.Prefixes(n.Proxies); err != nil {
		return err
	}
	if s.metadata, err = metadatasvc.New(m, s.store, s.store); err != nil {
		return err
	}
	agentPin, err := identity.Pin(s.agentTLS)
	if err != nil {
		return err
	}
	cfg := bootsvc.Config{
		Interfaces: n.Interfaces, RelayOnly: n.RelayOnly, Address: s.address, TFTPAddr: config.Join(n.Bind(s.address), n.TFTP),
		AgentURL: "https://" + config.Join(s.address.String(), n.Agent), AgentPin: agentPin,
		LoaderDir: n.Loaders, KernelPath: agentFile(n.AgentOS, "vmlinuz"), InitramfsPath: agentFile(n.AgentOS, "initramfs"),
		LinkLocal: n.LinkLocal, ClaimKey: key, Images: images{s.store, s.cfg.ImageDir()}, Fallback: s.metadata.Handler(),
		Installers: s.store, MetadataURL: s.metadataURL(),
		Guard: s.guard, Log: s.log.With("part", "boot"), Now: time.Now,
	}
	if signer := s.keys.PlanSigner(); signer != nil {
		cfg.PlanKey = action.FormatPlanKey(signer.Public().(ed25519.PublicKey))
	}
	for _, p := range n.HTTP {
		cfg.HTTPAddr = append(cfg.HTTPAddr, config.Join(n.Bind(s.address), p))
	}
	if cfg.Relays, err = config.Prefixes(n.Relays); err != nil {
		return err
	}
	if n.Listen != "" {
		if cfg.Listen, err = netip.ParseAddr(n.Listen); err != nil {
			return err
		}
	}
	s.boot, err = bootsvc.New(cfg, s.store, s.store)
	return err
}

// metadataURL is the base of what machines are told of the metadata server.
func (s *server) metadataURL() string {
	return "http://" + config.Join(s.address.String(), s.cfg.Netboot.Metadata[0])
}

// control makes activities and API.
func (s *server) control() error {
	key := s.claimKey()
	networks, err := config.Prefixes(s.cfg.BMC.Networks)
	if err != nil {
		return err
	}
	commands := map[string]bmc.Command{}
	for name, c := range s.cfg.Power.Commands {
		commands[name] = bmc.Command{On: c.On, Off: c.Off, Status: c.Status, Timeout: c.Timeout}
	}
	s.bmc = bmc.New(bmc.Config{
		Log: s.log.With("part", "bmc"), Networks: networks, Home: filepath.Join(s.cfg.DataDir, "ipmitool"), LockFile: filepath.Join(s.cfg.DataDir, "bmc.lock"), Commands: commands, WakeFrom: s.address,
	})
	site := activities.Site{ClaimKey: key, PlanKey: s.keys.PlanSigner(), RequireDigest: s.cfg.Images.RequireDigest}
	if s.address.IsValid() {
		site.Bootable = s.bootable
		site.ImageURL = func() string { return s.boot.Base() + "/images" }
		site.MetadataURL = s.metadataURL()
	}
	check := func(ctx context.Context, m inventory.Machine) (string, error) {
		if m.BMC.Manual() {
			return "", fmt.Errorf("machine %q has no BMC: %w", m.Name, inventory.ErrUnsupported)
		}
		password, err := s.store.BMCPassword(ctx, m.Name)
		if err != nil {
			return "", err
		}
		if m.BMC.Capabilities().SelfTest { // it may let in and do nothing
			r, err := s.bmc.Check(ctx, m.Controller(), password)
			return r.Power, err
		}
		return s.bmc.State(ctx, m.Controller(), password)
	}
	s.do = &activities.Activities{
		Machines: s.store, Catalogue: s.store, Grants: s.store, Agents: s.store, Assignments: s.store, Records: s.store, Operations: s.store, Moving: s.store, Mover: s, Peers: s, VerifySite: func(ctx context.Context) ([]string, error) { return s.verifySite(ctx, check) },
		BMC: s.bmc, Site: site, Log: s.log.With("part", "activities"), Now: time.Now, Clock: s.clock,
		Heard:       func(o inventory.Owner, boot int) (time.Duration, bool) { return s.engine.Agents.Heard(o, boot) },
		Troubles:    activities.NewTroubles(time.Now),
		ProbeImage:  func(ctx context.Context, address string) error { return s.api.ProbeImage(ctx, address) },
		ImageStored: images{dir: s.cfg.ImageDir()}.stored,
		Labs:        s.store, Presence: endpoint.Presence{}, Relays: s.store, ProbeEvery: s.cfg.ProbeEvery,
		Routers: vyos.Client{}, Talos: talos.Client{}, Kubernetes: kubernetes.Client{}, Clusters: harvester.Client{},
	}
	base := "http://" + s.cfg.Listen
	if !config.Loopback(s.cfg.Listen) {
		base = "https://" + s.cfg.Listen
	}
	return s.newAPI(key, base, site.URLOf, check)
}

// agentFile returns where a file of the agent's system lies; "" when its
// directory is not configured, which is not the working directory.
func agentFile(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

func (s *server) status(ctx context.Context) api.StatusExtra {
	x := api.StatusExtra{Netboot: api.NetbootStatus{Interfaces: s.cfg.Netboot.Interfaces}, Notify: s.noticeStatus(ctx), Inventory: s.checked.status()}
	if s.cfg.Netboot.RelayOnly {
		x.Netboot.Relays, x.Netboot.Address = s.cfg.Netboot.Relays, s.cfg.Netboot.Address
	}
	x.TemporalAddress, x.TemporalUI, x.TemporalError = s.temporal.where()
	if s.boot == nil {
		x.Netboot.Off, x.Netboot.Message = true, "DHCP off: run ingot init"
		return x
	}
	if err := s.bootable(); err != nil {
		x.Netboot.Message = "but " + err.Error()
	}
	return x
}

// bootable says which of the agent's files is missing, if one is.
func (s *server) bootable() error {
	for _, name := range []string{"vmlinuz", "initramfs"} {
		if _, err := os.Stat(agentFile(s.cfg.Netboot.AgentOS, name)); err != nil {
			return fmt.Errorf("no machine can boot the agent, because there is no %s (ingot doctor says where it belongs): %w", name, inventory.ErrInvalid)
		}
	}
	return nil
}

// run serves until ctx ends. Workers stop first, then the API, then the
// Temporal child; DHCP and metadata depend on none of them.
func (s *server) run(ctx context.Context, out io.Writer) error {
	listeners, err := s.listen()
	if err != nil {
		return err
	}
	s.clock.Listening()
	// Its ports are this server's alone: nobody else is making a backup here.
	if err := os.RemoveAll(filepath.Join(s.cfg.DataDir, backupDir)); err != nil {
		s.log.Warn("removing the rest of a backup that broke off", "error", err)
	}
	outer := ctx
	stopChild := s.temporal.supervise(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range listeners {
		g.Go(func() error { return l.serve(ctx) })
	}
	g.Go(func() error { return s.engine.Run(ctx) })
	g.Go(func() error { return s.engine.Pump.Run(ctx) })
	g.Go(func() error { return s.engine.Reconciler.Run(ctx) })
	g.Go(func() error {
		return s.clock.Run(ctx, func(ctx context.Context, set clock.Step) { s.engine.Reconciler.ClockSet(ctx, set.From, set.To) })
	})
	working, stopWorking := context.WithCancel(ctx)
	defer stopWorking()
	stopped := make(chan struct{})
	g.Go(func() error {
		defer close(stopped)
		return s.temporal.Run(working, s.do)
	})
	g.Go(func() error { return s.checkLarge(ctx) })
	g.Go(func() error { return s.reserve.Run(ctx) })
	g.Go(func() error { return s.keepRecords(ctx) })
	g.Go(func() error { return s.sendNotices(ctx) })
	if s.boot != nil {
		g.Go(func() error { return s.boot.Run(ctx) })
		g.Go(func() error { return s.metadata.Run(ctx) })
	}
	if s.host != nil {
		g.Go(func() error {
			return s.awaitHandOver(ctx, func() {
				stopWorking()
				<-stopped
			})
		})
		g.Go(func() error { return s.reKey(ctx) })
	}
	s.greet(out)
	err = g.Wait()
	var move *moveNow
	if errors.As(err, &move) && outer.Err() == nil {
		err = s.host.handOver(outer, s, move.row, stopChild)
	}
	if e := stopChild(); err == nil {
		err = e
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

func (s *server) greet(out io.Writer) {
	scheme := "http"
	if !config.Loopback(s.cfg.Listen) {
		scheme = "https"
	}
	lines := []string{fmt.Sprintf("ingot %s: %s://%s (ingot login-link opens the page)", s.version, scheme, s.cfg.Listen)}
	if s.boot == nil {
		lines = append(lines, "DHCP off: run ingot init")
	} else {
		lines = append(lines, "netboot "+netbootWhere(s.cfg.Netboot, s.address))
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(out, l); err != nil {
			s.log.Warn("greeting", "error", err)
		}
	}
}

// netbootWhere says on what machines are answered.
func netbootWhere(n config.Netboot, address netip.Addr) string {
	if n.RelayOnly {
		return fmt.Sprintf("through the relays %s alone, as %s", strings.Join(n.Relays, ", "), address)
	}
	return fmt.Sprintf("on %s as %s", strings.Join(n.Interfaces, ", "), address)
}

// listener is an HTTP server on its socket.
type listener struct {
	name string
	net  net.Listener
	http *http.Server
}

// maxConns is what one listener holds. Operators and agents that have proven
// themselves keep their connections.
const maxConns = 4096

func (l listener) serve(ctx context.Context) error {
	httpserve.Limit(l.http, maxConns, nil)
	return httpserve.Run(ctx, l.name, l.http, l.net, 5*time.Second)
}

// listen binds every HTTP socket but those of bootsvc, so that an occupied
// port is told before anything else begins.
func (s *server) listen() (out []listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range out {
				err = errors.Join(err, l.net.Close())
			}
		}
	}()
	add := func(name, addr, key string, h http.Handler, cert *tls.Certificate) error {
		var pair *tls.Config
		if cert != nil {
			pair = serverTLS(*cert)
		}
		l, err := bindHTTP(name, addr, key, h, pair, s.log, s.guard)
		if err == nil {
			out = append(out, l)
		}
		return err
	}
	cert, err := operatorCert(s.cfg, s.log)
	if err != nil {
		return out, err
	}
	if err := add("operator API", s.cfg.Listen, "listen", s.api.Handler(), cert); err != nil {
		return out, err
	}
	if s.boot == nil {
		return out, nil
	}
	if err := add("agent API", config.Join(s.cfg.Netboot.Bind(s.address), s.cfg.Netboot.Agent), "netboot.agent", s.agents, &s.agentTLS); err != nil {
		return out, err
	}
	return out, nil
}

func serverTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
}

// bindHTTP binds a socket and makes its server; without a TLS configuration it
// is plain.
func bindHTTP(name, addr, key string, h http.Handler, pair *tls.Config, log *slog.Logger, g *guard.Guard) (listener, error) {
	n, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return listener{}, fmt.Errorf("%s: %s is in use by another program (ss -ltnp shows which; the address is %s in the configuration)", name, addr, key)
	}
	if err != nil {
		return listener{}, fmt.Errorf("%s: %w", name, err)
	}
	if n = httpserve.Track(n); pair != nil {
		n = tls.NewListener(n, pair)
	}
	return listener{name, n, &http.Server{
		Handler: g.Handler(h), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}, nil
}

// operatorCert is the certificate of the operator API; nil on loopback.
func operatorCert(cfg config.Config, log *slog.Logger) (*tls.Certificate, error) {
	if cfg.TLSCert != "" {
		c, err := tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("tls_cert: %w", err)
		}
		return &c, nil
	}
	if config.Loopback(cfg.Listen) {
		return nil, nil
	}
	c, err := identity.LoadCertificate(filepath.Join(filepath.Dir(cfg.KeyFile), identity.OperatorFile))
	if err != nil {
		return nil, err
	}
	fingerprint, err := identity.Pin(c)
	if err != nil {
		return nil, err
	}
	log.Info("operators are served with a self-signed certificate", "fingerprint", fingerprint)
	return &c, nil
}

// operatorHosts are the names under which operators reach this server.
func operatorHosts(cfg config.Config) []string {
	hosts := append([]string{"localhost", "127.0.0.1", "::1"}, cfg.Hosts...)
	if host, _, err := net.SplitHostPort(cfg.Listen); err == nil {
		hosts = append(hosts, host)
	}
	return hosts
}
