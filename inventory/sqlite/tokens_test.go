package sqlite

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func (w *world) addToken(t *testing.T, name string, expires time.Time, replace bool) error {
	t.Helper()
	return w.Tokens.AddToken(t.Context(), inventory.Token{
		ID: "id of " + name + " " + fmt.Sprint(expires.UnixNano()), Name: name, Role: inventory.RoleRead, Created: w.in(0),
		By: inventory.AdminToken, Expires: expires,
	}, digestOf(fmt.Sprint(name, expires)), replace)
}

func TestTokens(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.addToken(t, "bob", time.Time{}, false))
	require.NoError(t, w.addToken(t, "alice", w.in(time.Hour), false))
	all, err := w.Tokens.Tokens(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "alice", all[0].Name)
	require.True(t, all[0].Expires.Equal(w.in(time.Hour)))
	got, err := w.Tokens.TokenOf(t.Context(), digestOf(fmt.Sprint("alice", w.in(time.Hour))))
	require.NoError(t, err)
	require.Equal(t, all[0], got)
	_, err = w.Tokens.TokenOf(t.Context(), digestOf("unknown"))
	require.ErrorIs(t, err, inventory.ErrNotFound)

	require.ErrorIs(t, w.addToken(t, "bob", w.in(time.Hour), false), inventory.ErrConflict)
	w.session(t, "s", fmt.Sprint("bob", time.Time{}), inventory.SessionPage, time.Hour)
	require.NoError(t, w.addToken(t, "bob", w.in(time.Minute), true))
	require.False(t, w.isOpen(t, "s"), "the replaced token was revoked")
	_, err = w.Tokens.TokenOf(t.Context(), digestOf(fmt.Sprint("bob", time.Time{})))
	require.ErrorIs(t, err, inventory.ErrNotFound)

	require.NoError(t, w.Tokens.RevokeToken(t.Context(), "bob"))
	require.ErrorIs(t, w.Tokens.RevokeToken(t.Context(), "bob"), inventory.ErrNotFound)
	require.ErrorIs(t, w.Tokens.EnableToken(t.Context(), "bob"), inventory.ErrNotFound)
}

func TestTokensAreBounded(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.addToken(t, "old", w.in(-keepExpired-time.Second), false))
	require.NoError(t, w.addToken(t, "lately", w.in(-keepExpired+time.Minute), false))
	for n := 1; n < maxTokens; n++ {
		require.NoError(t, w.addToken(t, fmt.Sprint("t", n), time.Time{}, false), "the first expired long ago, and made room")
	}
	require.NoError(t, w.addToken(t, "one-more", time.Time{}, false), "the one that expired lately made room")
	require.ErrorIs(t, w.addToken(t, "too-many", time.Time{}, false), inventory.ErrConflict)
	require.NoError(t, w.addToken(t, "t1", w.in(time.Hour), true))
}

// TestVersionsJumpAtARestore: a version that was given out after the backup does not come again with another content.
func TestVersionsJumpAtARestore(t *testing.T) {
	w := newWorld(t)
	before, err := w.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	_, err = w.Restores.Restored(t.Context(), inventory.Restore{Backup: "b"})
	require.NoError(t, err)
	after, err := w.Machines.Machine(t.Context(), "m1")
	require.NoError(t, err)
	require.Greater(t, after.Version, before.Version+1000)
}

// TestS37TokensAreOffAfterARestore: a token of a backup may have been revoked after it.
func TestS37TokensAreOffAfterARestore(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, w.addToken(t, "alice", time.Time{}, false))
	digest := digestOf(fmt.Sprint("alice", time.Time{}))
	w.session(t, "s", fmt.Sprint("alice", time.Time{}), inventory.SessionPage, time.Hour)
	w.session(t, "link", fmt.Sprint("alice", time.Time{}), inventory.SessionPageLink, time.Hour)
	_, err := w.Restores.Restored(t.Context(), inventory.Restore{Backup: "b"})
	require.NoError(t, err)

	_, err = w.Tokens.TokenOf(t.Context(), digest)
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.False(t, w.isOpen(t, "s"))
	_, err = w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("link"))
	require.ErrorIs(t, err, inventory.ErrNotFound)
	all, err := w.Tokens.Tokens(t.Context())
	require.NoError(t, err)
	require.True(t, all[0].Off)

	require.NoError(t, w.Tokens.EnableToken(t.Context(), "alice"))
	_, err = w.Tokens.TokenOf(t.Context(), digest)
	require.NoError(t, err)
}
