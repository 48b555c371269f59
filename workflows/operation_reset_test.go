package workflows

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestResetOfARecoveryInstallsNothingAgain: a recovery that was reset finds machines that it
// has already installed.
func TestResetOfARecoveryInstallsNothingAgain(t *testing.T) {
	r := newRescue(t, "ok", "ok", "ok")
	r.have = func(q activities.InstalledRequest) activities.OwnRun {
		require.Equal(t, "recover/flood", q.Parent)
		require.True(t, r.last().Started.Equal(q.Since), "an earlier recovery of this name does not count")
		if q.Machine == "m3" {
			return activities.OwnRun{}
		}
		return activities.OwnRun{Run: "before-" + q.Machine, Mine: true}
	}
	for _, m := range []string{"m1", "m2"} {
		r.put(inventory.Workflow{Run: "before-" + m, Machine: m, State: inventory.StateSuccess, Phase: inventory.PhaseDone})
	}
	r.now = 2 // which is counted down when their records are read
	out, err := r.run(contract.RecoverInput{Machines: []string{"m1", "m2", "m3"}})
	require.NoError(t, err)
	require.Equal(t, []string{"m1 installed", "m2 installed", "m3 installed"}, outcomes(out))
	require.Equal(t, []string{"m3"}, r.began)
	require.Equal(t, "before-m1", r.last().Steps[0].Run)
}

// TestResetOfAMigrationMovesNothingAgain resets a finished migration to each point: there is
// only one hand-over.
func TestResetOfAMigrationMovesNothingAgain(t *testing.T) {
	r := &removal{outcome: moved}
	var first *Tape
	require.NoError(t, r.migrate(t, nil, func(env *Environment) { first = NewTape(env, "before") }))
	require.Greater(t, len(first.Ended), 10)
	for to := range first.Ended {
		require.NoError(t, r.migrate(t, nil, func(env *Environment) {
			NewTape(env, fmt.Sprint("after-", to)).ResetTo(first, to)
		}))
	}
	require.Greater(t, len(r.requests), 1)
	for _, h := range r.requests {
		require.Equal(t, r.requests[0].ID, h.ID)
	}
}
