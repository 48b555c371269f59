package workflows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// removal is a site that may move: it plays the server's state machine and the store in a
// migration.
type removal struct {
	*book

	mu        sync.Mutex
	said      []string
	requests  []inventory.HandOver
	withdrawn string
	open      []string // runs of machines
	genesis   string   // lab file of the migration; "": none
	relay     []string // servers of the lab's router

	refuse  error
	outcome func(h inventory.HandOver) string // result of a hand-over; "": pending
	keys    error
}

func (r *removal) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, fmt.Sprintf(format, args...))
}

func (r *removal) CheckTarget(_ context.Context, target string) error {
	r.say("check %s", target)
	return r.refuse
}

func (r *removal) SyncImages(_ context.Context, target string, progress func(string)) (int, error) {
	progress("image 1 of 1")
	r.say("images %s", target)
	return 1, nil
}

func (r *removal) CloseIntake(_ context.Context, why string) error {
	r.say("close: %s", why)
	return nil
}

func (r *removal) OpenIntake(context.Context) error {
	r.say("open")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = nil // as in RequestHandOver
	return nil
}

func (r *removal) RequestHandOver(_ context.Context, h inventory.HandOver) error {
	r.say("request")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, h)
	r.open = nil // what waited for their end is told, which this environment does not cut off
	return nil
}

func (r *removal) WithdrawHandOver(_ context.Context, id string) error {
	r.say("withdraw")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdrawn = id
	return nil
}

func (r *removal) HandOverState(_ context.Context, id string) (state, why string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.withdrawn == id {
		return inventory.HandOverFailed, "withdrawn", nil
	}
	for _, h := range r.requests {
		if h.ID == id {
			if state := r.outcome(h); state != "" {
				return state, "the link was cut", nil
			}
		}
	}
	return inventory.HandOverPending, "", nil
}

func (r *removal) Workflows(context.Context, inventory.WorkflowFilter) ([]inventory.Workflow, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []inventory.Workflow
	for _, m := range r.open {
		out = append(out, inventory.Workflow{Machine: m})
	}
	return out, nil
}
func (r *removal) KeyCheck(context.Context) error { return r.keys }

