package inventory

import (
	"fmt"
	"slices"
	"strings"
)

// LabMachines are the machines of a lab file, to be stored in the inventory or only compared with it.
type LabMachines struct {
	Operation string // workflow id of the Genesis
	Run       string // run of the Genesis; "" = no run, and the machines are only compared
	SHA256    string // digest of the lab file
	// Resume: a machine that an earlier run stored from the same lab file is not changed, even if an operator has changed it since then.
	Resume bool
	// Replace: the machine in the file replaces the stored machine, so fields that the file leaves out are removed. Without Replace, fields
	// that the file leaves out stay, and any other difference between the two machines is a problem.
	Replace  bool
	Machines []LabMachine
}

// A LabMachine is a machine of a lab file.
type LabMachine struct {
	Machine
	// Says reports whether the file states a field, such as interfaces[0].gateway.
	Says func(field string) bool
}

// A MergedMachine is a machine of a lab file in the form in which it will be stored.
type MergedMachine struct {
	// Machine contains the text of a secret only if this text differs from the stored one.
	Machine
	Kept    bool     // the stored machine stays as it is
	Differs []string // fields in which the file differs from what is stored
}

// MergeStored returns the machine to store for m; stored is the machine that is in the inventory now. same reports whether the secret of m
// with the given name and text is equal to the stored one.
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

// Differing returns a problem for each machine that differs from the stored machine. If l.Replace is set, it returns none.
func (l LabMachines) Differing(merged []MergedMachine) (ps Problems) {
	for n, m := range merged {
		if len(m.Differs) > 0 && !l.Replace {
			ps.Add(fmt.Sprintf("machines[%d].name", n),
				"correct the file or the inventory, or start with --replace, which also removes what the file leaves out",
				"the inventory has a machine %q that differs in %s", m.Name, strings.Join(m.Differs, ", "))
		}
	}
	return ps
}
