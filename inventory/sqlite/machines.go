package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// maxSeen is how many unknown MACs are kept: anybody on the wire can make
// them up.
const maxSeen = 1000

const machineColumns = `m.name AS name, m.doc AS doc, m.created AS created, m.updated AS updated,
	m.user_data IS NOT NULL AS has_user, m.vendor_data IS NOT NULL AS has_vendor, m.bmc_password IS NOT NULL AS has_password,
	coalesce((SELECT doc FROM standing WHERE standing.machine = m.name), '') AS standing,
	coalesce((SELECT json_object('machine', machine, 'run', run, 'epoch', epoch, 'boot', boot) FROM installation WHERE installation.machine = m.name), '') AS installation`

type machineRow struct {
	Name        string `db:"name"`
	Doc         string `db:"doc"`
	Created     int64  `db:"created"`
	Updated     int64  `db:"updated"`
	HasUser     bool   `db:"has_user"`
	HasVendor   bool   `db:"has_vendor"`
	HasPassword bool   `db:"has_password"`
	Standing    string `db:"standing"`
	// Installation is JSON, as Standing is; "" = none.
	Installation string `db:"installation"`
}

func (r machineRow) machine() (inventory.Machine, error) {
	var m inventory.Machine
	if err := json.Unmarshal([]byte(r.Doc), &m); err != nil {
		return m, err
	}
	m.Created, m.Updated = moment(r.Created), moment(r.Updated)
	m.HasUserData, m.HasVendorData = r.HasUser, r.HasVendor
	if m.BMC != nil {
		m.BMC.HasPassword = r.HasPassword
	}
	if r.Standing != "" {
		if err := json.Unmarshal([]byte(r.Standing), &m.Standing); err != nil {
			return m, err
		}
	}
	if r.Installation != "" {
		return m, json.Unmarshal([]byte(r.Installation), &m.Installation)
	}
	return m, nil
}

// Machine returns the machine called name, without its secrets.
func (s *Store) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	var r machineRow
	err := get(ctx, s.ro, &r, "SELECT "+machineColumns+" FROM machine m WHERE m.name = ?", name)
	if err != nil {
		return inventory.Machine{}, fmt.Errorf("reading machine %q: %w", name, err)
	}
	m, err := r.machine()
	if err != nil {
		return inventory.Machine{}, fmt.Errorf("reading machine %q: %w", name, err)
	}
	return m, nil
}

// Machines returns all machines by name, without their secrets.
func (s *Store) Machines(ctx context.Context) ([]inventory.Machine, error) {
	var rows []machineRow
	if err := s.ro.SelectContext(ctx, &rows, "SELECT "+machineColumns+" FROM machine m ORDER BY m.name"); err != nil {
		return nil, fmt.Errorf("listing machines: %w", err)
	}
	out := make([]inventory.Machine, len(rows))
	for i, r := range rows {
		m, err := r.machine()
		if err != nil {
			return nil, fmt.Errorf("reading machine %q: %w", r.Name, err)
		}
		out[i] = m
	}
	return out, nil
}

// MachineByMAC returns the machine that has an interface with that canonical
// MAC, and its grant: the zero Grant if it was never granted. It is one SELECT
// that waits for no writer.
func (s *Store) MachineByMAC(ctx context.Context, mac string) (inventory.Machine, inventory.Grant, error) {
	return s.machineBy(ctx, "mac", mac)
}

// MachineByAddress is MachineByMAC by reserved address.
func (s *Store) MachineByAddress(ctx context.Context, a netip.Addr) (inventory.Machine, inventory.Grant, error) {
	return s.machineBy(ctx, "address", a.Unmap().String())
}

// machineBy looks up by a column of table interface.
func (s *Store) machineBy(ctx context.Context, column, value string) (inventory.Machine, inventory.Grant, error) {
	var r struct {
		machineRow
		Grant grantRow `db:"g"`
	}
	err := get(ctx, s.ro, &r, "SELECT "+machineColumns+", "+grantColumns("g.")+` FROM interface i
		JOIN machine m ON m.name = i.machine LEFT JOIN grant_ g ON g.machine = m.name WHERE i.`+column+" = ?", value)
	if err != nil {
		return inventory.Machine{}, inventory.Grant{}, fmt.Errorf("finding machine by %s %q: %w", column, value, err)
	}
	m, err := r.machine()
	if err != nil {
		return inventory.Machine{}, inventory.Grant{}, fmt.Errorf("reading machine %q: %w", r.Name, err)
	}
	return m, r.Grant.grant(), nil
}

