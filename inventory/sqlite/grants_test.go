package sqlite

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

func TestTakeGrant(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, err := w.Grants.TakeGrant(ctx, "unknown", "run-1", "machine/unknown", false)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Grants.TakeGrant(ctx, "m1", "operator:eve", "machine/m1", true)
	require.ErrorIs(t, err, inventory.ErrInvalid)

	g, err := w.Grants.TakeGrant(ctx, "m1", "run-1", "machine/m1", false)
	require.NoError(t, err)
	require.Equal(t, inventory.Grant{
		Owner: inventory.Owner{Machine: "m1", Run: "run-1", Epoch: 1}, SiteEpoch: 1, Workflow: "machine/m1",
		BootsLeft: inventory.MaxBoots, Taken: w.clock.Now(),
	}, g)

	// A repeated call returns the same grant, even after a boot was allowed.
	armed, err := w.Grants.AllowBoot(ctx, g.Owner, 1, w.in(time.Hour))
	require.NoError(t, err)
	again, err := w.Grants.TakeGrant(ctx, "m1", "run-1", "machine/m1", true)
	require.NoError(t, err)
	require.Equal(t, armed, again)
	require.Len(t, w.events(inventory.EventGrant), 1)

	// Another workflow is refused, and the error names the holder.
	_, err = w.Grants.TakeGrant(ctx, "m1", "job-1", "bmc/m1/off", false)
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "run-1")
	require.ErrorContains(t, err, "machine/m1")

	// A newer run of the same workflow takes the grant, with all windows closed.
	g, err = w.Grants.TakeGrant(ctx, "m1", "run-2", "machine/m1", false)
	require.NoError(t, err)
	require.Equal(t, int64(2), g.Epoch)
	require.Zero(t, g.Boot)
	require.True(t, g.NetbootUntil.IsZero())
	require.False(t, g.NetbootOpen(w.clock.Now()))
	// The earlier run cannot take it back.
	_, err = w.Grants.TakeGrant(ctx, "m1", "run-1", "machine/m1", false)
	require.ErrorIs(t, err, inventory.ErrConflict)

	// With force, any run can take it.
	g, err = w.Grants.TakeGrant(ctx, "m1", "job-1", "bmc/m1/off", true)
	require.NoError(t, err)
	require.Equal(t, int64(3), g.Epoch)

	// EndGrant frees it. The epoch keeps growing, even after the machine was deleted.
	require.NoError(t, w.Grants.EndGrant(ctx, g.Owner))
	require.NoError(t, w.Grants.EndGrant(ctx, g.Owner))
	grants, err := w.Grants.Grants(ctx)
	require.NoError(t, err)
	require.Empty(t, grants)
	require.NoError(t, w.Machines.DeleteMachine(ctx, "m1", "test"))
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{machine("m1", 1)}, false, "test"))
	g, err = w.Grants.TakeGrant(ctx, "m1", "run-3", "machine/m1", false)
	require.NoError(t, err)
	require.Equal(t, int64(4), g.Epoch)

	// EndGrant of an earlier owner has no effect.
	require.NoError(t, w.Grants.EndGrant(ctx, inventory.Owner{Machine: "m1", Run: "job-1", Epoch: 3}))
	now, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, g, now)
}

func TestConcurrentTakers(t *testing.T) {
	w := newWorld(t)
	const n = 24
	var wg sync.WaitGroup
	got := make([]string, n)
	epochs := make([]int64, n)
	for i := range n {
		wg.Go(func() {
			run := fmt.Sprintf("run-%d", i)
			g, err := w.Grants.TakeGrant(t.Context(), "m1", run, fmt.Sprintf("bmc/m1/%d", i), false)
			got[i], epochs[i] = code(err), g.Epoch
			if err == nil && g.Run != run {
				got[i] = "got the grant of " + g.Run
			}
		})
	}
	wait(t, &wg)
	count := map[string]int{}
	for i := range n {
		count[got[i]]++
		if got[i] == "ok" {
			require.Equal(t, int64(1), epochs[i])
		}
	}
	require.Equal(t, map[string]int{"ok": 1, "conflict": n - 1}, count)

	// With force, all succeed, each with a different epoch.
	for i := range n {
		wg.Go(func() {
			g, err := w.Grants.TakeGrant(t.Context(), "m1", fmt.Sprintf("forced-%d", i), "", true)
			got[i], epochs[i] = code(err), g.Epoch
		})
	}
	wait(t, &wg)
	seen := map[int64]bool{}
	for i := range n {
		require.Equal(t, "ok", got[i])
		require.False(t, seen[epochs[i]])
		seen[epochs[i]] = true
	}
}

