// Package machinefile reads machines from the files of "ingot machine push", and finds names and addresses that two
// machines claim. Lab files use Claims, too.
package machinefile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// document is a machine in a file. The fields that "ingot machine get" adds are ignored, so that
// its output can be pushed unchanged.
type document struct {
	inventory.Machine
	Netboot   *inventory.Netboot   `json:"netboot,omitempty"`   // not read from files
	Workflow  map[string]any       `json:"workflow,omitempty"`  // not read from files
	Installed *inventory.Installed `json:"installed,omitempty"` // not read from files
	LastSeen  time.Time            `json:"lastSeen,omitzero"`   // not read from files
}

// Rules returns the rules for the schema of a machine in any file.
func Rules() strictyaml.Rules {
	return strictyaml.Rules{
		"interfaces[].address": {"pattern": `^[0-9A-Fa-f:.]*(/[0-9]+)?$`},
		"interfaces[].arch":    strictyaml.OneOf(inventory.Architectures()...),
		"interfaces[].vlan":    strictyaml.Between(0, 4094),
		"bootFromDisk":         strictyaml.OneOf(inventory.DiskBoots()...),
		"bmc.driver":           strictyaml.OneOf(inventory.Drivers()...),
		"bmc.port":             strictyaml.Between(0, 65535),
		"bmc.bootPath[]":       strictyaml.OneOf(inventory.PathPXE, inventory.PathHTTP, inventory.PathMedia),
		"network.bonds[].mode": strictyaml.OneOf(inventory.BondModes()...),
		"network.vlans[].id":   strictyaml.Between(1, 4094),
	}
}

// Schema returns the JSON Schema of a machine in a file.
func Schema() strictyaml.Schema {
	rules := Rules()
	rules["netboot"] = strictyaml.Schema{"required": []any{}} // netboot is not read, so none of its keys is required
	return strictyaml.SchemaOf[document]("A machine, as ingot machine push reads it", rules)
}

// Read decodes and checks all documents, each with one machine. The error is an inventory.Problems with the
// problems of all documents; notes names fields that are ignored.
func Read(file string, docs []strictyaml.Document) (_ []inventory.Machine, notes []string, _ error) {
	var all inventory.Problems
	if len(docs) == 0 {
		return nil, nil, inventory.Problems{{File: file, What: "holds no machine", Remedy: "ingot machine push --help"}}
	}

	ms := make([]inventory.Machine, len(docs))
	taken := Claims{}
	for i, d := range docs {
		doc, err := decode(d)
		var ps inventory.Problems
		if errors.As(err, &ps) {
			all = append(all, ps...)
			continue
		}
		if err != nil {
			return nil, nil, err
		}

		if n := doc.Netboot; n != nil && (n.AllowPXE || n.AllowWorkflow) {
			notes = append(notes, fmt.Sprintf("%s:%d: netboot is not read from files: "+
				"a run arms its machine itself; to arm a machine by hand: ingot netboot arm", file, d.LineOf("netboot")))
		}
		ms[i] = inventory.Canonical(doc.Machine)
		ps = inventory.Validate(ms[i])
		taken.Machine(&ps, "", ms[i], func(field string) string { return fmt.Sprintf("%s:%d", file, d.LineOf(field)) })
		ps = d.Locate(ps)
		SortByLine(ps)
		all = append(all, ps...)
	}

	return ms, notes, all.Err()
}

// decode reads one document. Its problems are an inventory.Problems.
func decode(d strictyaml.Document) (document, error) {
	var doc document
	if kind := d.Text("kind"); kind != "" && d.Text("apiVersion") != "" {
		return doc, d.Locate(inventory.Problems{{
			Field: "kind", What: fmt.Sprintf("this command does not read documents of kind %s", kind),
			Remedy: "write Ingot's own form, see: ingot machine get NAME --output yaml",
		}})
	}

	err := d.Decode(&doc)
	if ps, ok := errors.AsType[inventory.Problems](err); ok {
		ps = Undisputed(ps, d.Locate(inventory.Validate(inventory.Canonical(doc.Machine))))
		SortByLine(ps)
		return doc, ps
	}

	return doc, err
}

// Undisputed joins unread, the problems of decoding, with found, the problems of the validation. It leaves out each problem
// in found whose field has a problem in unread: the validation reports a field that could not be decoded as missing.
func Undisputed(unread, found inventory.Problems) inventory.Problems {
	out := slices.Clone(unread)
	for _, p := range found {
		if !slices.ContainsFunc(unread, func(q inventory.Problem) bool { return Touches(q.Field, p.Field) }) {
			out = append(out, p)
		}
	}
	return out
}

// Touches reports whether a problem with field a may cause a problem with field b. It does if one of the fields contains
// the other, or if a is the address of an interface and b is its netmask or gateway.
func Touches(a, b string) bool {
	if i, ok := strings.CutSuffix(a, ".address"); ok && (b == i+".netmask" || b == i+".gateway") {
		return true
	}
	in := func(x, y string) bool {
		return x == "" || x == y || strings.HasPrefix(y, x) && strings.ContainsAny(y[len(x):len(x)+1], ".[")
	}
	return in(a, b) || in(b, a)
}

// SortByLine sorts problems by line; the sort is stable.
func SortByLine(ps inventory.Problems) {
	slices.SortStableFunc(ps, func(a, b inventory.Problem) int { return a.Line - b.Line })
}

// Claims maps values that must be unique ("MAC 02:…") to the place where they were written.
type Claims map[string]string

// Add claims value for a field; at is the place where it was written. If the value is claimed already, Add adds a
// problem that names the first place.
func (c Claims) Add(ps *inventory.Problems, field, what, value, at string) {
	key := what + " " + value
	if other, ok := c[key]; ok {
		ps.Add(field, "change one of the two", "%s is given at %s already", key, other)
		return
	}
	c[key] = at
}

// Machine claims the name, the MACs and the addresses of m. prefix is the path of m in its file, at returns the place
// where a field was written. Duplicates within m are not reported here, but by inventory.Validate.
func (c Claims) Machine(ps *inventory.Problems, prefix string, m inventory.Machine, at func(field string) string) {
	claim := func(field, what, value string) { c.Add(ps, prefix+field, what, value, at(prefix+field)) }
	if m.Name != "" {
		claim("name", "machine name", m.Name)
	}

	for n, x := range m.Interfaces {
		field := fmt.Sprintf("interfaces[%d].", n)
		if x.MAC != "" && !repeats(m, n, func(y inventory.Interface) bool { return y.MAC == x.MAC }) {
			claim(field+"mac", "MAC", x.MAC)
		}
		if x.Address.IsValid() && !repeats(m, n, func(y inventory.Interface) bool { return y.Address == x.Address }) {
			claim(field+"address", "address", x.Address.String())
		}
	}
}

// repeats reports whether same returns true for one of the first n interfaces of m.
func repeats(m inventory.Machine, n int, same func(inventory.Interface) bool) bool {
	return slices.ContainsFunc(m.Interfaces[:n], same)
}