// PutMachines stores machines that inventory.Validate has passed, all or none.
//
// Without replace an existing name is inventory.ErrConflict. Names, MACs,
// addresses, host names and BMCs that two machines would share are
// inventory.Problems, all at once; inventory.Conflicts if one of the two is
// stored already, or if a run is open that relies on what would change. A secret that is zero while its Has field
// is set stays as stored; but a BMC whose driver, host, port or TLS mode
// changes loses its password, or a new address would be told the old one's.
func (s *Store) PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error {
	ms = slices.Clone(ms)
	for i := range ms {
		ms[i] = inventory.Canonical(ms[i])
	}
	return s.write(ctx, "storing machines", func(tx *sqlx.Tx) error {
		var rows []secretRow
		if err := tx.SelectContext(ctx, &rows, "SELECT "+secretColumns+" FROM machine"); err != nil {
			return err
		}
		stored := make(map[string]secretRow, len(rows))
		for _, r := range rows {
			stored[r.Name] = r
		}
		if err := clashes(ms, rows, replace); err != nil {
			return err
		}
		if err := s.keepForRuns(ctx, tx, ms, stored, by); err != nil {
			return err
		}
		for _, m := range ms {
			// All of them go first: machines of one batch may swap addresses.
			if _, err := exec(ctx, tx, "DELETE FROM interface WHERE machine = ?", m.Name); err != nil {
				return err
			}
			if _, err := exec(ctx, tx, "UPDATE machine SET bmc = NULL WHERE name = ?", m.Name); err != nil {
				return err
			}
		}
		for _, m := range ms {
			old, exists := stored[m.Name]
			if err := s.putMachine(ctx, tx, m, old, exists, by); err != nil {
				return fmt.Errorf("machine %q: %w", m.Name, err)
			}
		}
		return nil
	})
}

// keepForRuns refuses changes of what an open run relies on, in the transaction
// that would make them. An operator's netboot window is closed.
func (s *Store) keepForRuns(ctx context.Context, tx *sqlx.Tx, ms []inventory.Machine, stored map[string]secretRow, by string) error {
	var ps inventory.Problems
	for _, m := range ms {
		old, exists := stored[m.Name]
		if !exists {
			continue
		}
		var before inventory.Machine
		if err := json.Unmarshal([]byte(old.Doc), &before); err != nil {
			return fmt.Errorf("reading machine %q: %w", m.Name, err)
		}
		field, err := changesForRuns(before, m)
		if err != nil {
			return err
		}
		if field == "" {
			continue
		}
		run, err := openRun(ctx, tx, m.Name)
		if err != nil {
			return err
		}
		if run != "" {
			ps.Add(field, "wait for its end, or: ingot workflow cancel "+m.Name,
				"machine %q: run %s is open; MACs, addresses and disks change only after it", m.Name, run)
			continue
		}
		g, err := grantOf(ctx, tx, m.Name)
		if err != nil {
			return err
		}
		if !g.Person() {
			continue
		}
		if err := end(ctx, tx, g.Owner); err != nil {
			return err
		}
		if err := s.operator(ctx, tx, m.Name, by, "netboot closed: the machine is to have other MACs, addresses or disks"); err != nil {
			return err
		}
	}
	if len(ps) > 0 {
		return inventory.Conflicts(ps)
	}
	return nil
}

// changesForRuns returns the first field in which two versions of a machine
// differ and which a run relies on from its plan to its end; "" = none.
func changesForRuns(a, b inventory.Machine) (string, error) {
	nics := func(m inventory.Machine) any {
		out := []inventory.Interface{}
		for _, i := range m.Interfaces {
			out = append(out, inventory.Interface{MAC: i.MAC, Address: i.Address, Netmask: i.Netmask, Gateway: i.Gateway, DisableNetboot: i.DisableNetboot})
		}
		return out
	}
	for _, f := range []struct {
		name string
		of   func(m inventory.Machine) any
	}{
		{"interfaces", nics},
		{"disks", func(m inventory.Machine) any { return append([]inventory.DeclaredDisk{}, m.Disks...) }},
		{"diskSelector", func(m inventory.Machine) any { return m.DiskSelector }},
		// Those of a that are gone. More of them only narrow what the run may write to: Bind and Assign read them again.
		{"protectedDisks", func(m inventory.Machine) any {
			return slices.DeleteFunc(slices.Clone(a.ProtectedDisks), func(d action.DiskID) bool { return slices.Contains(m.ProtectedDisks, d) })
		}},
	} {
		x, err := toJSON(f.of(a))
		if err != nil {
			return "", err
		}
		y, err := toJSON(f.of(b))
		if err != nil {
			return "", err
		}
		if x != y {
			return f.name, nil
		}
	}
	return "", nil
}