// TestGrantIsRefusedToDeadRun: an activity may outlive its run and request the grant after another
// run of the same workflow has taken it.
func TestGrantIsRefusedToDeadRun(t *testing.T) {
	record := func(w *world, run, state string) {
		t.Helper()
		require.NoError(
			t,
			w.Workflows.PutWorkflow(t.Context(), inventory.Workflow{Run: run, Machine: "m1", State: state, Started: w.clock.Now()}),
		)
	}
	take := func(w *world, run string, force bool) error {
		_, err := w.Grants.TakeGrant(t.Context(), "m1", run, "machine/m1", force)
		return err
	}
	owner := func(w *world) string {
		g, err := w.Grants.Grant(t.Context(), "m1")
		require.NoError(t, err)
		return g.Run
	}
	for _, force := range []bool{false, true} {
		w := newWorld(t)
		record(w, "dead", inventory.StatePreparing)
		record(w, "live", inventory.StatePreparing)
		require.NoError(t, take(w, "live", false))
		// The end of the dead run is not recorded yet, but it began before the run that holds the
		// grant.
		require.ErrorIs(t, take(w, "dead", force), inventory.ErrConflict)
		require.ErrorContains(t, take(w, "dead", force), "began earlier")
		require.Equal(t, "live", owner(w))

		record(w, "dead", inventory.StateFailed)
		require.ErrorIs(t, take(w, "dead", force), inventory.ErrConflict)
		require.ErrorContains(t, take(w, "dead", force), "has ended: FAILED")
		require.Equal(t, "live", owner(w))

		// A later run takes the grant, whatever the clock shows.
		w.clock.Add(-24 * time.Hour)
		record(w, "later", inventory.StatePreparing)
		require.NoError(t, take(w, "later", force))
		require.NoError(t, take(w, "later", force), "a retry after a lost answer")
	}

	// A run that has ended cannot take a free grant or a machine's first grant either.
	w := newWorld(t)
	record(w, "dead", inventory.StateCancelled)
	require.ErrorIs(t, take(w, "dead", false), inventory.ErrConflict)
	require.Empty(t, owner(w))
	require.NoError(t, take(w, "unrecorded", false))
}

// effects returns all methods that have an owner and an effect.
func effects(w *world, o inventory.Owner) map[string]func(ctx context.Context) error {
	k := action.Key{Epoch: o.Epoch, Action: 0, Attempt: 1}
	fresh := assignment(o, 1, 1)
	return map[string]func(ctx context.Context) error{
		"AllowBoot":      func(ctx context.Context) error { _, err := w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour)); return err },
		"AllowBootAgain": func(ctx context.Context) error { _, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour)); return err },
		"MoreBoots":      func(ctx context.Context) error { return w.Grants.MoreBoots(ctx, o, inventory.MaxBoots) },
		"RenewNetboot":   func(ctx context.Context) error { return w.Grants.RenewNetboot(ctx, o, w.in(time.Hour)) },
		"CloseNetboot":   func(ctx context.Context) error { return w.Grants.CloseNetboot(ctx, o) },
		"OpenSecrets":    func(ctx context.Context) error { return w.Grants.OpenSecrets(ctx, o, w.in(time.Hour)) },
		"CloseSecrets":   func(ctx context.Context) error { return w.Grants.CloseSecrets(ctx, o) },
		"AgentByToken": func(ctx context.Context) error {
			h := sha256.Sum256([]byte(token("n1")))
			_, err := w.Agents.AgentByToken(ctx, h[:])
			return err
		},
		"AgentUsed":      func(ctx context.Context) error { return w.Agents.AgentUsed(ctx, o, 1) },
		"Assign":         func(ctx context.Context) error { return w.Assignments.Assign(ctx, fresh) },
		"AssignAgain":    func(ctx context.Context) error { return w.Assignments.Assign(ctx, assignment(o, 0, 1)) },
		"NextAssignment": func(ctx context.Context) error { _, err := w.Assignments.NextAssignment(ctx, o); return err },
		"Assignment":     func(ctx context.Context) error { _, err := w.Assignments.Assignment(ctx, o, k); return err },
		"Delivered":      func(ctx context.Context) error { return w.Assignments.Delivered(ctx, o, k) },
		"AppendLog":      func(ctx context.Context) error { return w.Agents.AppendLog(ctx, o, k, "line\n") },
		"StopAssignment": func(ctx context.Context) error { return w.Assignments.StopAssignment(ctx, o, k, w.clock.Now()) },
		"Report": func(ctx context.Context) error {
			_, err := w.Assignments.Report(ctx, o, 1, action.Result{Key: k, ID: "r1", State: action.Success})
			return err
		},
		"ReportWithoutAgent": func(ctx context.Context) error {
			_, err := w.Assignments.Report(ctx, o, 9, action.Result{Key: k, ID: "r1", State: action.Success})
			return err
		},
		"DiskWritten": func(ctx context.Context) error { return w.Disks.DiskWritten(ctx, o, action.Disk{Serial: "D1"}) },
	}
}

