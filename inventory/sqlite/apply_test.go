package sqlite

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// accept is a check that accepts all machines.
func accept(_, _ []inventory.Machine) error { return nil }

// apply applies a, and returns the results by object.
func (w *world) apply(a inventory.Application) map[string]string {
	w.t.Helper()
	items, err := w.Applications.Apply(w.t.Context(), a, accept, "test")
	require.NoError(w.t, err)
	out := map[string]string{}
	for _, x := range items {
		out[x.Name] = x.Result
	}
	return out
}

// TestS24S65AppliedSurvivesNewKeys: what was applied is stored encrypted only, because a digest of a short secret tells it. It is readable with
// new keys; without any key, it counts as unknown.
func TestS24S65AppliedSurvivesNewKeys(t *testing.T) {
	w := newWorld(t)
	w.secretPlan()
	m := machine("m1", 1)
	m.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.0.9.1", User: "admin", Password: inventory.NewSecret("canary")}
	m.Image = "debian-12"
	a := inventory.Application{Machines: []inventory.Machine{m}}
	require.Equal(t, map[string]string{"m1": inventory.ResultChanged}, w.apply(a))
	sealed, err := scalar[[]byte](t.Context(), w.ro, "SELECT sealed FROM applied WHERE run = 'machine/m1'")
	require.NoError(t, err)
	require.NotContains(t, string(sealed), "bmc.password")
	require.NotContains(t, string(sealed), digestField("bmc.password", "canary"))

	n, err := w.Keys.Reseal(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, n, "password, plan, and what was applied")
	m.BMC.Password, m.Image = inventory.NewSecret("canary-2"), "debian-13"
	a.Machines[0] = m
	require.Equal(t, map[string]string{"m1": inventory.ResultChanged}, w.apply(a), "known to be the values of this document")

	w.reopen(keyring.New())
	_, err = w.Keys.ResetSecrets(t.Context(), "test")
	require.NoError(t, err)
	m.BMC, m.Image = nil, "debian-14"
	_, err = w.Applications.Apply(t.Context(), inventory.Application{Machines: []inventory.Machine{m}}, accept, "test")
	require.ErrorIs(t, err, inventory.ErrConflict)

	_, err = w.rw.ExecContext(t.Context(), "UPDATE applied SET set_name = 's'")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"m1": inventory.ResultKept, "m9": inventory.ResultAdded},
		w.apply(inventory.Application{Set: "s", Prune: true, Machines: []inventory.Machine{machine("m9", 9)}}))
}

// TestApplyStoresAllOrNone: an error of the check, or of any object, undoes everything; so does a dry run.
func TestApplyStoresAllOrNone(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	a := inventory.Application{
		Set: "s", Machines: []inventory.Machine{machine("m7", 7), machine("m8", 8)},
		Templates: []inventory.Template{{Name: "own", Source: "x"}},
	}
	wrong := errors.New("wrong")
	_, err := w.Applications.Apply(ctx, a, func(next, before []inventory.Machine) error {
		require.Len(t, next, 2)
		require.Len(t, before, 1)
		return wrong
	}, "test")
	require.ErrorIs(t, err, wrong)
	a.DryRun = true
	require.Len(t, w.apply(a), 3)
	empty := func() {
		t.Helper()
		for table, want := range map[string]int{"machine": 1, "template": 0, "applied": 0} {
			n, err := scalar[int](ctx, w.ro, "SELECT count(*) FROM "+table)
			require.NoError(t, err)
			require.Equal(t, want, n, table)
		}
	}
	empty()
	a.DryRun = false
	a.Machines[1].Interfaces[0].MAC = a.Machines[0].Interfaces[0].MAC
	_, err = w.Applications.Apply(ctx, a, accept, "test")
	require.ErrorContains(t, err, "belongs to machine")
	empty()

	// What is deleted is forgotten: a later object of the same name is another one.
	a.Machines[1] = machine("m8", 8)
	require.Len(t, w.apply(a), 3)
	require.NoError(t, w.Machines.DeleteMachine(ctx, "m7", "test"))
	require.NoError(t, w.Templates.DeleteTemplate(ctx, "own", "test"))
	n, err := scalar[int](ctx, w.ro, "SELECT count(*) FROM applied")
	require.NoError(t, err)
	require.Equal(t, 1, n)

	// A machine that was decommissioned is not pruned.
	_, err = w.rw.ExecContext(ctx, "INSERT INTO standing (machine, state, doc) VALUES ('m8', 'available', '{}')")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"m9": inventory.ResultAdded, "m8": inventory.ResultKept},
		w.apply(inventory.Application{Set: "s", Prune: true, Machines: []inventory.Machine{machine("m9", 9)}}))
	_, err = w.rw.ExecContext(ctx, "DELETE FROM standing")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"m9": inventory.ResultUnchanged, "m8": inventory.ResultDeleted},
		w.apply(inventory.Application{Set: "s", Prune: true, Machines: []inventory.Machine{machine("m9", 9)}}))
}

// TestKeyedApplyIsRepeated: a repetition of a request changes nothing, and succeeds although another client has changed the machine since.
func TestKeyedApplyIsRepeated(t *testing.T) {
	w := newWorld(t)
	m := machine("m7", 7)
	m.Image = "debian-12"
	a := inventory.Application{Machines: []inventory.Machine{m}}
	_, err := w.rw.ExecContext(t.Context(), "INSERT INTO keyed_request (id, fingerprint, created) VALUES ('k', 'f', 0)")
	require.NoError(t, err)
	ctx := inventory.WithKeyedRequest(t.Context(), "k")
	for _, want := range []string{inventory.ResultAdded, inventory.ResultUnchanged} {
		items, err := w.Applications.Apply(ctx, a, accept, "test")
		require.NoError(t, err)
		require.Equal(t, want, items[0].Result)
		other := m
		other.Image = "other"
		require.NoError(t, put(t, w.Store, true, other))
	}
}
