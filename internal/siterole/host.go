package siterole

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// Instance is the site while this host runs it.
type Instance interface {
	// Run serves until ctx ends, or until a hand-over has ended.
	Run(ctx context.Context) error
	Close() error
	Store() Store
	// Metadata returns the handler of the metadata server, or nil if no interface is
	// configured.
	Metadata() http.Handler
	// OpenRuns returns the runs of machines that have not ended.
	OpenRuns(ctx context.Context) ([]string, error)
	// BusyActivities returns the running activities.
	BusyActivities() []string
	RotateKeys(ctx context.Context) (int, error)
	// CopyDatabases adds copies of both databases, made in dir, to an archive. It stops
	// Temporal after its copy and closes the inventory. Both are closed when ended has
	// returned; after an error, ended waits for Temporal alone.
	CopyDatabases(ctx context.Context, d *backup.Draft, dir string) (ended func() error, err error)
}

// Store is the part of the inventory that this package needs.
type Store interface {
	SiteEpoch(ctx context.Context) (int64, error)
	Owned(ctx context.Context, epoch int64) error
	Intake(ctx context.Context) (string, error)
	CloseIntake(ctx context.Context, why string) error
	LastHandOver(ctx context.Context) (inventory.HandOver, error)
	KeyCheck(ctx context.Context) error
	Images(ctx context.Context) ([]inventory.Image, error)
	PlannedImages(ctx context.Context) ([]inventory.PlannedImage, error)
}

// Options are what a Host needs.
type Options struct {
	Config  config.Config
	Version string // of this program
	Log     *slog.Logger
	// Start starts the site on this host.
	Start func(ctx context.Context, h *Host) (Instance, error)
	// Operators returns the operator API for a host that is not the site.
	Operators func(h *Host) (http.Handler, error)
}

// Host is one process of "ingot serve" in any role: the site, a standby or a retired
// server. Its role can change while it runs.
type Host struct {
	cfg       config.Config
	version   string
	log       *slog.Logger
	start     func(ctx context.Context, h *Host) (Instance, error)
	operators func(h *Host) (http.Handler, error)
	file      *File
	source    *Source
	target    *Target
	tokens    *peerTokens
	guard     *guard.Guard    // of all listeners
	changed   chan struct{}   // has an element when the role may have changed
	cert      tls.Certificate // shown to peers; see loadCertificate

	mu      sync.Mutex
	current Instance     // set while this host is the site
	leaving Instance     // set while the site is handed over
	forward http.Handler // set while this host is retired; forwards metadata requests
	missing string       // why an activated site cannot be installed
	since   time.Time    // of missing
}

// NewGuard returns a Guard with a rate-limited log, which clients cannot fill.
func NewGuard(log *slog.Logger) *guard.Guard {
	return guard.New(slog.New(quietlog.Handler(log.Handler(), time.Now)))
}

// NewHost returns a Host with the role in the data directory's file.
func NewHost(o Options) (*Host, error) {
	cfg := o.Config
	h := &Host{
		cfg: cfg, version: o.Version, log: o.Log, start: o.Start, operators: o.Operators,
		changed: make(chan struct{}, 1), guard: NewGuard(o.Log),
	}
	var err error
	if h.file, err = Open(cfg.DataDir); err != nil {
		return nil, err
	}
	if h.tokens, err = readTokens(besideKeys(cfg, "peers.json")); err != nil {
		return nil, err
	}

	log := o.Log.With("part", "site")
	h.source = &Source{
		File: h.file, Steps: sender{h}, Dial: h.dial, Log: log, Now: time.Now, Asked: keptsocket.Ready,
	}
	h.target = &Target{
		File: h.file, Steps: receiver{h}, Program: o.Version, Temporal: cfg.Temporal.Address, Notify: cfg.Notify.URL != "",
		Log: slog.New(quietlog.Handler(log.Handler(), time.Now)), Now: time.Now,
		Activated: h.signalChange, Metadata: h.metadata,
	}

	return h, h.applyRetirementMarker()
}

// applyRetirementMarker retires this server if its key file is the marker of a retired
// site. The data directory may be an old copy in which the site is still active.
func (h *Host) applyRetirementMarker() error {
	m, marked, err := ReadMark(h.cfg.KeyFile)
	if err != nil || !marked || h.file.Site().Role == Retired {
		return err
	}
	if err := os.MkdirAll(h.cfg.DataDir, 0o750); err != nil {
		return err
	}
	_, err = h.file.Change(func(s *Site) error {
		s.Role, s.Why = Retired, fmt.Sprintf("%s is the marker of a retired site", h.cfg.KeyFile)
		s.Successor = &m.Retired.To
		return nil
	})
	return err
}

// loadCertificate loads the certificate that this server shows to peers, and creates it
// first if needed.
func (h *Host) loadCertificate() error {
	if h.cert.Certificate != nil {
		return nil
	}
	var err error
	h.cert, err = identity.LoadCertificate(CertificateFile(h.cfg))
	return err
}

// Guard returns the guard of all listeners of this host.
func (h *Host) Guard() *guard.Guard { return h.guard }

