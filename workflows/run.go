package workflows

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// How a run ends other than well. The text becomes the record's message.
var (
	errTimeout = errors.New("global timeout")
	errAborted = errors.New("aborted by a person")
	// errRestart: a person wants the whole run again, under a grant of its own.
	errRestart = errors.New("started again by a person")
	// errSkipped: a person has the run go on without what it asked about.
	errSkipped = errors.New("given up by a person")
	errTaken   = temporal.NewNonRetryableApplicationError("somebody else has taken the machine: a forced job, or a person who disarmed it", activities.TypeFenced, nil)
	errHeld    = temporal.NewNonRetryableApplicationError("this run was under way in the backup from which the server was restored: the machine may have moved on since, so nothing more is done to it; look at it, abort this run, and start another one if it is needed", activities.TypeHeld, nil)
)

// run is what every workflow that owns a machine has in common: its record,
// its grant, what it has heard, and the questions it asks.
type run struct {
	log    log.Logger
	input  any // as it was started with, for the record
	record inventory.Workflow
	// owner names this very execution in each effect. After a reset the run id
	// is another one, and every effect of the old owner's is fenced.
	owner  inventory.Owner
	manual bool
	armed  bool // netboot may be open
	// plannedAs is the run under which the plan is stored; empty: not known. In a run
	// that was reset from outside it is another one than owner.Run.
	plannedAs string
	// named and template are what search attributes say already.
	named    bool
	template string

	boot      int    // the boot that is under way
	allowance int    // boots that may still be taken before a person is asked
	silent    int    // boots in a row whose agent did not come
	how       string // how the present boot was started, if in another way than the first
	pxe       bool   // the firmware asked for network boot at least once
	off       bool   // the power was taken from the agent
	strayed   bool   // the last boot was lost: the machine has booted its disk instead
	helloed   int    // newest boot whose agent redeemed its claim
	poweredOn bool   // a person says so
	installer bool   // what is booted now is the plan's installer, not the agent
	said      string // by the installer, of its end
	// early is what was heard of the boot after this one: the agent may begin it
	// without the run, and a task that is carried out again hears of all that has
	// come of its own assignments meanwhile.
	early map[string]bool
	heard map[string]bool
	// prior is what was heard of the boot before this one: of an installer that was
	// given up and has come after all.
	prior    map[string]bool
	conflict bool
	fenced   bool // somebody else has taken the machine
	held     bool // the server was restored from a backup in which this run was open
	results  map[action.Key]ActionCompleted
	idle     map[action.Key]bool
	lost     map[action.Key]bool
	decision *Decision
	deadline time.Time

	// budget is what is left of the global timeout; it rests while a person is
	// awaited. Zero means none.
	budget time.Duration
	// skippable: a person who is asked may also have the run go on without the
	// machine; see ask.
	skippable bool
	since     time.Time // when the budget began to run; zero while it rests
}

var (
	attrMachine  = temporal.NewSearchAttributeKeyKeyword(AttrMachine)
	attrTemplate = temporal.NewSearchAttributeKeyKeyword(AttrTemplate)
	attrPhase    = temporal.NewSearchAttributeKeyKeyword(AttrPhase)
)

// newRun begins the record, and refuses an execution whose id is not the one
// that its type and input demand: it fails before it touches anything.
func newRun(ctx workflow.Context, typ, id, machine string, input any) (*run, error) {
	info := workflow.GetInfo(ctx)
	if info.WorkflowExecution.ID != id {
		return nil, temporal.NewNonRetryableApplicationError(
			fmt.Sprintf("workflow id %q: a %s of machine %q must run under the id %q", info.WorkflowExecution.ID, typ, machine, id),
			activities.TypeInvalid, nil)
	}
	r := &run{
		log:       workflow.GetLogger(ctx),
		input:     input,
		owner:     inventory.Owner{Machine: machine, Run: info.WorkflowExecution.RunID},
		allowance: inventory.MaxBoots,
		heard:     map[string]bool{},
		early:     map[string]bool{},
		results:   map[action.Key]ActionCompleted{},
		idle:      map[action.Key]bool{},
		lost:      map[action.Key]bool{},
		record: inventory.Workflow{
			Run: info.WorkflowExecution.RunID, ID: id, Type: typ, Machine: machine,
			State: inventory.StatePreparing, Started: workflow.Now(ctx), Actions: []inventory.ActionRecord{},
		},
	}
	if err := workflow.SetQueryHandlerWithOptions(ctx, QueryStatus, r.status, workflow.QueryHandlerOptions{Description: "Where the run stands"}); err != nil {
		return nil, err
	}
	err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateDecide,
		func(_ workflow.Context, d Decision) error { r.decision = &d; return nil },
		workflow.UpdateHandlerOptions{Validator: r.validate, Description: "Answers the question of a run that waits for a person"})
	if err != nil {
		return nil, err
	}
	workflow.Go(ctx, r.listen)
	return r, nil
}

