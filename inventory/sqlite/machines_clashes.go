package sqlite

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// clashes returns an error if two machines of ms, or a machine of ms and a stored one, have a value that only one machine may have. The
// error is an inventory.Conflicts if a stored machine has one of these values, and otherwise an inventory.Problems. If replace is false and
// a machine with a name in ms is stored already, the error is inventory.ErrConflict.
func clashes(ms []inventory.Machine, stored []storedMachine, replace bool) error {
	batch := map[string]bool{}
	for _, m := range ms {
		batch[m.Name] = true
	}
	owner := map[string]string{}    // key of a thing → name of the machine that has the thing
	gateways := map[string]string{} // address → name of a stored machine whose gateway is this address
	var existing []string

	for _, m := range stored {
		if batch[m.Name] {
			existing = append(existing, strconv.Quote(m.Name))
			continue
		}
		for _, t := range things(m.Machine) {
			owner[t.key] = m.Name
		}
		for _, i := range m.Interfaces {
			gateways[i.Gateway.String()] = m.Name
		}
	}
	if !replace && len(existing) > 0 {
		return fmt.Errorf("machine %s exists already: %w", strings.Join(existing, ", "), inventory.ErrConflict)
	}

	// A machine of ms may be the router of other machines of ms. Then its address may be the gateway of stored machines, too.
	for _, m := range ms {
		for _, i := range m.Interfaces {
			delete(gateways, i.Gateway.String())
		}
	}

	var ps inventory.Problems
	conflict := false
	named := map[string]bool{}

	for _, m := range ms {
		if named[m.Name] {
			ps.Add("name", "give each machine a different name", "machine %q is given twice", m.Name)
			continue
		}
		named[m.Name] = true
		for _, t := range things(m) {
			other, taken := owner[t.key]
			switch {
			case !taken:
				owner[t.key] = m.Name
			case other != m.Name:
				conflict = conflict || !batch[other]
				ps.Add(t.field, "change one of the two", "machine %q: %s belongs to machine %q already", m.Name, t.text, other)
			case !t.repeats:
				ps.Add(t.field, "remove one of the two", "machine %q: %s is given twice", m.Name, t.text)
			}
		}
		if slices.Contains(existing, strconv.Quote(m.Name)) {
			continue // the router itself may be stored again with its address
		}

		for n, i := range m.Interfaces {
			if other, ok := gateways[i.Address.String()]; ok && i.Address.IsValid() {
				conflict = true
				ps.Add(fmt.Sprintf("interfaces[%d].address", n),
					"reserve another address; if this machine is the router, store it together with machine "+strconv.Quote(other),
					"machine %q: address %s is the gateway of machine %q", m.Name, i.Address, other)
			}
		}
	}
	if conflict {
		return inventory.Conflicts(ps)
	}
	return ps.Err()
}

// A thing is a value that only one machine may have, such as a MAC.
type thing struct {
	key, field, text string
	repeats          bool // one machine may have it twice
}

func things(m inventory.Machine) []thing {
	var out []thing
	for n, i := range m.Interfaces {
		field := fmt.Sprintf("interfaces[%d].", n)
		out = append(out, thing{key: "mac " + i.MAC, field: field + "mac", text: "MAC " + i.MAC})
		if i.Address.IsValid() {
			out = append(out, thing{
				key: "address " + i.Address.String(), field: field + "address",
				text: "address " + i.Address.String(),
			})
		}

		if i.Hostname != "" {
			name := strings.TrimSuffix(i.Hostname+"."+i.Domain, ".")
			out = append(out, thing{
				key: "hostname " + name, field: field + "hostname", text: "host name " + name,
				repeats: true,
			})
		}
	}
	if k := bmcKey(m.BMC); k != "" {
		out = append(out, thing{key: "bmc " + k, field: "bmc.host", text: "BMC " + m.BMC.Host})
	}
	return out
}

// bmcKey returns a text that identifies a BMC. It contains more than the host, because a host may have several BMCs on different ports, and
// a Redfish service may have several systems. bmcKey returns "" if the BMC is manual, or if several machines may share it (Shared).
func bmcKey(b *inventory.BMC) string {
	if b.Address() == "" || b.Capabilities().Shared {
		return ""
	}
	return strings.ToLower(b.Host) + " " + strconv.Itoa(b.OwnPort()) + " " + b.SystemName + b.ConsumerURL
}
