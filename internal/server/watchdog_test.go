package server

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/lab/freeport"
)

// TestWatchdogChecks: each check succeeds while its part works, and fails once the part has ended.
func TestWatchdogChecks(t *testing.T) {
	cfg := testConfig(t)
	port, err := freeport.Find(1)
	require.NoError(t, err)
	cfg.Listen = fmt.Sprintf("127.0.0.1:%d", port)
	s := testServer(t, cfg)
	listeners, err := s.listen(t.Context())
	require.NoError(t, err)
	require.Len(t, listeners, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- listeners[0].Run(ctx) }()

	checks := watchdogChecks(s)
	require.Len(t, checks, 2)
	for _, c := range checks {
		require.NoError(t, c.Run(t.Context()), c.Part)
	}
	cancel()
	require.NoError(t, <-done)
	require.NoError(t, s.records.store.Close())
	for _, c := range checks {
		require.Error(t, c.Run(t.Context()), c.Part)
	}
}
