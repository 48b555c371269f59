package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/inventory"
)

const (
	// checkIndexEvery is how often KeepIndex checks whether other processes have written to the database. If the last check is older than
	// checkedFor, the index is not used.
	checkIndexEvery = time.Second
	checkedFor      = 2 * checkIndexEvery
	// loadAtOnce is how many machines one statement reads into the index.
	loadAtOnce = 500
	// missesAtOnce is how many lookups of machines that are not in the index may read the database at once, while the index is being loaded.
	// Other lookups wait until the index is complete. Without this limit, thousands of packets a second would each run a query, and take
	// processor time and connections from the loading. With 100,000 machines and a limit of eight, loading took four times as long.
	missesAtOnce = 1
)

// index holds the machines and their grants in memory, so that most packets and fetches of metadata run no SQL.
//
// An entry answers a lookup only if the grant is free. Such a machine gets only its reservation, "boot from disk" and public metadata. If a
// run or an operator holds the grant, the lookup reads machine and grant from the database in one query, and uses the entry only to avoid
// decoding an unchanged machine. Therefore an outdated entry can never allow a network boot or reveal a secret.
//
// A write of this Store never leaves an outdated entry: triggers record which machines a transaction changes (watchChanges). Their entries
// are removed before the commit, and KeepIndex reads these machines again after the commit. So when a run arms a machine and then switches
// it on, the machine never gets an outdated answer. After a write of another process, an outdated entry may be used for at most checkedFor.
type index struct {
	mu        sync.RWMutex
	byMAC     map[string]*indexEntry
	byAddress map[netip.Addr]*indexEntry
	// byName has all machines that were read, even if their entries were removed from byMAC and byAddress. networks says how many reservations
	// these machines have in each network.
	byName   map[string]*indexEntry
	networks map[netip.Prefix]int
	// stale has the names of the machines that must be read again. held has the machines that open transactions change; the value is the
	// number of these transactions. put ignores the machines in held.
	stale map[string]bool
	held  map[string]int
	// listed is false if the names of all machines must be read from the database.
	listed bool
	// whole is open while machines still have to be read after the last dropAll, and closed once all have been read. While whole is open,
	// misses contains one element for each lookup that is reading the database.
	whole   chan struct{}
	misses  chan struct{}
	version int64     // data_version of the connection for writing; -1 = not read yet
	checked time.Time // when version was read
	wake    chan struct{}
}

// An indexEntry must not be changed, because several lookups may have got it.
type indexEntry struct {
	machine inventory.Machine
	grant   inventory.Grant
	row     *machineRow // the row that was decoded into machine; nil if the grant is free, because lookups then need no row
}

func newIndex() *index {
	x := &index{
		stale: map[string]bool{}, held: map[string]int{}, wake: make(chan struct{}, 1),
		whole: make(chan struct{}), misses: make(chan struct{}, missesAtOnce),
	}
	x.byName, x.networks = map[string]*indexEntry{}, map[netip.Prefix]int{}
	x.dropAll()
	return x
}

// findMAC returns the entry of the machine with this MAC, or nil if there is none. If usable is true, the entry answers the lookup, and no
// query is needed. findAddress does the same for an IP address.
func (x *index) findMAC(mac string) (e *indexEntry, usable bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e = x.byMAC[mac]
	return e, x.usable(e)
}

func (x *index) findAddress(a netip.Addr) (e *indexEntry, usable bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e = x.byAddress[a]
	return e, x.usable(e)
}

func (x *index) usable(e *indexEntry) bool {
	return e != nil && e.grant.Run == "" && time.Since(x.checked) <= checkedFor
}

// hold is called before a transaction commits. It removes the entries of the machines that the transaction changes, and keeps put from
// adding entries for them. Call release when the transaction has ended: KeepIndex then reads these machines again.
func (x *index) hold(machines []string) (release func()) {
	if len(machines) == 0 {
		return func() {}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range machines {
		x.held[name]++
		x.drop(name)
	}
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, name := range machines {
			if x.held[name]--; x.held[name] == 0 {
				delete(x.held, name)
			}
			x.stale[name] = true
		}
		signal(x.wake)
	}
}

// drop removes the machine called name from byMAC and byAddress, so that lookups read it from the database. The machine stays in byName and
// networks until it is read again.
func (x *index) drop(name string) {
	e := x.byName[name]
	if e == nil {
		return
	}
	for _, i := range e.machine.Interfaces {
		if x.byMAC[i.MAC] == e {
			delete(x.byMAC, i.MAC)
		}
		if x.byAddress[i.Address] == e {
			delete(x.byAddress, i.Address)
		}
	}
}

// dropAll removes all entries from byMAC and byAddress. The next loadIndex then reads all machines again.
func (x *index) dropAll() {
	x.byMAC, x.byAddress = map[string]*indexEntry{}, map[netip.Addr]*indexEntry{}
	x.listed, x.version = false, -1
	if x.isWhole() {
		x.whole = make(chan struct{})
	}
	for name := range x.byName {
		x.stale[name] = true // also deleted machines: put removes them
	}
	signal(x.wake)
}

