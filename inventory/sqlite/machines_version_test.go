package sqlite

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
)

// version returns the version of the machine "full".
func (w *world) version(t *testing.T) int64 {
	t.Helper()
	m, err := w.Machines.Machine(t.Context(), "full")
	require.NoError(t, err)
	return m.Version
}

// TestVersion: each change of the document or of a secret raises the version, and nothing else does.
func TestVersion(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, put(t, w.Store, false, full()))
	first := w.version(t)
	require.NoError(t, put(t, w.Store, true, full()), "the same secrets again")
	require.Equal(t, first, w.version(t))

	m := full()
	m.BMC.Password = inventory.NewSecret("other")
	require.NoError(t, put(t, w.Store, true, m))
	require.Equal(t, first+1, w.version(t), "a secret alone")
	m.Image = "debian-13"
	require.NoError(t, put(t, w.Store, true, m))
	require.Equal(t, first+2, w.version(t))

	g, err := w.Grants.TakeGrant(ctx, "full", "run-1", "machine/full", false)
	require.NoError(t, err)
	o := g.Owner
	require.Equal(t, first+2, w.version(t), "a run changes no document")
	next := inventory.NewSecret("rotated")
	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, o, next))
	require.NoError(t, w.BMCPasswords.CommitBMCCandidate(ctx, "full", next))
	require.Equal(t, first+3, w.version(t), "a new BMC password")
	require.NoError(t, w.Machines.Retire(ctx, o, inventory.Standing{State: inventory.StandingAvailable}, true))
	require.Equal(t, first+4, w.version(t), "user data purged")
	require.NoError(t, w.Grants.EndGrant(ctx, o))

	// The secrets that a lost key has sealed.
	w.reopen(keyring.New())
	_, err = w.Keys.ResetSecrets(ctx, "ann")
	require.NoError(t, err)
	require.Equal(t, first+5, w.version(t))

	// A machine that is added again has a version that none before had.
	last := w.version(t)
	require.NoError(t, w.Machines.DeleteMachine(ctx, "full", "ann"))
	m = full()
	m.BMC, m.UserData, m.VendorData = nil, inventory.Secret{}, inventory.Secret{}
	require.NoError(t, put(t, w.Store, false, m))
	require.Greater(t, w.version(t), last)
}

// TestChangeMachine: a change of another version is refused and stores nothing.
func TestChangeMachine(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, put(t, w.Store, false, full()))
	a, err := w.Machines.Machine(ctx, "full")
	require.NoError(t, err)
	b := a
	a.Image, b.Template = "debian-13", "mine"
	require.NoError(t, w.Machines.ChangeMachine(ctx, a, "ann"))
	require.ErrorIs(t, w.Machines.ChangeMachine(ctx, b, "ben"), inventory.ErrStale)
	got, err := w.Machines.Machine(ctx, "full")
	require.NoError(t, err)
	require.Equal(t, "debian-13 image", got.Image+" "+got.Template)

	require.NoError(t, w.Machines.DeleteMachine(ctx, "full", "ann"))
	require.ErrorIs(t, w.Machines.ChangeMachine(ctx, got, "ben"), inventory.ErrNotFound, "a deleted machine is not added again")
}

// TestStaleDocuments: a document of an older version is refused with what differs, all such documents at once.
func TestStaleDocuments(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, put(t, w.Store, false, full(), machine("a", 2), machine("b", 3)))
	ms, err := w.Machines.Machines(t.Context())
	require.NoError(t, err)
	for _, m := range ms {
		m.Labels = map[string]string{"rack": "z9"}
		require.NoError(t, put(t, w.Store, true, m))
	}
	err = put(t, w.Store, true, ms...)
	require.ErrorIs(t, err, inventory.ErrConflict)
	var ps inventory.Problems
	require.ErrorAs(t, err, &ps)
	require.Len(t, ps, len(ms))
	require.Equal(t, "version", ps[0].Field)
	require.Contains(t, ps[0].What, "they differ in labels.rack")

	for n := range ms {
		ms[n].Labels = map[string]string{"rack": "z9"}
	}
	require.NoError(t, put(t, w.Store, true, ms...), "equal documents are no lost update")
	for n := range ms {
		ms[n].Labels, ms[n].Version = nil, 0
	}
	require.NoError(t, put(t, w.Store, true, ms...), "without a version")
}

func TestPutTemplateOfAVersion(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	require.NoError(t, w.Templates.PutTemplate(ctx, inventory.Template{Name: "t", Source: "a"}, "ann"))
	first, err := w.Templates.Template(ctx, "t")
	require.NoError(t, err)
	w.clock.Add(1)
	first.Source = "b"
	require.NoError(t, w.Templates.PutTemplate(ctx, first, "ann"))
	first.Source = "c"
	require.ErrorIs(t, w.Templates.PutTemplate(ctx, first, "ben"), inventory.ErrStale)
	first.Name = "other"
	require.ErrorIs(t, w.Templates.PutTemplate(ctx, first, "ben"), inventory.ErrStale)
}
