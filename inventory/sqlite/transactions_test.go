package sqlite

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// abandon runs a transaction whose context ends during the transaction: database/sql rolls it back
// and lets the next one begin while the first caller still runs. It calls after between the two.
func abandon(t *testing.T, w *world, after func(tx *transaction)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	err := w.write(ctx, "test", func(tx *transaction) error {
		cancel()
		after(tx)
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
}

// TestAbandonedTransactionIsIsolated: changes of an abandoned transaction wake no subscriber,
// and there is no data race with the next transaction.
func TestAbandonedTransactionIsIsolated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	mine, cancel := w.Changes.Watch("m1")
	defer cancel()
	other, cancelOther := w.Changes.Watch("m2")
	defer cancelOther()
	begun, touched, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	abandon(t, w, func(tx *transaction) {
		go func() {
			ended <- w.write(context.WithoutCancel(t.Context()), "test", func(tx *transaction) error {
				tx.touch("m2")
				close(begun)
				<-touched
				return nil
			})
		}()
		<-begun
		tx.touch("m1")
		close(touched)
		require.NoError(t, <-ended)
	})
	require.Empty(t, mine, "its transaction was rolled back")
	require.Len(t, other, 1)
}

// TestEveryConnectionThatWritesDeletesSecurely (S24): this holds for the first connection, and for
// the next one after database/sql has closed it because of an abandoned transaction.
func TestEveryConnectionThatWritesDeletesSecurely(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secure := func() (on int) {
		require.NoError(t, w.rw.GetContext(t.Context(), &on, "PRAGMA secure_delete"))
		return on
	}
	_, err := w.Keys.Reseal(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, secure())
	abandon(t, w, func(*transaction) {
		require.NoError(t, w.write(context.WithoutCancel(t.Context()), "test", func(*transaction) error { return nil }))
	})
	require.Equal(t, 1, secure(), "another connection took its place")
	w.reopen(w.keys)
	require.Equal(t, 1, secure(), "a server that was started again deletes secrets, too")
}