func (r *run) status() (Status, error) {
	s := Status{
		Machine: r.owner.Machine, Run: r.owner.Run, Epoch: r.owner.Epoch, Boot: r.boot, State: r.record.State, Phase: r.record.Phase,
		Message: r.record.Message, Deadline: r.deadline, Question: r.record.Question, Actions: r.record.Actions,
	}
	for _, a := range s.Actions {
		if a.State == action.Running {
			s.Action = a.Name
		}
	}
	return s, nil
}

// listen takes in signals for as long as the run lives. What does not carry
// this run's epoch is dropped. Each is received without blocking: one whose
// payload cannot be read would otherwise hold up all others until the next
// of its name.
func (r *run) listen(ctx workflow.Context) {
	s := workflow.NewSelector(ctx)
	s.AddReceive(workflow.GetSignalChannelWithOptions(ctx, SignalEvent, workflow.SignalChannelOptions{Description: "Something seen of the machine or its agent"}),
		func(c workflow.ReceiveChannel, _ bool) {
			var e Event
			if c.ReceiveAsync(&e) {
				r.hear(e)
			}
		})
	s.AddReceive(workflow.GetSignalChannelWithOptions(ctx, SignalActionCompleted, workflow.SignalChannelOptions{Description: "The agent's report on an action"}),
		func(c workflow.ReceiveChannel, _ bool) {
			var d ActionCompleted
			if !c.ReceiveAsync(&d) {
				return
			}
			if _, have := r.results[d.Key]; !have && d.Key.Epoch == r.owner.Epoch {
				r.results[d.Key] = d
			}
		})
	s.AddReceive(workflow.GetSignalChannelWithOptions(ctx, SignalPoweredOn, workflow.SignalChannelOptions{Description: "A person has switched the machine on"}),
		func(c workflow.ReceiveChannel, _ bool) {
			c.ReceiveAsync(nil)
			r.poweredOn = true
		})
	s.AddReceive(workflow.GetSignalChannelWithOptions(ctx, SignalDecide, workflow.SignalChannelOptions{Description: "A person's decision"}),
		func(c workflow.ReceiveChannel, _ bool) {
			var d Decision
			if c.ReceiveAsync(&d) && r.validate(d) == nil {
				r.decision = &d
			}
		})
	for {
		s.Select(ctx)
	}
}

func (r *run) hear(e Event) {
	if e.Epoch != r.owner.Epoch {
		return
	}
	switch e.Kind {
	case inventory.EventHello:
		r.helloed = max(r.helloed, e.Boot)
	case inventory.EventClaimConflict:
		r.conflict = true
	case inventory.EventAgentIdle:
		var k action.Key // none: the agent finds no row at all
		if e.Key != nil {
			k = *e.Key
		}
		r.idle[k] = true
	case inventory.EventAgentLost:
		if e.Key != nil {
			r.lost[*e.Key] = true
		}
	case inventory.EventPhoneHome: // of whichever boot: its nonce is this run's
		r.heard[e.Kind] = true
		if r.prior != nil {
			r.prior[e.Kind] = true
		}
	case inventory.EventInstalled, inventory.EventInstallFailed:
		if r.ofThisBoot(e) {
			r.said = e.Message
		}
	case inventory.EventFenced:
		r.fenced = true
	case inventory.EventHeld:
		r.fenced, r.held = true, true
	default:
		switch e.Kind {
		case inventory.EventDHCP, inventory.EventLoader, inventory.EventScript, inventory.EventKernel, inventory.EventInitrd:
			r.pxe = true
		}
		// What anybody on the wire could forge, and what belongs to one boot.
		r.ofThisBoot(e)
	}
}

