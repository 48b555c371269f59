package activities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/ingotmetal/ingot/inventory"
)

// ledger is a site whose database cannot be written for a while after each
// effect on a machine.
type ledger struct {
	sleeper
	locked time.Duration
	until  time.Time
	record *inventory.BMCJob
	mute   bool // no event is ever written
}

var errLocked = errors.New("database is locked")

func (l *ledger) BMCJob(context.Context, string, string) (inventory.BMCJob, error) {
	if l.record == nil {
		return inventory.BMCJob{}, inventory.ErrNotFound
	}
	return *l.record, nil
}

func (l *ledger) PutBMCJob(ctx context.Context, j inventory.BMCJob) error {
	if time.Now().Before(l.until) {
		return errLocked
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	j.Tasks = append([]inventory.BMCTask(nil), j.Tasks...)
	l.record = &j
	return nil
}

func (l *ledger) AppendEvents(ctx context.Context, es []inventory.Event) error {
	if l.mute || time.Now().Before(l.until) {
		return errLocked
	}
	return l.sleeper.AppendEvents(ctx, es)
}

func (l *ledger) Set(_ context.Context, _ inventory.BMC, _ inventory.Secret, power string, _ Fence) error {
	l.steps = append(l.steps, power)
	l.until = time.Now().Add(l.locked)
	return nil
}

// TestWhatABMCDidIsNotDoneAgain: if a write fails after a task, the machine, which runs by
// then, is not switched a second time.
func TestWhatABMCDidIsNotDoneAgain(t *testing.T) {
	o := inventory.Owner{Machine: "node-1", Run: "r", Epoch: 3}
	tasks := []inventory.BMCTask{{Power: "cycle"}, {Power: "on"}}
	site := func(locked time.Duration) (*ledger, *Activities) {
		l := &ledger{
			sleeper: sleeper{
				grant:   inventory.Grant{Owner: o},
				machine: inventory.Machine{Name: "node-1", BMC: &inventory.BMC{Driver: inventory.DriverIPMI}},
			},
			locked: locked,
		}
		return l, New(Config{
			Store:  storeOf(l),
			BMC:    l,
			Clocks: Clocks{Now: time.Now},
			Log:    slog.New(slog.DiscardHandler),
		})
	}
	t.Run("the database is locked for a minute", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, a := site(time.Minute)
			for range 2 { // and what Temporal repeats finds it on record
				require.NoError(t, a.BMCTasks(t.Context(), o, Job("j", tasks)))
				require.Equal(t, []string{"cycle", "on"}, l.steps)
				require.Equal(t, inventory.StateSuccess, l.record.State)
			}
			require.Len(t, l.events, 2)
		})
	})
	t.Run("no event can be written", func(t *testing.T) {
		l, a := site(0)
		l.mute = true
		require.NoError(t, a.BMCTasks(t.Context(), o, Job("j", tasks)))
		require.Equal(t, []string{"cycle", "on"}, l.steps)
	})
	t.Run("the activity ends first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, a := site(time.Hour)
			a.Troubles = NewTroubles(time.Now)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			require.ErrorIs(t, a.BMCTasks(ctx, o, Job("j", tasks)), errLocked)
			require.Equal(t, []string{"cycle"}, l.steps, "not the next before this one is on record")
			require.Len(t, a.Troubles.Of("r"), 1)
			require.Contains(t, a.Troubles.Of("r")[0], errLocked.Error())
			l.until = time.Time{}
			require.NoError(t, a.keep(t.Context(), inventory.BMCJob{Machine: "node-1", Name: "j", Run: "r"}))
			require.Empty(t, a.Troubles.Of("r"))
		})
	})
	t.Run("the worker stops in the task", func(t *testing.T) {
		l, a := site(0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		l.record = nil
		require.NoError(t, a.keep(ctx, inventory.BMCJob{Machine: "node-1", Name: "j"}))
		require.NotNil(t, l.record)
	})
	t.Run("the worker dies when the machine has started", func(t *testing.T) {
		l, a := site(0)
		var suite testsuite.WorkflowTestSuite
		env := suite.NewTestActivityEnvironment()
		env.RegisterActivity(a)
		start := func() {
			l.steps = nil
			_, err := env.ExecuteActivity(a.ColdStart, o)
			require.NoError(t, err)
		}
		start()
		require.Equal(t, []string{"off", "on"}, l.steps)
		l.record.State, l.record.Tasks[1].State = inventory.StateRunning, inventory.StateRunning
		start()
		require.Equal(t, []string{"on"}, l.steps, "it keeps its power")
	})
}

// deadBMC answers nothing, in the words of package bmc.
type deadBMC struct{ *ledger }

func (deadBMC) Set(_ context.Context, _ inventory.BMC, _ inventory.Secret, power string, _ Fence) error {
	return fmt.Errorf("power %s: BMC 10.0.0.9: %w", power, inventory.ErrUnreachable)
}

func TestErrorOfATaskNamesItOnce(t *testing.T) {
	o := inventory.Owner{Machine: "node-1", Run: "r", Epoch: 3}
	l := &ledger{
		sleeper: sleeper{
			grant:   inventory.Grant{Owner: o},
			machine: inventory.Machine{Name: "node-1", BMC: &inventory.BMC{Driver: inventory.DriverIPMI}},
		},
	}
	a := New(Config{
		Store:  storeOf(l),
		BMC:    deadBMC{l},
		Clocks: Clocks{Now: time.Now},
		Log:    slog.New(slog.DiscardHandler),
	})
	err := a.tasks(t.Context(), l.machine, taskList{owner: o, job: Job("off", []inventory.BMCTask{{Power: "off"}})})
	require.EqualError(t, err, `bmc of "node-1": power off: BMC 10.0.0.9: unreachable`)
}
