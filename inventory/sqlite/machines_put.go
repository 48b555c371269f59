package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// PutMachines stores machines that inventory.Validate has accepted. It stores either all of them or, with an error, none.
//
// If replace is false and a machine with the same name is stored, the error is inventory.ErrConflict. If two machines would have the same
// name, MAC, address, host name or BMC, the error is an inventory.Problems, which lists all these values. It is an inventory.Conflicts
// instead if one of two such machines is already stored, or if a value would change on which an open run relies.
//
// If a secret is zero and its Has field is set, the stored secret is kept. There is one exception: if a setting for reaching the BMC
// changes (see bmcBinding), the stored password is deleted, so that it is not sent to another address.
//
// A machine with a Version replaces that version only. If it differs from the stored machine, which has another version, the error is an
// inventory.Conflicts.
func (s Machines) PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error {
	return s.writeOnce(ctx, "storing machines", func(tx *transaction) error { return putMachines(ctx, tx, ms, replace, by) })
}

// ChangeMachine stores m as PutMachines does, in place of a stored machine of the same name. If there is none, the error is
// inventory.ErrNotFound; if its version is not m.Version, the error is inventory.ErrStale.
func (s Machines) ChangeMachine(ctx context.Context, m inventory.Machine, by string) error {
	return s.writeOnce(ctx, fmt.Sprintf("changing machine %q", m.Name), func(tx *transaction) error {
		version, err := scalar[int64](ctx, tx, "SELECT version FROM machine WHERE name = ?", m.Name)
		if err == nil && version != m.Version {
			err = fmt.Errorf("version %d is stored, and the change was made to version %d: %w", version, m.Version, inventory.ErrStale)
		}
		if err != nil {
			return err
		}
		return putMachines(ctx, tx, []inventory.Machine{m}, true, by)
	})
}

func putMachines(ctx context.Context, tx *transaction, ms []inventory.Machine, replace bool, by string) error {
	ms = slices.Clone(ms)
	for i := range ms {
		ms[i] = inventory.Canonical(ms[i])
	}
	rows, err := list[secretRow](ctx, tx, "SELECT "+secretColumns+" FROM machine")
	if err != nil {
		return err
	}

	stored := make(map[string]*storedMachine, len(rows))
	for i := range rows {
		stored[rows[i].Name] = &rows[i]
	}
	if err := clashes(ms, rows, replace); err != nil {
		return err
	}
	if err := staleVersions(ms, stored); err != nil {
		return err
	}
	if err := keepForRuns(ctx, tx, ms, stored, by); err != nil {
		return err
	}

	// First delete the addresses of all these machines, because two of them may swap their addresses.
	for _, m := range ms {
		err := doAll(ctx, tx, stmt("DELETE FROM interface WHERE machine = ?", m.Name),
			stmt("UPDATE machine SET bmc = NULL WHERE name = ?", m.Name))
		if err != nil {
			return err
		}
	}

	for _, m := range ms {
		if err := putMachine(ctx, tx, m, stored[m.Name], by); err != nil {
			return fmt.Errorf("machine %q: %w", m.Name, err)
		}
	}
	return nil
}

// staleVersions returns an inventory.Conflicts if a machine of ms has a version other than the stored one, and other fields.
func staleVersions(ms []inventory.Machine, stored map[string]*storedMachine) error {
	var ps inventory.Problems
	for _, m := range ms {
		old := stored[m.Name]
		if old == nil || m.Version == 0 || m.Version == old.sealed.Version {
			continue
		}
		changes, err := inventory.Differences(old.describe(), m)
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			ps.Add("version", "get the machine again; without a version, the document replaces what is stored",
				"machine %q: version %d is stored, and this is version %d; they differ in %s",
				m.Name, old.sealed.Version, m.Version, fieldsOf(changes))
		}
	}
	if len(ps) > 0 {
		return inventory.Conflicts(ps)
	}
	return nil
}

// maxFields limits how many fields an event or an error names.
const maxFields = 20

