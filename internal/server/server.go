// Package server puts "ingot serve" together: it alone knows all adapters.
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
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/host/memlimit"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/internal/observe/metrics"
	"github.com/ingotmetal/ingot/internal/observe/tracing"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/siterole"
)

// Options are what Serve needs.
type Options struct {
	Config     config.Config
	ConfigFile string // goes into backups
	Version    string // of this program
	Log        *slog.Logger
	Out        io.Writer // says where the server answers; nil: Log does
}

// Serve runs this host until ctx ends.
func Serve(ctx context.Context, o Options) error {
	var err error
	if o.Config.Netboot, err = o.Config.Netboot.Resolve(); err != nil {
		return err
	}
	go memlimit.CollectRarely(ctx, garbageRoom)
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

// quietAPI returns the operators' API for a host that is not the active site.
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

// garbageRoom is how much garbage this process may hold, in bytes, before it is collected as often as by default.
const garbageRoom = 192 << 20

// server is the site while it runs in this process.
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
	stopChild   func() error // ends the Temporal child
	backups     *backups
	netboot     netboot
	controllers *controllers
	do          *activities.Activities
	engine      *engine.Engine
	agents      http.Handler // of the agents' requests
	api         *api.API
	notices     notices
	metrics     *metrics.Metrics
	tracing     *tracing.Tracing // nil: runs have no traces
	requests    requests

	operatorTLS atomic.Pointer[tls.Config] // nil: operators are served without TLS, or nothing is bound yet
}

// newServer opens the inventory and builds the parts. Nothing runs yet.
func newServer(ctx context.Context, o Options, h *siterole.Host) (_ *server, err error) {
	s := &server{
		Options: o, host: h, cfg: o.Config, log: o.Log, clock: clock.New(),
		files:   imagefile.New(o.Config.ImageDir(), o.Config.Images.Shares),
		records: &records{cfg: o.Config, log: o.Log}, metrics: metrics.New(o.Log.With("part", "metrics")),
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
		child: s.temporal.child,
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

// prepare makes what a first start needs, in an empty data directory only, and loads
// the rest.
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

// Close closes what newServer has opened.
func (s *server) Close() error {
	return errors.Join(s.controllers.driver.Close(), s.records.store.Close())
}

// MakeKeys makes the site's keys and the admin token where they are missing. It never
// replaces one: what a lost key had sealed must be entered again.
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

// agentFile is a file of the agent's system; "" when its directory is not configured,
// which does not mean the working directory.
func agentFile(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}