// prepared returns m1 owned by run-1, with an agent and an assignment.
func prepared(t *testing.T) (*world, inventory.Owner) {
	t.Helper()
	w := newWorld(t)
	o := w.armed()
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.NoError(t, w.Assignments.Assign(t.Context(), assignment(o, 0, 1)))
	return w, o
}

func TestFencing(t *testing.T) {
	takeOver := map[string]func(t *testing.T, w *world, o inventory.Owner){
		"another run": func(t *testing.T, w *world, _ inventory.Owner) { t.Helper(); w.take("run-2") },
		"the same run at a later epoch": func(t *testing.T, w *world, o inventory.Owner) {
			t.Helper()
			g, err := w.Grants.TakeGrant(t.Context(), "m1", "job", "bmc/m1/x", true)
			require.NoError(t, err)
			require.NoError(t, w.Grants.EndGrant(t.Context(), g.Owner))
			require.Equal(t, o.Epoch+2, w.take("run-1").Epoch)
		},
		"the end": func(t *testing.T, w *world, o inventory.Owner) {
			t.Helper()
			require.NoError(t, w.Grants.EndGrant(t.Context(), o))
		},
	}
	w, o := prepared(t)
	for name := range effects(w, o) {
		t.Run(name, func(t *testing.T) {
			w, o := prepared(t)
			require.NoError(t, effects(w, o)[name](t.Context()), "the owner is allowed")
			for who, take := range takeOver {
				w, o := prepared(t)
				take(t, w, o)
				before, err := w.Grants.Grant(t.Context(), "m1")
				require.NoError(t, err)
				events, err := w.Events.LastSeq(t.Context())
				require.NoError(t, err)
				require.ErrorIs(t, effects(w, o)[name](t.Context()), inventory.ErrFenced, who)
				after, err := w.Grants.Grant(t.Context(), "m1")
				require.NoError(t, err)
				require.Equal(t, before, after, who)
				last, err := w.Events.LastSeq(t.Context())
				require.NoError(t, err)
				require.Equal(t, events, last, "%s: an event was appended", who)
			}
		})
	}
	// The grant alone fences a token, even one that was not revoked.
	w, o = prepared(t)
	w.take("run-2")
	_, err := w.rw.ExecContext(t.Context(), "UPDATE agent SET revoked = 0")
	require.NoError(t, err)
	require.ErrorIs(t, effects(w, o)["AgentByToken"](t.Context()), inventory.ErrFenced)

	// The empty owner of a free grant is not an owner.
	w, o = prepared(t)
	require.NoError(t, w.Grants.EndGrant(t.Context(), o))
	for name, do := range effects(w, inventory.Owner{Machine: "m1", Run: "", Epoch: o.Epoch}) {
		if name != "AgentByToken" {
			require.ErrorIs(t, do(t.Context()), inventory.ErrFenced, name)
		}
	}
	// An earlier claim reveals nothing.
	_, err = w.redeem(o, 1, "n1")
	require.ErrorIs(t, err, inventory.ErrNotFound)
}