// fieldsOf returns the paths of changes, separated by commas.
func fieldsOf(changes []inventory.Change) string {
	var names []string
	for _, c := range changes {
		names = append(names, c.Field)
	}
	if more := len(names) - maxFields; more > 0 {
		names = append(names[:maxFields], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// putMachine stores m in place of old, which is the stored machine of the same name. If old is nil, putMachine adds m.
func putMachine(ctx context.Context, tx *transaction, m inventory.Machine, old *storedMachine, by string) error {
	exists := old != nil
	if !exists {
		old = &storedMachine{}
	}

	// If a given secret is equal to the stored one, keep the stored one.
	for _, f := range m.SecretFields() {
		if exists && !f.Value.IsZero() && tx.db.isStored(*old, m, f.Name, *f.Value) {
			*f.Value, *f.Stored = inventory.Secret{}, true
		}
	}
	changes, err := inventory.Differences(old.describe(), m)
	if err != nil {
		return err
	}

	what, raise := "machine added", 0
	switch {
	case exists && len(changes) == 0:
		what = "machine stored again, unchanged"
	case exists:
		what, raise = "machine changed: "+fieldsOf(changes), 1
	}

	user, err := tx.db.sealMachine(m.UserData, m.HasUserData, sealUserData, userBinding(m.Name, "user"), old.sealed.UserData)
	if err != nil {
		return err
	}

	vendor, err := tx.db.sealMachine(m.VendorData, m.HasVendorData, sealUserData, userBinding(m.Name, "vendor"),
		old.sealed.VendorData)
	if err != nil {
		return err
	}

	var password []byte
	if m.BMC != nil {
		same := bmcBinding(m.Name, m.BMC) == bmcBinding(m.Name, old.BMC)
		password, err = tx.db.sealMachine(m.BMC.Password, m.BMC.HasPassword && same, sealBMC, bmcBinding(m.Name, m.BMC),
			old.sealed.BMCPassword)
		if err != nil {
			return err
		}
		if len(old.sealed.BMCPassword) > 0 && !same && m.BMC.Password.IsZero() {
			what += "; BMC password deleted, because the settings for reaching the BMC changed"
		}
	}

	// The candidate of an unfinished password rotation is kept only if the current password is kept.
	var candidate []byte
	if m.BMC != nil && len(password) > 0 && m.BMC.Password.IsZero() {
		candidate = old.sealed.BMCCandidate
	}

	doc, err := toJSON(inventory.DocumentOf(m))
	if err != nil {
		return err
	}

	now := nanos(tx.db.now())
	err = do(ctx, tx, `INSERT INTO machine (name, doc, bmc, user_data, vendor_data, bmc_password, bmc_candidate, created, updated,
		version) VALUES (?,?,?,?,?,?,?,?,?, 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'event'), 0))
		ON CONFLICT (name) DO UPDATE SET doc = excluded.doc, bmc = excluded.bmc,
		user_data = excluded.user_data, vendor_data = excluded.vendor_data,
		bmc_password = excluded.bmc_password, bmc_candidate = excluded.bmc_candidate, updated = excluded.updated, version = machine.version + ?`,
		m.Name, doc, null(bmcKey(m.BMC)), user, vendor, password, candidate, now, now, raise)
	if err != nil {
		return err
	}
	if err := putInterfaces(ctx, tx, m); err != nil {
		return err
	}
	return addOperatorEvent(ctx, tx, m.Name, by, what)
}

// sealMachine returns the entered secret, encrypted. If no secret was entered, it returns stored if keep is true, and nil if keep is false.
func (s *db) sealMachine(entered inventory.Secret, keep bool, purpose, binding string, stored []byte) ([]byte,
	error,
) {
	switch {
	case !entered.IsZero():
		return s.seal(purpose, binding, []byte(entered.Reveal()))
	case keep:
		return stored, nil
	}
	return nil, nil
}

func putInterfaces(ctx context.Context, tx *transaction, m inventory.Machine) error {
	for _, i := range m.Interfaces {
		address := ""
		if i.Address.IsValid() {
			address = i.Address.String()
		}
		err := doAll(ctx, tx,
			stmt("INSERT INTO interface (mac, machine, address) VALUES (?,?,?)", i.MAC, m.Name, null(address)),
			stmt("DELETE FROM seen WHERE mac = ?", i.MAC))
		if err != nil {
			return err
		}
	}
	return nil
}

func null(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }
