package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/guard"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/quiet"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/inventory"
)

// host is one process of "ingot serve", whatever role it has: the site, one
// that waits for it, or one that it has left. It goes from one life to the next
// as its role changes.
type host struct {
	cfg        config.Config
	configFile string
	version    string
	log        *slog.Logger
	out        io.Writer
	file       *site.File
	cert       tls.Certificate // by which peers know this server
	source     *site.Source
	target     *site.Target
	tokens     *peerTokens
	token      [sha256.Size]byte // of operators
	guard      *guard.Guard      // of all listeners
	changed    chan struct{}     // has an element when the role may have changed under a life

	mu      sync.Mutex
	current *server      // while this host is the site
	leaving *server      // while it is handed over
	forward http.Handler // while it is retired: the metadata server that is asked instead
	lacks   string       // what is missing of a site that was activated here
	since   time.Time    // of lacks
}

// Options are what Serve needs.
type Options struct {
	Config     config.Config
	ConfigFile string // goes into backups
	Version    string // of this program
	Log        *slog.Logger
	Out        io.Writer // says where the server answers
}

// Serve runs this host until ctx ends.
func Serve(ctx context.Context, o Options) error {
	var err error
	if o.Config.Netboot, err = o.Config.Netboot.Resolve(); err != nil {
		return err
	}
	collectRarely()
	h, err := newHost(o)
	if err != nil {
		return err
	}
	return h.run(ctx)
}

func newHost(o Options) (*host, error) {
	cfg, log := o.Config, o.Log
	h := &host{cfg: cfg, configFile: o.ConfigFile, version: o.Version, log: log, out: o.Out, changed: make(chan struct{}, 1), guard: newGuard(log)}
	var err error
	if h.file, err = site.Open(cfg.DataDir); err != nil {
		return nil, err
	}
	if h.tokens, err = readTokens(filepath.Join(filepath.Dir(cfg.KeyFile), "peers.json")); err != nil {
		return nil, err
	}
	part := log.With("part", "site")
	h.source = &site.Source{File: h.file, Deeds: h, Dial: h.dial, Log: part, Now: time.Now}
	h.target = &site.Target{
		File: h.file, Deeds: receiver{h}, Program: h.version, Temporal: cfg.Temporal.Address, Notify: cfg.Notify.URL != "",
		Log: slog.New(quiet.Handler(part.Handler(), time.Now)), Now: time.Now, Activated: h.poke, Metadata: h.metadata,
	}
	return h, h.believeMark()
}

// believeMark makes a copy of the data directory that lies beside the mark of a
// retired site what the mark says, however old it is.
func (h *host) believeMark() error {
	m, marked, err := site.ReadMark(h.cfg.KeyFile)
	if err != nil || !marked || h.file.Site().Role == site.Retired {
		return err
	}
	if err := os.MkdirAll(h.cfg.DataDir, 0o750); err != nil {
		return err
	}
	_, err = h.file.Change(func(s *site.Site) error {
		s.Role, s.Why = site.Retired, fmt.Sprintf("the mark in %s says so", h.cfg.KeyFile)
		s.Successor = &site.Peer{Name: m.Retired.To, URL: m.Retired.URL, Fingerprint: m.Retired.Fingerprint}
		return nil
	})
	return err
}

// peered makes the key by which peers know this server, when there are any.
func (h *host) peered() error {
	if h.cert.Certificate != nil {
		return nil
	}
	var err error
	h.cert, err = identity.LoadCertificate(site.CertificateFile(h.cfg))
	return err
}

func (h *host) poke() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// dial is the API of a peer.
func (h *host) dial(p site.Peer) (site.TargetAPI, error) { return h.client(p) }

func (h *host) client(p site.Peer) (*site.Client, error) {
	if err := h.peered(); err != nil {
		return nil, err
	}
	token, ok := h.tokens.of(p.Name)
	if !ok {
		return nil, fmt.Errorf("the token of peer %q is not in %s: %w", p.Name, h.tokens.path, inventory.ErrUnreachable)
	}
	return site.NewClient(p, h.cert, token, nil)
}

