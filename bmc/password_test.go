package bmc

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestSetPassword: the user's password changes in each shape, and the old one is not accepted any more. The fence stops the change.
func TestSetPassword(t *testing.T) {
	for _, shape := range shapes {
		t.Run(string(shape), func(t *testing.T) {
			b := newRedfishBench(t, shape)
			next := inventory.NewSecret("canary-next-2")
			stop := errors.New("superseded")
			require.ErrorIs(t, b.SetPassword(t.Context(), b.bmc, password(), next, func(context.Context) error { return stop }), stop)
			_, err := b.State(t.Context(), b.bmc, password())
			require.NoError(t, err)

			require.NoError(t, b.SetPassword(t.Context(), b.bmc, password(), next, nil))
			_, err = b.State(t.Context(), b.bmc, next)
			require.NoError(t, err)
			_, err = b.State(t.Context(), b.bmc, password())
			require.ErrorIs(t, err, inventory.ErrRefused)
			now, _ := b.service.Sessions()
			require.Zero(t, now)
		})
	}
}

// TestS25NewPasswordIsInNoError: a BMC that repeats the new password in its answer does not get it into an error.
func TestS25NewPasswordIsInNoError(t *testing.T) {
	b := newRedfishBench(t, shapes[0])
	err := b.SetPassword(t.Context(), b.bmc, password(), inventory.NewSecret(strings.Repeat("canary", 5)), nil)
	require.ErrorIs(t, err, inventory.ErrUnsupported)
	require.NotContains(t, err.Error(), "canarycanary")

	amt := newAMTBench(t)
	require.ErrorIs(t, amt.SetPassword(t.Context(), amt.bmc, password(), inventory.NewSecret("x"), nil), inventory.ErrUnsupported)
}
