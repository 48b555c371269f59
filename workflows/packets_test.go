package workflows_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestS46PacketsExtendNoDeadline: forged packets of a network boot arrive every ten seconds without
// end, for a machine whose agent never arrives. The operator is asked at the same time as without
// packets. No secrets are opened and no boot is spent.
func TestS46PacketsExtendNoDeadline(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(int) bool { return true }
	began := w.env.Now()
	var asked time.Duration
	w.answer = func(q inventory.Question) *contract.Decision {
		asked = w.env.Now().Sub(began)
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.True(t, g.SecretsUntil.IsZero())
		require.False(t, g.Spent)
		return &contract.Decision{Question: q.ID, Choice: contract.Abort}
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
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Greater(t, forged, 1000)
	require.NotZero(t, asked, "no one was asked")
	// The boots wait 12, 5 and 8 minutes; power operations take the rest.
	require.Less(t, asked, inventory.MaxBoots*30*time.Minute)
	w.closed()
}

// forge sends packets of the first stages of a boot every minute for a day, until stop is true. No file under the run's secret
// path is among them.
func (w *world) forge(stop func() bool) {
	began := w.env.Now()
	var send func()
	send = func() {
		if stop() || w.env.Now().Sub(began) > 24*time.Hour {
			return
		}
		for boot := 1; boot <= inventory.MaxBoots; boot++ {
			for _, kind := range []string{inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventRebooted, inventory.EventOS} {
				w.signal(kind, 1, boot, nil)
			}
		}
		w.after(time.Minute, send)
	}
	w.after(time.Second, send)
}

// Packets do not use up a boot of a machine without a BMC: whatever comes, it waits for its operator in its first boot.
func TestS46PacketsUseUpNoBoot(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.BMC = nil })
	on := false
	w.forge(func() bool { return on })
	w.after(23*time.Hour, func() {
		r := w.record()
		require.Equal(t, inventory.PhasePower, r.Phase)
		require.Contains(t, r.Message, "boot 1); seen so far: the boot script was fetched")
		require.NotEmpty(t, r.Next)
		g, err := w.Store.Grants.Grant(t.Context(), machine)
		require.NoError(t, err)
		require.True(t, g.NetbootOpen(w.env.Now()))
		require.Equal(t, 1, g.Boot)
		on = true
		w.tell(workflows.SignalPoweredOn, nil)
		w.after(time.Minute, w.boots)
	})
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Empty(t, w.asked)
	w.closed()
}

// A file under the run's secret path uses a boot of a machine without a BMC: its agent may never come up. Its boots are used up
// then, and the operator is asked.
func TestFileUnderTheSecretPathUsesABoot(t *testing.T) {
	for _, kind := range []string{inventory.EventKernel, inventory.EventInitrd} {
		w := newWorld(t, func(m *inventory.Machine) { m.BMC = nil })
		boots := 0
		var fetch func()
		fetch = func() {
			if g, err := w.Store.Grants.Grant(t.Context(), machine); err == nil && g.Boot > boots {
				boots = g.Boot
				w.signal(kind, g.Epoch, g.Boot, nil)
			}
			if len(w.asked) == 0 && boots < inventory.MaxBoots {
				w.after(time.Minute, fetch)
			}
		}
		w.after(time.Minute, fetch)
		w.after(24*time.Hour, w.env.CancelWorkflow)
		w.answer = func(q inventory.Question) *contract.Decision {
			return &contract.Decision{Question: q.ID, Choice: contract.Abort}
		}
		require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, inventory.MaxBoots, boots, kind)
		require.Contains(t, w.asked[0].Text, "used up its boots (3)", kind)
		w.closed()
	}
}

// A server whose self-test takes eleven minutes is not switched again in the middle of it, whatever packets come, whether its BMC
// or its operator switched it on.
func TestS46PacketsCutNoSelfTestShort(t *testing.T) {
	for _, manual := range []bool{false, true} {
		w := newWorld(t, func(m *inventory.Machine) {
			if manual {
				m.BMC = nil
			}
		})
		up := false
		w.forge(func() bool { return up })
		w.noAgent = func(int) bool { return !up }
		var boots []int
		begin := func() {
			w.after(11*time.Minute, func() {
				g, err := w.Store.Grants.Grant(t.Context(), machine)
				require.NoError(t, err)
				boots, up = append(boots, g.Boot), true
				w.boots()
			})
		}
		if manual {
			w.after(time.Hour, func() { w.tell(workflows.SignalPoweredOn, nil); begin() })
		} else {
			begin()
		}
		require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
		require.Equal(t, []int{1}, boots, "manual %v", manual)
		require.Empty(t, w.asked)
		w.closed()
	}
}