// reconnect calls dropAll. It is called when there is a new connection for writing, because data_version of a new connection does not show
// whether another process has written before.
func (x *index) reconnect() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropAll()
}

// seen gets the data_version of the connection for writing, and when it was read. If data_version has changed, another process has written,
// and seen calls dropAll.
func (x *index) seen(version int64, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if version != x.version {
		x.dropAll()
	}
	x.version, x.checked = version, at
}

// takeListing returns true if the names of all machines must be read. It returns true only once after each dropAll.
func (x *index) takeListing() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.listed
	x.listed = true
	return !was
}

// take removes up to n names from stale and returns them; the caller reads these machines and calls put. If one of them changes before
// that, its name is in stale again.
func (x *index) take(n int) (names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range x.stale {
		if len(names) == n {
			break
		}
		delete(x.stale, name)
		names = append(names, name)
	}
	return names
}

// isWhole reports whether all machines have been read since the last dropAll.
func (x *index) isWhole() bool {
	select {
	case <-x.whole:
		return true
	default:
		return false
	}
}

// complete closes whole if no machine has to be read any more.
func (x *index) complete() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.listed && len(x.stale) == 0 && !x.isWhole() {
		close(x.whole)
	}
}

// wait returns once all machines have been read, or once fewer than missesAtOnce other lookups are reading the database. Call release when
// the lookup has ended.
func (x *index) wait(ctx context.Context) (release func(), err error) {
	x.mu.RLock()
	whole := x.whole
	x.mu.RUnlock()
	select {
	case <-whole:
		return func() {}, nil
	default:
	}
	select {
	case <-whole:
		return func() {}, nil
	case x.misses <- struct{}{}:
		return func() { <-x.misses }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// mark records that the machines called names must be read.
func (x *index) mark(names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range names {
		x.stale[name] = true
	}
}

// put stores what was read for names, which take has returned. A machine that is missing in read was deleted: put removes it. put ignores
// machines that have changed since take was called, because what was read may be outdated.
func (x *index) put(names []string, read map[string]*indexEntry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.listed { // dropAll was called after take
		return
	}
	for _, name := range names {
		if x.stale[name] || x.held[name] > 0 {
			continue
		}
		x.drop(name)
		x.count(x.byName[name], -1)
		delete(x.byName, name)
		e := read[name]
		if e == nil {
			continue
		}
		x.byName[e.machine.Name] = e
		x.count(e, 1)
		for _, i := range e.machine.Interfaces {
			x.byMAC[i.MAC] = e
			if i.Address.IsValid() {
				x.byAddress[i.Address] = e
			}
		}
	}
}

// count adds the number by to the counts of all networks in which the machine of e has a reservation; e may be nil.
func (x *index) count(e *indexEntry, by int) {
	if e == nil {
		return
	}
	for _, i := range e.machine.Interfaces {
		if !i.Address.Is4() {
			continue
		}
		networks := []netip.Prefix{i.Subnet().Masked()}
		if i.RouterOnLink() { // the router is outside the subnet and may be a relay
			networks = append(networks, netip.PrefixFrom(i.Gateway, i.Gateway.BitLen()))
		}
		for _, p := range networks {
			if x.networks[p] += by; x.networks[p] == 0 {
				delete(x.networks, p)
			}
		}
	}
}

func signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // the channel already holds a value
	}
}