// ofThisBoot takes in what belongs to the present boot, or to the next where
// the agent begins it.
func (r *run) ofThisBoot(e Event) bool {
	switch {
	case e.Boot == r.boot:
		r.heard[e.Kind] = true
	case e.Boot == r.boot+1:
		r.early[e.Kind] = true
	case e.Boot == r.boot-1 && r.prior != nil:
		r.prior[e.Kind] = true
	default:
		return false
	}
	return true
}

func (r *run) validate(d Decision) error { return fits(r.record.Question, r.decision, d, "run") }

// phase moves the display: record, search attribute, current details.
func (r *run) phase(ctx workflow.Context, phase, format string, args ...any) error {
	if err := r.show(ctx, phase, format, args...); err != nil {
		return err
	}
	return r.write(ctx)
}

// show is phase, still without the record. The search attribute leaves brief
// phases out.
func (r *run) show(ctx workflow.Context, phase, format string, args ...any) error {
	same := r.record.Phase == phase
	r.record.Phase, r.record.Message = phase, fmt.Sprintf(format, args...)
	if same || slices.Contains(brief, phase) {
		return nil
	}
	say := []temporal.SearchAttributeUpdate{attrPhase.ValueSet(phase)}
	if !r.named {
		say = append(say, attrMachine.ValueSet(r.owner.Machine))
		r.named = true
	}
	if r.template != r.record.Template {
		say = append(say, attrTemplate.ValueSet(r.record.Template))
		r.template = r.record.Template
	}
	return workflow.UpsertTypedSearchAttributes(ctx, say...)
}

// write records the run. A record that comes late cannot overtake a later one:
// the store compares Seq.
func (r *run) write(ctx workflow.Context) error {
	r.stamp(ctx)
	return workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), do.Record, r.record, r.input).Get(ctx, nil)
}

// decided is write after a decision: a step of its own. An update
// is in no history before Temporal has recorded the task that took it. If that
// task is lost, so is the decision, and the question has to stand as it stood.
func (r *run) decided(ctx workflow.Context) error {
	r.stamp(ctx)
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), do.Record, r.record, r.input).Get(ctx, nil)
}

// stamp makes the record newer than any before.
func (r *run) stamp(ctx workflow.Context) {
	r.record.Updated = workflow.Now(ctx)
	r.record.Seq++
	r.record.Epoch = r.owner.Epoch
	details := fmt.Sprintf("**%s** %s", r.record.Phase, r.record.Message)
	for _, a := range r.record.Actions {
		if a.State == action.Running {
			details += fmt.Sprintf("\n\naction %s, attempt %d", a.Name, a.Attempt)
		}
	}
	workflow.SetCurrentDetails(ctx, details)
}

// quickly runs an activity of our own database.
func (r *run) quickly(ctx workflow.Context, activity any, arg, result any) error {
	return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, quick), activity, arg).Get(ctx, result)
}

// beside is quickly as a local activity, which is one event instead of six.
func (r *run) beside(ctx workflow.Context, activity any, arg any) error {
	return workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, local), activity, arg).Get(ctx, nil)
}

// left is what remains of the global timeout.
func (r *run) left(ctx workflow.Context) (time.Duration, bool) {
	if r.budget == 0 {
		return 0, false
	}
	if r.since.IsZero() {
		return r.budget, true
	}
	return r.budget - workflow.Now(ctx).Sub(r.since), true
}

// rest stops the global timeout; wake lets it run on.
func (r *run) rest(ctx workflow.Context) {
	if left, limited := r.left(ctx); limited {
		// At least a moment is left, or a zero would mean no limit.
		r.budget = max(left, time.Millisecond)
	}
	r.since = time.Time{}
}

func (r *run) wake(ctx workflow.Context) { r.since = workflow.Now(ctx) }

