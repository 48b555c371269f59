package importfile

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// machines collects the machines of all documents in its field all. Its fields hardware and configs hold documents
// whose references are not resolved yet.
type machines struct {
	found    *findings
	bmcs     *bmcs
	taken    machinefile.Claims
	all      []Machine
	hardware []hardware
	configs  []machineConfig
	// configured maps the name of a machine to the TinkerbellMachineConfig that matches it.
	configured map[string]string
}

// add appends m to r.all, and adds a problem for each name, address or BMC that an earlier machine has already.
func (r *machines) add(m Machine) {
	var ps inventory.Problems
	at := func(field string) string { return Place{m.File, m.LineOf(field)}.String() }
	r.taken.Machine(&ps, "", m.Machine, at)
	if !m.Own {
		r.claimHostnames(&ps, m, at)
	}
	if b := m.BMC; b != nil && b.Host != "" && b.Capabilities().NeedsHost {
		r.taken.Add(&ps, "bmc.host", "BMC", fmt.Sprintf("%s:%d", b.Host, b.OwnPort()), at("bmc.host"))
	}
	for i := range ps {
		ps[i].File, ps[i].Line = m.File, m.LineOf(ps[i].Field)
		if m.fieldOf != nil {
			ps[i].Field = m.fieldOf(ps[i].Field)
		}
	}
	r.found.problems = append(r.found.problems, ps...)
	r.all = append(r.all, m)
}

// claimHostnames records that the host names of m's interfaces belong to m, and adds a problem for each that belongs to
// another machine already. Several interfaces of m may share a name.
func (r *machines) claimHostnames(ps *inventory.Problems, m Machine, at func(field string) string) {
	var own []string
	for n, i := range m.Interfaces {
		if i.Hostname != "" && !slices.Contains(own, i.Hostname) {
			own = append(own, i.Hostname)
			field := fmt.Sprintf("interfaces[%d].hostname", n)
			r.taken.Add(ps, field, "host name", i.Hostname, at(field))
		}
	}
}

// validate canonicalizes and validates m. It adds the problems, with their places in the document of o. fieldOf
// translates a field of inventory.Machine to its path in that document.
func (r *machines) validate(o object, m inventory.Machine, fieldOf func(field string) string) Machine {
	m = inventory.Canonical(m)
	ps := inventory.Validate(m)
	ps = slices.DeleteFunc(ps, func(p inventory.Problem) bool { return strings.HasPrefix(p.Field, "bmc") }) // see checkController
	for i := range ps {
		ps[i].Field = fieldOf(ps[i].Field)
	}
	r.found.problems = append(r.found.problems, o.doc.Locate(ps)...)
	return Machine{
		Machine: m, Place: o.place(), lineOf: func(field string) int { return o.doc.LineOf(fieldOf(field)) }, fieldOf: fieldOf,
	}
}

// readOwn reads a machine in Ingot's own form. What an invalid one claims is claimed as well: all problems are reported at once.
func (r *machines) readOwn(d strictyaml.Document) {
	ms, notes, err := machinefile.Read(d.File, []strictyaml.Document{d})
	r.found.report(err)
	if len(ms) == 0 {
		return
	}
	o := object{doc: d, kind: "machine", name: ms[0].Name}
	if len(notes) > 0 {
		r.found.ignore(o, "netboot", "a run arms its machine itself; to arm a machine by hand: ingot netboot arm")
	}
	r.add(Machine{Machine: ms[0], Place: Place{d.File, d.FirstLine()}, Own: true, lineOf: d.LineOf})
}

// byMAC returns the name of the machine with the given MAC address, or "".
func (r *machines) byMAC(mac string) string {
	for _, m := range r.all {
		if i, ok := m.InterfaceByMAC(strings.ToLower(mac)); ok && i.MAC != "" {
			return m.Name
		}
	}
	return ""
}

// withBMC returns the name of the machine whose BMC the reference x names, or "". from is the object that holds x.
func (r *machines) withBMC(x reference, from object) string {
	key, _ := find(r.bmcs.controllers, x, from)
	for _, h := range r.hardware {
		if h.bmc == nil {
			continue
		}
		k, _ := find(r.bmcs.controllers, *h.bmc, h.object)
		if k == key && (k != "" || h.bmc.key(h.object) == x.key(from)) {
			return h.machine.Name
		}
	}
	return ""
}
