package siterole

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/listener"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
)

// Options are the parameters of NewHost.
type Options struct {
	Config  config.Config
	Version string // version of this program
	Log     *slog.Logger
	// Start starts the inventory, Temporal and the services of the active server.
	Start func(ctx context.Context, h *Host) (Instance, error)
	// Operators returns the operator API of a host that is not the active server.
	Operators func(h *Host) (http.Handler, error)
}

// Host is one process of "ingot serve" in any role. Its role can change while it runs.
type Host struct {
	cfg       config.Config
	log       *slog.Logger
	start     func(ctx context.Context, h *Host) (Instance, error)
	operators func(h *Host) (http.Handler, error)
	file      *File
	source    *Source
	target    *Target
	received  receiver
	guard     *guard.Guard  // for all listeners: recovers from panics that network input causes
	changed   chan struct{} // holds a value if the role may have changed

	Peers *Peers
	Mover *Mover

	mu      sync.Mutex
	current Instance     // set while this host is the active server
	leaving Instance     // set while the site of this host is handed over
	forward http.Handler // set while this host is retired; forwards metadata requests
	missing string       // why a part of the site that was activated here cannot be installed; "" = nothing is missing
	since   time.Time    // when missing was first set
}

// NewGuard returns a Guard whose log is rate-limited, so that clients cannot fill it.
func NewGuard(log *slog.Logger) *guard.Guard {
	return guard.New(slog.New(quietlog.Handler(log.Handler(), time.Now)))
}

// NewHost returns a Host in the role that the role file in the data directory holds.
func NewHost(o Options) (*Host, error) {
	cfg := o.Config
	h := &Host{
		cfg: cfg, log: o.Log, start: o.Start, operators: o.Operators,
		changed: make(chan struct{}, 1), guard: NewGuard(o.Log),
	}
	var err error
	if h.file, err = Open(cfg.DataDir); err != nil {
		return nil, err
	}
	tokens, err := readTokens(besideKeys(cfg, "peers.json"))
	if err != nil {
		return nil, err
	}

	log := o.Log.With("part", "site")
	h.Peers = &Peers{cfg: cfg, file: h.file, tokens: tokens}
	h.Mover = &Mover{cfg: cfg, version: o.Version, log: o.Log, file: h.file, peers: h.Peers, site: h.instance}
	h.source = &Source{
		File: h.file, Steps: sender{cfg, o.Version, h.file, tokens, h.leavingSite}, Dial: h.Peers.dial, Log: log, Now: time.Now,
		Asked: keptsocket.Ready,
	}
	h.received = receiver{cfg, o.Version, o.Log, h.file}
	h.target = &Target{
		File: h.file, Steps: h.received, Program: o.Version, Temporal: cfg.Temporal.Address, Notify: cfg.Notify.URL != "",
		Log: slog.New(quietlog.Handler(log.Handler(), time.Now)), Now: time.Now,
		Activated: h.signalChange, Metadata: h.metadata,
	}

	return h, h.applyRetirementMarker()
}

// applyRetirementMarker retires this server if its key file is the marker of a retired site. The role file alone does not
// suffice: the data directory may be an old copy in which this server is still active.
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

// Guard returns the guard of all listeners of this host.
func (h *Host) Guard() *guard.Guard { return h.guard }

func (h *Host) signalChange() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Run serves in the current role and, after each change of the role, in the new role, until ctx ends or serving fails.
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

// serveRole serves in the role of s until the role changes.
func (h *Host) serveRole(ctx context.Context, s Site) error {
	switch {
	case s.Role == Standby:
		return h.serveQuietly(ctx, "a standby runs no site until a site is migrated to it", h.untilNot(s.Role))
	case s.Role == Retired:
		if err := h.source.EnsureRetired(); err != nil {
			return err
		}
		return h.serveRetired(ctx, s)
	case s.Role == HandingOver:
		return h.serveOperators(ctx, "a hand-over was interrupted; asking the target how it ended", h.source.Resume)
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

// serveSite runs this host as the active server, until ctx ends or the role changes.
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

// instance returns the running site, or nil if this host is not the active server.
func (h *Host) instance() Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// leavingSite returns the site that is being handed over, or nil.
func (h *Host) leavingSite() Instance {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaving
}

// installEvery is the pause before the installation of an incomplete site is retried.
const installEvery = time.Second

// installPrepared installs the site that was activated here. If a part of the site is missing or different, this host answers no machine
// and reports the part to operators, and installPrepared tries again.
func (h *Host) installPrepared(ctx context.Context, p Prepared) error {
	err := h.received.install(ctx, p)
	if err == nil || ctx.Err() != nil {
		return err
	}

	return h.serveQuietly(ctx, h.reportMissing(err), func(ctx context.Context) error {
		for err != nil && clock.Sleep(ctx, installEvery) == nil {
			err = h.received.install(ctx, p)
			h.reportMissing(err)
		}
		return ctx.Err()
	})
}

// reportMissing stores the text of err as the reason why the site is not installed, and returns it. With nil it stores "".
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

// listenToPeers serves the peer API in every role, until stop is called.
func (h *Host) listenToPeers(ctx context.Context) (stop func(), err error) {
	if err := h.Peers.loadCertificate(); err != nil {
		return nil, err
	}

	l, err := h.bind(ctx, listener.Socket{
		Name: "peer API", Addr: h.cfg.Site.Listen, Key: "site.listen", Handler: h.target.Handler(), TLS: ServerTLS(h.Peers.cert),
	})
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := l.Run(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("the peer API ended", "error", err)
		}
	})
	return func() { cancel(); serving.Wait() }, nil
}

func (h *Host) bind(ctx context.Context, s listener.Socket) (listener.Listener, error) {
	return listener.Bind(ctx, s, h.guard, h.log)
}

// untilNot returns a function that waits until the role of this host is no longer role. It first checks this, because the role may have
// changed since the caller read it.
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

// HandOver moves the site to the target of r. The caller must first stop everything except Temporal's process.
// It returns nil if the hand-over was withdrawn before it began; see [Source.HandOver].
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
			return nil // the hand-over was withdrawn before it began
		}
		return err
	})
}

// ReplaceKeys replaces the keys that came with the site, because the former active server has known them. If the keys were already
// replaced, it does nothing.
func (h *Host) ReplaceKeys(ctx context.Context, s Instance) error {
	if !h.file.Site().ReKey {
		return nil
	}

	n, err := s.RotateKeys(ctx)
	if err != nil {
		h.log.Error("cannot replace the keys that came with the site: run ingot secret rotate", "error", err)
		return nil
	}
	_, err = h.file.Change(func(x *Site) error { x.ReKey = false; return nil })
	if err == nil {
		h.log.Info("replaced the keys that came with the site", "secrets", n)
	}

	return err
}
