package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestGenesisChaos kills the server in every step of the table, as soon as the
// step is seen to be under way, and once more when what it does has been done:
// the loop takes the steps from the table itself.
func TestGenesisChaos(t *testing.T) {
	ctx := needLab(t)
	e := newEvening(ctx, t)
	e.must(ctx, t, "genesis", "start", e.file, "--yes")
	var o inventory.Operation
	e.until(ctx, "preflight", func(now inventory.Operation, _ inventory.OperationStep) bool {
		o = now
		return true
	})
	kills := 0
	for _, s := range o.Steps {
		// The effect of a step that installs is the end of its machine's run: the
		// step's own record comes after it. Of any other it is that it runs.
		e.until(ctx, s.Name, func(o inventory.Operation, row inventory.OperationStep) bool {
			if inventory.Final(o.State) || row.State == inventory.StepDone {
				return true
			}
			if row.State == inventory.StepPending {
				return false
			}
			if row.Run == "" {
				return true
			}
			w, err := e.runOf(ctx, row.Run)
			return err == nil && inventory.Final(w.State)
		})
		e.Kill()
		kills++
		require.NoError(t, e.Start(ctx))
	}
	e.whole(ctx, e.ends(ctx))
	require.Equal(t, len(o.Steps), kills)
	for name, m := range e.machines {
		if strings.HasPrefix(name, "ms-") {
			require.LessOrEqual(t, m.PowerOns(), 1, "%s was installed once", name)
		}
	}
}