// await waits until done, at most d. False means that the time is up, and
// nothing more: see evidence. errTimeout means that the run's own time is up,
// and that what was on its way has been taken in before saying so.
func (r *run) await(ctx workflow.Context, d time.Duration, done func() bool) (bool, error) {
	for again := 0; ; again++ {
		wait := d
		left, limited := r.left(ctx)
		if limited = limited && left < d; limited {
			wait = max(left, 0)
		}
		r.deadline = workflow.Now(ctx).Add(wait)
		_, err := workflow.AwaitWithTimeout(ctx, wait, func() bool { return done() || r.fenced })
		r.deadline = time.Time{}
		if err != nil || done() {
			return err == nil, err
		}
		if r.fenced {
			return false, r.taken()
		}
		if !limited {
			return false, nil
		}
		found, err := r.evidence(ctx, action.Key{}, activities.Wait{Began: r.since, For: r.budget})
		if err != nil {
			return false, err
		}
		if done() {
			return true, nil
		}
		if found.Left == 0 || again == resumes {
			return false, errTimeout
		}
		r.budget, r.since = found.Left, workflow.Now(ctx)
	}
}

// evidence asks what is known before a deadline acts, and how much of the wait
// that ended has not really been waited. Whatever the question took, the signals that came meanwhile
// have been taken in when it returns.
func (r *run) evidence(ctx workflow.Context, k action.Key, w activities.Wait) (activities.EvidenceFound, error) {
	var found activities.EvidenceFound
	q := activities.EvidenceRequest{Owner: r.owner, Key: k, Wait: w}
	err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, patient), do.Evidence, q).Get(ctx, &found)
	if err == nil {
		// This coroutine runs before listen does: what came in the same
		// workflow task as the answer has yet to be taken in.
		turns := 0
		err = workflow.Await(ctx, func() bool { turns++; return turns > 1 })
	}
	if err == nil && found.Boot == r.boot && found.Kind != activities.Silent {
		r.helloed = max(r.helloed, found.Boot)
	}
	return found, err
}

// ask stops until a person has decided. The netboot window is closed
// meanwhile and the global timeout rests.
func (r *run) ask(ctx workflow.Context, id, text string, choices []string, disks []action.Disk) (Decision, error) {
	d, _, err := r.askUnless(ctx, nil, id, text, choices, disks)
	return d, err
}

// askUnless is ask about something that may settle itself: the question is withdrawn, and moot, once over says that it has. A decision that
// was taken before counts.
func (r *run) askUnless(ctx workflow.Context, over func() bool, id, text string, choices []string, disks []action.Disk) (d Decision, moot bool, err error) {
	if over == nil {
		over = func() bool { return false }
	}
	if left, limited := r.left(ctx); limited && left <= 0 {
		// What is written off here would be gone, and the clock may have been set.
		if found, err := r.evidence(ctx, action.Key{}, activities.Wait{Began: r.since, For: r.budget}); err == nil && found.Left > 0 {
			r.budget, r.since = found.Left, workflow.Now(ctx)
		}
	}
	r.rest(ctx)
	defer r.wake(ctx)
	if r.armed {
		if err := r.disarm(ctx); err != nil && !lost(err) {
			return Decision{}, false, err
		}
	}
	if over() {
		return Decision{}, true, nil
	}
	skip := r.skippable && slices.Contains(choices, Retry) && !slices.Contains(choices, Skip)
	if skip {
		choices = append(slices.Clone(choices), Skip)
	}
	before, message := r.record.Phase, r.record.Message
	r.decision = nil
	r.record.Question = &inventory.Question{ID: id, Text: text, Choices: choices, Disks: disks, Since: workflow.Now(ctx)}
	r.record.Next = fmt.Sprintf("ingot workflow decide %s --question %s --choice %s", r.owner.Machine, id, choices[0])
	if err := r.phase(ctx, inventory.PhaseWaiting, "%s", text); err != nil {
		return Decision{}, false, err
	}
	if err := workflow.Await(ctx, func() bool { return r.decision != nil || over() }); err != nil {
		return Decision{}, false, err
	}
	if moot = r.decision == nil; moot {
		r.log.Info("withdrawn: what was waited for has come", "question", id)
	} else {
		d = *r.decision
		r.log.Info("decided", "question", id, "choice", d.Choice, "by", d.By)
	}
	r.decision, r.record.Question, r.record.Next = nil, nil, ""
	if err := r.show(ctx, before, "%s", message); err != nil {
		return Decision{}, false, err
	}
	record := r.decided
	if moot { // what made it so is a signal, which is never lost
		record = r.write
	}
	if err := record(ctx); err != nil {
		return Decision{}, false, err
	}
	switch {
	case d.Choice == Abort:
		return d, false, errAborted
	case skip && d.Choice == Skip:
		return d, false, errSkipped
	}
	return d, moot, nil
}

