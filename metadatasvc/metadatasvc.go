// Package metadatasvc answers installed systems: an EC2-style tree and a
// NoCloud seed for cloud-init, rootio's /metadata, and phone-home.
//
// A request that is identified by its source address gets only the non-secret
// profile, because another host on the network could take that address. Everything
// else is served under a path that only the run's machine knows, and only while the
// run's secrets window is open.
package metadatasvc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/keptsocket"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
)

// Machines is what the metadata server reads from the inventory. For an unknown
// machine, it returns inventory.ErrNotFound. The grant of a machine that was never
// owned is ErrNotFound or the zero Grant.
type Machines interface {
	MachineByAddress(ctx context.Context, addr netip.Addr) (inventory.Machine, inventory.Grant, error)
	Machine(ctx context.Context, name string) (inventory.Machine, error)
	Grant(ctx context.Context, machine string) (inventory.Grant, error)
	// UserData returns the machine's secret user data and vendor data.
	UserData(ctx context.Context, machine string) (user, vendor inventory.Secret, err error)
}

// Journal stores events of machines.
type Journal interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
}

// Config says what to serve and where.
type Config struct {
	// Address is this server's address as the machines see it. Addrs are the
	// listeners, host:port or :port (then on Address); empty = 7172 and 50061.
	// Port 80 belongs to the boot server, which forwards other paths to this one.
	Address netip.Addr
	Addrs   []string
	// URL is the base of the URLs that are handed out, without a slash at the end.
	// Empty = http://Address:port of the first of Addrs.
	URL string
	// Key derives capabilities, nonces and tokens; it has at least 16 bytes. Without
	// a key (the key file is lost) only the non-secret profile is served.
	Key []byte
	// Installers, if set, provides the documents of plans and stores the reports of
	// installers.
	Installers Installers
	// ImageURL returns the current base URL of images, without a slash at the end. It
	// replaces the old URL in documents of plans that were made before the site
	// moved. If it is nil, documents are not changed.
	ImageURL func() string
	// Proxies lists the proxies whose X-Forwarded-For is trusted.
	Proxies []netip.Prefix
	// Guard counts panics while network input is handled; nil = a new one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// Server answers installed systems. New creates it. Handler may be used without Run.
type Server struct {
	cfg      Config
	machines Machines
	journal  Journal
	log      *slog.Logger
	now      func() time.Time
	grace    time.Duration // that Run leaves to the requests under way when it ends

	fetches  fetches
	requests httpserve.Requests
}

// New checks cfg and returns a server. Its error is an inventory.Problems.
func New(cfg Config, machines Machines, journal Journal) (*Server, error) {
	var p inventory.Problems
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Any host on the network can cause most of these log records: limit their rate.
	cfg.Log = slog.New(quietlog.Handler(cfg.Log.Handler(), cfg.Now))
	if cfg.Guard == nil {
		cfg.Guard = guard.New(cfg.Log)
	}
	if n := len(cfg.Key); n > 0 && n < 16 {
		p.Add("key", "run ingot init", "the key of capabilities has %d bytes, but needs at least 16", n)
	}
	if len(cfg.Addrs) == 0 {
		cfg.Addrs = []string{":7172", ":50061"}
	}
	if cfg.URL == "" && cfg.Address.IsValid() {
		if _, port, err := net.SplitHostPort(cfg.Addrs[0]); err == nil {
			cfg.URL = "http://" + net.JoinHostPort(cfg.Address.String(), port)
		}
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.HasSuffix(cfg.URL, "/") {
		p.Add("url", "http://ADDRESS:7172", "invalid base URL %q", cfg.URL)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}

	return &Server{
		cfg: cfg, machines: machines, journal: journal, log: cfg.Log, now: cfg.Now, grace: 2 * time.Second, fetches: newFetches(),
	}, nil
}

// Run serves on the configured addresses until ctx ends, and then returns nil.
// An address that cannot be bound is an error with a remedy.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var listeners []net.Listener
	for _, addr := range s.cfg.Addrs {
		addr = httpserve.WithHost(addr, s.cfg.Address)
		l, err := keptsocket.Listen(ctx, "tcp", addr)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close() // the error that is reported is the one above
			}
			return fmt.Errorf("binding TCP %s for metadata: %w (%s)", addr, err,
				httpserve.BindRemedy(err, "metadata addresses"))
		}
		listeners = append(listeners, l)
	}

	// What the last requests add is written after the listeners have ended.
	writer, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var writing sync.WaitGroup
	writing.Go(func() { s.writeFetches(writer) })
	defer writing.Wait()
	defer stopWriting()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- s.serve(ctx, l) }()
	}
	var errs []error
	for range listeners {
		errs = append(errs, <-ended)
		cancel() // when one listener ends, stop the others
	}
	return errors.Join(errs...)
}

// Requests counts those of the configured addresses.
func (s *Server) Requests() httpserve.RequestCounts { return s.requests.Counts() }

