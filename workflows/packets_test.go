package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// TestS46PacketsExtendNoDeadline: someone forges every packet of a network
// boot, every ten seconds and for ever, for a machine whose agent never comes.
// An operator is asked as if there was no one; no secret was opened, and no boot
// was spent.
func TestS46PacketsExtendNoDeadline(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(int) bool { return true }
	began := w.env.Now()
	var asked time.Duration
	w.answer = func(q inventory.Question) *workflows.Decision {
		asked = w.env.Now().Sub(began)
		g, err := w.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.True(t, g.SecretsUntil.IsZero())
		require.False(t, g.Spent)
		return &workflows.Decision{Question: q.ID, Choice: workflows.Abort}
	}
	// The pump passes on one of a kind per boot; here it fails to.
	forged := 0
	var forge func()
	forge = func() {
		if asked > 0 || w.env.Now().Sub(began) > 24*time.Hour {
			return
		}
		for boot := 1; boot <= inventory.MaxBoots; boot++ {
			for _, kind := range []string{inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel, inventory.EventInitrd, inventory.EventRebooted} {
				w.signal(kind, 1, boot, nil)
				forged++
			}
		}
		w.after(10*time.Second, forge)
	}
	w.after(time.Second, forge)
	require.Error(t, w.run(workflows.ProvisionInput{Machine: machine}))
	require.Greater(t, forged, 1000)
	require.NotZero(t, asked, "no one was asked")
	// Each boot has 12, 5 and 8 minutes; switching takes the rest.
	require.Less(t, asked, inventory.MaxBoots*30*time.Minute)
	w.closed()
}