// arm takes the grant. Its undo is end, which the caller has registered before.
func (r *run) arm(ctx workflow.Context, force bool) error {
	if err := r.phase(ctx, inventory.PhaseArm, "taking the grant"); err != nil {
		return err
	}
	info := workflow.GetInfo(ctx)
	var o inventory.Owner
	q := activities.ArmRequest{Machine: r.owner.Machine, Run: r.owner.Run, WorkflowID: info.WorkflowExecution.ID, Force: force, Plan: r.record.Digest}
	for n := 1; ; n++ {
		err := r.quickly(ctx, do.Arm, q, &o)
		if err == nil {
			r.owner.Epoch = o.Epoch
			return nil
		}
		if !is(err, activities.TypeClock) {
			return err
		}
		d, err := r.ask(ctx, fmt.Sprintf("0.arm.%d", n), cause(err), []string{Retry, Continue, Abort}, nil)
		if err != nil {
			return err
		}
		q.ClockRight = d.Choice == Continue
	}
}

func (r *run) disarm(ctx workflow.Context) error {
	err := r.beside(ctx, do.Disarm, r.owner)
	if err == nil {
		r.armed = false
	}
	return err
}

// release gives the grant back and closes both windows. That is a regular
// activity: Temporal refuses the end of a run while a signal comes
// in, and the task is carried out anew with its local activities, of which those
// before this one would find that the machine is not theirs any more.
func (r *run) release(ctx workflow.Context) error {
	return r.quickly(ctx, do.End, r.owner, nil)
}

func (r *run) renew(ctx workflow.Context, d time.Duration) error {
	return r.beside(ctx, do.RenewNetboot, activities.WindowRequest{Owner: r.owner, For: d + beyond, Installer: r.installer})
}

// ladder is how a machine that does not show up is started, boot after boot.
// After the last rung a person is asked, who has it climbed again. What a
// machine or its BMC cannot do is left out, and said.
var ladder = []struct {
	say                       string
	warm, resetBMC, otherPath bool
}{
	{say: "off, network boot once, on"},
	// A boot device that the BMC forgot, or a loader that hung.
	{say: "network boot once again, reset", warm: true},
	// A BMC that says what it does not do; a firmware that ignores the flag of
	// this path. The path is left alone if the machine was ever heard on it.
	{say: "BMC reset, off, network boot once, on", resetBMC: true, otherPath: true},
}

// begin starts the machine over the network until its agent has said hello:
// power, dhcp, loader, agent. What stays silent is started again, rung by rung
// of the ladder, and a person is asked when the run's boots are used up.
func (r *run) begin(ctx workflow.Context) error {
	r.silent, r.off, r.strayed = 0, false, false
	for {
		if r.allowance == 0 {
			late := func() bool { return r.installer && r.installing() }
			if _, moot, err := r.askUnless(ctx, late, fmt.Sprintf("%d.boot.%d", r.owner.Epoch, r.boot),
				fmt.Sprintf("the run has used up its boots (%d%s); look at the machine's console and at: ingot why %s", r.boot, r.last(), r.owner.Machine),
				[]string{Retry, Abort}, nil); err != nil || moot {
				return err
			}
			if err := r.beside(ctx, do.MoreBoots, r.owner); err != nil {
				return err
			}
			r.allowance, r.silent = inventory.MaxBoots, 0
		}
		r.boot++
		r.allowance--
		if r.installer {
			r.prior = r.heard
		}
		home := r.installer && r.heard[inventory.EventPhoneHome]
		r.heard, r.early, r.poweredOn = r.early, map[string]bool{}, false
		if home { // it is heard of whichever boot, and comes once
			r.heard[inventory.EventPhoneHome] = true
		}
		if err := r.power(ctx); err != nil {
			return err
		}
		up, err := r.climb(ctx)
		if err != nil {
			return err
		}
		if r.conflict {
			return r.contested(ctx)
		}
		if up {
			return nil
		}
		if r.strayed = r.bootLost(); r.strayed {
			r.log.Info("the boot was lost; starting the machine again", "boot", r.boot)
			continue
		}
		r.silent++
		r.log.Info("no agent; starting the machine again", "boot", r.boot)
	}
}