func TestAllowBoot(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	require.ErrorIs(t, w.Grants.RenewNetboot(ctx, o, w.in(time.Hour)), inventory.ErrConflict)
	_, err := w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrConflict)
	_, err = w.Grants.AllowBoot(ctx, o, 0, w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrInvalid)

	g, err := w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 1, g.Boot)
	require.Equal(t, 2, g.BootsLeft)
	_, err = w.redeem(o, 1, "n1")
	require.NoError(t, err)

	// The same boot again renews the window and stays spent.
	g, err = w.Grants.AllowBoot(ctx, o, 1, w.in(2*time.Hour))
	require.NoError(t, err)
	require.Equal(t, 2, g.BootsLeft)
	require.True(t, g.Spent)
	require.Equal(t, w.in(2*time.Hour), g.NetbootUntil)
	require.Len(t, w.events(inventory.EventArmed), 1)

	// After a reset, a boot that is spent is not superseded.
	require.ErrorIs(t, w.Grants.AllowBootAfterReset(ctx, o, 2, w.in(time.Hour), false), inventory.ErrClaimed)
	require.ErrorIs(
		t,
		w.Grants.AllowBootAfterReset(ctx, inventory.Owner{Machine: "m1", Run: "run-0", Epoch: o.Epoch}, 2, w.in(time.Hour), false),
		inventory.ErrFenced,
	)

	g, err = w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	require.False(t, g.Spent)
	require.True(t, g.NetbootOpen(w.clock.Now()))
	require.NoError(t, w.Grants.AllowBootAfterReset(ctx, o, 3, w.in(time.Hour), false))
	g, err = w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, 3, g.Boot)
	require.Zero(t, g.BootsLeft)
	_, err = w.Grants.AllowBoot(ctx, o, 4, w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "the run has no boots left")
	_, err = w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrConflict)

	require.NoError(t, w.Grants.MoreBoots(ctx, o, inventory.MaxBoots))
	_, err = w.Grants.AllowBoot(ctx, o, 4, w.in(time.Hour))
	require.NoError(t, err)

	require.NoError(t, w.Grants.CloseNetboot(ctx, o))
	require.NoError(t, w.Grants.CloseNetboot(ctx, o))
	require.Len(t, w.events(inventory.EventDisarmed), 1)
	require.NoError(t, w.Grants.RenewNetboot(ctx, o, w.in(time.Hour)))
	require.NoError(t, w.Grants.EndGrant(ctx, o))
	require.Len(t, w.events(inventory.EventDisarmed), 2)
}

func TestArmByHand(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, err := w.Grants.ArmByHand(ctx, "unknown", "ann", w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.ErrorIs(t, w.Grants.DisarmByHand(ctx, "unknown", "ann", false), inventory.ErrNotFound)
	require.NoError(t, w.Grants.DisarmByHand(ctx, "m1", "ann", false), "nothing to do")

	g, err := w.Grants.ArmByHand(ctx, "m1", "ann", w.in(time.Hour))
	require.NoError(t, err)
	require.True(t, g.ByOperator())
	require.True(t, g.NetbootOpen(w.clock.Now()))

	// Any number of boots is possible; they are not counted and give no secrets.
	for _, nonce := range []string{"n1", "n2", "n3", "n4", "n5"} {
		a, err := w.redeem(g.Owner, 1, nonce)
		require.NoError(t, err)
		require.Equal(t, nonce, a.Nonce)
		h := sha256.Sum256([]byte(token(nonce)))
		_, err = w.Agents.AgentByToken(ctx, h[:])
		require.NoError(t, err)
	}
	old := sha256.Sum256([]byte(token("n1")))
	_, err = w.Agents.AgentByToken(ctx, old[:])
	require.ErrorIs(t, err, inventory.ErrNotFound)
	now, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.True(t, now.NetbootOpen(w.clock.Now()))
	require.False(t, now.SecretsOpen(w.clock.Now()))
	unsent, err := w.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)
	require.Empty(t, unsent, "there is no run to signal")

	require.NoError(t, w.Grants.DisarmByHand(ctx, "m1", "bob", false))
	now, err = w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.Empty(t, now.Run)
	require.False(t, now.NetbootOpen(w.clock.Now()))

	// A workflow can take an operator's grant, but not the other way round.
	_, err = w.Grants.ArmByHand(ctx, "m1", "ann", w.in(time.Hour))
	require.NoError(t, err)
	o := w.armed()
	_, err = w.Grants.ArmByHand(ctx, "m1", "ann", w.in(time.Hour))
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "run-1")
	require.ErrorIs(t, w.Grants.DisarmByHand(ctx, "m1", "ann", false), inventory.ErrConflict)
	require.NoError(t, w.Grants.DisarmByHand(ctx, "m1", "ann", true))
	now, err = w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.Empty(t, now.Run, "the run has lost the machine")
	require.False(t, now.NetbootOpen(w.clock.Now()))
	require.ErrorIs(t, w.Grants.RenewNetboot(ctx, o, w.in(time.Hour)), inventory.ErrFenced)
}

