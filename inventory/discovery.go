package inventory

import (
	"cmp"
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

// Discovery says which unknown machines boot the agent, to report their hardware. Nothing is written to the disks of these machines, and
// nothing is installed before an operator orders it.
type Discovery struct {
	// Ranges are the addresses for unknown machines. The key names their network: it is an interface on that network, or the relay's address
	// there with the prefix length, such as 10.10.30.1/24.
	Ranges map[string]Range `json:"ranges,omitempty"`
	// Beside lists interfaces in mode proxy or off on which unknown machines are discovered, too. These machines get their addresses from the
	// other DHCP server.
	Beside []string `json:"beside,omitempty"`
	// Accept are the rules by which discovered machines are added to the inventory. The first rule that matches a machine is used. If none
	// matches, an operator has to accept the machine.
	Accept []AcceptRule `json:"accept,omitempty"`
}

// RelayNetwork returns the relay's address in a key of Discovery.Ranges, with the prefix length of its network (default 24). If the key is
// the name of an interface, ok is false.
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
	// Match has a pattern for each fact; all of them must match. In a pattern, * matches any text, and ? any character.
	Match map[string]string `json:"match,omitempty"`
	// Name is the name for the machine. In it, {serial}, {uuid} and {mac} are replaced by the machine's facts.
	Name string `json:"name"`
	// Addresses is a range. Its first free address is reserved for the machine.
	Addresses   Range             `json:"addresses,omitempty"`
	Netmask     string            `json:"netmask,omitempty"`     // dotted quad; default 255.255.255.0
	Gateway     netip.Addr        `json:"gateway,omitzero"`      // default gateway
	Nameservers []netip.Addr      `json:"nameservers,omitempty"` // DNS servers
	Labels      map[string]string `json:"labels,omitempty"`      // labels in addition to those that are made from facts
	Template    string            `json:"template,omitempty"`    // default for provisioning the machine
	Image       string            `json:"image,omitempty"`       // default for provisioning the machine
}

// DiscoveryFacts are the facts that may occur in AcceptRule.Match and AcceptRule.Name.
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

// Check returns the problems of d. field is the path of d in the document; the fields of all problems begin with it.
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
			ps.Add(at+".addresses", "write for example 10.0.20.50-10.0.20.90",
				"is missing: DHCP does not answer a machine without a reserved address")
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

// checkOverlap compares r with the ranges d.Ranges[name] for each of names, and adds a problem for each range that overlaps r. The problem
// has the field path at.
func (d Discovery) checkOverlap(ps *Problems, field, at string, r Range, names []string) {
	for _, name := range names {
		if r.Overlaps(d.Ranges[name]) {
			ps.Add(at, "choose other addresses", "%s overlaps %s of %s.ranges.%s", r, d.Ranges[name], field, name)
		}
	}
}

// Matches reports whether all patterns of r match the facts of a machine.
func (r AcceptRule) Matches(mac string, f action.Facts) bool {
	facts := discoveryFacts(mac, f)
	for fact, pattern := range r.Match {
		if ok, err := path.Match(pattern, facts[fact]); !ok || err != nil {
			return false
		}
	}
	return true
}

// Machine returns the machine that r adds to the inventory for a discovered machine. address, from r.Addresses, is reserved for the
// machine; if address is not valid, another DHCP server gives the machine an address.
//
// The facts come from the machine and may be forged. Text that is not valid in a name or a label is left out. Only the interface with mac,
// which DHCP has admitted, is added: the facts can contain MACs of other machines. If the machine does not report a fact that r.Name
// contains, the error is ErrInvalid.
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
		netmask := cmp.Or(r.Netmask, "255.255.255.0")
		nic = Interface{MAC: mac, Address: address, Netmask: netmask, Gateway: r.Gateway, Nameservers: r.Nameservers}
	}
	f.NICs = nil
	m := FromFacts(name, nic, f)
	maps.Copy(m.Labels, r.Labels)
	m.Template, m.Image = r.Template, r.Image
	return m, nil
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// nameForm returns s in lower case, with dashes in place of characters that are not valid in a machine's name.
func nameForm(s string) string {
	return strings.Trim(notInName.ReplaceAllString(strings.ToLower(s), "-"), "-")
}

var notInLabel = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// maxReportedNICs is how many network interfaces FromFacts takes from a report.
const maxReportedNICs = 32

// FromFacts returns a machine with the hardware that its agent has reported: the interface nic, from which the machine booted, at most
// maxReportedNICs other interfaces, and labels. The other interfaces may not boot from the network until an operator allows it, because a
// report can contain the MAC of another machine.
func FromFacts(name string, nic Interface, f action.Facts) Machine {
	nic.UEFI = nic.UEFI || f.Firmware == "uefi"
	nic.Arch = cmp.Or(nic.Arch, f.Arch)
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

// FirstFree returns the first address of r for which taken returns false. If there is none, the error is ErrConflict.
func (r Range) FirstFree(taken func(netip.Addr) (bool, error)) (netip.Addr, error) {
	for a := r.From; a.Compare(r.To) <= 0; a = a.Next() {
		if is, err := taken(a); err != nil || !is {
			return a, err
		}
	}
	return netip.Addr{}, fmt.Errorf("finding a free address in %s: all are taken: %w", r, ErrConflict)
}
