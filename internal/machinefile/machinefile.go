// Package machinefile reads machines from the files that people write: the
// ones of "ingot machine push" and, with their claims on names and addresses,
// those of a lab file.
package machinefile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// document is a machine as a file has it: what "machine get" adds to what is
// stored is read, so that its output can be pushed back, and left aside.
type document struct {
	inventory.Machine
	Netboot  *inventory.Netboot `json:"netboot"`
	Workflow map[string]any     `json:"workflow"`
	LastSeen time.Time          `json:"lastSeen"`
}

// Read decodes and checks all documents, one machine each. Everything wrong is
// told at once as inventory.Problems; notes say what is left aside.
func Read(file string, docs []strictyaml.Document) (_ []inventory.Machine, notes []string, _ error) {
	var all inventory.Problems
	if len(docs) == 0 {
		return nil, nil, inventory.Problems{{File: file, What: "holds no machine", Remedy: "ingot machine push --help"}}
	}
	ms := make([]inventory.Machine, len(docs))
	taken := Claims{}
	for i, d := range docs {
		var ps inventory.Problems
		if kind := d.Text("kind"); kind != "" && d.Text("apiVersion") != "" {
			ps.Add("kind", "write Ingot's own form, see: ingot machine get NAME --output yaml", "documents of kind %s are not read here", kind)
			all = append(all, d.Locate(ps)...)
			continue
		}
		var doc document
		if err := d.Decode(&doc); err != nil {
			if !errors.As(err, &ps) {
				return nil, nil, err
			}
			ps = Undisputed(ps, d.Locate(inventory.Validate(inventory.Canonical(doc.Machine))))
			SortByLine(ps)
			all = append(all, ps...)
			continue
		}
		if n := doc.Netboot; n != nil && (n.AllowPXE || n.AllowWorkflow) {
			notes = append(notes, fmt.Sprintf("%s:%d: netboot is not read from files: a run arms its machine, ingot netboot arm does it by hand", file, d.LineOf("netboot")))
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

// Undisputed returns unread and those of found that are true all the same: what
// could not be read is zero now, and would be called missing, so only what is
// said of other fields counts.
func Undisputed(unread, found inventory.Problems) inventory.Problems {
	out := slices.Clone(unread)
	for _, p := range found {
		if !slices.ContainsFunc(unread, func(q inventory.Problem) bool { return Touches(q.Field, p.Field) }) {
			out = append(out, p)
		}
	}
	return out
}

// Touches tells whether a problem with field a may be the cause of one with
// field b: one lies in the other, or b is judged by an interface's address.
func Touches(a, b string) bool {
	if i, ok := strings.CutSuffix(a, ".address"); ok && (b == i+".netmask" || b == i+".gateway") {
		return true
	}
	in := func(x, y string) bool {
		return x == "" || x == y || strings.HasPrefix(y, x) && strings.ContainsAny(y[len(x):len(x)+1], ".[")
	}
	return in(a, b) || in(b, a)
}

// SortByLine sorts problems by their lines, otherwise as they stand.
func SortByLine(ps inventory.Problems) {
	slices.SortStableFunc(ps, func(a, b inventory.Problem) int { return a.Line - b.Line })
}

// Claims is what belongs to one owner alone ("MAC 02:…") and where it was said.
type Claims map[string]string

// Add claims value for the field that was written at at; a second claim is a
// problem that names the first.
func (c Claims) Add(ps *inventory.Problems, field, what, value, at string) {
	key := what + " " + value
	if other, ok := c[key]; ok {
		ps.Add(field, "change one of the two", "%s is given at %s already", key, other)
		return
	}
	c[key] = at
}

// Machine claims the name, the MACs and the addresses of m, whose fields stand
// below prefix; at tells where a field was written. What m repeats itself
// inventory.Validate tells.
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

// repeats tells whether an earlier interface of m has it.
func repeats(m inventory.Machine, n int, same func(inventory.Interface) bool) bool {
	return slices.ContainsFunc(m.Interfaces[:n], same)
}
