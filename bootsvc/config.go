package bootsvc

import (
	"cmp"
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

// Machines finds the machine that has sent a request, and its grant. For an unknown machine, its methods return
// inventory.ErrNotFound. For a machine that was never owned, they return the zero Grant.
type Machines interface {
	// MachineByMAC finds the machine that has an interface with this MAC. The MAC must be in its canonical form (lower
	// case, with colons).
	MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error)
	// MachineByAddress finds the machine that has an interface for which this address is reserved.
	MachineByAddress(ctx context.Context, addr netip.Addr) (inventory.Machine, inventory.Grant, error)
	// InReservedNetwork reports whether a is in the network of any reservation. It must be fast, because any host on
	// the network can cause calls of it.
	InReservedNetwork(a netip.Addr) bool
}

// Journal stores what this server has seen on the network.
type Journal interface {
	wire.Journal
	dhcp.Journal
}

// Config is the configuration of a Server. It also contains the parts of the program that the Server calls.
type Config struct {
	// Interfaces are the network interfaces on which this server answers DHCP. If there are none and RelayOnly is off,
	// nothing is served: a DHCP server must never start on a network by default.
	Interfaces []string
	// Modes maps interfaces to their DHCP modes. The default for an interface is inventory.DHCPReservation.
	Modes map[string]inventory.DHCPMode
	// Discovery maps an interface, or a relay (see inventory.RelayNetwork), to the range of addresses for the unknown
	// machines behind it. These machines boot the agent, which reports their hardware. Behind an interface or relay
	// without an entry, unknown machines get no answer.
	Discovery map[string]inventory.Range
	// DiscoverBeside lists interfaces in mode proxy or off on which unknown machines also boot the agent. The other
	// DHCP server on that network assigns their addresses.
	DiscoverBeside []string
	// RelayOnly makes the server answer only what relays send to Address. The server then uses a plain UDP socket,
	// without broadcast and raw frames, and drops packets without giaddr. Interfaces must be empty, and Relays must
	// list the trusted relays.
	RelayOnly bool
	// Address is the IPv4 address at which machines reach this server. Zero = the first address of the first interface.
	Address netip.Addr
	// Listen is the address to which a RelayOnly server binds its ports if this host does not have Address, for example
	// in a container with published ports. Zero = Address.
	Listen netip.Addr
	// HTTPAddr lists the addresses on which plain HTTP is served: host:port, or :port for a port of Address. Empty =
	// ports 80 and 7080. URLs for machines contain the first of these ports that could be bound.
	HTTPAddr []string
	// TFTPAddr is the address of the TFTP server. Empty = port 69 of Address.
	TFTPAddr string
	// SyslogAddr is the address at which this server receives syslog from machines: host:port, or :port for a port of
	// Address; "" = it receives no syslog.
	SyslogAddr string
	// AgentURL is the URL that agents use for this server, https://host:port. AgentPin is the digest of the server's
	// public key, sha256:<hex>.
	AgentURL string
	AgentPin string
	// LoaderDir is the directory of the boot loaders: undionly.kpxe, snponly.efi, ipxe.efi … KernelPath and
	// InitramfsPath are the files of the agent OS.
	LoaderDir string
	// Loader is the loader for machines in discovery, and for interfaces that set no loader. It is one of
	// inventory.SecureLoaders, or "" to choose the loader by architecture.
	Loader        string
	KernelPath    string
	InitramfsPath string
	// MinimumSBAT maps each component of a loader to the lowest SBAT generation of it that may be served.
	MinimumSBAT sbat.Minimum
	// Relays lists the relays that may send requests; if it is empty, every relay may. The relay's address must be in
	// the subnet of the client's reservation, because the client cannot use an address of another subnet. A listed
	// relay may have another address if it names that subnet in its requests (RFC 3527).
	Relays wire.Relays
	// LinkLocal makes DHCP send clients a classless route (option 121) to 169.254.169.254. The route leads through this
	// server or, behind a relay, through the gateway. The operator must add 169.254.169.254 to this host.
	LinkLocal bool
	// PlanKey is the public key with which the agent verifies signed orders, in the format of action.FormatPlanKey.
	// Without it, agents execute nothing.
	PlanKey string
	// ClaimKey signs claims, and the URLs that are valid for one boot only. It has at least 16 bytes. If it is empty
	// (the key file is lost), machines still get addresses, but no machine is armed.
	ClaimKey []byte
	// Images, if set, is served under /images/. Delivered, if set, is called after each answer about an image to a
	// machine that a run owns. Delivered must not block.
	Images    Images
	Delivered func(Delivery)
	// Installers, if set, lets machines boot other installers than the agent. The images of these installers come from
	// Images. MetadataURL is the base URL of the metadata server, which serves the documents of these installers.
	Installers  Installers
	MetadataURL string
	// Fallback, if set, answers all other HTTP paths. It is the handler of the metadata server, which shares port 80.
	Fallback http.Handler
	// Guard counts the panics that happen while network input is handled; nil = New creates a Guard.
	Guard *guard.Guard
	Log   *slog.Logger
	Now   func() time.Time
}

var (
	agentHost = regexp.MustCompile(`^[A-Za-z0-9.-]+(:[0-9]{1,5})?$`)
	pinForm   = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	// planKeyForm is the pattern for plan keys. It allows only characters that are safe in a boot script.
	planKeyForm = regexp.MustCompile(`^[A-Za-z0-9:=+/_-]{1,128}$`)
)

// check returns the problems of c as inventory.Problems, or nil. If c has no Address, it sets c.Address to the first
// address of the first interface.
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

// checkRelayOnly adds to p the problems of RelayOnly, and of the other fields that RelayOnly allows or requires.
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

// bindAddress returns the address on which to listen if the configuration gives only a port.
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
	return cmp.Or(c.Modes[iface], inventory.DHCPReservation)
}

// givesAddresses returns the interfaces in mode reservation, on which this server assigns the addresses.
func (c *Config) givesAddresses() []string {
	return slices.DeleteFunc(slices.Clone(c.Interfaces), func(name string) bool { return c.modeOn(name) != inventory.DHCPReservation })
}

// checkModes adds to p the problems of Modes.
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

// alwaysNamesLoader reports whether any interface is in mode off. On the network of such an interface, another DHCP
// server names a loader to every machine, armed or not.
func (c *Config) alwaysNamesLoader() bool {
	return slices.Contains(slices.Collect(maps.Values(c.Modes)), inventory.DHCPOff)
}

// checkDiscovery adds to p the problems of Discovery and DiscoverBeside.
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

// isFileName reports whether name is a file name that this package may serve.
func isFileName(name string) bool {
	if len(name) == 0 || len(name) > 128 || name[0] == '.' || name[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		letter, digit := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z', '0' <= c && c <= '9'
		return !letter && !digit && !strings.ContainsRune("._-+", c)
	})
}