// openRun returns the run of a machine that is not over: it holds the grant, or
// its record is open. "" = none.
func openRun(ctx context.Context, tx *sqlx.Tx, machine string) (string, error) {
	var run string
	err := get(ctx, tx, &run, `SELECT run FROM grant_ WHERE machine = ?1 AND run <> '' AND substr(run, 1, 7) <> 'person:'
		UNION ALL SELECT run FROM workflow WHERE machine = ?1 AND final = 0 LIMIT 1`, machine)
	if errors.Is(err, inventory.ErrNotFound) {
		return "", nil
	}
	return run, err
}

func (s *Store) putMachine(ctx context.Context, tx *sqlx.Tx, m inventory.Machine, old secretRow, exists bool, by string) error {
	var oldMachine inventory.Machine
	if exists {
		if err := json.Unmarshal([]byte(old.Doc), &oldMachine); err != nil {
			return err
		}
	}
	what := "machine added"
	if exists {
		what = "machine changed"
	}
	secret := func(v inventory.Secret, keep bool, purpose, binding string, stored []byte) ([]byte, error) {
		switch {
		case !v.IsZero():
			return s.seal(purpose, binding, []byte(v.Reveal()))
		case keep:
			return stored, nil
		}
		return nil, nil
	}
	user, err := secret(m.UserData, m.HasUserData, sealUserData, userBinding(m.Name, "user"), old.UserData)
	if err != nil {
		return err
	}
	vendor, err := secret(m.VendorData, m.HasVendorData, sealUserData, userBinding(m.Name, "vendor"), old.VendorData)
	if err != nil {
		return err
	}
	var password []byte
	if m.BMC != nil {
		same := bmcBinding(m.Name, m.BMC) == bmcBinding(m.Name, oldMachine.BMC)
		password, err = secret(m.BMC.Password, m.BMC.HasPassword && same, sealBMC, bmcBinding(m.Name, m.BMC), old.Password)
		if err != nil {
			return err
		}
		if len(old.Password) > 0 && !same && m.BMC.Password.IsZero() {
			what += "; BMC password cleared, because its BMC is reached differently"
		}
	}
	doc, err := toJSON(bare(m))
	if err != nil {
		return err
	}
	now := nanos(s.now())
	_, err = exec(ctx, tx, `INSERT INTO machine (name, doc, bmc, user_data, vendor_data, bmc_password, created, updated) VALUES (?,?,?,?,?,?,?,?)
		ON CONFLICT (name) DO UPDATE SET doc = excluded.doc, bmc = excluded.bmc, user_data = excluded.user_data, vendor_data = excluded.vendor_data,
		bmc_password = excluded.bmc_password, updated = excluded.updated`,
		m.Name, doc, null(bmcKey(m.BMC)), user, vendor, password, now, now)
	if err != nil {
		return err
	}
	for _, i := range m.Interfaces {
		address := ""
		if i.Address.IsValid() {
			address = i.Address.String()
		}
		if _, err := exec(ctx, tx, "INSERT INTO interface (mac, machine, address) VALUES (?,?,?)", i.MAC, m.Name, null(address)); err != nil {
			return err
		}
		if _, err := exec(ctx, tx, "DELETE FROM seen WHERE mac = ?", i.MAC); err != nil {
			return err
		}
	}
	if exists && reflect.DeepEqual(bare(m), bare(oldMachine)) && m.UserData.IsZero() && m.VendorData.IsZero() && (m.BMC == nil || m.BMC.Password.IsZero()) {
		what = "machine stored again, unchanged"
	}
	return s.operator(ctx, tx, m.Name, by, what)
}

