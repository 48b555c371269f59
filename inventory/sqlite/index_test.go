package sqlite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// refreshIndex does what KeepIndex does, once.
func (s *Store) refreshIndex(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	require.NoError(t, s.Machines.checkIndex(ctx))
	require.NoError(t, s.Machines.loadIndex(ctx))
}

// compareIndex compares the index with the database. It is called at the end of each test of this
// package, whose writes the index has followed since newWorld: a write that the triggers do not note
// leaves an entry that is out of date.
func compareIndex(t *testing.T, s *Store) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	// Statements that the test has run outside of transactions of the store are noted with the next one.
	if s.write(ctx, "test", func(*transaction) error { return nil }) != nil {
		return // the test has closed or damaged the database
	}
	stored, err := s.Machines.Machines(ctx)
	if err != nil {
		return
	}
	s.refreshIndex(t)
	require.Len(t, s.index.byName, len(stored))
	macs := 0
	for _, m := range stored {
		g, err := s.Grants.Grant(ctx, m.Name)
		require.NoError(t, err)
		e := s.index.byName[m.Name]
		require.NotNil(t, e, m.Name)
		require.Equal(t, m, e.machine)
		require.Equal(t, g, e.grant)
		for _, i := range m.Interfaces {
			require.Same(t, e, s.index.byMAC[i.MAC])
			require.True(t, !i.Address.IsValid() || s.index.byAddress[i.Address] == e)
			macs++
		}
	}
	require.Len(t, s.index.byMAC, macs)
}

var lookedUp = regexp.MustCompile(`^(?:SCAN|SEARCH) (\w+)`)

// TestIndexWatchesItsTables: triggers watch each table that a lookup reads, for each kind of change.
func TestIndexWatchesItsTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var watched []string
	require.NoError(t, w.rw.Select(&watched, "SELECT tbl_name FROM sqlite_temp_master WHERE type = 'trigger' ORDER BY 1"))
	var plan []struct {
		ID, Parent, Notused int
		Detail              string
	}
	require.NoError(t, w.ro.Select(&plan, "EXPLAIN QUERY PLAN "+machineByQuery["mac"], "x"))
	var want []string
	for _, p := range plan {
		if m := lookedUp.FindStringSubmatch(p.Detail); m != nil {
			table := tableOf(machineByQuery["mac"], m[1])
			want = append(want, table, table, table)
		}
	}
	slices.Sort(want)
	require.Equal(t, want, watched)
	require.Len(t, want, 3*5)
}

// TestIndexAnswersFreeMachinesAlone: a machine that a run or an operator holds is read from the database.
func TestIndexAnswersFreeMachinesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const mac = "52:54:00:00:00:01"
	address := netip.MustParseAddr("10.0.0.1")
	answers := func(want bool) {
		t.Helper()
		w.refreshIndex(t)
		_, byMAC := w.index.findMAC(mac)
		require.Equal(t, want, byMAC)
		_, byAddress := w.index.findAddress(address)
		require.Equal(t, want, byAddress)
	}
	answers(true)
	o := w.take("run-1")
	require.Nil(t, w.index.byMAC[mac], "dropped before the write has returned")
	answers(false)
	require.NoError(t, w.Grants.EndGrant(t.Context(), o))
	answers(true)
	_, err := w.Grants.ArmByHand(t.Context(), "m1", "admin", w.in(time.Hour))
	require.NoError(t, err)
	answers(false)
	require.NoError(t, w.Grants.DisarmByHand(t.Context(), "m1", "admin", false))
	answers(true)

	w.index.checked = time.Now().Add(-checkedFor)
	_, usable := w.index.findMAC(mac)
	require.False(t, usable, "no one has looked for writes of other processes")
	answers(true)
	require.NoError(t, w.Machines.DeleteMachine(t.Context(), "m1", "admin"))
	answers(false)
	_, _, err = w.Machines.MachineByMAC(t.Context(), mac)
	require.ErrorIs(t, err, inventory.ErrNotFound)
}

