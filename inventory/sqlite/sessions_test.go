package sqlite

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func digestOf(text string) inventory.TokenDigest { return sha256.Sum256([]byte(text)) }

func (w *world) session(t *testing.T, text, token string, link bool, life time.Duration) {
	t.Helper()
	require.NoError(t, w.Sessions.PutSession(t.Context(), inventory.Session{
		Digest: digestOf(text), Link: link, Token: digestOf(token), Expires: w.in(life),
	}))
}

func (w *world) isOpen(t *testing.T, text string) bool {
	t.Helper()
	_, err := w.Sessions.TokenOfSession(t.Context(), digestOf(text))
	if err != nil {
		require.ErrorIs(t, err, inventory.ErrNotFound)
	}
	return err == nil
}

func TestSessionsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.session(t, "first", "alice", false, time.Hour)
	w.session(t, "link", "alice", true, time.Minute)
	for n := range maxSessions {
		require.True(t, w.isOpen(t, "first"), n)
		w.session(t, fmt.Sprint(n), "alice", false, 2*time.Hour)
	}
	require.False(t, w.isOpen(t, "first"), "the session that expires first made room")
	_, err := w.Sessions.RedeemLink(t.Context(), digestOf("link"))
	require.NoError(t, err, "sessions leave links alone")
	for n := range maxLinks + 1 {
		w.session(t, fmt.Sprint("link ", n), "alice", true, time.Duration(n+1)*time.Minute)
	}
	_, err = w.Sessions.RedeemLink(t.Context(), digestOf("link 0"))
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Sessions.RedeemLink(t.Context(), digestOf("link 1"))
	require.NoError(t, err)
}

func TestSessionsEnd(t *testing.T) {
	w := newWorld(t)
	w.session(t, "s", "alice", false, time.Hour)
	w.session(t, "expired", "alice", false, -time.Second)
	w.session(t, "link", "alice", true, time.Hour)
	require.True(t, w.isOpen(t, "s"))
	require.False(t, w.isOpen(t, "expired"))
	require.False(t, w.isOpen(t, "link"), "a link is not a session")
	_, err := w.Sessions.RedeemLink(t.Context(), digestOf("s"))
	require.ErrorIs(t, err, inventory.ErrNotFound, "a session is not a link")

	token, err := w.Sessions.RedeemLink(t.Context(), digestOf("link"))
	require.NoError(t, err)
	require.Equal(t, digestOf("alice"), token)
	_, err = w.Sessions.RedeemLink(t.Context(), digestOf("link"))
	require.ErrorIs(t, err, inventory.ErrNotFound, "a link works once")

	require.NoError(t, w.Sessions.EndSession(t.Context(), digestOf("s")))
	require.False(t, w.isOpen(t, "s"))
	require.NoError(t, w.Sessions.EndSession(t.Context(), digestOf("s")))
}
