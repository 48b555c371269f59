package inventory

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/action"
)

// Discovery says which unknown machines boot the agent to report their hardware. Nothing is
// written to them, and nothing is installed before an operator orders it.
type Discovery struct {
	// Ranges are the addresses for unknown machines, by interface, or by the address of a relay on their
	// network with its length: 10.10.30.1/24.
	Ranges map[string]Range `json:"ranges,omitempty"`
	// Beside are interfaces in mode proxy or off: unknown machines have addresses of the other DHCP server.
	Beside []string `json:"beside,omitempty"`
	// Accept are the rules by which a discovered machine is added to the inventory; the first that
	// matches counts. Without one, an operator accepts it.
	Accept []AcceptRule `json:"accept,omitempty"`
}

// RelayNetwork returns the relay that a key of Discovery.Ranges names: its address, with the length of its
// network, 24 if that is left out. ok is false for the name of an interface.
func RelayNetwork(key string) (relay netip.Prefix, ok bool) {
	if a, err := netip.ParseAddr(key); err == nil && a.Is4() {
		return netip.PrefixFrom(a, 24), true
	}
	p, err := netip.ParsePrefix(key)
	return p, err == nil && p.Addr().Is4()
}

// On reports whether unknown machines are discovered at all.
func (d Discovery) On() bool { return len(d.Ranges)+len(d.Beside) > 0 }

// An AcceptRule adds discovered machines to the inventory.
type AcceptRule struct {
	// Match has patterns for facts; all of them must match: * is any text, ? any character.
	Match map[string]string `json:"match,omitempty"`
	// Name is the machine's name. {serial}, {uuid} and {mac} are replaced by its facts.
	Name string `json:"name"`
	// Addresses are those that the rule reserves, the first free one for each machine.
	Addresses   Range             `json:"addresses,omitempty"`
	Netmask     string            `json:"netmask,omitempty"`     // dotted quad; default 255.255.255.0
	Gateway     netip.Addr        `json:"gateway,omitzero"`      // default gateway
	Nameservers []netip.Addr      `json:"nameservers,omitempty"` // DNS servers
	Labels      map[string]string `json:"labels,omitempty"`      // added to those from facts
	Template    string            `json:"template,omitempty"`    // default of its provisioning
	Image       string            `json:"image,omitempty"`       // default of its provisioning
}

// DiscoveryFacts are the facts that AcceptRule.Match and AcceptRule.Name may name.
func DiscoveryFacts() []string {
	return []string{"manufacturer", "product", "serial", "uuid", "firmware", "arch", "mac"}
}

func discoveryFacts(mac string, f action.Facts) map[string]string {
	return map[string]string{
		"manufacturer": f.Manufacturer, "product": f.Product, "serial": f.Serial, "uuid": f.UUID, "firmware": f.Firmware,
		"arch": f.Arch, "mac": mac,
	}
}

var placeholder = regexp.MustCompile(`\{([a-z]*)\}`)

// Check returns the problems of d, with fields below field.
func (d Discovery) Check(field string) (ps Problems) {
	known := strings.Join(DiscoveryFacts(), ", ")
	names := slices.Sorted(maps.Keys(d.Ranges))
	for i, name := range names {
		d.checkOverlap(&ps, field, field+".ranges."+name, d.Ranges[name], names[:i])
	}
	for i, r := range d.Accept {
		at := fmt.Sprintf("%s.accept[%d]", field, i)
		for fact, pattern := range r.Match {
			if !slices.Contains(DiscoveryFacts(), fact) {
				ps.Add(at+".match."+fact, "write one of "+known, "unknown fact %q", fact)
			}
			if _, err := path.Match(pattern, ""); err != nil {
				ps.Add(at+".match."+fact, "write * for any text, ? for any character", "invalid pattern %q", pattern)
			}
		}
		if r.Name == "" {
			ps.Add(at+".name", "write for example node-{serial}", "is missing")
		}
		for _, p := range placeholder.FindAllStringSubmatch(r.Name, -1) {
			if !slices.Contains(DiscoveryFacts(), p[1]) {
				ps.Add(at+".name", "write one of "+known, "unknown fact %q", p[1])
			}
		}
		if r.Addresses == (Range{}) && (len(d.Beside) == 0 || len(d.Ranges) > 0) {
			ps.Add(at+".addresses", "write for example 10.0.20.50-10.0.20.90", "is missing: a machine without a reserved address is not answered")
		}
		if r.Addresses != (Range{}) {
			d.checkOverlap(&ps, field, at+".addresses", r.Addresses, names)
		}
		if ip := net.ParseIP(r.Netmask).To4(); r.Netmask != "" && ip == nil {
			ps.Add(at+".netmask", "write for example 255.255.255.0", "invalid netmask %q", r.Netmask)
		}
	}
	return ps
}

