package server

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// What is not up yet is waited for; a second server is for the operator at
// once.
func TestCheckAsClient(t *testing.T) {
	tries := 0
	seen, err := checkAsClient(t.Context(), func(context.Context) ([]string, error) {
		if tries++; tries < 3 {
			return nil, fmt.Errorf("nothing: %w", inventory.ErrUnreachable)
		}
		return []string{"answered"}, nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"answered"}, seen)
	tries = 0
	_, err = checkAsClient(t.Context(), func(context.Context) ([]string, error) {
		if tries++; tries < 2 {
			return nil, syscall.ENETDOWN // an interface that may come back
		}
		return nil, nil
	})
	require.NoError(t, err)
	require.Equal(t, 2, tries)
	tries = 0
	_, err = checkAsClient(t.Context(), func(context.Context) ([]string, error) {
		tries++
		return nil, fmt.Errorf("two servers: %w", inventory.ErrConflict)
	})
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.Equal(t, 1, tries)
}
