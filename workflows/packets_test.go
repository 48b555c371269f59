package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// TestS46PacketsExtendNoDeadline: forged packets of a network boot arrive every ten seconds without
// end, for a machine whose agent never arrives. The operator is asked at the same time as without
// packets. No secrets are opened and no boot is spent.
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
	// The pump would pass on only one event of each kind per boot; here it does not.
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
	// The boots wait 12, 5 and 8 minutes; power operations take the rest.
	require.Less(t, asked, inventory.MaxBoots*30*time.Minute)
	w.closed()
}