// checkOverlap adds a problem at the field at for each of the named ranges of d that overlaps r.
func (d Discovery) checkOverlap(ps *Problems, field, at string, r Range, names []string) {
	for _, name := range names {
		if r.Overlaps(d.Ranges[name]) {
			ps.Add(at, "choose other addresses", "%s overlaps %s of %s.ranges.%s", r, d.Ranges[name], field, name)
		}
	}
}

// Matches reports whether r accepts a machine.
func (r AcceptRule) Matches(mac string, f action.Facts) bool {
	facts := discoveryFacts(mac, f)
	for fact, pattern := range r.Match {
		if ok, err := path.Match(pattern, facts[fact]); !ok || err != nil {
			return false
		}
	}
	return true
}

// Machine returns the machine that r makes of a discovered one, with an address of r.Addresses, or without
// one where another DHCP server gives it.
// Facts come from the machine: text that is not valid in a name or a label is left out, and of its network
// interfaces only the one that DHCP has admitted is added, because it can name those of others. The error
// is ErrInvalid if no name remains.
func (r AcceptRule) Machine(mac string, f action.Facts, address netip.Addr) (Machine, error) {
	facts := discoveryFacts(mac, f)
	missing := ""
	name := placeholder.ReplaceAllStringFunc(r.Name, func(p string) string {
		text := nameForm(facts[p[1:len(p)-1]])
		if text == "" {
			missing = p
		}
		return text
	})
	if missing != "" {
		return Machine{}, fmt.Errorf("naming the machine with the MAC %s: it reports no %s: %w", mac, missing, ErrInvalid)
	}
	nic := Interface{MAC: mac}
	if address.IsValid() {
		nic = Interface{MAC: mac, Address: address, Netmask: r.Netmask, Gateway: r.Gateway, Nameservers: r.Nameservers}
		if nic.Netmask == "" {
			nic.Netmask = "255.255.255.0"
		}
	}
	f.NICs = nil
	m := FromFacts(name, nic, f)
	for k, v := range r.Labels {
		m.Labels[k] = v
	}
	m.Template, m.Image = r.Template, r.Image
	return m, nil
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// nameForm returns the part of s that is valid in a machine's name.
func nameForm(s string) string {
	return strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
}

var notInLabel = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// maxReportedNICs is how many network interfaces FromFacts takes from a report.
const maxReportedNICs = 32

// FromFacts returns a machine with the hardware that its agent has reported: nic, which booted, at most
// maxReportedNICs others, and labels. The others do not boot from the network until an operator allows it:
// a report can name the MAC of another machine.
func FromFacts(name string, nic Interface, f action.Facts) Machine {
	nic.UEFI = nic.UEFI || f.Firmware == "uefi"
	if nic.Arch == "" {
		nic.Arch = f.Arch
	}
	m := Machine{Name: name, Interfaces: []Interface{nic}, Labels: map[string]string{}}
	for _, x := range f.NICs {
		mac, err := ParseMAC(x.MAC)
		if err == nil && mac != nic.MAC && len(m.Interfaces) <= maxReportedNICs {
			m.Interfaces = append(m.Interfaces, Interface{MAC: mac, Arch: nic.Arch, UEFI: nic.UEFI, DisableNetboot: true})
		}
	}
	for k, v := range map[string]string{"manufacturer": f.Manufacturer, "product": f.Product, "serial": f.Serial} {
		v = strings.Trim(notInLabel.ReplaceAllString(v, "-"), "._-")
		if v = v[:min(len(v), 63)]; v != "" {
			m.Labels[k] = strings.TrimRight(v, "._-")
		}
	}
	return m
}

// FirstFree returns the first address of r that is not taken. If all are, the error is ErrConflict.
func (r Range) FirstFree(taken func(netip.Addr) (bool, error)) (netip.Addr, error) {
	for a := r.From; a.Compare(r.To) <= 0; a = a.Next() {
		if is, err := taken(a); err != nil || !is {
			return a, err
		}
	}
	return netip.Addr{}, fmt.Errorf("finding a free address in %s: all are taken: %w", r, ErrConflict)
}