// last says how the last boot was started.
func (r *run) last() string {
	if r.how == "" {
		return ""
	}
	return ", the last one: " + r.how
}

// contested stops a run whose claim two have presented. What the first of them
// reported proves nothing, and what it was told is known to it: whoever wants
// to go on begins anew, with errRestart; see rearm.
func (r *run) contested(ctx workflow.Context) error {
	// The secrets may have been opened in the very task that learnt of it.
	if err := r.beside(ctx, do.CloseSecrets, r.owner); err != nil {
		return err
	}
	text := "somebody else presented the claim of this boot: another machine answers to this MAC, or an attacker does"
	if r.manual {
		text += "; switch the machine off before you choose " + Restart + ", for its agent may still be writing"
	}
	if _, err := r.ask(ctx, fmt.Sprintf("%d.claim.%d", r.owner.Epoch, r.boot), text, []string{Abort, Restart}, nil); err != nil {
		return err
	}
	r.conflict = false
	return errRestart
}

// rearm gives the grant back and takes it again: the epoch grows, and with it
// claim, token, secret path and phone-home nonce are others.
func (r *run) rearm(ctx workflow.Context) error {
	if err := r.release(ctx); err != nil {
		return err
	}
	r.armed, r.boot, r.helloed, r.silent, r.allowance = false, 0, 0, 0, inventory.MaxBoots
	r.heard, r.prior, r.early, r.pxe = map[string]bool{}, nil, map[string]bool{}, false
	r.record.State = inventory.StatePreparing
	if err := r.arm(ctx, false); err != nil {
		return err
	}
	r.fenced = false // nobody held the machine for a moment, and that may have been told
	return nil
}

func (r *run) power(ctx workflow.Context) error {
	if r.manual {
		r.record.Next = "ingot workflow powered-on " + r.owner.Machine
		if err := r.phase(ctx, inventory.PhasePower, "power it on now, with network boot (boot %d)", r.boot); err != nil {
			return err
		}
	} else if err := r.phase(ctx, inventory.PhasePower, "%s (boot %d)", ladder[r.rung()].say, r.boot); err != nil {
		return err
	}
	r.armed = true
	for n := 1; ; n++ {
		q := activities.PowerRequest{Owner: r.owner, Boot: r.boot, For: untilDHCP + beyond, Installer: r.installer}
		if r.manual {
			q.For = reminder + beyond
		} else {
			rung := ladder[r.rung()]
			q.Warm, q.ResetBMC, q.OtherPath, q.Unclaimed = rung.warm, rung.resetBMC, rung.otherPath && !r.pxe, r.silent > 0 || r.strayed
		}
		var done activities.Powered
		err := workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, bmc), do.Power, q).Get(ctx, &done)
		switch {
		case err == nil:
			if r.how = ""; r.silent > 0 {
				r.how = done.How
			}
			return nil
		case is(err, activities.TypeClaimed):
			// The boot that was given up has an agent: it goes on.
			r.boot--
			r.allowance++
			r.helloed = max(r.helloed, r.boot)
			if r.prior != nil {
				r.heard, r.prior = r.prior, nil
			}
			if r.installer {
				r.heard[inventory.EventPayload] = true
			}
			return nil
		case !r.trouble(err):
			return err
		}
		late := func() bool { return r.installer && (r.installing() || installing(r.prior)) }
		_, moot, err := r.askUnless(ctx, late, fmt.Sprintf("%d.power.%d.%d", r.owner.Epoch, r.boot, n), cause(err), []string{Retry, Abort}, nil)
		if err != nil {
			return err
		}
		if moot {
			// The installer of the boot that was given up has come after all; which of
			// the two boots the rest of its words bear depends on how far the power came.
			for _, kind := range installers {
				r.heard[kind] = r.heard[kind] || r.prior[kind]
			}
			r.prior = r.heard
			return nil
		}
		r.armed = true
	}
}

