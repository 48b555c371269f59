package inventory

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTextOfEndsBeforeTheKind(t *testing.T) {
	for text, kind := range map[string]error{"a.tar exists": ErrConflict, "the lab file has no router": ErrInvalid} {
		require.Equal(t, text, TextOf(fmt.Errorf("%s: %w", text, kind)))
	}
	require.Equal(t, `machine "r1": not found`, TextOf(fmt.Errorf("machine %q: %w", "r1", ErrNotFound)))
	require.Equal(t, "a value is invalid", TextOf(errors.New("a value is invalid")))
}