// TestIndexSavesDecoding: lookups of a machine that a run holds share the decoded machine, until its row
// is another one, also if another process has written it and the entry is out of date.
func TestIndexSavesDecoding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other, err := Open(t.Context(), w.path, w.keys, WithClock(w.clock.Now))
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	w.take("run-1")
	w.refreshIndex(t)
	shares := func(want bool) inventory.Machine {
		t.Helper()
		m, g, err := w.Machines.MachineByMAC(t.Context(), "52:54:00:00:00:01")
		require.NoError(t, err)
		require.Equal(t, "run-1", g.Run)
		require.Equal(t, want, &m.Interfaces[0] == &w.index.byName["m1"].machine.Interfaces[0])
		return m
	}
	shares(true)

	changed := machine("m1", 1)
	changed.Labels = map[string]string{"changed": "true"}
	require.NoError(t, other.Machines.PutMachines(t.Context(), []inventory.Machine{changed}, true, "test"))
	require.Equal(t, changed.Labels, shares(false).Labels)
	w.refreshIndex(t)
	require.Equal(t, changed.Labels, shares(true).Labels)
}

// TestIndexKeepsNothingReadTooEarly: what was read before a transaction began, or while it ran, is not kept after it.
func TestIndexKeepsNothingReadTooEarly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, write := range map[string]func(between func()){
		"before": func(between func()) { between(); w.take("run-1") },
		"during": func(between func()) {
			require.NoError(t, w.write(t.Context(), "test", func(tx *transaction) error {
				release := w.index.hold([]string{"m1"})
				between()
				release()
				return nil
			}))
		},
	} {
		w.index.mark([]string{"m1"})
		names := w.index.take(1)
		read, err := w.Machines.readEntries(t.Context(), names)
		require.NoError(t, err)
		write(func() {
			if name == "during" {
				w.index.put(names, read)
			}
		})
		w.index.put(names, read)
		require.Nil(t, w.index.byMAC["52:54:00:00:00:01"], name)
	}
	w.index.mark([]string{"m1"})
	names := w.index.take(1)
	read, err := w.Machines.readEntries(t.Context(), names)
	require.NoError(t, err)
	w.index.reconnect()
	w.index.put(names, read)
	require.Empty(t, w.index.byMAC, "everything was dropped in between")
}

// TestS1AnotherProcessOpensNothing: another store on the same file, as in another process, closes and
// fences what this one has opened. No lookup of this store finds it open afterwards, even before it
// has looked for writes of others. What the other one opens is found after the next look.
func TestS1AnotherProcessOpensNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other, err := Open(t.Context(), w.path, w.keys, WithClock(w.clock.Now))
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	ctx := t.Context()
	open := func(s *Store) bool {
		t.Helper()
		_, byMAC, err := s.Machines.MachineByMAC(ctx, "52:54:00:00:00:01")
		require.NoError(t, err)
		_, byAddress, err := s.Machines.MachineByAddress(ctx, netip.MustParseAddr("10.0.0.1"))
		require.NoError(t, err)
		require.Equal(t, byMAC, byAddress)
		return byMAC.NetbootOpen(w.clock.Now()) || byMAC.SecretsOpen(w.clock.Now())
	}
	arm := func(s *Store, run string) inventory.Owner {
		t.Helper()
		g, err := s.Grants.TakeGrant(ctx, "m1", run, "machine/m1", true)
		require.NoError(t, err)
		_, err = s.Grants.AllowBoot(ctx, g.Owner, 1, w.in(time.Hour))
		require.NoError(t, err)
		require.NoError(t, s.Grants.OpenSecrets(ctx, g.Owner, w.in(time.Hour)))
		return g.Owner
	}
	for run, closes := range map[string]func(o inventory.Owner) error{
		"closed": func(o inventory.Owner) error {
			require.NoError(t, other.Grants.CloseSecrets(ctx, o))
			return other.Grants.CloseNetboot(ctx, o)
		},
		"ended": func(o inventory.Owner) error { return other.Grants.EndGrant(ctx, o) },
		"fenced": func(inventory.Owner) error {
			_, err := other.Grants.TakeGrant(ctx, "m1", "another", "machine/m1", true)
			return err
		},
	} {
		o := arm(w.Store, run)
		w.refreshIndex(t)
		require.True(t, open(w.Store), run)
		require.NoError(t, closes(o))
		require.False(t, open(w.Store), run)
		w.refreshIndex(t)
		require.False(t, open(w.Store), run)
	}

	g, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.NoError(t, w.Grants.EndGrant(ctx, g.Owner))
	w.refreshIndex(t)
	arm(other, "elsewhere")
	require.False(t, open(w.Store), "the entry is out of date, and says less than the database")
	w.refreshIndex(t)
	require.True(t, open(w.Store))
}

