package site

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

	"github.com/ingotmetal/ingot/internal/archive"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/listener"
	"github.com/ingotmetal/ingot/internal/quiet"
	"github.com/ingotmetal/ingot/inventory"
)

// An Instance is the site while this host runs it.
type Instance interface {
	// Run serves until ctx ends, or until a hand-over has ended.
	Run(ctx context.Context) error
	Close() error
	Store() Store
	// Metadata answers machines; nil when no interface is configured.
	Metadata() http.Handler
	// OpenRuns are the runs of machines that have not ended.
	OpenRuns(ctx context.Context) ([]string, error)
	// BusyActivities are the activities under way.
	BusyActivities() []string
	RotateKeys(ctx context.Context) (int, error)
	// CopyDatabases adds both databases to an archive, with the copies in dir.
	// Temporal ends after its copy; the inventory is closed. Nothing has them open
	// after ended has returned, which it does at once after an error.
	CopyDatabases(ctx context.Context, d *archive.Draft, dir string) (ended func() error, err error)
}

// Store is what this package needs of the inventory.
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
	// Start makes the site run on this host.
	Start func(ctx context.Context, h *Host) (Instance, error)
	// Operators returns what answers operators while this host is not the site.
	Operators func(h *Host) (http.Handler, error)
}

// A Host is one process of "ingot serve" in any role: the site, a standby that
// waits for it, or a retired server. It changes with its role.
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
	cert      tls.Certificate // by which peers know this server; see loadCertificate

	mu      sync.Mutex
	current Instance     // while this host is the site
	leaving Instance     // while the site is handed over
	forward http.Handler // while it is retired: asks the metadata server of the new site
	missing string       // what an activated site lacks
	since   time.Time    // of missing
}

// NewGuard returns a Guard whose log clients cannot fill.
func NewGuard(log *slog.Logger) *guard.Guard {
	return guard.New(slog.New(quiet.Handler(log.Handler(), time.Now)))
}

// NewHost reads what this server is.
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
	h.source = &Source{File: h.file, Steps: sender{h}, Dial: h.dial, Log: log, Now: time.Now}
	h.target = &Target{
		File: h.file, Steps: receiver{h}, Program: o.Version, Temporal: cfg.Temporal.Address, Notify: cfg.Notify.URL != "",
		Log: slog.New(quiet.Handler(log.Handler(), time.Now)), Now: time.Now,
		Activated: h.signalChange, Metadata: h.metadata,
	}

	return h, h.applyRetirementMarker()
}

// applyRetirementMarker retires any copy of the data directory that is beside the
// marker of a retired site, however old the copy is.
func (h *Host) applyRetirementMarker() error {
	m, marked, err := ReadMark(h.cfg.KeyFile)
	if err != nil || !marked || h.file.Site().Role == Retired {
		return err
	}
	if err := os.MkdirAll(h.cfg.DataDir, 0o750); err != nil {
		return err
	}
	_, err = h.file.Change(func(s *Site) error {
		s.Role, s.Why = Retired, fmt.Sprintf("the marker in %s says so", h.cfg.KeyFile)
		s.Successor = &m.Retired.To
		return nil
	})
	return err
}

// loadCertificate makes the key by which peers know this server, when there are
// peers.
func (h *Host) loadCertificate() error {
	if h.cert.Certificate != nil {
		return nil
	}
	var err error
	h.cert, err = identity.LoadCertificate(CertificateFile(h.cfg))
	return err
}

// Guard is that of all listeners of this host.
func (h *Host) Guard() *guard.Guard { return h.guard }

func (h *Host) signalChange() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Run serves in one role after the other until ctx ends or one fails.
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

// serveRole serves in the role of s until that changes.
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
		return h.serveQuietly(ctx, "a hand-over was interrupted; its target is asked how it ended", h.source.Resume)
	case s.Prepared != nil:
		return h.installPrepared(ctx, *s.Prepared)
	}

	if len(s.Peers) > 0 {
		if err := h.serveQuietly(ctx, "", h.source.Guard); err != nil || h.file.Site().Role != Active {
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

// instance is the running site; nil when this host is not the site.
func (h *Host) instance() Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// installEvery is how often an incomplete site is tried again.
const installEvery = time.Second

// installPrepared puts a site in its place that was activated here. While a part
// is missing, no machine is answered, and operators are told which.
func (h *Host) installPrepared(ctx context.Context, p Prepared) error {
	err := h.install(ctx, p)
	if err == nil || ctx.Err() != nil {
		return err
	}

	return h.serveQuietly(ctx, h.reportMissing(err), func(ctx context.Context) error {
		for err != nil && pause(ctx, installEvery) {
			err = h.install(ctx, p)
			h.reportMissing(err)
		}
		return ctx.Err()
	})
}

// reportMissing remembers for operators why the site is not installed; nil: it is.
func (h *Host) reportMissing(err error) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.missing = ""; err == nil {
		return ""
	}
	h.missing = "the site that was handed over here cannot be put in its place: " + err.Error()
	if h.since.IsZero() {
		h.since = time.Now()
	}

	return h.missing
}

// pause waits; false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// listenToPeers serves the peer API in all roles, until the returned function is
// called.
func (h *Host) listenToPeers(ctx context.Context) (stop func(), err error) {
	if err := h.loadCertificate(); err != nil {
		return nil, err
	}

	l, err := h.bind(listener.Socket{
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

func (h *Host) bind(s listener.Socket) (listener.Listener, error) {
	return listener.Bind(s, h.guard, h.log)
}

// untilNot waits until the role is another one. The caller has read role before it
// began to listen, so the change may have come by now.
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

// HandOverRequest ends the run of the site, so that it is handed over.
type HandOverRequest struct{ row inventory.HandOver }

func (r *HandOverRequest) Error() string { return "the site is handed over to " + r.row.Target }

// HandOver moves the site. The caller has stopped everything but Temporal's child.
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
			return nil // withdrawn in the last moment
		}
		return err
	})
}
