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

func (w *world) session(t *testing.T, text, token, kind string, life time.Duration) {
	t.Helper()
	require.NoError(t, w.Sessions.PutSession(t.Context(), inventory.Session{
		Digest: digestOf(text), Kind: kind, Token: digestOf(token), Expires: w.in(life),
	}))
}

func (w *world) isOpen(t *testing.T, text string) bool {
	t.Helper()
	_, err := w.Sessions.TokenOfSession(t.Context(), inventory.SessionPage, digestOf(text))
	if err != nil {
		require.ErrorIs(t, err, inventory.ErrNotFound)
	}
	return err == nil
}

func TestSessionsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.session(t, "first", "alice", inventory.SessionPage, time.Hour)
	w.session(t, "link", "alice", inventory.SessionPageLink, time.Minute)
	w.session(t, "admin's", inventory.AdminToken, inventory.SessionPage, time.Minute)
	for n := range maxSessions {
		require.True(t, w.isOpen(t, "first"), n)
		w.session(t, fmt.Sprint(n), "alice", inventory.SessionPage, 2*time.Hour)
	}
	require.False(t, w.isOpen(t, "first"), "the session that expires first made room")
	require.True(t, w.isOpen(t, "admin's"), "a token ends no sessions of another")
	_, err := w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("link"))
	require.NoError(t, err, "sessions leave links alone")
	for n := range maxSessions + 1 {
		w.session(t, fmt.Sprint("link ", n), "alice", inventory.SessionPageLink, time.Duration(n+1)*time.Minute)
	}
	_, err = w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("link 0"))
	require.ErrorIs(t, err, inventory.ErrNotFound)
	_, err = w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("link 1"))
	require.NoError(t, err)
}

func TestSessionsEnd(t *testing.T) {
	w := newWorld(t)
	w.session(t, "s", "alice", inventory.SessionPage, time.Hour)
	w.session(t, "expired", "alice", inventory.SessionPage, -time.Second)
	w.session(t, "link", "alice", inventory.SessionPageLink, time.Hour)
	require.True(t, w.isOpen(t, "s"))
	require.False(t, w.isOpen(t, "expired"))
	require.False(t, w.isOpen(t, "link"), "a link is not a session")
	_, err := w.Sessions.TokenOfSession(t.Context(), inventory.SessionUI, digestOf("s"))
	require.ErrorIs(t, err, inventory.ErrNotFound, "a session of the page is none of the UI")
	_, err = w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("s"))
	require.ErrorIs(t, err, inventory.ErrNotFound, "a session is not a link")

	token, err := w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("link"))
	require.NoError(t, err)
	require.Equal(t, digestOf("alice"), token)
	_, err = w.Sessions.RedeemLink(t.Context(), inventory.SessionPageLink, digestOf("link"))
	require.ErrorIs(t, err, inventory.ErrNotFound, "a link works once")

	require.NoError(t, w.Sessions.EndSession(t.Context(), digestOf("s")))
	require.False(t, w.isOpen(t, "s"))
	require.NoError(t, w.Sessions.EndSession(t.Context(), digestOf("s")))
}