// TestIndexDropsEntriesOfAnotherConnection: when database/sql has replaced the connection that writes,
// its data_version says nothing about the time before.
func TestIndexDropsEntriesOfAnotherConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.refreshIndex(t)
	require.NotEmpty(t, w.index.byMAC)
	conn, err := w.rw.Connx(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, conn.Raw(func(any) error { return driver.ErrBadConn }), driver.ErrBadConn)
	_ = conn.Close() // it is closed already
	require.NoError(t, w.rw.PingContext(t.Context()))
	require.Empty(t, w.index.byMAC)
	require.NoError(t, w.Machines.DeleteMachine(t.Context(), "m1", "admin"), "the triggers are on the new connection")
}

// TestIndexKnowsNetworks: the networks of all reservations, by their netmasks.
func TestIndexKnowsNetworks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wide := machine("m2", 2)
	wide.Interfaces[0].Address, wide.Interfaces[0].Netmask = netip.MustParseAddr("10.20.0.1"), "255.255.0.0"
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{wide}, false, "test"))
	within := func(want bool, addresses ...string) {
		t.Helper()
		w.refreshIndex(t)
		for _, a := range addresses {
			require.Equal(t, want, w.Machines.InReservedNetwork(netip.MustParseAddr(a)), a)
		}
	}
	within(true, "10.0.0.254", "10.20.255.1")
	within(false, "10.0.1.1", "10.21.0.1", "8.8.8.8")
	wide.Interfaces[0].Netmask = ""
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{wide}, true, "test"))
	within(true, "10.20.0.9")
	within(false, "10.20.255.1")
	i := &wide.Interfaces[0]
	i.Netmask, i.Gateway = "255.255.255.255", netip.MustParseAddr("192.0.2.65")
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{wide}, true, "test"))
	within(true, "10.20.0.1", "192.0.2.65")
	within(false, "10.20.0.9", "192.0.2.66")
	require.NoError(t, w.Machines.DeleteMachine(t.Context(), "m2", "test"))
	within(false, "10.20.0.9", "192.0.2.65")
	within(true, "10.0.0.254")
}

// TestIndexSharesCommonValues: equal labels and name servers of two machines are one object, others are not mixed up.
func TestIndexSharesCommonValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var fleet []inventory.Machine
	for n, rack := range map[int]string{2: "r1", 3: "r1", 4: "r2"} {
		m := machine(fmt.Sprint("m", n), n)
		m.Labels = map[string]string{"rack": rack}
		m.Interfaces[0].Nameservers = []netip.Addr{netip.MustParseAddr("10.0.0.53")}
		fleet = append(fleet, m)
	}
	require.NoError(t, w.Machines.PutMachines(t.Context(), fleet, false, "test"))
	w.refreshIndex(t)
	of := func(name string) inventory.Machine { return w.index.byName[name].machine }
	require.Same(t, &of("m2").Interfaces[0].Nameservers[0], &of("m3").Interfaces[0].Nameservers[0])
	require.Equal(t, reflect.ValueOf(of("m2").Labels).Pointer(), reflect.ValueOf(of("m3").Labels).Pointer())
	require.Equal(t, "r1", of("m3").Labels["rack"])
	require.Equal(t, "r2", of("m4").Labels["rack"])
}