// bare returns m without what has columns of its own, first of all secrets.
func bare(m inventory.Machine) inventory.Machine {
	m.UserData, m.VendorData, m.HasUserData, m.HasVendorData = inventory.Secret{}, inventory.Secret{}, false, false
	m.Created, m.Updated, m.Standing, m.Installation = moment(0), moment(0), nil, nil
	if m.BMC != nil {
		b := *m.BMC
		b.Password, b.HasPassword = inventory.Secret{}, false
		m.BMC = &b
	}
	return m
}

func null(s string) sql.NullString { return sql.NullString{String: s, Valid: s != ""} }

// bmcKey tells BMCs apart: one host may carry several by port, one Redfish
// service several systems. "" = manual.
func bmcKey(b *inventory.BMC) string {
	if b.Address() == "" || b.Capabilities().Shared {
		return ""
	}
	return strings.ToLower(b.Host) + " " + strconv.Itoa(b.ListenPort()) + " " + b.SystemName
}

func userBinding(machine, which string) string { return "machine=" + machine + " " + which }

func bmcBinding(machine string, b *inventory.BMC) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf("machine=%s driver=%s host=%s port=%d tls=%t key=%s command=%s",
		machine, b.Driver, b.Host, b.Port, !b.InsecureTLS, b.Fingerprint, b.Command)
}

// clashes tells what ms would share with one another or with what is stored.
func clashes(ms []inventory.Machine, stored []secretRow, replace bool) error {
	batch := map[string]bool{}
	for _, m := range ms {
		batch[m.Name] = true
	}
	owner := map[string]string{}    // thing → machine
	gateways := map[string]string{} // address → stored machine that names it
	var existing []string
	for _, r := range stored {
		var m inventory.Machine
		if err := json.Unmarshal([]byte(r.Doc), &m); err != nil {
			return fmt.Errorf("reading machine %q: %w", r.Name, err)
		}
		if batch[r.Name] {
			existing = append(existing, strconv.Quote(r.Name))
			continue
		}
		for _, t := range things(m) {
			owner[t.key] = m.Name
		}
		for _, i := range m.Interfaces {
			gateways[i.Gateway.String()] = m.Name
		}
	}
	if !replace && len(existing) > 0 {
		return fmt.Errorf("machine %s exists already: %w", strings.Join(existing, ", "), inventory.ErrConflict)
	}
	// A router may come in one batch with the machines that use it.
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
			ps.Add("name", "give each machine a name of its own", "machine %q is given twice", m.Name)
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
			continue // it may be that router, and have had the address before
		}
		for n, i := range m.Interfaces {
			if other, ok := gateways[i.Address.String()]; ok && i.Address.IsValid() {
				conflict = true
				ps.Add(fmt.Sprintf("interfaces[%d].address", n), "reserve another address; if this machine is that router, store it together with machine "+strconv.Quote(other),
					"machine %q: address %s is the gateway of machine %q", m.Name, i.Address, other)
			}
		}
	}
	if conflict {
		return inventory.Conflicts(ps)
	}
	return ps.Err()
}

// A thing belongs to one machine only.
type thing struct {
	key, field, text string
	repeats          bool // within one machine
}

func things(m inventory.Machine) []thing {
	var out []thing
	for n, i := range m.Interfaces {
		field := fmt.Sprintf("interfaces[%d].", n)
		out = append(out, thing{key: "mac " + i.MAC, field: field + "mac", text: "MAC " + i.MAC})
		if i.Address.IsValid() {
			out = append(out, thing{key: "address " + i.Address.String(), field: field + "address", text: "address " + i.Address.String()})
		}
		if i.Hostname != "" {
			name := strings.TrimSuffix(i.Hostname+"."+i.Domain, ".")
			out = append(out, thing{key: "hostname " + name, field: field + "hostname", text: "host name " + name, repeats: true})
		}
	}
	if k := bmcKey(m.BMC); k != "" {
		out = append(out, thing{key: "bmc " + k, field: "bmc.host", text: "BMC " + m.BMC.Host})
	}
	return out
}

