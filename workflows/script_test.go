package workflows_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func itoa(n int) string { return strconv.Itoa(n) }

// A script simulates all activities of a worker, the machines and the operator for one recording.
type script struct {
	interceptor.WorkerInterceptorBase
	c client.Client

	plan         activities.Planned
	silent       bool     // agents report only that they have stopped
	lost         bool     // the first agent is lost during its first action
	noDisk       bool     // the first bind finds no disk
	installFails bool     // the installer reports a failure
	stays        bool     // the hand-over does not happen
	waits        string   // a machine of an operation whose first task waits for the task of machine m1
	says         string   // an event after the first agent's hello
	cancelAt     string   // activity at which the recorded run is cancelled
	answers      []string // to the questions, in order
	thinks       time.Duration
	finished     int // steps of the lab that an earlier run has finished
	failing      map[int]bool

	mu         sync.Mutex
	recorded   client.WorkflowRun
	refused    map[string]refusal
	epoch      int64
	runs       map[string]inventory.Workflow
	operations map[string]inventory.Operation
	asked      map[string]bool
}

// InterceptActivity replaces every activity with the script.
func (s *script) InterceptActivity(_ context.Context, next interceptor.ActivityInboundInterceptor) interceptor.ActivityInboundInterceptor {
	return &scripted{interceptor.ActivityInboundInterceptorBase{Next: next}, s}
}

type scripted struct {
	interceptor.ActivityInboundInterceptorBase
	s *script
}

func (a *scripted) ExecuteActivity(ctx context.Context, in *interceptor.ExecuteActivityInput) (any, error) {
	s := a.s
	info := activity.GetInfo(ctx)
	name := info.ActivityType.Name
	s.mu.Lock()
	err := s.refusalOf(name)
	cancels := name == s.cancelAt
	if cancels {
		s.cancelAt = ""
	}
	recorded := s.recorded
	s.mu.Unlock()
	if cancels && recorded != nil {
		err := s.c.CancelWorkflow(ctx, recorded.GetID(), recorded.GetRunID())
		if err != nil {
			return nil, err
		}
	}
	if err != nil {
		return nil, err
	}
	switch name {
	case "AwaitRun", "AwaitOperation":
		return s.awaitRecord(ctx, in.Args[0].(activities.OutcomeRequest))
	case "AwaitHandOver":
		return s.awaitHandOver(ctx)
	case "AwaitTurn":
		return nil, s.awaitTurn(ctx, in.Args[0].(activities.TurnRequest))
	case "TalosInstalled":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.act(run{s.c, info.WorkflowExecution.ID, info.WorkflowExecution.RunID}, name, in.Args), nil
}

// act answers an activity and starts its effects in the simulated world.
func (s *script) act(r run, name string, args []any) any {
	switch name {
	case "Plan":
		q := args[0].(activities.PlanRequest)
		p := s.plan
		p.Run = q.Run
		if q.Together && q.Machine == s.waits {
			p.Actions = slices.Clone(p.Actions)
			for n := range p.Actions {
				p.Actions[n].After = &inventory.Turn{Task: "os", Machine: "m1", After: "os"}
			}
		}
		if q.Wipe {
			p.Actions = append([]activities.PlannedAction{{Name: "wipe", Image: action.Wipe, Timeout: 600, Writes: true}}, p.Actions...)
		}
		return p
	case "PlanDecommission":
		s.plan = activities.Planned{Run: r.run, Digest: "d1gest", Evidence: activities.EvidenceWeak, Actions: []activities.PlannedAction{
			{Name: "wipe", Image: action.Wipe, Timeout: 600, Writes: true}, {Name: "boot-entries", Image: action.EFIBoot, Timeout: 60},
		}}
		return s.plan
	case "Arm":
		s.epoch++
		q := args[0].(activities.ArmRequest)
		return inventory.Owner{Machine: q.Machine, Run: q.Run, Epoch: s.epoch}
	case "HasBMC":
		return true
	case "Power":
		go s.boots(r, args[0].(activities.PowerRequest), s.says)
		s.says = ""
		return activities.Powered{How: "off, network boot once, on"}
	case "Bind":
		if s.noDisk {
			s.noDisk = false
			return activities.Bound{Reason: "the machine has no fixed disk"}
		}
		return activities.Bound{Disk: &action.Disk{Path: "/dev/vda", Serial: "D1", Size: 1 << 30, Blank: true}}
	case "Assign":
		s.assigned(r, args[0].(activities.AssignRequest))
	case "Stop":
		go r.completed(args[0].(activities.StopRequest).Key, action.Stopped)
	case "Evidence":
		return activities.EvidenceFound{Kind: activities.Silent}
	case "AgentFacts":
		return action.Facts{Memory: 1 << 30, Disks: []action.Disk{{Path: "/dev/vda", Serial: "D1", Size: 1 << 30}}}
	case "Retire":
		if q := args[0].(activities.RetireRequest); len(q.Doubts) > 0 {
			return inventory.Standing{State: inventory.StandingQuarantined, Reason: q.Doubts[0]}
		}
		return inventory.Standing{State: inventory.StandingAvailable}
	case "Record":
		w := args[0].(inventory.Workflow)
		s.runs[w.Run] = w
		s.answer(r, w.Question)
	case "RecordOperation":
		o := args[0].(inventory.Operation)
		s.operations[r.run] = o
		s.answer(r, o.Question)
	case "RecoverTargets":
		return [][]string{args[0].(activities.RecoverRequest).Machines}
	case "TogetherMachines":
		out := []activities.TogetherMachine{{Machine: "m1"}, {Machine: "m2"}}
		if args[0].(activities.TogetherRequest).Resume != "" {
			out[0].Done, out[1].Resume = "earlier-1", "earlier-2"
		}
		return out
	case "OpenRun", "Installed", "MovedTo":
		return activities.OwnRun{}
	case "ReadLab":
		return labTable(s.finished)
	case "SyncImages":
		return 1
	case "RelaySwitch":
		return true
	case "OpenRuns", "VerifyMoved":
		return []string{}
	}
	return nil // an activity without a result
}

// assigned makes the agent report the result of an action.
func (s *script) assigned(r run, q activities.AssignRequest) {
	last := s.plan.Actions[min(q.Key.Action, len(s.plan.Actions)-1)].Leaving
	state := action.Success
	if s.failing[q.Key.Action] {
		delete(s.failing, q.Key.Action)
		state = action.Failed
	}
	switch {
	case s.silent:
	case s.lost:
		s.lost = false
		go r.event(workflows.Event{Kind: inventory.EventAgentLost, Epoch: q.Owner.Epoch, Boot: q.Boot, Key: &q.Key})
	default:
		go func() {
			r.completed(q.Key, state)
			if last {
				r.event(workflows.Event{Kind: inventory.EventPhoneHome, Epoch: q.Owner.Epoch, Boot: q.Boot})
			}
		}()
	}
}

// boots simulates a machine after power-on, up to its agent's hello or its installer's last report.
func (s *script) boots(r run, q activities.PowerRequest, then string) {
	kinds := []string{inventory.EventDHCP, inventory.EventScript, inventory.EventKernel, inventory.EventHello}
	if q.Installer {
		kinds = append(kinds[:3:3], inventory.EventPayload, inventory.EventDocument, inventory.EventInstalled)
		if s.installFails {
			kinds[5] = inventory.EventInstallFailed
		}
	}
	if s.plan.Manual {
		r.signal(workflows.SignalPoweredOn, nil)
	}
	if then != "" {
		kinds = append(kinds, then)
	}
	for _, kind := range kinds {
		r.event(workflows.Event{Kind: kind, Epoch: q.Owner.Epoch, Boot: q.Boot, Message: kind})
	}
}

// answer answers a question once.
func (s *script) answer(r run, q *inventory.Question) {
	if q == nil || s.asked[r.run+q.ID] || len(s.answers) == 0 {
		return
	}
	s.asked[r.run+q.ID] = true
	d := contract.Decision{Question: q.ID, Choice: s.answers[0], By: "operator"}
	s.answers = s.answers[1:]
	go r.decide(d, s.thinks)
}

// awaitRecord simulates the activity of that purpose with the script's records.
func (s *script) awaitRecord(ctx context.Context, q activities.OutcomeRequest) (activities.Outcome, error) {
	for {
		s.mu.Lock()
		w := s.runs[q.Run]
		o := activities.Outcome{Run: q.Run, State: w.State, Phase: w.Phase, Message: w.Message, Asks: w.Question != nil}
		if op, is := s.operations[q.Run]; is {
			o = activities.Outcome{Run: q.Run, State: op.State, Phase: op.Step, Message: op.Message}
		}
		s.mu.Unlock()
		if o.State != "" && inventory.Final(o.State) || q.Asking && (o.Asks && o.Message != q.Known || !o.Asks && q.Known != "") {
			return o, nil
		}
		activity.RecordHeartbeat(ctx)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return o, ctx.Err()
		}
	}
}

