package inventory

import (
	"fmt"
	"slices"
	"strings"
)

// LabMachines are the machines of a lab file that are to be compared with the inventory or stored in it.
type LabMachines struct {
	Operation string // workflow id of the Genesis
	Run       string // run of the Genesis; "" = there is none, and the machines are only compared
	SHA256    string // digest of the lab file
	// Resume: machines that an earlier run stored from the same lab file are not changed, even if an operator has changed
	// them since.
	Resume bool
	// Replace: the machine in the file replaces the stored one; fields that the file leaves out are removed. Without Replace,
	// these fields stay, and a machine that differs in another field is a problem.
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
	// Machine contains the text of a secret only if it differs from the stored one.
	Machine
	Kept    bool     // the stored machine is not changed
	Differs []string // fields in which the file differs from what is stored
}

// MergeStored returns the machine that is to be stored for m in place of the machine stored. same reports whether the secret
// called name that m gives is equal to the stored one.
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

// Differing returns a problem for each machine that differs from the stored one; none with l.Replace.
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
