package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// secretPlan gives m1 a password and run-1 a plan.
func (w *world) secretPlan() {
	w.t.Helper()
	m := machine("m1", 1)
	m.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.0.9.1", User: "admin", Password: inventory.NewSecret("canary")}
	require.NoError(w.t, w.Machines.PutMachines(w.t.Context(), []inventory.Machine{m}, true, "test"))
	require.NoError(w.t, w.Plans.PutPlan(w.t.Context(), inventory.Plan{Run: "run-1", Digest: "d", Actions: []action.Action{{Name: "a"}}}))
}

// changing is a Sealer whose keys change while the store is open.
type changing struct{ Sealer }

// S24: if the keys were replaced with other keys after the start, nothing is sealed again, in
// particular no check values.
func TestResealWithOtherKeysChangesNothing(t *testing.T) {
	w := newWorld(t)
	keys := &changing{w.keys}
	w.reopen(keys)
	w.secretPlan()
	keys.Sealer = keyring.New()
	n, err := w.Keys.Reseal(t.Context())
	require.ErrorIs(t, err, inventory.ErrSealed)
	require.Zero(t, n)
	keys.Sealer = w.keys
	w.reopen(keys)
	require.NoError(t, w.Keys.KeyCheck(t.Context()))
	password, err := w.BMCPasswords.BMCPassword(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, "canary", password.Reveal())
}

// S24: a secret that no key opens is counted and named, and everything else is sealed again. After
// it was removed, Reseal succeeds.
func TestResealNamesUnreadableSecrets(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(t.TempDir(), "keys.json")
	keys, err := keyring.Create(path)
	require.NoError(t, err)
	w.reopen(keyring.New())
	_, err = w.Keys.ResetSecrets(t.Context(), "test")
	require.NoError(t, err)
	w.secretPlan()
	w.reopen(keys)
	ctx := t.Context()
	// Replace only the check values.
	_, err = w.rw.ExecContext(ctx, "DELETE FROM meta WHERE name LIKE 'key_check.%'")
	require.NoError(t, err)
	w.reopen(keys)
	require.NoError(t, w.Plans.PutPlan(ctx, inventory.Plan{Run: "run-2", Digest: "d", Actions: []action.Action{{Name: "b"}}}))
	require.NoError(t, keys.Rotate(path))
	n, err := w.Keys.Reseal(ctx)
	require.ErrorIs(t, err, inventory.ErrSealed)
	require.ErrorContains(t, err, "2 secrets")
	require.ErrorContains(t, err, "m1: bmc.password, plan of run run-1")
	require.Equal(t, 1, n)
	runs, err := w.Keys.RunsUnreadable(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"plan of run run-1"}, runs)

	_, err = w.Keys.ResetSecrets(ctx, "test")
	require.NoError(t, err)
	runs, err = w.Keys.RunsUnreadable(ctx)
	require.NoError(t, err)
	require.Empty(t, runs)
	n, err = w.Keys.Reseal(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, keys.Retire(path))
	p, err := w.Plans.Plan(ctx, "run-2")
	require.NoError(t, err)
	require.Equal(t, "b", p.Actions[0].Name)
	_, err = w.Plans.Plan(ctx, "run-1")
	require.ErrorIs(t, err, inventory.ErrSealed)
}
