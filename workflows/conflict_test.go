package workflows_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestRestartAfterConflictIgnoresEarlierReports: reports of the contested agent do not
// count, and its assignments open nothing: the run repeats all actions under a new epoch.
// The conflict may come at any action, including the one that ends the agent and the wait
// for the installed system.
func TestRestartAfterConflictIgnoresEarlierReports(t *testing.T) {
	for at := range 3 {
		t.Run(fmt.Sprint("at action ", at), func(t *testing.T) {
			w := newWorld(t, nil)
			last := 2
			told := false
			w.agentFor = func(a inventory.Assignment) *action.Result {
				if a.Key.Action == at && !told {
					told = true
					w.after(time.Minute, func() { w.signal(inventory.EventClaimConflict, a.Epoch, a.Boot, nil) })
					return nil
				}
				return &action.Result{Key: a.Key, State: action.Success}
			}
			w.answer = func(q inventory.Question) *contract.Decision {
				require.Contains(t, q.Text, "another client presented this boot's claim")
				g, err := w.Store.Grants.Grant(t.Context(), machine)
				require.NoError(t, err)
				require.Equal(t, int64(1), g.Epoch)
				require.False(t, g.SecretsOpen(w.env.Now()), "the client that knows the path may be the impostor")
				return &contract.Decision{Choice: contract.Restart}
			}
			require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
			require.Len(t, w.asked, 1)
			again := map[int]bool{}
			for _, k := range w.assigned {
				if k.Epoch == 2 {
					again[k.Action] = true
				}
			}
			require.Len(t, again, last+1, "every action was carried out again: %v", w.assigned)
			require.Equal(t, int64(2), w.record().Epoch)
			w.closed()
		})
	}
}

// TestConflictBeforePhoneHomeAsksOperator: a second claimant while the
// run waits for its nonce.
func TestConflictBeforePhoneHomeAsksOperator(t *testing.T) {
	w := newWorld(t, nil)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		if a.Key.Action == 2 {
			w.after(30*time.Second, func() { w.signal(inventory.EventClaimConflict, a.Epoch, a.Boot, nil) })
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Abort} }
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 1)
	w.closed()
}

// TestPowerThatCannotBeCutAsksOperator: if the power cannot be cut, for any reason, the
// operator is asked about an agent that may still write.
func TestPowerThatCannotBeCutAsksOperator(t *testing.T) {
	for name, cause := range map[string]error{
		"sealed": inventory.ErrSealed, "not allowed": inventory.ErrInvalid, "the database": fmt.Errorf("writing: %w", inventory.ErrFull),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.loses(0, func(inventory.Assignment) { w.bmcDown = cause })
			asked := ""
			w.answer = func(q inventory.Question) *contract.Decision {
				w.bmcDown = nil
				if asked == "" {
					asked = q.Text
				}
				return &contract.Decision{Choice: q.Choices[0]}
			}
			require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
			require.Contains(t, asked, "may still be writing")
			w.closed()
		})
	}
}

// TestRestartAfterAConflictOfAResumedRun: a resumed run that started again from the start
// writes the image again; a restart must not start after that action.
func TestRestartAfterAConflictOfAResumedRun(t *testing.T) {
	w := newWorld(t, nil)
	w.runID("r1")
	w.fails(1)
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))

	w = w.another("r2")
	failed, told := false, false
	w.agentFor = func(a inventory.Assignment) *action.Result {
		switch {
		case a.Key.Action == 1 && !failed:
			failed = true
			return &action.Result{Key: a.Key, State: action.Failed, Message: "disk on fire"}
		case a.Key.Action == 0 && !told:
			told = true
			w.after(time.Minute, func() { w.signal(inventory.EventClaimConflict, a.Epoch, a.Boot, nil) })
			return nil
		}
		return &action.Result{Key: a.Key, State: action.Success}
	}
	w.answer = func(inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Restart} }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine, Resume: "r1", Retries: contract.Retries{Count: 1, From: "start"}}))
	last := w.assigned[len(w.assigned)-1].Epoch
	var order []int
	for _, k := range w.assigned {
		if k.Epoch == last {
			order = append(order, k.Action)
		}
	}
	require.Equal(t, []int{0, 1, 2}, order, "%v", w.assigned)
}