// InReservedNetwork reports whether an address is in a network in which any machine has a reservation. It uses only the index, which
// contains a new reservation only a moment after it was stored.
func (s Machines) InReservedNetwork(a netip.Addr) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for p := range s.index.networks {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// KeepIndex keeps all machines in memory until ctx ends; each takes 1 to 2 kB. A lookup of a machine that KeepIndex has not read yet reads
// the database; at most missesAtOnce lookups do so at a time.
func (s Machines) KeepIndex(ctx context.Context) error {
	tick := time.NewTicker(checkIndexEvery)
	defer tick.Stop()
	for check := true; ctx.Err() == nil; {
		// Ignore errors: lookups then read the database, and return its errors.
		if !check || s.checkIndex(ctx) == nil {
			_ = s.loadIndex(ctx)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			check = true
		case <-s.index.wake:
			check = false
		}
	}
	return nil
}

// checkIndex checks whether another process has written to the database. Such a write changes data_version on the connection for writing; a
// write of this Store does not.
func (s Machines) checkIndex(ctx context.Context) error {
	begun := time.Now()
	version, err := scalar[int64](ctx, s.rw, "PRAGMA data_version")
	if err != nil {
		return err
	}
	s.index.seen(version, begun)
	return nil
}

// loadIndex reads those machines into the index that must be read, at most loadAtOnce at a time.
func (s Machines) loadIndex(ctx context.Context) error {
	if s.index.takeListing() {
		var names []string
		if err := s.ro.SelectContext(ctx, &names, "SELECT name FROM machine"); err != nil {
			s.index.reconnect() // the next load lists them
			return err
		}
		s.index.mark(names)
	}
	common := commonValues{
		texts: map[string]string{}, keys: map[string][]string{}, lists: map[string][]netip.Addr{},
		labels: map[string]map[string]string{},
	}
	for {
		names := s.index.take(loadAtOnce)
		if len(names) == 0 {
			s.index.complete()
			return nil
		}
		read, err := s.readEntries(ctx, names)
		if err != nil {
			s.index.mark(names)
			return err
		}
		for _, e := range read {
			common.share(&e.machine)
		}
		s.index.put(names, read)
	}
}

// commonValues are values that several machines may have in common. The keys of each map are the values as text.
type commonValues struct {
	texts  map[string]string
	keys   map[string][]string
	lists  map[string][]netip.Addr
	labels map[string]map[string]string
}

// share replaces values of m by equal values of other machines, so that each value is in memory only once. Otherwise, an index of 100,000
// machines would consist of a million objects, and every garbage collection would visit all of them.
func (c commonValues) share(m *inventory.Machine) {
	m.Labels = shareValue(c.labels, fmt.Sprintf("%q", m.Labels), m.Labels)
	m.SSHKeys = shareValue(c.keys, fmt.Sprintf("%q", m.SSHKeys), m.SSHKeys)
	for _, text := range []*string{&m.Template, &m.Image, &m.BootFromDisk} {
		*text = shareValue(c.texts, *text, *text)
	}
	for n := range m.Interfaces {
		i := &m.Interfaces[n]
		for _, text := range []*string{&i.Netmask, &i.Domain, &i.Arch, &i.Loader} {
			*text = shareValue(c.texts, *text, *text)
		}
		for _, list := range []*[]netip.Addr{&i.Nameservers, &i.TimeServers} {
			*list = shareValue(c.lists, fmt.Sprint(*list), *list)
		}
	}
}

// shareValue returns the value that is stored in known under text. If there is none, it stores v and returns v.
func shareValue[T any](known map[string]T, text string, v T) T {
	if same, ok := known[text]; ok {
		return same
	}
	known[text] = v
	return v
}

// readEntries reads these machines and their grants.
func (s Machines) readEntries(ctx context.Context, names []string) (map[string]*indexEntry, error) {
	list, err := toJSON(names)
	if err != nil {
		return nil, err
	}
	rows, err := s.ro.QueryContext(ctx, "SELECT "+machineColumns+", "+joinedGrantColumns+` FROM machine m
		LEFT JOIN grant_ g ON g.machine = m.name WHERE m.name IN (SELECT value FROM json_each(?))`, list)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	read := make(map[string]*indexEntry, len(names))
	for rows.Next() {
		var r grantedMachineRow
		if err := r.scan(rows); err != nil {
			return nil, err
		}
		e := &indexEntry{grant: r.Grant.grant()}
		if e.machine, err = r.value(); err != nil {
			return nil, err
		}
		if e.grant.Run != "" {
			e.row = &r.machineRow
		}
		read[r.Name] = e
	}
	return read, rows.Err()
}

// watchChanges is SQL that is run on a new connection for writing. From then on, the names of the machines that a transaction changes are
// recorded in the table changed_machine. A rollback also removes these records.
var watchChanges = func() string {
	script := "PRAGMA temp_store = MEMORY; CREATE TEMP TABLE changed_machine (name TEXT NOT NULL);"
	for table, column := range map[string]string{
		"machine": "name", "interface": "machine", "grant_": "machine", "standing": "machine", "installation": "machine",
	} {
		script += fmt.Sprintf(`
			CREATE TEMP TRIGGER watch_%[1]s_insert AFTER INSERT ON main.%[1]s BEGIN
				INSERT INTO changed_machine (name) VALUES (new.%[2]s); END;
			CREATE TEMP TRIGGER watch_%[1]s_update AFTER UPDATE ON main.%[1]s BEGIN
				INSERT INTO changed_machine (name) VALUES (old.%[2]s), (new.%[2]s); END;
			CREATE TEMP TRIGGER watch_%[1]s_delete AFTER DELETE ON main.%[1]s BEGIN
				INSERT INTO changed_machine (name) VALUES (old.%[2]s); END;`, table, column)
	}
	return script
}()

// watch runs watchChanges on the new connection c for writing.
func (s *db) watch(c driver.Conn) error {
	_, err := c.(driver.ExecerContext).ExecContext(context.Background(), watchChanges, nil)
	s.index.reconnect()
	return err
}

// holdChanged calls index.hold for the machines that tx has changed. Call release after the commit or rollback.
func (s *db) holdChanged(ctx context.Context, tx *transaction) (release func(), err error) {
	if s.index == nil { // Open is still migrating
		return func() {}, nil
	}
	var changed []string
	if err := tx.SelectContext(ctx, &changed, "DELETE FROM changed_machine RETURNING name"); err != nil {
		return nil, err
	}
	return s.index.hold(changed), nil
}