// bootLost tells whether the system on the disk has spoken under
// the present boot: the machine has booted that instead (a server that was killed
// while it delivered the loader). It is no fault of the machine's, so the ladder is
// not climbed; the start takes one of the run's boots, as any other. Without a BMC
// that system may have run all the time, and the person at the button is awaited.
func (r *run) bootLost() bool {
	return !r.manual && r.heard[inventory.EventBootLost]
}

// rung is where on the ladder the present boot stands.
func (r *run) rung() int { return min(r.silent, len(ladder)-1) }

// rise is a step that a machine takes when it starts, and what tells of it.
type rise struct {
	phase, message string
	wait           time.Duration
	done           func() bool
}

// installing tells whether the installer of this boot has all it boots from,
// or has been heard itself.
func (r *run) installing() bool { return installing(r.heard) }

// installers are the kinds of event that tell of an installer.
var installers = []string{inventory.EventPayload, inventory.EventDocument, inventory.EventInstalled, inventory.EventInstallFailed, inventory.EventPhoneHome}

func installing(heard map[string]bool) bool {
	return slices.ContainsFunc(installers, func(kind string) bool { return heard[kind] })
}

// reported tells whether the installer, or what it installed, has spoken.
func (r *run) reported() bool { return reported(r.heard) }

func reported(heard map[string]bool) bool {
	return heard[inventory.EventInstalled] || heard[inventory.EventInstallFailed] || heard[inventory.EventPhoneHome]
}

// climb waits for the agent or the installer, rung by rung. False: silent.
func (r *run) climb(ctx workflow.Context) (bool, error) {
	last := rise{inventory.PhaseAgent, "waiting for the agent", untilAgent, func() bool { return r.helloed >= r.boot || r.conflict }}
	if r.installer {
		last = rise{inventory.PhaseInstall, "waiting for the installer to be loaded", untilPayload, r.installing}
	}
	up := last.done
	kernel := func() bool { return r.heard[inventory.EventKernel] || r.heard[inventory.EventInitrd] || up() }
	script := func() bool { return r.heard[inventory.EventScript] || kernel() }
	dhcp := func() bool { return r.heard[inventory.EventDHCP] || r.heard[inventory.EventLoader] || script() }
	if r.manual {
		r.rest(ctx)
		for {
			ok, err := workflow.AwaitWithTimeout(ctx, reminder, func() bool { return r.poweredOn || dhcp() || r.fenced })
			if err == nil && r.fenced {
				err = r.taken()
			}
			if err != nil {
				return false, err
			}
			if ok {
				break
			}
			if err := r.renew(ctx, reminder); err != nil {
				return false, err
			}
		}
		r.record.Next = ""
		r.wake(ctx)
	}
	for _, rung := range []rise{
		{inventory.PhaseDHCP, "waiting for the firmware to ask for an address", untilDHCP, dhcp},
		{inventory.PhaseLoader, "waiting for the loader to fetch the boot script", untilScript, script},
		last,
	} {
		if rung.done() {
			continue
		}
		r.record.State = inventory.StatePending
		boot := fmt.Sprint("boot ", r.boot)
		if r.how != "" {
			boot += ": " + r.how
		}
		if err := r.phase(ctx, rung.phase, "%s (%s)", rung.message, boot); err != nil {
			return false, err
		}
		// Every wait has its whole window: the power may have taken long.
		if !up() {
			if err := r.renew(ctx, rung.wait); err != nil {
				return false, err
			}
		}
		for wait, again := rung.wait, 0; ; again++ {
			began := workflow.Now(ctx)
			ok, err := r.await(ctx, wait, func() bool { return rung.done() || r.bootLost() })
			if err != nil {
				return false, err
			}
			if rung.done() {
				break
			}
			if ok {
				return false, nil
			}
			found, err := r.evidence(ctx, action.Key{}, activities.Wait{Began: began, For: wait, Served: true})
			if err != nil {
				return false, err
			}
			if rung.done() {
				break
			}
			if found.Left == 0 || again == resumes {
				return false, nil
			}
			// The clock was set, or this server was away: the machine has the
			// rest of its time, and the window that went with it.
			wait = found.Left
			if err := r.renew(ctx, wait); err != nil {
				return false, err
			}
		}
	}
	return !r.conflict, nil
}

