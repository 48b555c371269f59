// Package vyos supports VyOS: it reads config.boot as strictly as VyOS does, checks what Genesis depends on, and
// changes the DHCP relay of a running router.
package vyos

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Document checks and reads config.boot of VyOS 1.3 and later.
type Document struct{}

// Secrets returns the values of all leaf nodes whose names isSecret accepts.
func (Document) Secrets(contents []byte, isSecret func(name string) bool) (secrets []string) {
	config, _ := Parse(contents)
	config.walk("", func(_ string, n *Node) {
		if isSecret(n.Name) {
			secrets = append(secrets, n.Values...)
		}
	})
	return secrets
}

var (
	ethernetName = regexp.MustCompile(`^((eth|lan)[0-9]+|(eno|ens|enp|enx).+)$`)
	hostname     = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]{0,61}[A-Za-z0-9])?$`)
)

// A checker collects the problems of a configuration.
type checker struct {
	Config
	problems, warnings inventory.Problems
}

func (c *checker) add(line int, field, remedy, format string, args ...any) {
	c.problems = append(c.problems, inventory.Problem{
		Line: line, Field: field, What: fmt.Sprintf(format, args...), Remedy: remedy,
	})
}

func (c *checker) warn(line int, field, remedy, what string) {
	c.warnings = append(c.warnings, inventory.Problem{Line: line, Field: field, What: what, Remedy: remedy})
}

// Check returns every reason for which VyOS would refuse the file, or would accept it and then be unreachable.
func (Document) Check(_ string, contents []byte) (problems, warnings inventory.Problems) {
	config, syntax := Parse(contents)
	c := checker{Config: config, problems: syntax}
	unknown, similar := checkKeys(&c.Node, "", "")
	c.problems, c.warnings = append(c.problems, unknown...), similar

	c.checkInterfaces()
	c.checkRelay(unknown)
	switch name := c.Hostname(); {
	case name == "":
		c.warn(1, "system host-name", "give a host name", "is missing: the host name distinguishes routers")
	case !hostname.MatchString(name):
		c.add(c.At("system", "host-name").Line, "system host-name", "use letters, digits and -", "invalid host name")
	}
	c.walk("", func(path string, n *Node) {
		if n.Name == "plaintext-password" && n.Value() != "" {
			c.warn(n.Line, path, "give encrypted-password, made with: mkpasswd -m sha-512", "is a password in plain text")
		}
	})
	return c.problems, c.warnings
}

func (c *checker) checkInterfaces() {
	interfaces := c.At("interfaces", "ethernet")
	if interfaces == nil || len(interfaces.Children) == 0 {
		line := 1
		if n := c.At("interfaces"); n != nil {
			line = n.Line
		}
		c.add(line, "interfaces ethernet", "give at least one: ethernet eth0 { hw-id … }",
			"no Ethernet interface is configured, so nothing would reach the router")
		return
	}
	names := map[string]string{} // interface name by hardware address
	for _, n := range interfaces.Children {
		c.checkEthernet(n, names)
	}
}

func (c *checker) checkEthernet(n *Node, names map[string]string) {
	const remedy = "write the hardware address of the network port: hw-id aa:bb:cc:dd:ee:ff"
	field := "interfaces ethernet " + n.Name
	if !ethernetName.MatchString(n.Name) {
		c.add(n.Line, field, "use eth0, eth1 …", "invalid name of an Ethernet interface")
	}
	at := n.At("hw-id")
	if at == nil {
		c.add(n.Line, field+" hw-id", remedy,
			"is missing: without it, interfaces are numbered in the order in which the kernel finds them")
		return
	}

	mac, err := inventory.ParseMAC(at.Value())
	switch other, taken := names[mac]; {
	case err != nil:
		c.add(at.Line, field+" hw-id", remedy, "invalid hardware address %q", at.Value())
	case taken:
		c.add(at.Line, field+" hw-id", "give each interface its own address", "%s is already the hardware address of %s", mac, other)
	default:
		names[mac] = n.Name
	}
}

// checkRelay checks the DHCP relay through which machines behind the router boot. If the relay has an unknown key, checkRelay reports
// nothing else, because the unknown key may be a misspelling of a missing one.
func (c *checker) checkRelay(unknown inventory.Problems) {
	const field = "service dhcp-relay"
	n := c.At("service", "dhcp-relay")
	if n == nil || n.At("disable") != nil {
		return
	}
	if slices.ContainsFunc(unknown, func(p inventory.Problem) bool { return strings.HasPrefix(p.Field, field+" ") }) {
		return
	}

	servers := n.At("server")
	if servers == nil || len(servers.Values) == 0 {
		c.add(n.Line, field+" server", "name the provisioning server: server 192.0.2.10",
			"is missing: the relay has no server to pass requests to")
	} else {
		for _, s := range servers.Values {
			if a, err := netip.ParseAddr(s); err != nil || !a.Is4() {
				c.add(servers.Line, field+" server", "give an IPv4 address", "invalid address %q", s)
			}
		}
	}

	either := len(n.All("interface")) > 0
	listen, upstream := len(n.All("listen-interface")) > 0, len(n.All("upstream-interface")) > 0
	switch {
	case either && !listen && !upstream, !either && listen && upstream:
	case either:
		c.add(n.Line, field+" interface", "give only listen-interface and upstream-interface",
			"cannot be combined with listen-interface and upstream-interface")
	case listen:
		c.add(n.Line, field+" upstream-interface", "name the interface towards the server",
			"is missing: the relay cannot reach the server")
	default:
		c.add(n.Line, field+" listen-interface", "name the interface of the machines, and upstream-interface towards the server",
			"is missing: the relay listens on no interface")
	}
}

// CheckRelay returns why DHCP packets would not be relayed to the server. It returns nothing if the file has syntax errors.
func (Document) CheckRelay(contents []byte, server netip.Addr) (problems inventory.Problems) {
	config, syntax := Parse(contents)
	if len(syntax) > 0 {
		return nil
	}
	relay := config.At("service", "dhcp-relay")
	if relay != nil && relay.At("disable") != nil {
		problems = append(problems, inventory.Problem{
			Field: "service dhcp-relay disable", Line: relay.At("disable").Line,
			What: "the relay is switched off", Remedy: "remove it",
		})
	}
	if server.IsValid() && !slices.Contains(config.All("service", "dhcp-relay", "server"), server.String()) {
		p := inventory.Problem{
			Field: "service dhcp-relay server", What: "the relay does not forward packets to the server " + server.String(),
			Remedy: "add inside service dhcp-relay: server " + server.String(),
		}
		for _, n := range []*Node{relay, config.At("service")} {
			if n != nil && p.Line == 0 {
				p.Line = n.Line
			}
		}
		problems = append(problems, p)
	}
	return problems
}
