package workflows

import (
	"context"
	"fmt"
	"sync"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/workflow"
)

// A Tape gives a run a unique id and records what Temporal records: the results of its activities,
// in order, and its signals. After ResetTo, it first plays the results of another run, which was
// reset.
type Tape struct {
	interceptor.WorkerInterceptorBase
	env *Environment
	run string

	mu      sync.Mutex
	begun   map[string]int    // activities by name
	keys    map[string]string // of activities by id
	Ended   []Ended
	signals []signal

	of     *Tape // the run that was reset
	to     int   // number of its activities that ended before the reset point
	played int
	told   int
}

// Ended is an activity that has ended.
type Ended struct {
	key, Name string
	result    any
	err       error
}

// signal arrived after this number of activities had ended.
type signal struct {
	after   int
	name    string
	payload any
}

// NewTape returns the tape of the next run in env.
func NewTape(env *Environment, run string) *Tape {
	t := &Tape{env: env, run: run, begun: map[string]int{}, keys: map[string]string{}}
	env.Intercept(t)
	return t
}

// ResetTo makes the next run a reset of another run.
func (t *Tape) ResetTo(of *Tape, to int) { t.of, t.to = of, to }

// Tell records a signal.
func (t *Tape) Tell(name string, payload any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signals = append(t.signals, signal{len(t.Ended), name, payload})
}

// InterceptWorkflow sets the id of the run.
func (t *Tape) InterceptWorkflow(_ workflow.Context, next interceptor.WorkflowInboundInterceptor) interceptor.WorkflowInboundInterceptor {
	return &withRunID{WorkflowInboundInterceptorBase: interceptor.WorkflowInboundInterceptorBase{Next: next}, t: t}
}

type withRunID struct {
	interceptor.WorkflowInboundInterceptorBase
	t *Tape
}

func (i *withRunID) Init(out interceptor.WorkflowOutboundInterceptor) error {
	return i.Next.Init(&infoWithRunID{interceptor.WorkflowOutboundInterceptorBase{Next: out}, i.t})
}

type infoWithRunID struct {
	interceptor.WorkflowOutboundInterceptorBase
	t *Tape
}

func (o *infoWithRunID) GetInfo(ctx workflow.Context) *workflow.Info {
	info := *o.Next.GetInfo(ctx)
	if info.ParentWorkflowExecution == nil {
		info.WorkflowExecution.RunID, info.FirstRunID = o.t.run, o.t.run
		if o.t.of != nil {
			info.FirstRunID = o.t.of.run
		}
	}
	return &info
}

// InterceptActivity records or plays activities.
func (t *Tape) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &taped{interceptor.ActivityInboundInterceptorBase{Next: next}, t}
}

type taped struct {
	interceptor.ActivityInboundInterceptorBase
	t *Tape
}

func (a *taped) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	info := activity.GetInfo(ctx)
	key := a.t.key(info)
	if e, ok := a.t.replayed(key); ok {
		return e.result, e.err
	}
	out, err := a.Next.ExecuteActivity(ctx, in)
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.t.Ended = append(a.t.Ended, Ended{key, info.ActivityType.Name, out, err})
	return out, err
}

// key identifies an activity by its type and number. Ids are shared with timers, and a run whose
// signals have already arrived needs fewer timers.
func (t *Tape) key(info activity.Info) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, name := fmt.Sprint(info.ActivityID, info.IsLocalActivity), info.ActivityType.Name
	if t.keys[id] == "" { // not another attempt
		t.begun[name]++
		t.keys[id] = fmt.Sprint(name, t.begun[name])
	}
	return t.keys[id]
}

// replayed returns the result of an activity from before the reset. It delivers the signals of that
// time; Temporal applies signals after the reset point again.
func (t *Tape) replayed(key string) (Ended, bool) {
	if t.of == nil {
		return Ended{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var found *Ended
	for i := range t.of.Ended[:t.to] { // the last attempt counts
		if t.of.Ended[i].key == key {
			found = &t.of.Ended[i]
		}
	}
	if found != nil {
		t.played++
	}
	for _, s := range t.of.signals[t.told:] {
		if s.after > t.played && t.played < t.to {
			break
		}
		t.told++
		t.env.RegisterDelayedCallback(func() { t.env.SignalWorkflow(s.name, s.payload) }, 0)
	}
	if found == nil {
		return Ended{}, false
	}
	return *found, true
}

// Index returns the number of activities that had ended when one with this name ended.
func (t *Tape) Index(name string) int {
	for i, e := range t.Ended {
		if e.Name == name {
			return i + 1
		}
	}
	return 0
}