// run goes from life to life until ctx ends or one fails.
func (h *host) run(ctx context.Context) error {
	if s := h.file.Site(); s.Source != nil {
		stop, err := h.listenToPeers(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	for ctx.Err() == nil {
		var err error
		switch s := h.file.Site(); {
		case s.Role == site.Standby:
			err = h.quietly(ctx, "a standby: the site comes here when it is migrated", h.untilNot(s.Role))
		case s.Role == site.Retired:
			if err = h.source.EnsureRetired(); err == nil {
				err = h.retired(ctx, s)
			}
		case s.Role == site.HandingOver:
			err = h.quietly(ctx, "in the midst of a hand-over, and asks its target how that ended", h.source.Resume)
		case s.Prepared != nil:
			err = h.settle(ctx, *s.Prepared)
		default:
			if len(s.Peers) > 0 {
				if err = h.quietly(ctx, "", h.source.Guard); err != nil {
					break
				}
				if h.file.Site().Role != site.Active {
					continue
				}
			}
			err = h.active(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// settle puts a site in its place that was activated here. While it is not
// whole, nobody is answered, and a person is told what is missing.
func (h *host) settle(ctx context.Context, p site.Prepared) error {
	err := h.install(ctx, p)
	if err == nil || ctx.Err() != nil {
		return err
	}
	say := func(err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.lacks = ""; err == nil {
			return
		}
		h.lacks = "the site that was handed over here cannot be put in its place: " + err.Error()
		if h.since.IsZero() {
			h.since = time.Now()
		}
	}
	say(err)
	return h.quietly(ctx, "the site that was handed over here cannot be put in its place: "+err.Error(), func(ctx context.Context) error {
		for pause(ctx, settleEvery) {
			err := h.install(ctx, p)
			if say(err); err == nil {
				return nil
			}
		}
		return ctx.Err()
	})
}

// settleEvery is how often it is tried again.
const settleEvery = time.Second

// listenToPeers serves the peer API in all roles, until the returned function
// is called.
func (h *host) listenToPeers(ctx context.Context) (func(), error) {
	if err := h.peered(); err != nil {
		return nil, err
	}
	l, err := bindHTTP("peer API", h.cfg.Site.Listen, "site.listen", h.target.Handler(), site.ServerTLS(h.cert), h.log, h.guard)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.serve(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("the peer API ended", "error", err)
		}
	}()
	return func() { cancel(); <-done }, nil
}

// untilNot waits until the role is another than was. Whoever calls has read was
// before it began to listen: the change may have come by now.
func (h *host) untilNot(was string) func(context.Context) error {
	return func(ctx context.Context) error {
		for h.file.Site().Role == was {
			select {
			case <-h.changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
}

// retired answers operators with the new address and agents with "hold", and
// hands on what machines ask of a metadata server. It answers nothing by itself.
func (h *host) retired(ctx context.Context, s site.Site) error {
	to := "elsewhere"
	if s.Successor != nil {
		to = s.Successor.Name + " (" + s.Successor.URL + ")"
	}
	var serving []listener
	if agents, err := h.holdAgents(); err != nil {
		h.log.Warn("agents cannot be told to hold", "error", err)
	} else if agents != nil {
		serving = append(serving, *agents)
	}
	forward, err := h.handOn(s)
	if err != nil {
		h.log.Warn("machines that were installed before the migration get no metadata here", "error", err)
	}
	serving = append(serving, forward...)
	return h.quietly(ctx, "retired: the site has moved to "+to+"; "+s.Why, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.Go(func() error { return h.untilNot(s.Role)(ctx) })
		for _, l := range serving {
			g.Go(func() error { return l.serve(ctx) })
		}
		return g.Wait()
	})
}

// handOn listens where machines know the metadata server, and hands on what
// they ask to where the site has moved. A port that cannot be bound is left out.
func (h *host) handOn(s site.Site) (out []listener, err error) {
	if !h.cfg.Netboot.On() || s.Successor == nil {
		return nil, nil
	}
	address, err := hostnet.ProvisioningAddress(h.cfg.Netboot)
	if err != nil {
		return nil, err
	}
	if err := h.peered(); err != nil {
		return nil, err
	}
	token, ok := h.tokens.of(s.Successor.Name)
	if !ok {
		return nil, fmt.Errorf("the token of peer %q is not in %s: %w", s.Successor.Name, h.tokens.path, inventory.ErrNotFound)
	}
	forward, err := site.Forward(*s.Successor, h.cert, token, slog.New(quiet.Handler(h.log.With("part", "metadata").Handler(), time.Now)))
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.forward = forward
	h.mu.Unlock()
	ports := slices.Concat(h.cfg.Netboot.HTTP, h.cfg.Netboot.Metadata)
	slices.Sort(ports)
	for _, p := range slices.Compact(ports) {
		l, err := bindHTTP("metadata", config.Join(h.cfg.Netboot.Bind(address), p), "netboot.metadata", forward, nil, h.log, h.guard)
		if err != nil {
			h.log.Warn("a port of the metadata server cannot be bound", "error", err)
			continue
		}
		out = append(out, l)
	}
	return out, nil
}

// metadata is what answers machines whose requests a retired peer hands on: this
// site's, or, where it has moved on in its turn, that of where it is now.
func (h *host) metadata() http.Handler {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current != nil && h.current.metadata != nil {
		return h.current.metadata.Handler()
	}
	return h.forward
}

// holdAgents listens where the site's agents call; nil when no interface is
// configured. What an agent asks, it is told to hold, never that its run is over.
func (h *host) holdAgents() (*listener, error) {
	if !h.cfg.Netboot.On() {
		return nil, nil
	}
	address, err := hostnet.ProvisioningAddress(h.cfg.Netboot)
	if err != nil {
		return nil, err
	}
	cert, err := identity.LoadCertificate(filepath.Join(filepath.Dir(h.cfg.KeyFile), identity.AgentFile))
	if err != nil {
		return nil, err
	}
	l, err := bindHTTP("agent API", config.Join(h.cfg.Netboot.Bind(address), h.cfg.Netboot.Agent), "netboot.agent", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"the site has moved: hold","code":"unauthorized"}`) // who has gone needs none
	}), &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, h.log, h.guard)
	return &l, err
}

// quietly answers operators as a server that is not the site, while what runs.
func (h *host) quietly(ctx context.Context, why string, what func(context.Context) error) error {
	if why != "" {
		h.log.Warn("this server answers no machine", "why", why, "role", h.file.Site().Role)
	}
	if err := h.readToken(); err != nil {
		return err
	}
	cert, err := operatorCert(h.cfg, h.log)
	if err != nil {
		return err
	}
	var pair *tls.Config
	if cert != nil {
		pair = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	q := api.Quiet{Site: h, TokenSHA256: h.token, AllowedHosts: operatorHosts(h.cfg), Version: h.version}
	l, err := bindHTTP("operator API", h.cfg.Listen, "listen", q.Handler(), pair, h.log, h.guard)
	if err != nil {
		return err
	}
	serving, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- l.serve(serving) }()
	err = what(ctx)
	cancel()
	if e := <-done; err == nil && ctx.Err() == nil {
		err = e
	}
	return err
}

func (h *host) readToken() error {
	b, err := os.ReadFile(h.cfg.TokenFile)
	if err != nil {
		return fmt.Errorf("reading the admin token: %w (ingot init makes one)", err)
	}
	h.token = sha256.Sum256([]byte(strings.TrimSpace(string(b))))
	return nil
}

// active is the life of the site. It ends with ctx, or with the role.
func (h *host) active(ctx context.Context) (err error) {
	s, err := newServer(ctx, h.cfg, h.version, h.log)
	if err != nil {
		return err
	}
	s.configFile, s.host = h.configFile, h
	defer func() {
		h.mu.Lock()
		h.current, h.leaving = nil, nil
		h.mu.Unlock()
		if e := errors.Join(s.bmc.Close(), s.store.Close()); e != nil && err == nil {
			h.log.Error("closing the site", "error", e)
		}
	}()
	if epoch := h.file.Site().Epoch; epoch > 0 {
		if err := s.store.Owned(ctx, epoch); err != nil {
			return err
		}
	}
	h.mu.Lock()
	h.current = s
	h.mu.Unlock()
	return s.run(ctx, h.out)
}

// site is the running site; nil when this host is none.
func (h *host) site() *server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// SiteStatus is what operators are told.
func (h *host) SiteStatus(ctx context.Context) (api.SiteStatus, error) {
	x := h.file.Site()
	out := api.SiteStatus{Name: site.ServerName(h.cfg, x), Role: x.Role, Epoch: x.Epoch, Activated: x.Activated, Why: x.Why, Peers: []api.Peer{}}
	out.Silent, out.Since = h.source.Waiting()
	h.mu.Lock()
	if h.lacks != "" {
		out.Silent, out.Since = h.lacks, h.since
	}
	h.mu.Unlock()
	for _, p := range x.Peers {
		out.Peers = append(out.Peers, peerView(p))
	}
	if x.Successor != nil {
		p := peerView(*x.Successor)
		out.Successor = &p
	}
	if o := x.HandOver; o != nil {
		out.HandOver = &api.HandOverStatus{ID: o.ID, Peer: o.Peer, State: o.State, Why: o.Why, Since: o.Since}
	}
	if x.Prepared != nil {
		out.Prepared = x.Prepared.ID
	}
	s := h.site()
	if s == nil {
		return out, nil
	}
	var err error
	if out.Epoch, err = s.store.SiteEpoch(ctx); err != nil {
		return out, err
	}
	out.Intake, err = s.store.Intake(ctx)
	return out, err
}

func peerView(p site.Peer) api.Peer {
	return api.Peer{Name: p.Name, URL: p.URL, Fingerprint: p.Fingerprint, Since: p.Since}
}

// AddPeer pairs with a standby; from then on it is asked before the first
// packet of each start.
func (h *host) AddPeer(ctx context.Context, p api.NewPeer) (api.Peer, error) {
	x := h.file.Site()
	if x.Role != site.Active {
		return api.Peer{}, fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
	}
	peer := site.Peer{Name: p.Name, URL: strings.TrimSuffix(p.URL, "/"), Fingerprint: p.Fingerprint, Since: time.Now().UTC().Truncate(time.Second)}
	if old, err := x.Peer(p.Name); err == nil && (old.URL != peer.URL || old.Fingerprint != peer.Fingerprint) {
		return api.Peer{}, fmt.Errorf("there is another peer %q at %s: remove it first (ingot peer remove): %w", p.Name, old.URL, inventory.ErrConflict)
	}
	if err := h.peered(); err != nil {
		return api.Peer{}, err
	}
	c, err := site.NewClient(peer, h.cert, p.Token.Reveal(), nil)
	if err != nil {
		return api.Peer{}, err
	}
	r, err := c.Pair(ctx, site.ServerName(h.cfg, x))
	if err != nil {
		return api.Peer{}, strangers(err)
	}
	if r.Role != site.Standby {
		return api.Peer{}, fmt.Errorf("%s is %s and owns site epoch %d: only a standby can be a peer: %w", p.Name, r.Role, r.Epoch, inventory.ErrConflict)
	}
	// The token first: a peer without one could never be asked.
	if err := h.tokens.set(p.Name, p.Token.Reveal()); err != nil {
		return api.Peer{}, err
	}
	_, err = h.file.Change(func(x *site.Site) error {
		if _, err := x.Peer(p.Name); err == nil {
			return nil
		}
		x.Name = site.ServerName(h.cfg, *x)
		x.Peers = append(x.Peers, peer)
		return nil
	})
	return peerView(peer), err
}

// strangers is a refusal by a peer in the words of the API.
func strangers(err error) error {
	if errors.Is(err, site.ErrStranger) {
		return fmt.Errorf("%w: its token is another, or belongs to another server: %w", err, inventory.ErrConflict)
	}
	return err
}

// RemovePeer forgets a peer.
func (h *host) RemovePeer(_ context.Context, name string) error {
	_, err := h.file.Change(func(x *site.Site) error {
		if x.Role != site.Active {
			return fmt.Errorf("this server is %s: %w", x.Role, inventory.ErrConflict)
		}
		if _, err := x.Peer(name); err != nil {
			return err
		}
		var rest []site.Peer
		for _, p := range x.Peers {
			if p.Name != name {
				rest = append(rest, p)
			}
		}
		x.Peers = rest
		return nil
	})
	if err == nil {
		err = h.tokens.set(name, "")
	}
	return err
}

// Decide passes on a person's word.
func (h *host) Decide(ctx context.Context, word, peer string) error {
	x := h.file.Site()
	if x.Role == site.Standby {
		if word == api.WordGiveUp {
			return fmt.Errorf("a standby has nothing to give up: %w", inventory.ErrConflict)
		}
		return h.target.TakeOver("a person")
	}
	w := site.TakeOver
	if word == api.WordGiveUp {
		w = site.GiveUp
	}
	return h.source.Say(ctx, w, peer)
}

// peerTokens are the tokens by which peers know this server, beside its keys
// and outside the data directory.
type peerTokens struct {
	path string
	mu   sync.Mutex
	all  map[string]string
}

func readTokens(path string) (*peerTokens, error) {
	t := &peerTokens{path: path, all: map[string]string{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err == nil && json.Unmarshal(b, &t.all) != nil {
		err = errors.New("it holds no tokens") // the decoder would quote one
	}
	if err != nil {
		return nil, fmt.Errorf("reading the tokens of peers, %q: %w", path, err)
	}
	return t, nil
}

func (t *peerTokens) of(name string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok := t.all[name]
	return v, ok
}

// set stores the token of a peer; "" forgets it.
func (t *peerTokens) set(name, token string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := map[string]string{}
	for k, v := range t.all {
		next[k] = v
	}
	if next[name] = token; token == "" {
		delete(next, name)
	}
	text, err := json.MarshalIndent(next, "", "  ")
	if err == nil {
		err = site.Replace(t.path, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing the tokens of peers: %w", err)
	}
	t.all = next
	return nil
}