// S1, S2: what was redeemed and used is not redeemed again, and ends the agent before it.
func TestRedeem(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.take("run-1")
	_, err := w.redeem(o, 1, "n1")
	require.ErrorIs(t, err, inventory.ErrNotFound, "before arming")
	_, err = w.redeem(o, 0, "n1")
	require.ErrorIs(t, err, inventory.ErrNotFound, "no boot yet")
	_, err = w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.redeem(o, 2, "n1")
	require.ErrorIs(t, err, inventory.ErrNotFound, "another boot")

	first, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.Equal(t, "Sn1", first.Facts.Serial)
	g, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.True(t, g.Spent)
	require.False(t, g.NetbootOpen(w.clock.Now()))
	require.True(t, g.SecretsOpen(w.clock.Now()))
	require.Len(t, w.events(inventory.EventHello), 1)
	require.Contains(t, string(w.events(inventory.EventHello)[0].Detail), "Sn1")

	// After a lost answer, the same nonce gets the same token again, even after the window closed.
	w.clock.Add(2 * time.Hour)
	again, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Len(t, w.events(inventory.EventHello), 1)

	// That ends when the token is used.
	require.NoError(t, w.Agents.AgentUsed(ctx, o, 1))
	require.NoError(t, w.Agents.AgentUsed(ctx, o, 1))
	_, err = w.redeem(o, 1, "n1")
	require.ErrorIs(t, err, inventory.ErrConflict)
	h := sha256.Sum256([]byte(token("n1")))
	a, err := w.Agents.AgentByToken(ctx, h[:])
	require.NoError(t, err, "a replay does not harm the agent")
	require.True(t, a.Used)

	// Boot 2: the token of boot 1 is valid until boot 2 is redeemed.
	_, err = w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.Agents.AgentByToken(ctx, h[:])
	require.NoError(t, err)
	_, err = w.redeem(o, 2, "n2")
	require.NoError(t, err)
	_, err = w.Agents.AgentByToken(ctx, h[:])
	require.ErrorIs(t, err, inventory.ErrConflict, "its run is not over")
	newest, err := w.Agents.Agent(ctx, o)
	require.NoError(t, err)
	require.Equal(t, 2, newest.Boot)

	// The window has expired.
	_, err = w.Grants.AllowBoot(ctx, o, 3, w.in(time.Minute))
	require.NoError(t, err)
	w.clock.Add(time.Minute)
	_, err = w.redeem(o, 3, "n3")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// Only the hash of the token is stored.
	var n int
	require.NoError(t, w.ro.GetContext(ctx, &n, "SELECT count(*) FROM agent WHERE instr(token, CAST('token of' AS BLOB)) > 0"))
	require.Zero(t, n)
}