func (s *Server) serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.cfg.Guard.Handler(s.requests.Handler(s.Handler())),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 60 * time.Second,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	httpserve.Limit(srv, maxConns, func(source netip.Addr) bool { return s.awaited(ctx, source) })
	return httpserve.Run(ctx, "metadata", srv, httpserve.Track(l), s.grace)
}

const (
	maxConns      = 1024
	awaitedLookup = 200 * time.Millisecond
)

// awaited reports whether an address is reserved for a machine that a run owns, whose
// connections have priority. It is called for a new connection while all connections
// are in use.
func (s *Server) awaited(ctx context.Context, source netip.Addr) bool {
	defer s.cfg.Guard.Recover("the source of a connection")
	ctx, cancel := context.WithTimeout(ctx, awaitedLookup)
	defer cancel()
	_, g, err := s.machines.MachineByAddress(ctx, source)
	return err == nil && g.Run != ""
}

// profile is what one caller may see.
type profile struct {
	machine inventory.Machine
	grant   inventory.Grant
	secret  bool // user-data and vendor-data, which carries the nonce
	// byAddress: the user-data of the EC2 tree alone, see inventory.Machine.UserDataByAddress.
	byAddress bool
	// document is the name of the requested document of the plan; "" = none.
	document string
}

// phoneHome returns the phone-home URL of the profile's run, or "" if there is no run
// or the caller may not know the URL.
func (s *Server) phoneHome(p profile) string {
	if !p.secret && !p.byAddress || p.grant.Run == "" {
		return ""
	}
	return cloudinit.PhoneHomeURL(s.cfg.URL, s.cfg.Key, p.grant.Owner)
}

// bySource returns the non-secret profile of the machine with the caller's address. A machine with
// UserDataByAddress also gets its user data while the secrets window is open.
func (s *Server) bySource(r *http.Request) (profile, bool) {
	addr, ok := s.caller(r)
	if !ok {
		return profile{}, false
	}
	m, g, err := s.machines.MachineByAddress(r.Context(), addr)
	if err != nil {
		s.logFailure(err, "looking up the machine of an address")
		return profile{}, false
	}
	p := profile{machine: m, grant: g}
	if m.UserDataByAddress && g.SecretsOpen(s.now()) && len(s.cfg.Key) > 0 {
		user, vendor, err := s.machines.UserData(r.Context(), m.Name)
		if err != nil { // the key file may be lost: the rest needs none
			s.logFailure(err, "reading user data")
			return p, m.Name != ""
		}
		p.machine.UserData, p.machine.VendorData, p.byAddress = user, vendor, true
	}
	return p, m.Name != ""
}

// caller returns the address of the client: that of the connection or, if it comes
// from a configured proxy, the right-most hop that is not such a proxy. A hop that cannot be parsed may be
// any client, so ok is false; without the header, the proxy itself asks.
func (s *Server) caller(r *http.Request) (netip.Addr, bool) {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	a := ap.Addr().Unmap().WithZone("")
	if !s.proxy(a) {
		return a, true
	}
	lines := r.Header.Values("X-Forwarded-For")
	if len(lines) == 0 {
		return a, true
	}
	hops := strings.Split(strings.Join(lines, ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			return netip.Addr{}, false
		}
		if a = hop.Unmap().WithZone(""); !s.proxy(a) {
			return a, true
		}
	}
	return a, true
}

func (s *Server) proxy(a netip.Addr) bool {
	return slices.ContainsFunc(s.cfg.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// byCapability returns the full profile of a machine if the capability is that of its
// current run and the secrets window is open. It takes the same steps for an unknown
// machine, a closed window and a wrong capability.
func (s *Server) byCapability(ctx context.Context, name, capability string) (profile, bool) {
	m, err := s.machines.Machine(ctx, name)
	if err != nil {
		s.logFailure(err, "looking up a machine for metadata")
	}
	known := err == nil
	g, err := s.machines.Grant(ctx, name)
	if err != nil {
		s.logFailure(err, "looking up a grant for metadata")
		g = inventory.Grant{}
	}
	right := len(s.cfg.Key) > 0 && inventory.Equal(capability, inventory.Capability(s.cfg.Key, g.Owner))
	if !known || !right || !g.SecretsOpen(s.now()) || g.Machine != name {
		return profile{}, false
	}
	m.UserData, m.VendorData, err = s.machines.UserData(ctx, name)
	if err != nil {
		s.log.Error("reading user data", "machine", name, "error", err)
		return profile{}, false
	}
	return profile{machine: m, grant: g, secret: true}, true
}

func (s *Server) logFailure(err error, what string) {
	if !errors.Is(err, inventory.ErrNotFound) {
		s.log.Error("answering a metadata request", "doing", what, "error", err)
	}
}

// boot returns the boot of g's run, or 0 without a run.
func boot(g inventory.Grant) int {
	if g.Run == "" {
		return 0
	}
	return g.Boot
}

// hostname returns the machine's name in the tree.
func hostname(m inventory.Machine) string { return cloudinit.FQDN(m) }
