package keptsocket

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/lab/manager"
)

// TestWatchdog: the service manager hears of the service while its checks succeed or are paused, and only then.
func TestWatchdog(t *testing.T) {
	m, err := manager.New(filepath.Join(t.TempDir(), "notify"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	_, env, _, err := m.Service()
	require.NoError(t, err)
	t.Setenv("NOTIFY_SOCKET", env[0][len("NOTIFY_SOCKET="):])

	w, stuck := NewWatchdog(slog.New(slog.DiscardHandler)), false
	heard := func() int {
		before := m.Alive()
		w.report(t.Context(), time.Minute)
		require.NoError(t, notify("STATUS=", nil)) // arrives after the report
		require.Eventually(t, m.Marked, 30*time.Second, time.Millisecond)
		return m.Alive() - before
	}
	require.Equal(t, 1, heard(), "nothing to check")
	w.SetChecks(
		Check{"listeners", func(context.Context) error { return nil }},
		Check{"inventory", func(ctx context.Context) error {
			if _, ok := ctx.Deadline(); !ok {
				return errors.New("a check must have a deadline")
			}
			if stuck {
				return errors.New("the inventory does not answer")
			}
			return nil
		}},
	)
	require.Equal(t, 1, heard())
	stuck = true
	require.Zero(t, heard())
	require.Equal(t, "inventory", w.Silent())
	first, second := w.Pause(), w.Pause()
	require.Equal(t, 1, heard(), "paused")
	require.Empty(t, w.Silent())
	first()
	require.Equal(t, 1, heard(), "another pause lasts")
	second()
	require.Zero(t, heard())
	w.SetChecks()
	require.Equal(t, 1, heard())
}

func TestWatchdogRuns(t *testing.T) {
	m, err := manager.New(filepath.Join(t.TempDir(), "notify"))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	_, env, _, err := m.Service()
	require.NoError(t, err)
	t.Setenv("NOTIFY_SOCKET", env[0][len("NOTIFY_SOCKET="):])
	w := NewWatchdog(slog.New(slog.DiscardHandler))
	t.Setenv("WATCHDOG_USEC", "3000")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	require.Eventually(t, func() bool { return m.Alive() > 1 }, 30*time.Second, time.Millisecond)
	cancel()
	<-done
}