// TestClaimConflict (S5): a second claim with another nonce is a conflict.
func TestClaimConflict(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.armed()
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	_, err = w.redeem(o, 1, "n2")
	require.ErrorIs(t, err, inventory.ErrConflict)
	written := w.pages()
	for range 20 {
		_, err = w.redeem(o, 1, "n3")
		require.ErrorIs(t, err, inventory.ErrConflict)
	}
	require.Equal(t, written, w.pages(), "later conflicts write nothing")
	require.Len(t, w.events(inventory.EventClaimConflict), 1)
	a, err := w.Agents.Agent(ctx, o)
	require.NoError(t, err)
	require.True(t, a.Conflict)
	require.True(t, a.Revoked)
	for _, nonce := range []string{"n1", "n2"} {
		h := sha256.Sum256([]byte(token(nonce)))
		_, err = w.Agents.AgentByToken(ctx, h[:])
		require.Error(t, err, nonce)
		require.NotErrorIs(t, err, inventory.ErrFenced, "only the grant says that a run has ended")
	}
	// The first agent gets nothing either, and its report is refused.
	_, err = w.redeem(o, 1, "n1")
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.NoError(t, w.Assignments.Assign(ctx, assignment(o, 0, 1)))
	_, err = w.Assignments.Report(ctx, o, 1, action.Result{Key: action.Key{Epoch: 1, Attempt: 1}, ID: "r", State: action.Success})
	require.ErrorIs(t, err, inventory.ErrConflict)
	g, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.False(t, g.SecretsOpen(w.clock.Now()))
	unsent, err := w.Events.Unsignalled(ctx, 0, 10)
	require.NoError(t, err)
	require.Len(t, unsent, 2, "hello and claim-conflict")
}

func TestParallelClaims(t *testing.T) {
	w := newWorld(t)
	o := w.armed()
	const n = 16
	got := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			_, got[i] = w.Agents.Redeem(
				t.Context(),
				inventory.Redemption{Owner: o, Boot: 1, Hello: hello(fmt.Sprint("n", i)), TokenFor: token, SecretsUntil: w.in(time.Hour)},
			)
		})
	}
	wait(t, &wg)
	ok := 0
	for _, err := range got {
		if err == nil {
			ok++
			continue
		}
		require.True(t, errors.Is(err, inventory.ErrConflict), err)
	}
	require.Equal(t, 1, ok)
	require.Len(t, w.events(inventory.EventClaimConflict), 1)
}

// pages counts the pages in the write-ahead log, to measure how much was written.
func (w *world) pages() (n int) {
	w.t.Helper()
	var busy, done int
	require.NoError(w.t, w.rw.QueryRowContext(w.t.Context(), "PRAGMA wal_checkpoint").Scan(&busy, &n, &done))
	return n
}

func TestOtherHardwareRevokesTokens(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	o := w.armed()
	require.ErrorIs(t, w.Agents.ClaimConflict(ctx, o, 2, "x", nil), inventory.ErrNotFound)
	require.ErrorIs(t, w.Agents.ClaimConflict(ctx, inventory.Owner{Machine: "m1"}, 0, "x", nil), inventory.ErrNotFound)
	_, err := w.redeem(o, 1, "n1")
	require.NoError(t, err)
	h := sha256.Sum256([]byte(token("n1")))
	_, err = w.Agents.AgentByToken(ctx, h[:])
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, w.Agents.ClaimConflict(ctx, o, 1, "another machine", []byte(`{"serial":"X"}`)))
	}
	require.Len(t, w.events(inventory.EventClaimConflict), 1)
	_, err = w.Agents.AgentByToken(ctx, h[:])
	require.ErrorIs(t, err, inventory.ErrConflict)
	g, err := w.Grants.Grant(ctx, "m1")
	require.NoError(t, err)
	require.False(t, g.SecretsOpen(w.clock.Now()))
}