// DeleteMachine removes a machine with all its secrets, those of its runs
// included. An open run is inventory.ErrConflict; a person's grant ends. Records and events of its runs stay, and so does its epoch.
func (s *Store) DeleteMachine(ctx context.Context, name, by string) error {
	return s.write(ctx, fmt.Sprintf("deleting machine %q", name), func(tx *sqlx.Tx) error {
		run, err := openRun(ctx, tx, name)
		if err != nil {
			return err
		}
		if run != "" {
			return fmt.Errorf("run %q is open: cancel it first: %w", run, inventory.ErrConflict)
		}
		n, err := exec(ctx, tx, "DELETE FROM machine WHERE name = ?", name)
		if err != nil {
			return err
		}
		if n == 0 {
			return inventory.ErrNotFound
		}
		for _, stmt := range []string{
			"UPDATE grant_ SET run = '', workflow = '', netboot_until = 0, secrets_until = 0 WHERE machine = ?",
			"UPDATE agent SET revoked = 1 WHERE machine = ?",
			"DELETE FROM disk_written WHERE machine = ?",
			"DELETE FROM plan WHERE run IN (SELECT run FROM workflow WHERE machine = ?)",
			"UPDATE assignment SET sealed = x'' WHERE machine = ?",
		} {
			if _, err := exec(ctx, tx, stmt, name); err != nil {
				return err
			}
		}
		return s.operator(ctx, tx, name, by, "machine deleted")
	})
}

const secretColumns = "name, doc, user_data, vendor_data, bmc_password"

type secretRow struct {
	Name       string `db:"name"`
	Doc        string `db:"doc"`
	UserData   []byte `db:"user_data"`
	VendorData []byte `db:"vendor_data"`
	Password   []byte `db:"bmc_password"`
}

type sealedField struct {
	name, column, purpose, binding string
	sealed                         []byte
}

// sealedFields returns what r holds sealed.
func (r secretRow) sealedFields() []sealedField {
	var m inventory.Machine
	// A document that cannot be read gives no binding, and so opens nothing.
	_ = json.Unmarshal([]byte(r.Doc), &m)
	all := []sealedField{
		{"userData", "user_data", sealUserData, userBinding(r.Name, "user"), r.UserData},
		{"vendorData", "vendor_data", sealUserData, userBinding(r.Name, "vendor"), r.VendorData},
		{"bmc.password", "bmc_password", sealBMC, bmcBinding(r.Name, m.BMC), r.Password},
	}
	return slices.DeleteFunc(all, func(f sealedField) bool { return len(f.sealed) == 0 })
}

func (s *Store) secrets(ctx context.Context) ([]secretRow, error) {
	var rows []secretRow
	err := s.ro.SelectContext(ctx, &rows, "SELECT "+secretColumns+" FROM machine ORDER BY name")
	return rows, err
}

// reveal opens the named fields of a machine; one that is not set is zero.
func (s *Store) reveal(ctx context.Context, machine string, names ...string) ([]inventory.Secret, error) {
	var r secretRow
	if err := get(ctx, s.ro, &r, "SELECT "+secretColumns+" FROM machine WHERE name = ?", machine); err != nil {
		return nil, err
	}
	out := make([]inventory.Secret, len(names))
	for _, f := range r.sealedFields() {
		if i := slices.Index(names, f.name); i >= 0 {
			plain, err := s.open(f.purpose, f.binding, f.sealed)
			if err != nil {
				return nil, err
			}
			out[i] = inventory.NewSecret(string(plain))
		}
	}
	return out, nil
}

// UserData returns a machine's user data and vendor data, zero where there is
// none; inventory.ErrSealed when they cannot be opened.
func (s *Store) UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error) {
	out, err := s.reveal(ctx, name, "userData", "vendorData")
	if err != nil {
		return user, vendor, fmt.Errorf("reading user data of machine %q: %w", name, err)
	}
	return out[0], out[1], nil
}

// BMCPassword returns the password of a machine's BMC, zero when there is
// none; inventory.ErrSealed when it cannot be opened.
func (s *Store) BMCPassword(ctx context.Context, name string) (inventory.Secret, error) {
	out, err := s.reveal(ctx, name, "bmc.password")
	if err != nil {
		return inventory.Secret{}, fmt.Errorf("reading BMC password of machine %q: %w", name, err)
	}
	return out[0], nil
}

