// Package bootsvc answers machines that boot from the network: DHCP, TFTP, iPXE
// scripts and files over HTTP. It has no state that another instance would need.
// Every answer comes from the inventory through Decide, the only function that
// decides whether a machine may netboot, with what, and why.
package bootsvc

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
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
	"github.com/ingotmetal/ingot/internal/netserve/quietlog"
	"github.com/ingotmetal/ingot/inventory"
)

// Machines finds the machine of a request, with its grant. For an unknown machine, it
// returns inventory.ErrNotFound. The grant of a machine that was never owned is the
// zero Grant.
type Machines interface {
	// MachineByMAC takes a MAC in its canonical form (lower case, colons).
	MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error)
	// MachineByAddress finds the machine by the reservation of an interface.
	MachineByAddress(ctx context.Context, addr netip.Addr) (inventory.Machine, inventory.Grant, error)
	// InReservedNetwork reports whether an address is in the network of a reservation. Any host on the
	// network can cause the call, so it must be cheap.
	InReservedNetwork(a netip.Addr) bool
}

// Journal records what was seen on the network. AppendEvents, PutSeen and PutSyslog are called
// with batches, and no packet waits for them. PutRelay is called at most every few
// seconds for each relay, and the relay's packets wait for it.
type Journal interface {
	AppendEvents(ctx context.Context, events []inventory.Event) error
	PutSeen(ctx context.Context, seen []inventory.Seen) error
	PutRelay(ctx context.Context, giaddr netip.Addr, at time.Time) error
	PutSyslog(ctx context.Context, lines []inventory.SyslogLine) error
}

