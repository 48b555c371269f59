package bmc

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestResetOfTheBMCIsSeen(t *testing.T) {
	b := newBench(t)
	b.cfg.Settle, b.cfg.Back = 50*time.Millisecond, 10*time.Second
	b.set("power", "on")
	b.set("reset", "3") // away for three commands
	asked := 0
	require.NoError(t, b.ResetBMC(t.Context(), b.bmc, password(), func(context.Context) error { asked++; return nil }))
	require.Equal(t, []string{
		"chassis power status", "mc reset cold", "chassis power status", "chassis power status", "chassis power status", "chassis power status",
	}, b.commands(), "gone three times, then back")
	require.Equal(t, 1, asked)
	require.Equal(t, "on", b.get("power"), "the machine stays as it is")
}

func TestResetOfTheBMCWithoutEffectOrEnd(t *testing.T) {
	t.Run("goes on answering", func(t *testing.T) {
		b := newBench(t)
		b.cfg.Settle = 20 * time.Millisecond
		require.NoError(t, b.ResetBMC(t.Context(), b.bmc, password(), nil))
	})
	t.Run("stays away", func(t *testing.T) {
		b := newBench(t)
		b.cfg.Settle, b.cfg.Back = 20*time.Millisecond, 60*time.Millisecond
		b.set("reset", "1000")
		require.ErrorIs(t, b.ResetBMC(t.Context(), b.bmc, password(), nil), inventory.ErrUnreachable)
	})
	t.Run("is not known", func(t *testing.T) {
		b := newBench(t)
		b.set("fail-mc-reset-cold", "MC reset command failed: Invalid command")
		require.ErrorIs(t, b.ResetBMC(t.Context(), b.bmc, password(), nil), inventory.ErrUnsupported)
		require.Len(t, b.commands(), 2, "without a wait")
	})
	t.Run("answer is lost and nothing happens", func(t *testing.T) {
		b := newBench(t)
		b.cfg.Settle = 20 * time.Millisecond
		b.set("fail-mc-reset-cold", "Error: Unable to establish IPMI v2 / RMCP+ session")
		require.ErrorIs(t, b.ResetBMC(t.Context(), b.bmc, password(), nil), inventory.ErrUnreachable)
	})
	t.Run("fenced", func(t *testing.T) {
		b := newBench(t)
		err := b.ResetBMC(t.Context(), b.bmc, password(), func(context.Context) error { return inventory.ErrFenced })
		require.ErrorIs(t, err, inventory.ErrFenced)
		require.Equal(t, []string{"chassis power status"}, b.commands())
	})
}

// TestLatePowerOffIsFencedUnderTheMutex: the power-off of a terminated run waits while
// the next run uses the BMC. Its epoch is compared when it gets the BMC, and no other
// operation runs between the comparison and the write.
func TestLatePowerOffIsFencedUnderTheMutex(t *testing.T) {
	b := newBench(t)
	b.set("power", "off")
	var owner atomic.Int64
	owner.Store(1)
	fenceOf := func(epoch int64, compared chan<- struct{}, wait <-chan struct{}) func(context.Context) error {
		return func(context.Context) error {
			if owner.Load() != epoch {
				return inventory.ErrFenced
			}
			close(compared)
			<-wait
			return nil
		}
	}
	// Run 2 owns the machine, its epoch has been compared, and it has not written yet.
	owner.Store(2)
	compared, release := make(chan struct{}), make(chan struct{})
	on := make(chan error, 1)
	go func() { on <- b.Set(t.Context(), b.bmc, password(), "on", fenceOf(2, compared, release)) }()
	<-compared
	// The power-off of run 1 arrives now.
	off := make(chan error, 1)
	go func() { off <- b.Set(t.Context(), b.bmc, password(), "off", fenceOf(1, nil, nil)) }()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.Set(over, b.bmc, password(), "off", nil), context.Canceled, "the BMC is in use between comparison and write")
	close(release)
	require.NoError(t, <-on)
	require.ErrorIs(t, <-off, inventory.ErrFenced)
	require.NotContains(t, b.commands(), "chassis power off")
	require.Equal(t, "on", b.get("power"))
	require.Empty(t, b.get("overlap"))
}
