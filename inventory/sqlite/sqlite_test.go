package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// A clock that moves only when a test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a store with the machine m1.
type world struct {
	*Store
	t     *testing.T
	path  string
	keys  *keyring.Ring
	clock *clock
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, path: filepath.Join(t.TempDir(), "inventory.db"), keys: keyring.New(), clock: newClock()}
	w.reopen(w.keys)
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{machine("m1", 1)}, false, "test"))
	w.refreshIndex(t)
	return w
}

func (w *world) reopen(keys Sealer) {
	w.t.Helper()
	if w.Store != nil {
		require.NoError(w.t, w.Close())
	}
	s, err := Open(w.t.Context(), w.path, keys, WithClock(w.clock.Now), recorded)
	require.NoError(w.t, err)
	w.Store = s
	w.t.Cleanup(func() {
		compareIndex(w.t, s)
		_ = s.Close() // may be closed already
	})
}

func (w *world) in(d time.Duration) time.Time { return w.clock.Now().Add(d) }

// take makes run the owner of m1.
func (w *world) take(run string) inventory.Owner {
	w.t.Helper()
	g, err := w.Grants.TakeGrant(w.t.Context(), "m1", run, "machine/m1", false)
	require.NoError(w.t, err)
	return g.Owner
}

// armed makes run-1 the owner of m1 and allows boot 1 for an hour.
func (w *world) armed() inventory.Owner {
	w.t.Helper()
	o := w.take("run-1")
	_, err := w.Grants.AllowBoot(w.t.Context(), o, 1, w.in(time.Hour))
	require.NoError(w.t, err)
	return o
}

func (w *world) redeem(o inventory.Owner, boot int, nonce string) (inventory.Agent, error) {
	return w.Agents.Redeem(
		w.t.Context(),
		inventory.Redemption{Owner: o, Boot: boot, Hello: hello(nonce), TokenFor: token, SecretsUntil: w.in(time.Hour)},
	)
}

// events returns the events of a kind.
func (w *world) events(kind string) []inventory.Event {
	w.t.Helper()
	all, err := w.Events.Events(w.t.Context(), inventory.EventFilter{})
	require.NoError(w.t, err)
	var out []inventory.Event
	for _, e := range all {
		if e.Kind == kind {
			out = append(out, e)
		}
	}
	return out
}

func machine(name string, n int) inventory.Machine {
	return inventory.Machine{Name: name, Interfaces: []inventory.Interface{{
		MAC: fmt.Sprintf("52:54:00:00:00:%02x", n), Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), Netmask: "255.255.255.0",
		Hostname: name,
	}}}
}

func hello(nonce string) action.Hello {
	return action.Hello{
		Protocol: action.Protocol, Machine: "m1", Nonce: nonce, MAC: "52:54:00:00:00:01",
		Facts: action.Facts{Serial: "S" + nonce},
	}
}

func token(nonce string) string { return "token of " + nonce }

func assignment(o inventory.Owner, n, attempt int) inventory.Assignment {
	k := action.Key{Epoch: o.Epoch, Action: n, Attempt: attempt}
	return inventory.Assignment{
		Owner: o, Key: k,
		Payload: action.Assignment{Key: k, Run: o.Run, Action: action.Action{Name: fmt.Sprintf("step %d", n), Image: "noop", Timeout: 60}},
	}
}

func TestPathWithOddCharacters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b?mode=memory#%41.db")
	s, err := Open(t.Context(), path, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.NotZero(t, st.Size())
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
}

func TestReadersDoNotWaitForAWriter(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	tx, err := w.rw.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "UPDATE grant_ SET netboot_until = 0")
	require.NoError(t, err)

	// All of them answer while the write transaction is open. A read on the only write connection
	// would wait forever.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, g, err := w.Machines.MachineByMAC(ctx, "52:54:00:00:00:01")
	require.NoError(t, err)
	require.Equal(t, o, g.Owner)
	require.True(t, g.NetbootOpen(w.clock.Now()), "not committed yet")
	_, _, err = w.Machines.MachineByAddress(ctx, netip.MustParseAddr("10.0.0.1"))
	require.NoError(t, err)
	_, err = w.Assignments.NextAssignment(ctx, o)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Agents.AgentByToken(ctx, []byte("no token"))
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)

	_, err = w.ro.ExecContext(ctx, "DELETE FROM machine")
	require.ErrorContains(t, err, "readonly")

	require.NoError(t, tx.Commit())
	_, g, err = w.Machines.MachineByMAC(ctx, "52:54:00:00:00:01")
	require.NoError(t, err)
	require.False(t, g.NetbootOpen(w.clock.Now()), "a committed disarm holds at once")
}

func TestDurability(t *testing.T) {
	w := newWorld(t)
	var mode string
	require.NoError(t, w.rw.GetContext(t.Context(), &mode, "PRAGMA journal_mode"))
	require.Equal(t, "wal", mode)
	var sync int
	require.NoError(t, w.rw.GetContext(t.Context(), &sync, "PRAGMA synchronous"))
	require.Equal(t, 2, sync, "FULL")
}