// Config says what to serve and where.
type Config struct {
	// Interfaces are the network interfaces on which DHCP is answered. If there are
	// none, nothing is served: a DHCP server must never start on a network by default.
	Interfaces []string
	// Modes are the modes of Interfaces; an interface that is missing has inventory.DHCPReservation.
	Modes map[string]inventory.DHCPMode
	// Discovery are the addresses for unknown machines on interfaces, or through relays (see
	// inventory.RelayNetwork). They boot the agent, which reports the hardware. On an
	// interface that is missing, unknown machines get no answer.
	Discovery map[string]inventory.Range
	// DiscoverBeside are interfaces in mode proxy or off where unknown machines boot the agent with the
	// address of the other DHCP server.
	DiscoverBeside []string
	// RelayOnly answers only what relays send to Address, on a plain UDP socket
	// without broadcast and layer 2. It replaces Interfaces. Packets without giaddr
	// are dropped, and Relays must list the relays to trust.
	RelayOnly bool
	// Address is this server's IPv4 address as the machines see it. If it is zero,
	// the first address of the first interface is used.
	Address netip.Addr
	// Listen is the address that a RelayOnly server binds if this host does not have
	// Address, for example in a container with published ports. Zero = Address.
	Listen netip.Addr
	// HTTPAddr are the addresses of the plain HTTP listeners, host:port or :port
	// (then on Address). Empty = ports 80 and 7080. The URLs that are handed out
	// have the port of the first one that could be bound.
	HTTPAddr []string
	// TFTPAddr is the address of the TFTP server. Empty = port 69 of Address.
	TFTPAddr string
	// SyslogAddr is where machines send syslog, host:port or :port (then on Address); "" = nowhere.
	SyslogAddr string
	// AgentURL is the URL of the agent's server, https://host:port. AgentPin is the
	// digest of that server's key, sha256:<hex>.
	AgentURL string
	AgentPin string
	// LoaderDir contains undionly.kpxe, snponly.efi, ipxe.efi …; KernelPath and
	// InitramfsPath are the files of the agent OS.
	LoaderDir string
	// Loader is the loader of interfaces that name none, and of discovered machines: one of inventory.SecureLoaders, or
	// "" = by architecture.
	Loader        string
	KernelPath    string
	InitramfsPath string
	// MinimumSBAT are the least SBAT generations of components of loaders: one below is not served.
	MinimumSBAT sbat.Minimum
	// Relays lists the relays that may ask. If it is empty, any relay may. The relay's
	// address must be in the subnet of the reservation that it asks for, unless a listed
	// relay selects that subnet (RFC 3527): elsewhere the address could not be used.
	Relays wire.Relays
	// LinkLocal adds classless routes (option 121) to 169.254.169.254 through this
	// server, or through the gateway behind a relay. The operator must add that
	// address to the server's host.
	LinkLocal bool
	// PlanKey is the public key that the agent checks signed orders with, as
	// action.FormatPlanKey writes it. If it is "", agents do nothing.
	PlanKey string
	// ClaimKey is the key of claims and of the URLs that expire with a boot, at least
	// 16 bytes. Without it (the key file is lost) machines get addresses, but none is
	// armed.
	ClaimKey []byte
	// Images, if set, are served under /images/. Delivered, if set, is called after each answer to a machine that a
	// run owns; it must not wait.
	Images    Images
	Delivered func(Delivery)
	// Installers, if set, provides the boots of other installers. Their images come
	// from Images. MetadataURL is the base URL of the metadata server, which serves
	// their documents.
	Installers  Installers
	MetadataURL string
	// Fallback, if set, answers all other HTTP paths: the metadata server shares
	// port 80.
	Fallback http.Handler
	// Guard counts panics while network input is handled; nil = a new one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

// Server answers booting machines. New creates it. Its handlers may be used without
// Run.
type Server struct {
	cfg      Config
	dhcp     *dhcp.Server
	machines Machines
	checker  *neighbours.Checker
	// Rivals are the other DHCP servers.
	Rivals *neighbours.Rivals
	// History has the last requests of each client.
	History *wire.History
	syslog  *wire.Syslog
	tftp    *tftp.Server
	journal Journal
	rec     *wire.Recorder
	unspent chan unspent // boots whose delivery is not recorded yet
	guard   *guard.Guard
	log     *slog.Logger
	now     func() time.Time
	guests  map[string]*guests // by interface or relay
	// neighbour returns the MAC that the kernel knows for an address.
	neighbour func(netip.Addr) (mac string, ok bool)
	// probe returns the MAC of a host other than besides that answers at an address.
	probe    func(a netip.Addr, besides string) (mac string, ok bool)
	limits   *neighbours.Limits
	httpPort atomic.Uint32
	requests httpserve.Requests
}

// Stats counts since the start of the server.
type Stats struct {
	DHCPReceived  int64 `json:"dhcpReceived"`
	DHCPAnswered  int64 `json:"dhcpAnswered"`
	DHCPDropped   int64 `json:"dhcpDropped"` // by the kernel: they came faster than they were answered
	DHCPMalformed int64 `json:"dhcpMalformed"`
	DHCPUnknown   int64 `json:"dhcpUnknown"` // packets of unknown MACs
	DHCPDirect    int64 `json:"dhcpDirect"`  // packets without giaddr, which RelayOnly drops
	// Answers that were counted, but not sent: too many waited for addresses that do not answer ARP, or the kernel took no more.
	DHCPUnresolved int64 `json:"dhcpUnresolved"`
	DHCPUnsent     int64 `json:"dhcpUnsent"`
	TFTPServed     int64 `json:"tftpServed"`
	TFTPRefused    int64 `json:"tftpRefused"`
	TFTPAborted    int64 `json:"tftpAborted"` // broken off, in most cases by the client
	// Packets that were not sent, as for DHCP; TFTPUnproven: too many at once to clients that have not answered.
	TFTPUnresolved int64 `json:"tftpUnresolved"`
	TFTPUnproven   int64 `json:"tftpUnproven"`
	TFTPUnsent     int64 `json:"tftpUnsent"`
	EventsDropped  int64 `json:"eventsDropped"`
	SeenDropped    int64 `json:"seenDropped"`
	SyslogDropped  int64 `json:"syslogDropped"` // lines of machines
	SyslogUnknown  int64 `json:"syslogUnknown"` // messages of hosts that are not in the inventory
	Panics         int64 `json:"panics"`        // while network input was handled

	HTTP httpserve.RequestCounts `json:"http"` // those that Config.Fallback answers included
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	dropped, files, packets := s.rec.Dropped(), s.tftp.Stats(), s.dhcp.Stats()
	return Stats{
		DHCPReceived: packets.Received, DHCPAnswered: packets.Answered, DHCPDropped: packets.Dropped,
		DHCPMalformed: packets.Malformed, DHCPUnknown: packets.Unknown, DHCPDirect: packets.Direct,
		DHCPUnresolved: packets.Unresolved, DHCPUnsent: packets.Unsent, TFTPServed: files.Served,
		TFTPRefused: files.Refused, TFTPAborted: files.Aborted,
		TFTPUnresolved: files.Unresolved, TFTPUnproven: files.Unproven, TFTPUnsent: files.Unsent,
		EventsDropped: dropped.Events,
		SeenDropped:   dropped.Seen, SyslogDropped: dropped.Syslog,
		SyslogUnknown: s.syslog.UnknownSenders(), Panics: s.guard.Panics(), HTTP: s.requests.Counts(),
	}
}

var (
	agentHost = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$`)
	pinForm   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// planKeyForm allows only characters that are safe in a boot script.
	planKeyForm = regexp.MustCompile(`^[A-Za-z0-9:=+/_-]{1,128}$`)
)

// New checks cfg and returns a server. Its error is an inventory.Problems with all
// problems of cfg.
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
	cfg.relayOnly(&p)
	cfg.checkModes(&p)
	cfg.checkDiscovery(&p)
	if len(cfg.Interfaces) > 0 || cfg.RelayOnly {
		if !cfg.Address.IsValid() && len(cfg.Interfaces) > 0 {
			a, err := firstAddress(cfg.Interfaces[0])
			if err != nil {
				p.Add("address", "give the server's address in the configuration", "%v", err)
			}
			cfg.Address = a
		}
		if n := len(cfg.ClaimKey); n > 0 && n < 16 {
			p.Add("claimKey", "run ingot init", "the key of claims has %d bytes; it needs at least 16", n)
		}
		if u, err := url.Parse(cfg.AgentURL); err != nil || u.Scheme != "https" || u.Path != "" || u.RawQuery != "" ||
			u.User != nil || !agentHost.MatchString(u.Host) {
			p.Add("agentURL", "https://ADDRESS:7443", "invalid URL %q; must be https with only a host and a port", cfg.AgentURL)
		}
		if cfg.PlanKey != "" && !planKeyForm.MatchString(cfg.PlanKey) {
			p.Add("planKey", "what action.FormatPlanKey writes", "invalid public key %q", cfg.PlanKey)
		}
		if !pinForm.MatchString(cfg.AgentPin) {
			p.Add("agentPin", "sha256: and 64 hexadecimal digits", "invalid key digest %q", cfg.AgentPin)
		}
	}
	if cfg.Address.IsValid() && !cfg.Address.Is4() {
		p.Add("address", "an IPv4 address", "%s is not an IPv4 address", cfg.Address)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	if len(cfg.HTTPAddr) == 0 {
		cfg.HTTPAddr = []string{":80", ":7080"}
	}
	cfg.TFTPAddr = cmp.Or(cfg.TFTPAddr, ":69")
	s := &Server{
		cfg: cfg, machines: machines, journal: journal, guard: cfg.Guard, log: cfg.Log, now: cfg.Now,
		rec: wire.NewRecorder(journal, cfg.Guard, cfg.Log, cfg.Now), unspent: make(chan unspent, maxUnspent), History: wire.NewHistory(),
	}
	s.syslog = wire.NewSyslog(s.rec, s.machineAt)
	var table neighbours.Table
	s.neighbour, s.limits = table.MAC, neighbours.NewLimits(table.Unresolved)
	s.checker = neighbours.NewChecker(cfg.Address, cfg.Guard)
	s.Rivals = neighbours.NewRivals(s.checker, cfg.givesAddresses(), journal, cfg.Log, cfg.Now)
	s.tftp = tftp.NewServer(s.readTFTP, s.limits, s.guard)
	s.probe = neighbours.NewProber(cfg.Interfaces, &table, cfg.Log).Probe
	s.guests = map[string]*guests{}
	for name, r := range cfg.Discovery {
		s.guests[name] = s.newGuestsOf(name, r)
	}
	for _, name := range cfg.DiscoverBeside {
		s.guests[name] = newGuests(inventory.Range{})
		s.guests[name].earlierUntil = s.now().Add(guestLease)
	}
	s.dhcp = dhcp.New(s.dhcpConfig())
	if _, port, err := net.SplitHostPort(cfg.HTTPAddr[0]); err == nil {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			s.httpPort.Store(uint32(n))
		}
	}
	return s, nil
}

// relayOnly checks RelayOnly and the fields that depend on it.
func (c *Config) relayOnly(p *inventory.Problems) {
	switch {
	case !c.RelayOnly && c.Listen.IsValid():
		p.Add("listen", "leave it out", "only a server that answers relays alone may listen on another address than its own")
	case !c.RelayOnly:
		return
	}
	if len(c.Interfaces) > 0 {
		p.Add("interfaces", "leave one of them out; an interface answers relays, too", "a server that answers relays alone has no interface")
	}
	if !c.Address.IsValid() {
		p.Add("address", "give the server's address in the configuration",
			"a server that answers relays alone has no interface to take its address from")
	}
	if len(c.Relays) == 0 {
		p.Add("relays", "list the relays' addresses on the machines' networks, for example 10.0.20.1",
			"no relay is listed, so no giaddr can be trusted")
	}
}

// bind returns the address for listeners whose configuration has none.
func (c *Config) bind() netip.Addr {
	if c.Listen.IsValid() {
		return c.Listen
	}
	return c.Address
}

func firstAddress(iface string) (netip.Addr, error) {
	i, err := net.InterfaceByName(iface)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("finding interface %q: %w", iface, err)
	}
	for _, p := range wire.Prefixes(i) {
		return p.Addr(), nil
	}
	return netip.Addr{}, fmt.Errorf("interface %q has no IPv4 address", iface)
}

// Base returns the URL of the HTTP handler for machines, without a slash at the end.
// After Run has bound its listeners, the URL has the port of the first one.
func (s *Server) Base() string {
	if port := s.httpPort.Load(); port != 80 {
		return "http://" + net.JoinHostPort(s.cfg.Address.String(), strconv.Itoa(int(port)))
	}
	return "http://" + s.cfg.Address.String()
}

// Run serves DHCP, TFTP and HTTP until ctx ends, and then returns nil. If a port
// cannot be bound, the error names the port and a remedy; one of several HTTP ports
// is enough. Without interfaces and RelayOnly, Run only waits.
func (s *Server) Run(ctx context.Context) error {
	if len(s.cfg.Interfaces) == 0 && !s.cfg.RelayOnly {
		s.log.Info("boot services are off: no interface is configured, run ingot init")
		<-ctx.Done()
		return nil
	}
	// Records of the last requests are written after the listeners have ended.
	late, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	g, ctx := errgroup.WithContext(ctx)
	https, err := s.listenHTTP(ctx)
	if err != nil {
		return err
	}
	tftpConn, err := tftp.Listen(ctx, httpserve.WithHost(s.cfg.TFTPAddr, s.cfg.bind()))
	if err != nil {
		closeAll(https)
		return err
	}
	ports, err := s.dhcp.Listen(ctx)
	if err != nil {
		closeAll(https)
		return errors.Join(err, tftpConn.Close())
	}
	var writers errgroup.Group
	writers.Go(func() error { return s.rec.Run(late) })
	writers.Go(func() error { return s.spendLate(late) })
	g.Go(func() error { return s.Rivals.Watch(ctx) })
	for _, l := range https {
		g.Go(func() error { return s.serveHTTP(ctx, l) })
	}
	g.Go(func() error { return s.tftp.Serve(ctx, tftpConn) })
	if s.cfg.SyslogAddr != "" {
		if c := s.syslog.Listen(ctx, httpserve.WithHost(s.cfg.SyslogAddr, s.cfg.bind())); c != nil {
			g.Go(func() error { return s.syslog.Serve(ctx, c) })
		}
	}
	for _, c := range ports {
		g.Go(func() error { return s.dhcp.Serve(ctx, c) })
	}
	s.log.Info("boot services are up", "interfaces", s.cfg.Interfaces, "dhcp", s.cfg.Modes, "relayOnly", s.cfg.RelayOnly, "address",
		s.cfg.Address.String(), "http", s.Base())
	err = g.Wait()
	stopWriting()
	return errors.Join(err, writers.Wait())
}

type closer interface{ Close() error }

// closeAll closes the listeners of a start that failed. It ignores errors: the cause
// of the failure is reported.
func closeAll[C closer](cs []C) {
	for _, c := range cs {
		_ = c.Close()
	}
}

// fileName reports whether name is valid for a file that this package serves.
func fileName(name string) bool {
	if len(name) == 0 || len(name) > 128 || name[0] == '.' || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		letter, digit := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
		return !letter && !digit && !strings.ContainsRune("._-+", c)
	})
}
