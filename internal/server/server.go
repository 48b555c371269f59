// Package server assembles "ingot serve": no other package imports all adapters.
package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/memlimit"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/internal/observe/metrics"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/siterole"
)

// Options are the parameters of Serve.
type Options struct {
	Config     config.Config
	ConfigFile string // path; its content is added to backups; "" = none
	Version    string // version of this program
	Log        *slog.Logger
	Out        io.Writer // receives the addresses of the server as text; nil = they are logged

	watchdog *keptsocket.Watchdog // set by Serve
}

// Serve runs this host, in whatever role it has, until ctx ends or serving fails.
func Serve(ctx context.Context, o Options) error {
	var err error
	if o.Config.Netboot, err = o.Config.Netboot.Resolve(); err != nil {
		return err
	}
	go memlimit.CollectRarely(ctx, garbageRoom)
	o.watchdog = keptsocket.NewWatchdog(o.Log)
	go o.watchdog.Run(ctx)
	h, err := newHost(o)
	if err != nil {
		return err
	}

	return h.Run(ctx)
}

func newHost(o Options) (*siterole.Host, error) {
	return siterole.NewHost(siterole.Options{
		Config: o.Config, Version: o.Version, Log: o.Log,
		Start:     func(ctx context.Context, h *siterole.Host) (siterole.Instance, error) { return newServer(ctx, o, h) },
		Operators: func(h *siterole.Host) (http.Handler, error) { return quietAPI(o, h) },
	})
}

// quietAPI returns the operators' API for a host that is not the active server.
func quietAPI(o Options, h *siterole.Host) (http.Handler, error) {
	token, err := readAdminToken(o.Config)
	if err != nil {
		return nil, err
	}

	q := api.Quiet{
		Site: sites{h, h.Peers}, TokenSHA256: sha256.Sum256([]byte(token)), AllowedHosts: listener.OperatorHosts(o.Config),
		Version: o.Version, Guard: h.Guard(), Log: slog.New(quietlog.Handler(o.Log.With("part", "api").Handler(), time.Now)),
	}
	return q.Handler(), nil
}

// garbageRoom is how much garbage, in bytes, this process may accumulate before garbage is collected as often as Go does by default.
const garbageRoom = 192 << 20

// server is the siterole.Instance of this process: the active server with its inventory, Temporal and services.
type server struct {
	Options
	host    *siterole.Host
	cfg     config.Config
	log     *slog.Logger
	clock   *clock.Clock
	secrets *secrets
	files   *imagefile.Files
	records *records

	temporal    *temporal
	stopChild   func() error // stops the Temporal child, and waits for its end
	backups     *backups
	netboot     netboot
	controllers *controllers
	do          *activities.Activities
	engine      *engine.Engine
	agents      http.Handler // handler of the agents' requests
	api         *api.API
	notices     notices
	metrics     *metrics.Metrics
	tracing     *tracing.Tracing // nil = no traces are sent
	requests    requests

	operatorTLS atomic.Pointer[tls.Config] // nil = the operator API has no TLS, or is not bound yet
}

// newServer opens the inventory and creates the parts of the server. It starts none of them.
func newServer(ctx context.Context, o Options, h *siterole.Host) (_ *server, err error) {
	s := &server{
		Options: o, host: h, cfg: o.Config, log: o.Log, clock: clock.New(),
		files:   imagefile.New(o.Config.ImageDir(), o.Config.Images.Shares),
		records: &records{cfg: o.Config, log: o.Log, watchdog: o.watchdog}, metrics: metrics.New(o.Log.With("part", "metrics")),
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	if err := s.records.open(ctx, s.secrets.ring.Sealer()); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.records.store.Close())
		}
	}()

	if err := s.records.finish(ctx, s.secrets); err != nil {
		return nil, err
	}
	if s.notices, err = s.newNotices(); err != nil {
		return nil, err
	}
	s.notices.dropUnsent(ctx)
	if s.tracing, err = s.newTracing(ctx); err != nil {
		return nil, err
	}
	if s.temporal, err = s.newTemporal(); err != nil {
		return nil, err
	}
	s.backups = &backups{
		cfg: s.cfg, configFile: o.ConfigFile, version: o.Version, log: s.log, store: s.records.store, secrets: s.secrets,
		child: s.temporal.child, childWait: time.Minute, watchdog: o.watchdog, found: apitypes.BackupStatus{Dir: s.cfg.Backup.Dir},
	}
	if s.netboot, err = s.newNetboot(); err != nil {
		return nil, err
	}
	if s.controllers, err = s.newControllers(); err != nil {
		return nil, err
	}
	s.do = s.newActivities()
	s.engine = s.newEngine()
	s.agents = s.newAgentAPI()
	if s.api, err = s.newAPI(); err != nil {
		return nil, err
	}
	return s, s.readMetrics(ctx)
}

// prepare creates the directories, and the keys if there is no inventory yet, and loads the keys.
func (s *server) prepare() (err error) {
	if err := backup.RefuseUnfinishedRestore(s.cfg.DataDir); err != nil {
		return err
	}
	if err := os.MkdirAll(s.cfg.ImageDir(), 0o750); err != nil {
		return err
	}
	if _, err := os.Stat(InventoryFile(s.cfg)); errors.Is(err, fs.ErrNotExist) {
		if err := MakeKeys(s.cfg); err != nil {
			return err
		}
	}
	s.secrets, err = loadSecrets(s.cfg)
	return err
}

// Close closes the BMC driver and the inventory.
func (s *server) Close() error {
	return errors.Join(s.controllers.driver.Close(), s.records.store.Close())
}

// MakeKeys creates the site's keys and the admin token if they are missing. It never replaces existing ones: secrets that are sealed with
// a lost key cannot be opened any more.
func MakeKeys(cfg config.Config) error {
	if err := keyring.Outside(cfg.KeyFile, cfg.DataDir); err != nil {
		return err
	}
	if _, err := keyring.Create(cfg.KeyFile); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}

	err := identity.CreateFile(cfg.TokenFile, identity.NewToken())
	if errors.Is(err, fs.ErrExist) {
		return nil
	}

	return err
}

// agentFile returns the path of a file of the agent's system. If dir is "", it returns "", and not a path in the working directory.
func agentFile(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}
