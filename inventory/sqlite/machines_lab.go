package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/inventory"
)

// factMachines is the name of the fact that records which run stored the machines of a lab file. The type of its value is placed.
const factMachines = "machines"

// placed is the value of the fact factMachines: the run that stored the machines, and the SHA-256 of the lab file.
type placed struct {
	Run    string `json:"run"`
	SHA256 string `json:"sha256"`
}

// MergeLabMachines returns the machines of a lab file, in the order of the file, as PutLabMachines would store them. For each machine, it
// also returns the fields that differ from those of the stored machine. It compares secrets, too, but does not return stored secrets.
func (s Genesis) MergeLabMachines(ctx context.Context, l inventory.LabMachines) ([]inventory.MergedMachine, error) {
	out, err := s.mergeLab(ctx, s.ro, l)
	return out, wrap(err, "comparing the machines of %s", l.Operation)
}

// PutLabMachines stores the machines of a lab file for a run of the workflow Genesis. Stored machines are not changed again if this run has
// stored them before, or if l.Resume is set and an earlier run has stored them from the same file: then only missing machines are added.
// Without l.Replace, the error is an inventory.Problems with the machines that differ from stored ones. Problems of PutMachines are
// returned, too.
func (s Genesis) PutLabMachines(ctx context.Context, l inventory.LabMachines, by string) error {
	return s.write(ctx, "storing the machines of "+l.Operation, func(tx *transaction) error {
		merged, err := s.mergeLab(ctx, tx, l)
		if err == nil {
			err = l.Differing(merged).Err()
		}
		if err != nil {
			return err
		}

		var ms []inventory.Machine
		for _, m := range merged {
			if !m.Kept {
				ms = append(ms, m.Machine)
			}
		}
		if err := putMachines(ctx, tx, ms, true, by); err != nil {
			return err
		}
		value, err := toJSON(placed{l.Run, l.SHA256})
		if err != nil {
			return err
		}
		return putFact(ctx, tx, factKey(l.Operation, factMachines), inventory.NewSecret(value))
	})
}

func (s Genesis) mergeLab(ctx context.Context, q sqlx.QueryerContext, l inventory.LabMachines) ([]inventory.MergedMachine, error) {
	keep, err := s.keepsLab(ctx, q, l)
	if err != nil {
		return nil, err
	}
	rows, err := list[secretRow](ctx, q, "SELECT "+secretColumns+" FROM machine")
	if err != nil {
		return nil, err
	}
	stored := make(map[string]storedMachine, len(rows))
	for _, r := range rows {
		stored[r.Name] = r
	}

	out := make([]inventory.MergedMachine, len(l.Machines))
	for n, m := range l.Machines {
		m.Machine = inventory.Canonical(m.Machine)
		old, exists := stored[m.Name]
		switch {
		case !exists:
			out[n] = inventory.MergedMachine{Machine: m.Machine}
		case keep:
			out[n] = inventory.MergedMachine{Machine: old.describe(), Kept: true}
		default:
			out[n], err = l.MergeStored(m, old.describe(), func(name string, given inventory.Secret) bool {
				return s.isStored(old, m.Machine, name, given)
			})
			if err != nil {
				return nil, fmt.Errorf("machine %q: %w", m.Name, err)
			}
		}
	}
	return out, nil
}

// keepsLab returns true if PutLabMachines must not change stored machines of the lab file again, but only add missing ones.
func (s Genesis) keepsLab(ctx context.Context, q sqlx.QueryerContext, l inventory.LabMachines) (bool, error) {
	if l.Run == "" {
		return false, nil
	}
	value, err := s.fact(ctx, q, factKey(l.Operation, factMachines))
	if errors.Is(err, inventory.ErrNotFound) {
		return false, nil
	}
	var was placed
	if err == nil {
		err = json.Unmarshal([]byte(value.Reveal()), &was)
	}
	return was.Run == l.Run || l.Resume && was.SHA256 == l.SHA256, err
}

// describe returns m as the method Machines.Machine does, with the Has fields of its secrets, but without times, standing and installation.
func (m storedMachine) describe() inventory.Machine {
	out := m.Machine
	sealed := map[string][]byte{"userData": m.sealed.UserData, "vendorData": m.sealed.VendorData, "bmc.password": m.sealed.BMCPassword}
	for _, f := range out.SecretFields() {
		*f.Stored = len(sealed[f.Name]) > 0
	}
	return out
}

// isStored reports whether a new secret, which was entered for the machine m, is equal to the secret called name of the stored machine old.
// If the stored secret cannot be decrypted, or if it is the password of another BMC than m has, isStored returns false.
func (s *db) isStored(old storedMachine, m inventory.Machine, name string, given inventory.Secret) bool {
	if name == "bmc.password" && bmcBinding(m.Name, m.BMC) != bmcBinding(m.Name, old.BMC) {
		return false
	}
	for _, f := range old.sealed.sealedFields() {
		if f.name == name {
			plain, err := s.open(f.purpose, f.binding, f.sealed)
			return err == nil && inventory.Equal(string(plain), given.Reveal())
		}
	}
	return false
}