func (h *Host) signalChange() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Run serves in the current role, and in each new one, until ctx ends or serving fails.
func (h *Host) Run(ctx context.Context) error {
	if s := h.file.Site(); s.Source != nil {
		stop, err := h.listenToPeers(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}

	for ctx.Err() == nil {
		if err := h.serveRole(ctx, h.file.Site()); err != nil && ctx.Err() == nil {
			return err
		}
	}

	return nil
}

// serveRole serves in the role of s until it changes.
func (h *Host) serveRole(ctx context.Context, s Site) error {
	switch {
	case s.Role == Standby:
		return h.serveQuietly(ctx, "a standby: the site comes here when it is migrated", h.untilNot(s.Role))
	case s.Role == Retired:
		if err := h.source.EnsureRetired(); err != nil {
			return err
		}
		return h.serveRetired(ctx, s)
	case s.Role == HandingOver:
		return h.serveOperators(ctx, "a hand-over was interrupted; asking its target how it ended", h.source.Resume)
	case s.Prepared != nil:
		return h.installPrepared(ctx, *s.Prepared)
	}

	if len(s.Peers) > 0 {
		if err := h.serveOperators(ctx, "", h.source.Guard); err != nil || h.file.Site().Role != Active {
			return err
		}
	}

	return h.serveSite(ctx)
}

// serveSite runs the site until ctx ends, or the role changes.
func (h *Host) serveSite(ctx context.Context) error {
	s, err := h.start(ctx, h)
	if err != nil {
		return err
	}
	defer func() {
		h.mu.Lock()
		h.current, h.leaving = nil, nil
		h.mu.Unlock()
		if err := s.Close(); err != nil {
			h.log.Error("closing the site", "error", err)
		}
	}()

	if epoch := h.file.Site().Epoch; epoch > 0 {
		if err := s.Store().Owned(ctx, epoch); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.current = s
	h.mu.Unlock()
	return s.Run(ctx)
}

// instance returns the running site, or nil if this host is not the site.
func (h *Host) instance() Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// installEvery is the pause before the installation of an incomplete site is retried.
const installEvery = time.Second

// installPrepared installs a site that was activated here. While a part is missing, it
// retries, answers no machine, and reports the part to operators.
func (h *Host) installPrepared(ctx context.Context, p Prepared) error {
	err := h.install(ctx, p)
	if err == nil || ctx.Err() != nil {
		return err
	}

	return h.serveQuietly(ctx, h.reportMissing(err), func(ctx context.Context) error {
		for err != nil && clock.Sleep(ctx, installEvery) == nil {
			err = h.install(ctx, p)
			h.reportMissing(err)
		}
		return ctx.Err()
	})
}

// reportMissing stores and returns why the site is not installed. With a nil err, it
// clears that.
func (h *Host) reportMissing(err error) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.missing = ""; err == nil {
		return ""
	}
	h.missing = "the site that was handed over here cannot be installed: " + err.Error()
	if h.since.IsZero() {
		h.since = time.Now()
	}

	return h.missing
}

// listenToPeers serves the peer API in all roles, until the returned function is
// called.
func (h *Host) listenToPeers(ctx context.Context) (stop func(), err error) {
	if err := h.loadCertificate(); err != nil {
		return nil, err
	}

	l, err := h.bind(ctx, listener.Socket{
		Name: "peer API", Addr: h.cfg.Site.Listen, Key: "site.listen", Handler: h.target.Handler(), TLS: ServerTLS(h.cert),
	})
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("the peer API ended", "error", err)
		}
	}()
	return func() { cancel(); <-done }, nil
}

func (h *Host) bind(ctx context.Context, s listener.Socket) (listener.Listener, error) {
	return listener.Bind(ctx, s, h.guard, h.log)
}

// untilNot returns a function that waits until the role differs from role. It checks
// the role first, because it may have changed since the caller read it.
func (h *Host) untilNot(role string) func(context.Context) error {
	return func(ctx context.Context) error {
		for h.file.Site().Role == role {
			select {
			case <-h.changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
}

// HandOverRequest is the error that ends the run of the site for a hand-over.
type HandOverRequest struct{ row inventory.HandOver }

func (r *HandOverRequest) Error() string { return "the site is handed over to " + r.row.Target }

// HandOver moves the site. Before, the caller must stop everything but Temporal's
// process.
func (h *Host) HandOver(ctx context.Context, s Instance, r *HandOverRequest) error {
	peer, err := h.file.Site().Peer(r.row.Target)
	if err != nil {
		return err
	}

	epoch, err := s.Store().SiteEpoch(ctx)
	if err != nil {
		return err
	}

	h.mu.Lock()
	h.current, h.leaving = nil, s
	h.mu.Unlock()
	return h.serveQuietly(ctx, "", func(ctx context.Context) error {
		err := h.source.HandOver(ctx, r.row.ID, peer, epoch)
		if errors.Is(err, inventory.ErrConflict) && h.file.Site().Role == Active {
			return nil // withdrawn at the last moment
		}
		return err
	})
}