// The grant decides whether an agent's token is of an ended run, revoked or unknown here.
func TestTokenAfterItsRun(t *testing.T) {
	h := sha256.Sum256([]byte(token("n1")))
	for name, c := range map[string]struct {
		do   func(w *world, o inventory.Owner) error
		want error
	}{
		"the run ended": {func(w *world, o inventory.Owner) error { return w.Grants.EndGrant(w.t.Context(), o) }, inventory.ErrFenced},
		"its record was deleted, too": {func(w *world, o inventory.Owner) error {
			return errors.Join(w.Workflows.PutWorkflow(w.t.Context(), inventory.Workflow{Run: o.Run, Machine: o.Machine, State: inventory.StateSuccess}),
				w.Grants.EndGrant(w.t.Context(), o), w.Workflows.DeleteWorkflow(w.t.Context(), o.Run, "ann"))
		}, inventory.ErrFenced},
		"the machine was deleted": {func(w *world, o inventory.Owner) error {
			return errors.Join(w.Grants.EndGrant(w.t.Context(), o), w.Machines.DeleteMachine(w.t.Context(), o.Machine, "ann"))
		}, inventory.ErrFenced},
		"another run took the machine": {func(w *world, _ inventory.Owner) error { w.take("run-2"); return nil }, inventory.ErrFenced},
		"the site has an older grant": {func(w *world, _ inventory.Owner) error {
			_, err := w.rw.ExecContext(w.t.Context(), "UPDATE grant_ SET epoch = 0")
			return err
		}, inventory.ErrNotFound},
		"the site has no grants": {func(w *world, _ inventory.Owner) error {
			_, err := w.rw.ExecContext(w.t.Context(), "DELETE FROM grant_")
			return err
		}, inventory.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			w, o := prepared(t)
			_, err := w.Agents.AgentByToken(t.Context(), h[:])
			require.NoError(t, err)
			require.NoError(t, c.do(w, o))
			_, err = w.Agents.AgentByToken(t.Context(), h[:])
			require.ErrorIs(t, err, c.want)
		})
	}
}

// The agents of a run are deleted with its record, except the machine's newest.
func TestDeletingRunKeepsNewestAgent(t *testing.T) {
	w, o := prepared(t)
	ctx := t.Context()
	_, err := w.Grants.AllowBoot(ctx, o, 2, w.in(time.Hour))
	require.NoError(t, err)
	_, err = w.redeem(o, 2, "n2")
	require.NoError(t, err)
	require.NoError(t, w.Workflows.PutWorkflow(ctx, inventory.Workflow{Run: o.Run, Machine: "m1", State: inventory.StateSuccess}))
	require.NoError(t, w.Grants.EndGrant(ctx, o))
	require.NoError(t, w.Workflows.DeleteWorkflow(ctx, o.Run, "ann"))
	var boots []int
	require.NoError(t, w.ro.SelectContext(ctx, &boots, "SELECT boot FROM agent"))
	require.Equal(t, []int{2}, boots)
}

// S8: a machine gets no assignment if it was not accepted, not armed, armed by an operator, or if
// its boot did not say hello.
func TestS8AssignOnlyToClaimedBoot(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, machine := range []string{"m1", "stranger"} {
		for _, run := range []string{"", "run-1"} {
			a := assignment(inventory.Owner{Machine: machine, Run: run, Epoch: 0}, 0, 1)
			require.ErrorIs(t, w.Assignments.Assign(ctx, a), inventory.ErrFenced, "%s %q", machine, run)
		}
	}
	g, err := w.Grants.ArmByHand(ctx, "m1", "ann", w.in(time.Hour))
	require.NoError(t, err)
	require.ErrorIs(t, w.Assignments.Assign(ctx, assignment(g.Owner, 0, 1)), inventory.ErrInvalid)
	o := w.take("run-1")
	require.ErrorIs(t, w.Assignments.Assign(ctx, assignment(o, 0, 1)), inventory.ErrConflict, "no boot was allowed")
	_, err = w.Grants.AllowBoot(ctx, o, 1, w.in(time.Hour))
	require.NoError(t, err)
	for _, boot := range []int{0, 1} {
		a := assignment(o, 0, 1)
		a.Boot = boot
		require.ErrorIs(t, w.Assignments.Assign(ctx, a), inventory.ErrConflict, "no one has claimed it")
	}
	var n int
	require.NoError(t, w.ro.GetContext(ctx, &n, "SELECT count(*) FROM assignment"))
	require.Zero(t, n)
	_, err = w.redeem(o, 1, "n1")
	require.NoError(t, err)
	require.NoError(t, w.Assignments.Assign(ctx, assignment(o, 0, 1)))
}