// relaySwitch is the activity, for the server nas and a router that lists it.
func (r *removal) relaySwitch(_ context.Context, q activities.RelaySwitchRequest) (bool, error) {
	if q.Genesis != r.genesis || q.Target != "um760" {
		return false, fmt.Errorf("asked for %+v", q)
	}
	server := q.Target
	if q.Source {
		server = "nas"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relay = slices.DeleteFunc(r.relay, func(x string) bool { return x == server })
	if q.Listed {
		r.relay = append(r.relay, server)
	}
	r.said = append(r.said, "relay: "+strings.Join(r.relay, ", "))
	return true, nil
}

// migrate runs Migrate; answer returns the operator's choice for a question, or "" for none.
func (r *removal) migrate(
	t *testing.T,
	answer func(q inventory.Question) string,
	later func(env *Environment),
) error {
	t.Helper()
	r.book = &book{runs: map[string]inventory.Workflow{}}
	var suite testsuite.WorkflowTestSuite
	env := NewEnvironment(&suite)
	env.SetStartWorkflowOptions(as("migrate/um760"))
	env.RegisterActivity(
		activities.New(activities.Config{
			Store: activities.Store{Operations: r.book, Machines: r.book, Workflows: r, HandOvers: r, Keys: r},
			Move:  activities.Move{Mover: r},
		}),
	)
	env.OnActivity(do.RelaySwitch, mock.Anything, mock.Anything).Return(r.relaySwitch)
	answered := map[string]bool{}
	var watch func()
	watch = func() {
		r.book.mu.Lock()
		written := len(r.operations) > 0
		r.book.mu.Unlock()
		if written {
			if q := r.last().Question; q != nil && answer != nil && !answered[q.ID] {
				answered[q.ID] = true
				if choice := answer(*q); choice != "" {
					r.decided = true
					env.UpdateWorkflow(UpdateDecide, "update-"+q.ID, taken{t}, contract.Decision{Question: q.ID, Choice: choice})
				}
			}
		}
		if !env.IsWorkflowCompleted() {
			env.RegisterDelayedCallback(watch, 200*time.Millisecond)
		}
	}
	env.RegisterDelayedCallback(watch, 0)
	if later != nil {
		later(env)
	}
	env.ExecuteWorkflow(Migrate, contract.MigrateInput{Name: "um760", Target: "um760", Genesis: r.genesis})
	require.True(t, env.IsWorkflowCompleted())
	return env.GetWorkflowError()
}

type taken struct{ *testing.T }

func (u taken) Accept()             {}
func (u taken) Reject(err error)    { u.Error("refused:", err) }
func (u taken) Complete(any, error) {}

func moved(inventory.HandOver) string { return inventory.HandOverMoved }

func TestMigrateGoesThroughItsTable(t *testing.T) {
	r := &removal{outcome: moved}
	require.NoError(t, r.migrate(t, nil, nil))
	require.Equal(t, []string{
		"check um760",
		"check um760",
		"images um760",
		"close: migrate/um760 moves this site to um760",
		"close: migrate/um760 moves this site to um760",
		"request",
	}, r.said)
	require.Len(t, r.requests, 1)
	require.False(t, r.requests[0].Force)
	o := r.last()
	require.Equal(t, inventory.StateSuccess, o.State)
	var names []string
	for _, s := range o.Steps {
		require.Equal(t, inventory.StepDone, s.State, s.Name)
		require.NotEmpty(t, s.Does)
		require.NotEmpty(t, s.Undo)
		names = append(names, s.Name)
	}
	require.Equal(t, []string{"precheck", "images", "relay-add", "drain", "hand-over", "relay-remove", "verify"}, names)
}

// TestMigrateSwitchesTheRelay of the lab: it lists both servers while the site moves, and
// only the target at the end; a side that gives up earlier removes its entry.
func TestMigrateSwitchesTheRelay(t *testing.T) {
	r := &removal{outcome: moved, genesis: "home", relay: []string{"nas"}}
	require.NoError(t, r.migrate(t, nil, nil))
	require.Equal(t, []string{
		"check um760",
		"check um760",
		"images um760",
		"relay: nas, um760",
		"close: migrate/um760 moves this site to um760",
		"close: migrate/um760 moves this site to um760",
		"request",
		"relay: um760",
	}, r.said)

	r = &removal{outcome: moved, genesis: "home", relay: []string{"nas"}, open: []string{"node-1"}}
	err := r.migrate(t, func(q inventory.Question) string {
		require.Contains(t, q.ID, stepDrain)
		require.Equal(t, []string{"nas", "um760"}, r.relay)
		return contract.Abort
	}, nil)
	require.ErrorContains(t, err, "aborted by the operator")
	require.Equal(
		t,
		[]string{
			"check um760",
			"check um760",
			"images um760",
			"relay: nas, um760",
			"close: migrate/um760 moves this site to um760",
			"open",
			"relay: nas",
		},
		r.said,
	)
	for _, row := range r.last().Steps {
		switch row.Name {
		case stepRelayAdd, stepDrain:
			require.Equal(t, inventory.StepUndone, row.State, row.Name)
		case stepRelayRemove:
			require.Equal(t, inventory.StepPending, row.State)
		}
	}
}

func TestMigrateRefusedBeforeTheDrain(t *testing.T) {
	r := &removal{outcome: moved, refuse: fmt.Errorf("it is another version: %w", inventory.ErrConflict)}
	require.ErrorContains(t, r.migrate(t, nil, nil), "it is another version")
	require.Equal(t, []string{"check um760"}, r.said, "no one is asked, and nothing was begun")
	require.Equal(t, inventory.StateFailed, r.last().State)
}

func TestMigrateWithOpenRuns(t *testing.T) {
	for choice, force := range map[string]bool{contract.Skip: true, contract.Abort: false, "": false} {
		r := &removal{outcome: moved, open: []string{"node-1", "node-2"}}
		err := r.migrate(t, func(q inventory.Question) string {
			require.Contains(t, q.Text, "runs are open: node-1, node-2")
			if choice == "" { // they end
				r.mu.Lock()
				defer r.mu.Unlock()
				r.open = nil
			}
			return choice
		}, nil)
		if choice == contract.Abort {
			require.ErrorContains(t, err, "aborted by the operator")
			require.Equal(t, "open", r.said[len(r.said)-1], "new runs are taken again")
			require.Empty(t, r.requests)
			continue
		}
		require.NoError(t, err, choice)
		require.Len(t, r.requests, 1)
		require.Equal(t, force, r.requests[0].Force, choice)
	}
}

func TestMigrateAgainAfterItWasTakenBack(t *testing.T) {
	r := &removal{}
	r.outcome = func(h inventory.HandOver) string {
		if h.ID == r.requests[0].ID {
			return inventory.HandOverFailed
		}
		return inventory.HandOverMoved
	}
	require.NoError(t, r.migrate(t, func(q inventory.Question) string {
		require.Contains(t, q.Text, "the site was not moved: the link was cut")
		require.NotContains(t, q.Choices, contract.Skip, "no one skips the hand-over itself")
		return contract.Retry
	}, nil))
	require.Len(t, r.requests, 2)
	require.NotEqual(t, r.requests[0].ID, r.requests[1].ID, "the target has refused the first for ever")
}

func TestMigrateTakenBack(t *testing.T) {
	r := &removal{outcome: func(inventory.HandOver) string { return inventory.HandOverFailed }}
	err := r.migrate(t, func(inventory.Question) string { return contract.Abort }, nil)
	require.ErrorContains(t, err, "aborted by the operator")
	require.Equal(t, "open", r.said[len(r.said)-1])
}

// TestMigrateCancelled: a cancellation withdraws a hand-over that has not begun, and undoes
// the finished steps.
func TestMigrateCancelled(t *testing.T) {
	r := &removal{outcome: func(inventory.HandOver) string { return "" }}
	err := r.migrate(t, nil, func(env *Environment) {
		var cancel func()
		cancel = func() {
			r.mu.Lock()
			begun := len(r.requests) > 0
			r.mu.Unlock()
			if begun {
				env.CancelWorkflow()
				return
			}
			env.RegisterDelayedCallback(cancel, time.Second)
		}
		env.RegisterDelayedCallback(cancel, time.Second)
	})
	require.Error(t, err)
	require.Equal(t, inventory.StateCancelled, r.last().State)
	require.Equal(t, []string{"withdraw", "open"}, r.said[len(r.said)-2:])
}

// TestMigrateAfterTheCommitPoint: a failure after it undoes nothing.
func TestMigrateAfterTheCommitPoint(t *testing.T) {
	r := &removal{outcome: moved, keys: fmt.Errorf("key %q: %w", "bmc", inventory.ErrSealed)}
	err := r.migrate(t, func(q inventory.Question) string {
		require.Contains(t, q.Text, "step verify")
		return contract.Abort
	}, nil)
	require.Error(t, err)
	require.NotContains(t, r.said, "open")
	require.NotContains(t, r.said, "withdraw")
}

func TestMigrateNeedsAPeer(t *testing.T) {
	r := &removal{outcome: moved, refuse: errors.Join(inventory.ErrNotFound)}
	require.Error(t, r.migrate(t, nil, nil))
	require.Empty(t, r.requests)
}