// TestKeepIndex: while it runs, what is written is in memory again, and it ends with its context.
func TestKeepIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Machines.KeepIndex(ctx) }()
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{machine("m2", 2)}, false, "test"))
	require.Eventually(t, func() bool {
		_, usable := w.index.findMAC("52:54:00:00:00:02")
		return usable
	}, time.Minute, time.Millisecond)
	cancel()
	require.NoError(t, <-done)
}

// gatedDriver lets the lookups of machines wait before they read the database.
type gatedDriver struct {
	driver.Driver
	gate *lookupGate
}

func (d gatedDriver) Open(dsn string) (driver.Conn, error) {
	c, err := d.Driver.Open(dsn)
	if err != nil {
		return nil, err
	}
	return gatedConn{c.(recordedConn), d.gate}, nil
}

type gatedConn struct {
	recordedConn
	gate *lookupGate
}

func (c gatedConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if query == machineByQuery["mac"] {
		c.gate.pass()
	}
	return c.recordedConn.QueryContext(ctx, query, args)
}

// lookupGate counts lookups that read the database. It opens when there are more than missesAtOnce.
type lookupGate struct {
	passed atomic.Int64
	full   chan struct{} // receives when missesAtOnce lookups wait
	open   chan struct{}
	once   sync.Once
}

func (g *lookupGate) pass() {
	switch n := g.passed.Add(1); {
	case n == missesAtOnce:
		g.full <- struct{}{}
	case n > missesAtOnce:
		g.release()
	}
	<-g.open
}

func (g *lookupGate) release() { g.once.Do(func() { close(g.open) }) }

// TestFewLookupsReadTheDatabaseDuringTheIndex: of a flood that comes while the index is being read, a few lookups read the
// database. The others are answered from memory when the index is there, also while those few still wait.
func TestFewLookupsReadTheDatabaseDuringTheIndex(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const machines = 40
	ms := make([]inventory.Machine, machines)
	for n := range ms {
		ms[n] = machine(fmt.Sprintf("flood-%d", n), 100+n)
	}
	require.NoError(t, w.Machines.PutMachines(t.Context(), ms, false, "test"))
	require.NoError(t, w.Close())
	gate := &lookupGate{full: make(chan struct{}, 1), open: make(chan struct{})}
	s, err := Open(t.Context(), w.path, w.keys, recorded, func(s *db) { s.driver = gatedDriver{s.driver, gate} })
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()

	found := make(chan error, machines)
	for _, m := range ms {
		go func() {
			got, _, err := s.Machines.MachineByMAC(t.Context(), m.Interfaces[0].MAC)
			if err == nil && got.Name != m.Name {
				err = fmt.Errorf("found %s instead of %s", got.Name, m.Name)
			}
			found <- err
		}()
	}
	<-gate.full
	s.refreshIndex(t)
	for range machines - missesAtOnce {
		require.NoError(t, <-found)
	}
	require.EqualValues(t, missesAtOnce, gate.passed.Load(), "lookups that read the database")
	gate.release()
	for range missesAtOnce {
		require.NoError(t, <-found)
	}

	// What the index does not know is looked up at once when the index is there.
	_, _, err = s.Machines.MachineByMAC(t.Context(), "02:ff:ff:ff:ff:ff")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	// Another process has written: until the machines are read again, lookups wait again, and no longer than their context.
	s.index.reconnect()
	for range missesAtOnce {
		release, err := s.index.wait(t.Context())
		require.NoError(t, err)
		defer release()
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = s.Machines.MachineByMAC(ended, ms[0].Interfaces[0].MAC)
	require.ErrorIs(t, err, context.Canceled)
}