// DiskWritten records that o's run writes to disk d of its machine. A disk
// without serial and WWN is inventory.ErrInvalid: nothing would know it again.
func (s *Store) DiskWritten(ctx context.Context, o inventory.Owner, d action.Disk) error {
	var ids []string
	if d.Serial != "" {
		ids = append(ids, "serial:"+d.Serial)
	}
	if d.WWN != "" {
		ids = append(ids, "wwn:"+d.WWN)
	}
	what := fmt.Sprintf("recording the written disk %q of machine %q", d.Path, o.Machine)
	if len(ids) == 0 {
		return fmt.Errorf("%s: it has neither serial nor WWN: %w", what, inventory.ErrInvalid)
	}
	return s.write(ctx, what, func(tx *sqlx.Tx) error {
		for _, id := range ids {
			n, err := exec(ctx, tx, `INSERT INTO disk_written (machine, identity, run, at) SELECT ?1, ?4, ?2, ?5 WHERE `+held+`
				ON CONFLICT (machine, identity) DO UPDATE SET run = excluded.run, at = excluded.at`,
				o.Machine, o.Run, o.Epoch, id, nanos(s.now()))
			if err != nil {
				return err
			}
			if n == 0 {
				return fencedOr(ctx, tx, o, errors.New("nothing was recorded"))
			}
		}
		// It is in service again, and what it holds is no longer nothing.
		s.show(tx, o.Machine)
		_, err := exec(ctx, tx, "DELETE FROM standing WHERE machine = ? AND state = ?", o.Machine, inventory.StandingAvailable)
		return err
	})
}

// DisksWritten returns which run wrote a machine's disks last, by identity:
// "serial:X" or "wwn:Y".
func (s *Store) DisksWritten(ctx context.Context, machine string) (map[string]string, error) {
	var rows []struct {
		Identity string `db:"identity"`
		Run      string `db:"run"`
	}
	if err := s.ro.SelectContext(ctx, &rows, "SELECT identity, run FROM disk_written WHERE machine = ?", machine); err != nil {
		return nil, fmt.Errorf("listing written disks of machine %q: %w", machine, err)
	}
	out := make(map[string]string, len(rows))
	for _, r := range rows {
		out[r.Identity] = r.Run
	}
	return out, nil
}

// SeenUnknown returns the unknown MACs that asked for an address, the newest
// first.
func (s *Store) SeenUnknown(ctx context.Context) ([]inventory.Seen, error) {
	var rows []struct {
		inventory.Seen
		First int64 `db:"first"`
		Last  int64 `db:"last"`
	}
	if err := s.ro.SelectContext(ctx, &rows, "SELECT mac, first, last, count, giaddr, class FROM seen ORDER BY last DESC, mac"); err != nil {
		return nil, fmt.Errorf("listing unknown MACs: %w", err)
	}
	out := make([]inventory.Seen, len(rows))
	for i, r := range rows {
		out[i] = r.Seen
		out[i].First, out[i].Last = moment(r.First), moment(r.Last)
	}
	return out, nil
}

// PutSeen adds to what is known of unknown MACs; counts add up. 1000 are kept,
// the newest of each relay first, and none of a machine's own.
func (s *Store) PutSeen(ctx context.Context, seen []inventory.Seen) error {
	if len(seen) == 0 {
		return nil
	}
	return s.write(ctx, "recording unknown MACs", func(tx *sqlx.Tx) error {
		for _, x := range seen {
			_, err := exec(ctx, tx, `INSERT INTO seen (mac, first, last, count, giaddr, class)
				SELECT ?1, ?2, ?3, ?4, ?5, ?6 WHERE NOT EXISTS (SELECT 1 FROM interface WHERE interface.mac = ?1)
				ON CONFLICT (mac) DO UPDATE SET last = max(last, excluded.last), count = count + excluded.count, giaddr = excluded.giaddr, class = excluded.class`,
				clip(x.MAC, 64), nanos(x.First), nanos(x.Last), x.Count, clip(x.Giaddr, 64), clip(x.Class, 256))
			if err != nil {
				return err
			}
		}
		_, err := exec(ctx, tx, `DELETE FROM seen WHERE mac IN (SELECT mac FROM
			(SELECT mac, last, row_number() OVER (PARTITION BY giaddr ORDER BY last DESC) AS place FROM seen) ORDER BY place, last DESC LIMIT -1 OFFSET ?)`, maxSeen)
		return err
	})
}
