package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ingotmetal/ingot/inventory"
)

// Machines are the machines of the inventory. Their secrets are stored encrypted.
type Machines struct{ *db }

const machineColumns = `m.name AS name, m.doc AS doc, m.version AS version, m.created AS created, m.updated AS updated,
	m.user_data IS NOT NULL AS has_user, m.vendor_data IS NOT NULL AS has_vendor, m.bmc_password IS NOT NULL AS has_password,
	coalesce((SELECT doc FROM standing WHERE standing.machine = m.name), '') AS standing,
	coalesce((SELECT json_object('machine', machine, 'run', run, 'epoch', epoch, 'boot', boot)
		FROM installation WHERE installation.machine = m.name), '') AS installation`

type machineRow struct {
	Name                        string
	Version                     int64
	Created, Updated            int64
	HasUser, HasVendor          bool
	HasPassword                 bool
	Doc, Standing, Installation string // JSON; "" if there is none
}

func (r machineRow) value() (m inventory.Machine, err error) {
	defer func() { err = wrap(err, "machine %q", r.Name) }()
	if err := json.Unmarshal([]byte(r.Doc), &m); err != nil {
		return m, err
	}
	m.Version, m.Created, m.Updated = r.Version, moment(r.Created), moment(r.Updated)
	m.HasUserData, m.HasVendorData = r.HasUser, r.HasVendor
	if m.BMC != nil {
		m.BMC.HasPassword = r.HasPassword
	}
	return m, errors.Join(
		json.Unmarshal([]byte(cmp.Or(r.Standing, "null")), &m.Standing),
		json.Unmarshal([]byte(cmp.Or(r.Installation, "null")), &m.Installation),
	)
}

// Machine returns the machine called name, without its secrets.
func (s Machines) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	m, err := read[machineRow](ctx, s.ro, "SELECT "+machineColumns+" FROM machine m WHERE m.name = ?", name)
	return m, wrap(err, "reading machine %q", name)
}

// Machines returns all machines, sorted by name, without their secrets.
func (s Machines) Machines(ctx context.Context) ([]inventory.Machine, error) {
	out, err := list[machineRow](ctx, s.ro, "SELECT "+machineColumns+" FROM machine m ORDER BY m.name")
	return out, wrap(err, "listing machines")
}

// MachineByMAC returns the machine that has an interface with this canonical MAC, together with its grant. If the machine never had a
// grant, the grant is zero. If the grant is free, the answer usually comes from memory (see KeepIndex); otherwise, MachineByMAC runs one
// SELECT, which never waits for a writer. The caller must not change anything that a pointer in the machine points to, because other
// callers get the same pointers.
func (s Machines) MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error) {
	if e, usable := s.index.findMAC(mac); usable {
		return e.machine, e.grant, nil
	}
	return s.lookUp(ctx, "mac", mac, func() (*indexEntry, bool) { return s.index.findMAC(mac) })
}

// MachineByAddress is like MachineByMAC, for the machine that has an interface with this reserved address.
func (s Machines) MachineByAddress(ctx context.Context, a netip.Addr) (inventory.Machine, inventory.Grant, error) {
	a = a.Unmap()
	if e, usable := s.index.findAddress(a); usable {
		return e.machine, e.grant, nil
	}
	return s.lookUp(ctx, "address", a.String(), func() (*indexEntry, bool) { return s.index.findAddress(a) })
}

// lookUp finds the machine for which the given column of the table interface has this value. find looks in the index. If find returns no
// entry, lookUp calls index.wait, and then find again. If the index has no answer, lookUp reads the database.
func (s Machines) lookUp(ctx context.Context, column, value string, find func() (*indexEntry, bool)) (
	inventory.Machine, inventory.Grant, error,
) {
	e, usable := find()
	if e == nil {
		release, err := s.index.wait(ctx)
		if err != nil {
			return inventory.Machine{}, inventory.Grant{}, fmt.Errorf("finding machine by %s %q: %w", column, value, err)
		}
		defer release()
		e, usable = find()
	}
	if usable {
		return e.machine, e.grant, nil
	}
	return s.machineBy(ctx, column, value, e)
}

// machineByQuery are the queries that machineBy uses, by the name of the column.
var machineByQuery = map[string]string{"mac": machineBySQL("mac"), "address": machineBySQL("address")}

