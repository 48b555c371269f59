// Package bootsvc answers machines that boot from the network: DHCP, TFTP, iPXE scripts and files over HTTP. It shares
// no state with other instances. Whether a machine may netboot, with what, and why, is decided from the inventory in
// one function only: Decide.
package bootsvc

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
)

// Server answers machines that boot from the network. New creates it. Its HTTP handler also works without Run.
type Server struct {
	cfg     Config
	journal Journal
	// History holds the last requests of each client.
	History *wire.History
	rec     *wire.Recorder
	syslog  *wire.Syslog

	// These parts decide what a client gets, and build it.
	urls      *urls
	network   *network
	discovery *discovery
	decider   *decider
	loaders   *loaders
	scripts   *scripts

	// These parts serve by DHCP, TFTP and HTTP what the parts above have built.
	dhcp  *dhcp.Server
	ports atomic.Pointer[[]*dhcp.Conn] // of dhcp, once Run has bound them
	tftp  *tftp.Server
	files *tftpFiles
	web   *webFiles

	// Rivals records the other DHCP servers on the network.
	Rivals  *neighbours.Rivals
	checker *neighbours.Checker
	limits  *neighbours.Limits
}

// Stats are counters since the start of the server.
type Stats struct {
	DHCPReceived  int64 `json:"dhcpReceived"`
	DHCPAnswered  int64 `json:"dhcpAnswered"`
	DHCPDropped   int64 `json:"dhcpDropped"` // the kernel dropped them before this server could read them
	DHCPMalformed int64 `json:"dhcpMalformed"`
	DHCPUnknown   int64 `json:"dhcpUnknown"` // packets of unknown MACs
	DHCPDirect    int64 `json:"dhcpDirect"`  // packets without giaddr, which a RelayOnly server drops
	// Answers that could not be sent, because too many answers already waited for ARP (DHCPUnresolved), or because the
	// kernel refused them (DHCPUnsent). DHCPAnswered counts them too.
	DHCPUnresolved int64 `json:"dhcpUnresolved"`
	DHCPUnsent     int64 `json:"dhcpUnsent"`
	TFTPServed     int64 `json:"tftpServed"`
	TFTPRefused    int64 `json:"tftpRefused"`
	TFTPAborted    int64 `json:"tftpAborted"` // transfers that ended early, usually because the client aborted them
	// Packets that could not be sent: TFTPUnresolved and TFTPUnsent for the same reasons as for DHCP, TFTPUnproven
	// because too many packets went at once to clients that have not sent an ACK.
	TFTPUnresolved int64 `json:"tftpUnresolved"`
	TFTPUnproven   int64 `json:"tftpUnproven"`
	TFTPUnsent     int64 `json:"tftpUnsent"`
	EventsDropped  int64 `json:"eventsDropped"`
	SeenDropped    int64 `json:"seenDropped"`
	SyslogDropped  int64 `json:"syslogDropped"` // log lines of machines
	SyslogUnknown  int64 `json:"syslogUnknown"` // messages from hosts that are not in the inventory
	Panics         int64 `json:"panics"`        // panics in the handling of network input, from which the server recovered

	HTTP httpserve.RequestCounts `json:"http"` // includes the requests that Config.Fallback answers
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	dropped, files, packets := s.rec.Dropped(), s.tftp.Stats(), &s.dhcp.Counters
	return Stats{
		DHCPReceived: packets.Received.Load(), DHCPAnswered: packets.Answered.Load(), DHCPDropped: packets.Dropped.Load(),
		DHCPMalformed: packets.Malformed.Load(), DHCPUnknown: packets.Unknown.Load(), DHCPDirect: packets.Direct.Load(),
		DHCPUnresolved: packets.Unresolved.Load(), DHCPUnsent: packets.Unsent.Load(), TFTPServed: files.Served,
		TFTPRefused: files.Refused, TFTPAborted: files.Aborted,
		TFTPUnresolved: files.Unresolved, TFTPUnproven: files.Unproven, TFTPUnsent: files.Unsent,
		EventsDropped: dropped.Events,
		SeenDropped:   dropped.Seen, SyslogDropped: dropped.Syslog,
		SyslogUnknown: s.syslog.UnknownSenders(), Panics: s.cfg.Guard.Panics(), HTTP: s.web.requests.Counts(),
	}
}

// New checks cfg and returns a server. If cfg is invalid, it returns an inventory.Problems with all the problems.
func New(cfg Config, machines Machines, journal Journal) (*Server, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	// Limit the rate of log records, because any host on the network can cause most of them.
	cfg.Log = slog.New(quietlog.Handler(cfg.Log.Handler(), cfg.Now))
	if cfg.Guard == nil {
		cfg.Guard = guard.New(cfg.Log)
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if len(cfg.HTTPAddr) == 0 {
		cfg.HTTPAddr = []string{":80", ":7080"}
	}
	cfg.TFTPAddr = cmp.Or(cfg.TFTPAddr, ":69")

	s := &Server{cfg: cfg, journal: journal, History: wire.NewHistory(), rec: wire.NewRecorder(journal, cfg.Guard, cfg.Log, cfg.Now)}
	var table neighbours.Table
	s.limits = neighbours.NewLimits(table.Unresolved)
	s.checker = neighbours.NewChecker(cfg.Address, cfg.Guard)
	s.Rivals = neighbours.NewRivals(s.checker, cfg.givesAddresses(), journal, cfg.Log, cfg.Now)

	s.urls = newURLs(&s.cfg)
	s.network = &network{cfg: &s.cfg, neighbour: table.MAC}
	s.discovery = newDiscovery(&s.cfg, machines, s.network, neighbours.NewProber(cfg.Interfaces, &table, cfg.Log).Probe)
	s.decider = &decider{cfg: &s.cfg, machines: machines, network: s.network, discovery: s.discovery}
	s.loaders = &loaders{cfg: &s.cfg}
	s.scripts = &scripts{cfg: &s.cfg, urls: s.urls, installers: &installers{cfg: &s.cfg, urls: s.urls}}
	s.syslog = wire.NewSyslog(s.rec, s.decider.machineAt)

	s.dhcp = dhcp.New(s.dhcpConfig())
	s.files = &tftpFiles{cfg: &s.cfg, decider: s.decider, scripts: s.scripts, loaders: s.loaders, history: s.History, rec: s.rec}
	s.tftp = tftp.NewServer(s.files.read, s.limits, cfg.Guard)
	s.web = &webFiles{
		cfg: &s.cfg, decider: s.decider, scripts: s.scripts, loaders: s.loaders, history: s.History, rec: s.rec,
		spender: &spender{cfg: &s.cfg, unspent: make(chan unspent, maxUnspent)},
	}
	return s, nil
}

// dhcpConfig returns the configuration of the DHCP server.
func (s *Server) dhcpConfig() dhcp.Config {
	cfg := dhcp.Config{
		Modes: map[string]inventory.DHCPMode{}, Address: s.cfg.Address, Base: s.urls.base, Relays: s.cfg.Relays, LinkLocal: s.cfg.LinkLocal,
		Decider: s.clients(), Guests: s.discovery, Journal: s.journal, Recorder: s.rec, History: s.History, Limits: s.limits,
		SightRival: s.Rivals.Sight, Deliver: s.checker.Deliver, LogServer: s.syslog.IsNamed,
		Probe: func(a netip.Addr, client string) (string, bool) { return s.discovery.probe(a, client) },
		Guard: s.cfg.Guard, Log: s.cfg.Log, Now: s.cfg.Now,
	}
	if s.cfg.RelayOnly {
		cfg.RelayAt = s.cfg.bindAddress()
	}
	for _, name := range s.cfg.Interfaces {
		cfg.Modes[name] = s.cfg.modeOn(name)
	}
	return cfg
}

// clients returns the dhcp.Decider of this server, which decides what DHCP clients get.
func (s *Server) clients() *clients {
	return &clients{decider: s.decider, loaders: s.loaders, urls: s.urls, rec: s.rec}
}

// Base returns the URL of the HTTP handler for machines, without a trailing slash. Once Run has bound HTTP listeners,
// the URL contains the port of the first listener.
func (s *Server) Base() string { return s.urls.base() }

// Handler returns the handler for the HTTP requests of machines, see webFiles.handler.
func (s *Server) Handler() http.Handler { return s.web.handler() }

// Guest reports whether mac belongs to an unknown machine that has the address a for its discovery.
func (s *Server) Guest(ctx context.Context, mac string, a netip.Addr) bool {
	return s.discovery.isGuest(ctx, mac, a)
}

// Leases returns leases, sorted by address: all leases of reservations since the start of the server, and the current
// leases of machines in discovery.
func (s *Server) Leases() []inventory.DHCPLease {
	out := append(s.dhcp.Leases(), s.discovery.leases()...)
	slices.SortFunc(out, func(a, b inventory.DHCPLease) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.MAC, b.MAC))
	})
	return out
}

// Run serves DHCP, TFTP and HTTP until ctx ends, and then returns nil. If a port cannot be bound, it returns an error
// that names the port and a remedy. For HTTP, it is enough if one of the ports can be bound. If no interface is
// configured and RelayOnly is off, Run serves nothing and waits for ctx.
func (s *Server) Run(ctx context.Context) error {
	if len(s.cfg.Interfaces) == 0 && !s.cfg.RelayOnly {
		s.cfg.Log.Info("boot services are off: no interface is configured; run ingot init")
		<-ctx.Done()
		return nil
	}
	// The writers run longer than ctx: they write the records of the last requests, after the listeners have ended.
	late, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	g, ctx := errgroup.WithContext(ctx)
	https, err := s.web.listen(ctx)
	if err != nil {
		return err
	}
	tftpConn, err := tftp.Listen(ctx, httpserve.WithHost(s.cfg.TFTPAddr, s.cfg.bindAddress()))
	if err != nil {
		closeAll(https)
		return err
	}
	ports, err := s.dhcp.Listen(ctx)
	if err != nil {
		closeAll(https)
		return errors.Join(err, tftpConn.Close())
	}
	s.ports.Store(&ports)
	var writers errgroup.Group
	writers.Go(func() error { return s.rec.Run(late) })
	writers.Go(func() error { return s.web.spender.spendLate(late) })
	g.Go(func() error { return s.Rivals.Watch(ctx) })
	for _, l := range https {
		g.Go(func() error { return s.web.serve(ctx, l) })
	}
	g.Go(func() error { return s.tftp.Serve(ctx, tftpConn) })
	if s.cfg.SyslogAddr != "" {
		if c := s.syslog.Listen(ctx, httpserve.WithHost(s.cfg.SyslogAddr, s.cfg.bindAddress())); c != nil {
			g.Go(func() error { return s.syslog.Serve(ctx, c) })
		}
	}
	for _, c := range ports {
		g.Go(func() error { return s.dhcp.Serve(ctx, c) })
	}
	s.cfg.Log.Info("boot services are up", "interfaces", s.cfg.Interfaces, "dhcp", s.cfg.Modes, "relayOnly", s.cfg.RelayOnly, "address",
		s.cfg.Address.String(), "http", s.urls.base())
	err = g.Wait()
	stopWriting()
	return errors.Join(err, writers.Wait())
}

// closeAll closes the listeners when Run cannot start. It ignores errors, because Run reports why it cannot start.
func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close()
	}
}