// awaitTurn waits for the end of the other machine's run. If the other machine has none, it is the turn, unless agents are silent.
func (s *script) awaitTurn(ctx context.Context, q activities.TurnRequest) error {
	for {
		s.mu.Lock()
		turn := !s.silent
		for _, w := range s.runs {
			if w.Machine == q.Turn.Machine {
				turn = w.State == inventory.StateSuccess
				if !turn && inventory.Final(w.State) {
					s.mu.Unlock()
					return temporal.NewNonRetryableApplicationError("machine m1 has failed", activities.TypeConflict, nil)
				}
			}
		}
		s.mu.Unlock()
		if turn {
			return nil
		}
		activity.RecordHeartbeat(ctx)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitHandOver returns at once. In a run that is cancelled, its first attempt is cut off.
func (s *script) awaitHandOver(ctx context.Context) (any, error) {
	activity.RecordHeartbeat(ctx)
	select {
	case <-time.After(500 * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s.stays {
		return activities.HandedOver{Why: "the link was cut"}, nil
	}
	return activities.HandedOver{Moved: true}, nil
}

// run is an execution that receives the signals of its machine.
type run struct {
	c       client.Client
	id, run string
}

func (r run) signal(name string, payload any) {
	time.Sleep(30 * time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = r.c.SignalWorkflow(ctx, r.id, r.run, name, payload) // it may have ended
}

func (r run) event(e workflows.Event) { r.signal(workflows.SignalEvent, e) }

func (r run) completed(k action.Key, state action.State) {
	r.signal(workflows.SignalActionCompleted, workflows.ActionCompleted{Key: k, State: state, Message: string(state)})
}

func (r run) decide(d contract.Decision, after time.Duration) {
	time.Sleep(after)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		u, err := r.c.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
			WorkflowID: r.id, RunID: r.run, UpdateName: workflows.UpdateDecide, Args: []any{d}, WaitForStage: client.WorkflowUpdateStageCompleted,
		})
		if err == nil && u.Get(ctx, nil) == nil {
			return
		}
		time.Sleep(50 * time.Millisecond) // the question is not asked yet
	}
}