func machineBySQL(column string) string {
	return "SELECT " + machineColumns + ", " + joinedGrantColumns + ` FROM interface i
		JOIN machine m ON m.name = i.machine LEFT JOIN grant_ g ON g.machine = m.name WHERE i.` + column + " = ?"
}

// A grantedMachineRow is a row with the columns machineColumns and joinedGrantColumns.
type grantedMachineRow struct {
	machineRow
	Grant grantRow
}

// scan reads the columns of a row one by one, in the order of the query. sqlx would use reflection, which takes longer than the query
// itself.
func (r *grantedMachineRow) scan(rows *sql.Rows) error {
	m, g := &r.machineRow, &r.Grant
	return rows.Scan(
		&m.Name, &m.Doc, &m.Version, &m.Created, &m.Updated, &m.HasUser, &m.HasVendor, &m.HasPassword, &m.Standing, &m.Installation,
		&g.Machine, &g.Run, &g.Epoch, &g.SiteEpoch, &g.Workflow, &g.Boot, &g.BootsLeft, &g.Spent, &g.Installer, &g.Acting, &g.AddressClosed,
		&g.NetbootUntil, &g.SecretsUntil, &g.Taken,
	)
}

// machineBy reads a machine and its grant. It finds the machine for which the given column of the table interface, mac or address, has this
// value. known is the machine's entry in the index, or nil. If the machine's row has not changed since known was made, machineBy returns
// the machine of known and does not decode the row again.
func (s Machines) machineBy(ctx context.Context, column, value string, known *indexEntry) (
	m inventory.Machine, g inventory.Grant, err error,
) {
	defer func() { err = wrap(err, "finding machine by %s %q", column, value) }()
	conn, err := s.ro.Conn(ctx)
	if err != nil {
		return m, g, err
	}
	defer conn.Close()
	// The query reads one row and never waits, so it does not need ctx. If ctx could end, the driver would start two goroutines for the query.
	rows, err := conn.QueryContext(context.WithoutCancel(ctx), machineByQuery[column], value)
	if err != nil {
		return m, g, err
	}
	defer rows.Close()
	if !rows.Next() {
		return m, g, cmp.Or(rows.Err(), inventory.ErrNotFound)
	}
	var r grantedMachineRow
	if err := r.scan(rows); err != nil {
		return m, g, err
	}
	if known != nil && known.row != nil && *known.row == r.machineRow {
		return known.machine, r.Grant.grant(), nil
	}
	m, err = r.value()
	return m, r.Grant.grant(), err
}

// DeleteMachine removes a machine with all its secrets, including the secrets in plans and assignments of its runs. If the machine has an
// open run, or if an inserted medium has not been ejected yet, the error is inventory.ErrConflict. If an operator holds the grant, the
// grant ends. The records and events of the machine's runs stay, and so does the epoch of its grant.
func (s Machines) DeleteMachine(ctx context.Context, name, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting machine %q", name), func(tx *transaction) error { return deleteMachine(ctx, tx, name, by) })
}

func deleteMachine(ctx context.Context, tx *transaction, name, by string) error {
	run, err := openRun(ctx, tx, name)
	if err != nil {
		return err
	}
	if run != "" {
		return fmt.Errorf("run %q is open: cancel it first: %w", run, inventory.ErrConflict)
	}
	if err := noMedia(ctx, tx, name); err != nil {
		return err
	}
	if err := doOne(ctx, tx, inventory.ErrNotFound, "DELETE FROM machine WHERE name = ?", name); err != nil {
		return err
	}

	err = doAll(ctx, tx,
		stmt("UPDATE grant_ SET run = '', workflow = '', netboot_until = 0, secrets_until = 0 WHERE machine = ?", name),
		stmt("UPDATE agent SET revoked = 1 WHERE machine = ?", name),
		stmt("DELETE FROM disk_written WHERE machine = ?", name),
		stmt("DELETE FROM plan WHERE run IN (SELECT run FROM workflow WHERE machine = ?)", name),
		stmt("UPDATE assignment SET sealed = x'' WHERE machine = ?", name),
		stmt("DELETE FROM applied WHERE run = ?", appliedKey(inventory.KindMachine, name)),
	)
	if err != nil {
		return err
	}
	return addOperatorEvent(ctx, tx, name, by, "machine deleted")
}
