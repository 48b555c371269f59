package workflows_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/interceptor"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// restored is a server that is restored at the n-th attempt of an activity: from then on the
// run is held.
type restored struct {
	interceptor.WorkerInterceptorBase
	w     *world
	hold  *activities.Hold
	at, n int
	met   []int // the machine's state by then
}

func restoredAt(w *world, at int) *restored {
	r := &restored{
		w:    w,
		at:   at,
		hold: activities.NewHold(inventory.Restore{Taken: w.env.Now(), Held: []inventory.HeldRun{{Run: "default-test-run-id"}}}),
	}
	w.env.Intercept(r)
	return r
}

func (r *restored) InterceptActivity(
	ctx context.Context,
	next interceptor.ActivityInboundInterceptor,
) interceptor.ActivityInboundInterceptor {
	return &perhaps{interceptor.ActivityInboundInterceptorBase{Next: next}, r, r.hold.InterceptActivity(ctx, next)}
}

type perhaps struct {
	interceptor.ActivityInboundInterceptorBase
	r    *restored
	held interceptor.ActivityInboundInterceptor
}

func (p *perhaps) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	p.r.w.mu.Lock()
	p.r.n++
	held := p.r.n >= p.r.at
	if held && p.r.met == nil {
		p.r.met = p.r.w.touched()
	}
	p.r.w.mu.Unlock()
	if held {
		return p.held.ExecuteActivity(ctx, in)
	}
	return p.Next.ExecuteActivity(ctx, in)
}

// touched counts what was done to the machine. The caller holds mu.
func (w *world) touched() []int {
	on := 0
	if w.on {
		on = 1
	}
	return []int{w.offs, w.cycles, w.resets, w.warm, len(w.boot), len(w.assigned), on}
}

// TestHeldRun restores the server before each activity of an installation: the
// run asks an operator, who can only abort it, and nothing is done to the machine.
func TestHeldRun(t *testing.T) {
	for at, more := 1, true; more; at++ {
		w := newWorld(t, nil)
		// The machine continues: the earlier agent may still report.
		r := restoredAt(w, at)
		err := w.run(contract.ProvisionInput{Machine: machine})
		if r.met == nil {
			require.NoError(t, err)
			require.Greater(t, at, 20, "an installation has more activities")
			return
		}
		w.mu.Lock()
		touched := w.touched()
		w.mu.Unlock()
		require.Equal(t, r.met, touched, "held at activity %d, the machine was touched", at)
		if len(w.asked) == 0 {
			// Only activities that end the run remained.
			more = err != nil || w.record().State == inventory.StateSuccess
			require.True(t, more, "held at activity %d the run ended without asking: %v", at, err)
			continue
		}
		require.ErrorContains(t, err, "aborted by the operator", "held at activity %d", at)
		require.Equal(t, []string{contract.Abort}, w.asked[0].Choices)
		require.Contains(t, w.asked[0].Text, "the server was restored")
		require.Equal(t, inventory.StateFailed, w.record().State)
	}
}

// TestHeldRunIsTold: during an action the run learns at once that it is held, not only when
// the action's time is up.
func TestHeldRunIsTold(t *testing.T) {
	w := newWorld(t, nil)
	r := restoredAt(w, 1<<30)
	w.agentFor = func(a inventory.Assignment) *action.Result {
		w.after(time.Minute, func() {
			w.mu.Lock()
			r.at = 0
			w.mu.Unlock()
			w.signal(inventory.EventHeld, a.Epoch, a.Boot, nil)
		})
		return nil
	}
	begun := w.env.Now()
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "aborted by the operator")
	require.Len(t, w.asked, 1)
	require.Contains(t, w.asked[0].Text, "the server was restored")
	require.Less(t, w.asked[0].Since.Sub(begun), 30*time.Minute, "it asked before the action's deadline")
	require.Equal(t, r.met, w.touched())
}
