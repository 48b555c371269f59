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
	// checkIndexEvery is how often the index looks for writes of other processes. When the last check is older than
	// checkedFor, the index answers nothing.
	checkIndexEvery = time.Second
	checkedFor      = 2 * checkIndexEvery
	// loadAtOnce is how many machines are read into the index by one statement.
	loadAtOnce = 500
	// missesAtOnce is how many lookups of machines that the index does not hold read the database at once while it is being
	// read. The others wait for it: thousands of packets a second, each with a statement of its own, would take the processor
	// and the connections that reading it needs. With 100,000 machines and eight lookups at a time, unbounded ones made
	// reading it take four times as long.
	missesAtOnce = 1
)

// index holds the machines and their grants in memory, so that most packets and fetches of metadata run no SQL.
//
// It answers only for a machine whose grant is free. Such an answer is a reservation, "boot from disk"
// or public metadata, and opens nothing. If the grant has an owner, whether a run or an operator, the
// index does not answer, and the lookup reads machine and grant in one statement; the entry then only
// saves decoding a machine whose row is the same. Therefore an entry that is out of date cannot open a
// window, in any process: either it says that the grant is free, so the machine boots from disk and
// gets no secret, or what was read decides.
//
// An entry is not out of date for a write of this Store. Triggers on every table that an entry is made
// of note the machines of a transaction (watchChanges). Their entries are dropped before the
// transaction commits, and KeepIndex reads them again after it. So a run that arms a machine, and then
// switches it on, is never answered from the state before. After a write of another process, an entry
// is used for at most checkedFor.
type index struct {
	mu        sync.RWMutex
	byMAC     map[string]*indexEntry
	byAddress map[netip.Addr]*indexEntry
	// byName has all machines that were read, those whose entry is dropped too. networks counts their reservations.
	byName   map[string]*indexEntry
	networks map[netip.Prefix]int
	// stale are the machines that must be read. held are those that running transactions change, with the number of
	// transactions: what is read of them must not be kept.
	stale map[string]bool
	held  map[string]int
	// listed is false while the names of all machines must be read.
	listed bool
	// whole is closed when all machines have been read since the last dropAll. misses has an element for each lookup that
	// reads the database before.
	whole   chan struct{}
	misses  chan struct{}
	version int64     // the data_version of the connection that writes; -1 = not read yet
	checked time.Time // when version was read
	wake    chan struct{}
}

// An indexEntry is shared by all that look it up: no one may change it.
type indexEntry struct {
	machine inventory.Machine
	grant   inventory.Grant
	row     *machineRow // what machine was decoded from; nil if the grant is free, because no lookup reads a row then
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

// findMAC returns the entry of a MAC, or nil, and whether the entry answers without a look at the
// database. findAddress does so for an address.
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

// hold drops the entries of the machines that a transaction changes. Call release when the transaction has ended.
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

// drop makes lookups of a machine read the database. Its networks stay until it was read again.
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

// dropAll drops all entries.
func (x *index) dropAll() {
	x.byMAC, x.byAddress = map[string]*indexEntry{}, map[netip.Addr]*indexEntry{}
	x.listed, x.version = false, -1
	if x.isWhole() {
		x.whole = make(chan struct{})
	}
	for name := range x.byName {
		x.stale[name] = true // it may have been deleted
	}
	signal(x.wake)
}

// reconnect drops all entries: another connection writes now, and cannot tell what was written before it was opened.
func (x *index) reconnect() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dropAll()
}

// seen records the data_version that the connection that writes had at a time. A new one drops all entries: another
// process has written.
func (x *index) seen(version int64, at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if version != x.version {
		x.dropAll()
	}
	x.version, x.checked = version, at
}

// takeListing reports, once, whether the names of all machines must be read.
func (x *index) takeListing() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.listed
	x.listed = true
	return !was
}

// take returns at most n machines that must be read. Those that change before put are to be read again.
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

// isWhole reports whether all machines have been read.
func (x *index) isWhole() bool {
	select {
	case <-x.whole:
		return true
	default:
		return false
	}
}

// complete notes that all machines have been read, unless everything or one of them has changed again.
func (x *index) complete() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.listed && len(x.stale) == 0 && !x.isWhole() {
		close(x.whole)
	}
}

// wait waits until the index is whole, or until a lookup may read the database before. Call release when the lookup has ended.
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

// mark notes that machines must be read.
func (x *index) mark(names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range names {
		x.stale[name] = true
	}
}

// put stores what was read of the machines that take has returned; what is missing in read does not
// exist. It leaves out machines that have changed since take: what was read of them may be out of
// date.
func (x *index) put(names []string, read map[string]*indexEntry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.listed { // everything has changed
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

// count counts the networks of an entry's reservations; e may be nil.
func (x *index) count(e *indexEntry, by int) {
	if e == nil {
		return
	}
	for _, i := range e.machine.Interfaces {
		if !i.Address.Is4() {
			continue
		}
		networks := []netip.Prefix{i.Subnet().Masked()}
		if i.RouterOnLink() { // it may be a relay
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

// InReservedNetwork reports whether an address is in the network of a reservation, as KeepIndex knows
// it: a moment after the reservation was written. It reads no database.
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

// KeepIndex keeps the machines in memory until ctx ends, one or two kB for each. Until it has read
// them, and whenever it cannot, lookups read the database, at most missesAtOnce of them at a time.
func (s Machines) KeepIndex(ctx context.Context) error {
	tick := time.NewTicker(checkIndexEvery)
	defer tick.Stop()
	for check := true; ctx.Err() == nil; {
		// An error needs no report: lookups then read the database, and return its errors.
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

// checkIndex looks for writes of other processes. On the connection that writes, data_version does not change by the
// writes of this Store.
func (s Machines) checkIndex(ctx context.Context) error {
	begun := time.Now()
	version, err := scalar[int64](ctx, s.rw, "PRAGMA data_version")
	if err != nil {
		return err
	}
	s.index.seen(version, begun)
	return nil
}

// loadIndex reads the machines that must be read.
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

// commonValues has values that several machines have, by their text.
type commonValues struct {
	texts  map[string]string
	keys   map[string][]string
	lists  map[string][]netip.Addr
	labels map[string]map[string]string
}

// share makes m refer to values that other machines have, too. Without it, the index of 100,000 machines is a million
// objects, which each garbage collection visits.
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

// shareValue returns the value in known that has the same text as v, which is v if none has.
func shareValue[T any](known map[string]T, text string, v T) T {
	if same, ok := known[text]; ok {
		return same
	}
	known[text] = v
	return v
}

// readEntries reads machines with their grants.
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

// watchChanges makes a connection note the machines whose rows change. A transaction that is rolled back notes none.
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

// watch prepares a new connection that writes for the index.
func (s *db) watch(c driver.Conn) error {
	_, err := c.(driver.ExecerContext).ExecContext(context.Background(), watchChanges, nil)
	s.index.reconnect()
	return err
}

// holdChanged holds the machines that tx has changed in the index. Call release after the commit.
func (s *db) holdChanged(ctx context.Context, tx *transaction) (release func(), err error) {
	if s.index == nil { // the schema is being made
		return func() {}, nil
	}
	var changed []string
	if err := tx.SelectContext(ctx, &changed, "DELETE FROM changed_machine RETURNING name"); err != nil {
		return nil, err
	}
	return s.index.hold(changed), nil
}
