package inventory

import (
	"fmt"
	"slices"
	"strings"
)

// LabMachines are the machines of a lab file on their way into the inventory.
type LabMachines struct {
	Operation string // workflow id of the Genesis
	Run       string // of it; "": none, the machines are only compared
	SHA256    string // of the lab file
	// Resume: what an earlier run stored from the same lab file stays as it is, with what an
	// operator has changed since.
	Resume bool
	// Replace: a stored machine becomes what the file says; what the file leaves out is removed.
	// Without it what the file leaves out stays, and a machine that differs in the rest is a problem.
	Replace  bool
	Machines []LabMachine
}

// A LabMachine is a machine of a lab file.
type LabMachine struct {
	Machine
	// Says reports whether the file states a field, such as interfaces[0].gateway.
	Says func(field string) bool
}

// A MergedMachine is a machine of a lab file as it is to be stored.
type MergedMachine struct {
	// Machine has a secret only if the secret differs from the stored one.
	Machine
	Kept    bool     // it stays as it is stored
	Differs []string // fields in which the file differs from what is stored
}

// MergeStored returns m as it is to be stored over stored. same reports whether a secret that m
// gives is the stored one; it gets the secret's name.
func (l LabMachines) MergeStored(m LabMachine, stored Machine, same func(name string, given Secret) bool) (MergedMachine, error) {
	next := m.Machine
	if !l.Replace {
		next = Merge(stored, next, m.Says)
	}
	for _, f := range next.SecretFields() {
		if !f.Value.IsZero() && same(f.Name, *f.Value) {
			*f.Value, *f.Stored = Secret{}, true
		}
	}
	changes, err := Differences(stored, next)
	out := MergedMachine{Machine: next}
	for _, c := range changes {
		field := c.Field
		if fieldRules[field] != isSecret {
			field = field[:strings.IndexAny(field+".", ".[")]
		}
		if !slices.Contains(out.Differs, field) {
			out.Differs = append(out.Differs, field)
		}
	}
	return out, err
}

// Differing returns a problem for each machine that would have to be replaced.
func (l LabMachines) Differing(merged []MergedMachine) (ps Problems) {
	for n, m := range merged {
		if len(m.Differs) > 0 && !l.Replace {
			ps.Add(fmt.Sprintf("machines[%d].name", n),
				"correct one of them, or start with --replace, which also removes what the file leaves out",
				"the inventory has a machine %q that differs in %s", m.Name, strings.Join(m.Differs, ", "))
		}
	}
	return ps
}