func TestBackup(t *testing.T) {
	w := newWorld(t)
	to := filepath.Join(t.TempDir(), "copy.db")
	require.NoError(t, w.Backup(t.Context(), to))
	require.ErrorIs(t, w.Backup(t.Context(), to), fs.ErrExist)
	s, err := Open(t.Context(), to, w.keys)
	require.NoError(t, err)
	require.NoError(t, s.Keys.KeyCheck(t.Context()))
	_, err = s.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	require.NoError(t, s.Close())
}

func TestSubscribe(t *testing.T) {
	w := newWorld(t)
	ch, cancel := w.Changes.Subscribe()
	require.Empty(t, ch)
	o := w.take("run-1")
	require.NoError(t, w.Grants.OpenSecrets(t.Context(), o, w.in(time.Hour)))
	require.Len(t, ch, 1, "merged into one value, without blocking")
	<-ch
	require.ErrorIs(t, w.Grants.OpenSecrets(t.Context(), inventory.Owner{Machine: "m1", Run: "other", Epoch: 1}, w.in(time.Hour)),
		inventory.ErrFenced)
	require.Empty(t, ch, "nothing was written")
	cancel()
	require.NoError(t, w.Grants.CloseSecrets(t.Context(), o))
	require.Empty(t, ch)
}

// TestWatch: a commit wakes only the polls for the machine that it concerns.
func TestWatch(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.Machines.PutMachines(t.Context(), []inventory.Machine{{Name: "m2"}}, false, "test"))
	mine, cancel := w.Changes.Watch("m1")
	defer cancel()
	other, cancelOther := w.Changes.Watch("m2")
	defer cancelOther()
	told := func(what string) {
		t.Helper()
		require.Len(t, mine, 1, what)
		<-mine
		require.Empty(t, other, what)
	}
	o := w.take("run-1")
	told("a grant was taken")
	g, err := w.Grants.AllowBoot(t.Context(), o, 1, w.in(time.Hour))
	require.NoError(t, err)
	told("a boot was allowed")
	_, err = w.redeem(o, g.Boot, "n1")
	require.NoError(t, err)
	told("its claim was redeemed")
	key := action.Key{Epoch: o.Epoch, Attempt: 1}
	require.NoError(t, w.Assignments.Assign(t.Context(), inventory.Assignment{Owner: o, Boot: g.Boot, Key: key}))
	told("there is work")
	require.NoError(t, w.Assignments.StopAssignment(t.Context(), o, key, w.in(0)))
	told("there is an order to stop")
	require.NoError(t, w.Workflows.PutWorkflow(t.Context(), inventory.Workflow{Run: "run-1", Machine: "m1", State: inventory.StateRunning}))
	require.Empty(t, mine, "agents do not wait for records")
	require.NoError(t, w.Grants.CloseNetboot(t.Context(), o))
	told("the window was closed")
	require.NoError(t, w.Grants.EndGrant(t.Context(), o))
	told("the run has ended, although no window was open")
	w.take("run-2")
	told("another run has the machine")
	require.NoError(t, w.Grants.DisarmByHand(t.Context(), "m1", "ann", true))
	told("an operator took it away")
}

func TestSiteEpoch(t *testing.T) {
	w := newWorld(t)
	n, err := w.HandOvers.SiteEpoch(t.Context())
	require.NoError(t, err)
	require.Equal(t, int64(1), n)
	g, err := w.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.Zero(t, g)
	w.take("run-1")
	g, err = w.Grants.Grant(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, int64(1), g.SiteEpoch)
}

// wait fails a test that hangs.
func wait(t *testing.T, wg *sync.WaitGroup) {
	t.Helper()
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Minute):
		t.Fatal("hung")
	}
}

func code(err error) string {
	for name, e := range map[string]error{
		"fenced": inventory.ErrFenced, "not found": inventory.ErrNotFound,
		"conflict": inventory.ErrConflict, "sealed": inventory.ErrSealed,
	} {
		if errors.Is(err, e) {
			return name
		}
	}
	if err == nil {
		return "ok"
	}
	return strings.ToUpper(err.Error())
}

func TestTemporalClusterIsKept(t *testing.T) {
	w := newWorld(t)
	got, err := w.TemporalCluster(t.Context(), "first")
	require.NoError(t, err)
	require.Equal(t, "first", got)
	got, err = w.TemporalCluster(t.Context(), "stranger")
	require.NoError(t, err)
	require.Equal(t, "first", got)
}

// TestAnswer: a database whose changes do not end does not answer.
func TestAnswer(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "ingot.db"), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, s.Answer(t.Context()))

	stuck, err := s.rw.BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Answer(ctx), context.DeadlineExceeded)
	require.NoError(t, stuck.Rollback())
	require.NoError(t, s.Answer(t.Context()), "it recovers")
}
