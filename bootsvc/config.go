package bootsvc

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/wire"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

// Machines finds the machine of a request and its grant. Its methods return inventory.ErrNotFound for an unknown
// machine, and the zero Grant for a machine that was never owned.
type Machines interface {
	// MachineByMAC takes a MAC in its canonical form (lower case, colons).
	MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error)
	// MachineByAddress finds the machine that has an interface with this reserved address.
	MachineByAddress(ctx context.Context, addr netip.Addr) (inventory.Machine, inventory.Grant, error)
	// InReservedNetwork reports whether a is in the network of any reservation. It must be cheap, because any host on the
	// network can cause the call.
	InReservedNetwork(a netip.Addr) bool
}

// Journal records what was seen on the network.
type Journal interface {
	wire.Journal
	dhcp.Journal
}

// Config is the configuration of a Server, and the parts of the program that it calls.
type Config struct {
	// Interfaces are the network interfaces on which DHCP is answered. If the list is empty and RelayOnly is off, nothing
	// is served: a DHCP server must never start on a network by default.
	Interfaces []string
	// Modes maps interfaces to their DHCP modes. An interface without an entry has inventory.DHCPReservation.
	Modes map[string]inventory.DHCPMode
	// Discovery maps an interface, or a relay (see inventory.RelayNetwork), to the addresses for unknown machines there.
	// These machines boot the agent, which reports their hardware. Without an entry, unknown machines get no answer.
	Discovery map[string]inventory.Range
	// DiscoverBeside are interfaces in mode proxy or off. Unknown machines there also boot the agent, with an address
	// from the other DHCP server.
	DiscoverBeside []string
	// RelayOnly makes the server answer only what relays send to Address, on a plain UDP socket without broadcast and
	// layer 2. Interfaces must then be empty, and Relays must list the trusted relays. Packets without giaddr are
	// dropped.
	RelayOnly bool
	// Address is the IPv4 address at which machines reach this server. If it is zero, the first address of the first
	// interface is used.
	Address netip.Addr
	// Listen is the address that a RelayOnly server binds if Address is not an address of this host, for example in a
	// container with published ports. Zero = Address.
	Listen netip.Addr
	// HTTPAddr are the addresses of the plain HTTP listeners: host:port, or :port on Address. Empty = ports 80 and 7080.
	// The URLs for machines contain the port of the first listener that could be bound.
	HTTPAddr []string
	// TFTPAddr is the address of the TFTP server. Empty = port 69 of Address.
	TFTPAddr string
	// SyslogAddr is where this server receives syslog from machines: host:port, or :port on Address; "" = not at all.
	SyslogAddr string
	// AgentURL is the URL of the server for agents, https://host:port. AgentPin is the digest of its public key,
	// sha256:<hex>.
	AgentURL string
	AgentPin string
	// LoaderDir contains undionly.kpxe, snponly.efi, ipxe.efi …; KernelPath and
	// InitramfsPath are the files of the agent OS.
	LoaderDir string
	// Loader is the loader for discovered machines and for interfaces that set none: one of inventory.SecureLoaders, or
	// "" to choose by architecture.
	Loader        string
	KernelPath    string
	InitramfsPath string
	// MinimumSBAT maps components of loaders to the lowest SBAT generation that is served.
	MinimumSBAT sbat.Minimum
	// Relays lists the relays that may send requests. If it is empty, any relay may. The relay's address must be in the
	// subnet of the client's reservation, because the client could not use the address elsewhere. The exception is a
	// listed relay that selects that subnet (RFC 3527).
	Relays wire.Relays
	// LinkLocal adds a classless route (option 121) to 169.254.169.254 through this server, or through the gateway behind
	// a relay. The operator must add 169.254.169.254 to the server's host.
	LinkLocal bool
	// PlanKey is the public key with which the agent verifies signed orders, in the format of action.FormatPlanKey. If it
	// is "", agents execute nothing.
	PlanKey string
	// ClaimKey signs claims and the URLs that expire with a boot. It has at least 16 bytes. Without it (the key file is
	// lost) machines get addresses, but none is armed.
	ClaimKey []byte
	// Images, if set, are served under /images/. Delivered, if set, is called after each answer to a machine that a run
	// owns; it must not block.
	Images    Images
	Delivered func(Delivery)
	// Installers, if set, provides the boots of other installers. Their images come from Images. MetadataURL is the base
	// URL of the metadata server, which serves the documents of these installers.
	Installers  Installers
	MetadataURL string
	// Fallback, if set, answers all other HTTP paths. The metadata server uses it, because it shares port 80.
	Fallback http.Handler
	// Guard counts the panics while network input is handled; nil = New creates one.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

var (
	agentHost = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$`)
	pinForm   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// planKeyForm allows only characters that are safe in a boot script.
	planKeyForm = regexp.MustCompile(`^[A-Za-z0-9:=+/_-]{1,128}$`)
)

// check returns the problems of c as inventory.Problems, or nil. It sets a missing Address from the first interface.
func (c *Config) check() error {
	var p inventory.Problems
	c.checkRelayOnly(&p)
	c.checkModes(&p)
	c.checkDiscovery(&p)
	if len(c.Interfaces) > 0 || c.RelayOnly {
		if !c.Address.IsValid() && len(c.Interfaces) > 0 {
			a, err := firstAddress(c.Interfaces[0])
			if err != nil {
				p.Add("address", "give the server's address in the configuration", "%v", err)
			}
			c.Address = a
		}
		if n := len(c.ClaimKey); n > 0 && n < 16 {
			p.Add("claimKey", "run ingot init", "the key of claims has %d bytes; must be at least 16", n)
		}
		if u, err := url.Parse(c.AgentURL); err != nil || u.Scheme != "https" || u.Path != "" || u.RawQuery != "" ||
			u.User != nil || !agentHost.MatchString(u.Host) {
			p.Add("agentURL", "https://ADDRESS:7443", "invalid URL %q; must be https with only a host and a port", c.AgentURL)
		}
		if c.PlanKey != "" && !planKeyForm.MatchString(c.PlanKey) {
			p.Add("planKey", "what action.FormatPlanKey writes", "invalid public key %q", c.PlanKey)
		}
		if !pinForm.MatchString(c.AgentPin) {
			p.Add("agentPin", "sha256: and 64 hexadecimal digits", "invalid key digest %q", c.AgentPin)
		}
	}
	if c.Address.IsValid() && !c.Address.Is4() {
		p.Add("address", "an IPv4 address", "%s is not an IPv4 address", c.Address)
	}
	return p.Err()
}

// checkRelayOnly adds to p the problems of RelayOnly, and of the fields that depend on it.
func (c *Config) checkRelayOnly(p *inventory.Problems) {
	switch {
	case !c.RelayOnly && c.Listen.IsValid():
		p.Add("listen", "leave it out", "only a server with relay_only may listen on an address other than its own")
	case !c.RelayOnly:
		return
	}
	if len(c.Interfaces) > 0 {
		p.Add("interfaces", "remove the interfaces or relay_only; a server with interfaces answers relays, too",
			"a server with relay_only must not have interfaces")
	}
	if !c.Address.IsValid() {
		p.Add("address", "give the server's address in the configuration",
			"a server with relay_only has no interface from which to take its address")
	}
	if len(c.Relays) == 0 {
		p.Add("relays", "list the relays' addresses on the machines' networks, for example 10.0.20.1",
			"no relay is listed, so no giaddr can be trusted")
	}
}

// bindAddress returns the host address for listeners that are configured with a port only.
func (c *Config) bindAddress() netip.Addr {
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

// modeOn returns the DHCP mode of an interface.
func (c *Config) modeOn(iface string) inventory.DHCPMode {
	if m := c.Modes[iface]; m != "" {
		return m
	}
	return inventory.DHCPReservation
}

// givesAddresses returns the interfaces in mode reservation: on these, this server assigns the addresses.
func (c *Config) givesAddresses() []string {
	return slices.DeleteFunc(slices.Clone(c.Interfaces), func(name string) bool { return c.modeOn(name) != inventory.DHCPReservation })
}

// checkModes adds the problems of Modes to p.
func (c *Config) checkModes(p *inventory.Problems) {
	for _, name := range slices.Sorted(maps.Keys(c.Modes)) {
		if m := c.Modes[name]; !slices.Contains(inventory.DHCPModes(), string(m)) {
			p.Add("modes."+name, "one of "+strings.Join(inventory.DHCPModes(), ", "), "invalid DHCP mode %q", m)
		}
		if !slices.Contains(c.Interfaces, name) {
			p.Add("modes."+name, "name one of the interfaces", "Ingot does not answer machines on interface %q", name)
		}
	}
}

// alwaysNamesLoader reports whether an interface is in mode off. The other DHCP server there names a loader to every
// machine, armed or not.
func (c *Config) alwaysNamesLoader() bool {
	return slices.Contains(slices.Collect(maps.Values(c.Modes)), inventory.DHCPOff)
}

// checkDiscovery adds the problems of Discovery and DiscoverBeside to p.
func (c *Config) checkDiscovery(p *inventory.Problems) {
	for name, r := range c.Discovery {
		field := "discovery." + name
		relay, isRelay := inventory.RelayNetwork(name)
		switch {
		case isRelay && !slices.ContainsFunc(c.Relays, func(listed netip.Prefix) bool { return listed.Contains(relay.Addr()) }):
			p.Add(field, "list the relay under relays, too", "%s is not a listed relay", relay.Addr())
		case isRelay && (!relay.Contains(r.From) || !relay.Contains(r.To)):
			p.Add(field, "write the relay's address with the length of its network", "%s is not in %s", r, relay.Masked())
		case !isRelay && c.modeOn(name) != inventory.DHCPReservation:
			p.Add(field, "leave it out", "in mode %s another server gives the addresses", c.modeOn(name))
		}
		if err := r.Check(); err != nil {
			p.Add(field, "write for example 10.0.20.200-10.0.20.230", "%v", err)
		}
	}
	for _, name := range c.DiscoverBeside {
		if c.modeOn(name) == inventory.DHCPReservation || !slices.Contains(c.Interfaces, name) {
			p.Add("discoverBeside", "name interfaces in mode proxy or off", "interface %q is not in mode proxy or off", name)
		}
	}
}

// isFileName reports whether this package may serve a file of this name.
func isFileName(name string) bool {
	if len(name) == 0 || len(name) > 128 || name[0] == '.' || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		letter, digit := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
		return !letter && !digit && !strings.ContainsRune("._-+", c)
	})
}