// end closes what the run has opened and writes its last word. It runs on
// success, failure and cancellation alike, in a context of its own.
func (r *run) end(ctx workflow.Context, err error) error {
	ctx, cancel := workflow.NewDisconnectedContext(ctx)
	defer cancel()
	state, phase, message := inventory.StateSuccess, inventory.PhaseDone, r.record.Message
	switch {
	case err == nil:
	case temporal.IsCanceledError(err):
		state, phase, message = inventory.StateCancelled, inventory.PhaseCancelled, "cancelled"
	case errors.Is(err, errTimeout) || is(err, typeTimeout):
		state, phase, message = inventory.StateTimeout, inventory.PhaseFailed, cause(err)
	default:
		state, phase, message = inventory.StateFailed, inventory.PhaseFailed, cause(err)
	}
	if err != nil && !is(err, typeQuarantined) {
		r.record.Next = r.next()
	}
	// The grant first: whatever is written afterwards, nothing is open any more.
	undo := r.release(ctx)
	r.record.State, r.record.Question, r.record.Ended = state, nil, workflow.Now(ctx)
	for i := range r.record.Actions {
		if a := &r.record.Actions[i]; a.State == action.Running {
			a.State = action.Stopped
		}
	}
	if e := r.phase(ctx, phase, "%s", message); err == nil {
		err = e
	}
	if err == nil {
		err = undo
	}
	if e := workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) }); err == nil {
		err = e
	}
	if err == nil || temporal.IsCanceledError(err) {
		return err
	}
	return temporal.NewNonRetryableApplicationError(message, state, nil)
}

// next is the command that helps after a run that ended badly.
func (r *run) next() string {
	planned := r.plannedAs == "" || r.plannedAs == r.owner.Run
	for _, a := range r.record.Actions {
		if planned && a.Attempt > 0 {
			return fmt.Sprintf("ingot workflow logs %s; ingot workflow retry %s --from failed-step", r.owner.Machine, r.owner.Machine)
		}
	}
	return fmt.Sprintf("ingot workflow retry %s --from start", r.owner.Machine)
}

const typeTimeout = "Timeout"

// lost tells whether err means that the run may do nothing to its machine any
// more: somebody took it (a forced job, a reset from outside), or the server
// was restored from a backup in which the run was open.
func lost(err error) bool { return is(err, activities.TypeFenced) || is(err, activities.TypeHeld) }

// lament tells a person that the run has lost its machine for good.
func (r *run) lament(ctx workflow.Context, err error) error {
	what := "fenced"
	if is(err, activities.TypeHeld) {
		what = "held"
	}
	_, err = r.ask(ctx, fmt.Sprintf("%d.%s.%s", r.owner.Epoch, what, r.record.Phase), cause(err), []string{Abort}, nil)
	return err
}

// taken is why a run that is fenced is so.
func (r *run) taken() error {
	if r.held {
		return errHeld
	}
	return errTaken
}

// is tells whether err is an application error of the type.
func is(err error, typ string) bool {
	var a *temporal.ApplicationError
	return errors.As(err, &a) && a.Type() == typ
}

// trouble tells errors of a power operation that a person can do something
// about from those that end the run, which are the loss of the machine and a
// cancellation: a key that is missing, an address that is not allowed, a database
// that could not be written for minutes are for a person.
func (r *run) trouble(err error) bool { return !lost(err) && !temporal.IsCanceledError(err) }

// cause returns the text that a person should read: the innermost one.
func cause(err error) string {
	var a *temporal.ApplicationError
	if errors.As(err, &a) {
		return a.Message()
	}
	return err.Error()
}
