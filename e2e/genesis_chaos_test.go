package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"github.com/ingotmetal/ingot/genesis"
	handover "github.com/ingotmetal/ingot/internal/siterole"
	"github.com/ingotmetal/ingot/internal/systems/vyos"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// A wrecked is a Genesis run during which the server is killed or steps of the table fail.
type wrecked struct {
	*genesisRun
	target *Site // the server to which the lab migrates; nil: no migration
	run    string
	steps  []inventory.OperationStep // the table, as the server reports it
	kills  []kill
	failed []string    // steps that failed on purpose
	served [][2]string // Secret of the standby, before and after a kill
}

// A kill of the server during an activity of Genesis.
type kill struct {
	step, run, activity, id string
	attempt                 int32 // of the activity, when Temporal was frozen
}

func newWrecked(ctx context.Context, t *testing.T, migrates bool, budgets map[string]time.Duration) *wrecked {
	t.Helper()
	w := &wrecked{genesisRun: newGenesisRun(ctx, t, quickProbes)}
	if migrates {
		w.migrates()
		var err error
		w.target, err = NewSite(ctx,
			Options{Root: "..", Programs: programs(), Lab: w.Lab, Name: "target", NoStart: true, Top: "site: {name: platform}\n" + quickProbes})
		require.NoError(t, err)
		w.target.keep(t)
	}
	if len(budgets) > 0 {
		f, err := os.OpenFile(w.file, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString("budgets:\n")
		require.NoError(t, err)
		for step, d := range budgets {
			_, err = fmt.Fprintf(f, "  %s: %s\n", step, d)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	}
	return w
}

// quickProbes probes installed systems more frequently than on real machines.
const quickProbes = "probe_every: 1s\n"

// begin starts the Genesis and reads the table.
func (w *wrecked) begin(ctx context.Context) {
	w.t.Helper()
	w.must(ctx, w.t, "genesis", "start", w.file, "--yes")
	w.until(ctx, genesis.StepPreflight, func(o inventory.Operation, _ inventory.OperationStep) bool {
		w.run, w.steps = o.Run, o.Steps
		return true
	})
}

// kindOf returns the kind of a step from its name.
func kindOf(step string) string {
	if strings.HasPrefix(step, genesis.StepJoin+"-") {
		return genesis.StepJoin
	}
	return step
}

// record returns the operation from the inventory, without Temporal.
func (w *wrecked) record(ctx context.Context) (inventory.Operation, error) {
	var o inventory.Operation
	return o, w.REST(ctx, http.MethodGet, "/v1/operations/"+w.run, nil, &o)
}

func rowOf(o inventory.Operation, step string) inventory.OperationStep {
	for _, s := range o.Steps {
		if s.Name == step {
			return s
		}
	}
	return inventory.OperationStep{}
}

// logged reports whether the server has written a line with all these words since the log had this
// size.
func (w *wrecked) logged(from int64, words ...string) bool {
	b, err := os.ReadFile(w.log.Name())
	if err != nil || int64(len(b)) < from {
		return false
	}
	for line := range strings.Lines(string(b[from:])) {
		has := true
		for _, x := range words {
			has = has && strings.Contains(line, x)
		}
		if has {
			return true
		}
	}
	return false
}

// mend makes a running guest, and all later guests of its machine, stop failing.
func (w *wrecked) mend(ctx context.Context, machine string) {
	w.t.Helper()
	w.machines[machine].SetFailures()
	_, err := w.guest(ctx, http.MethodPost, address(machine), "/fail?what=")
	require.NoError(w.t, err)
}

// address returns the machine's address in the lab file.
func address(machine string) string {
	return map[string]string{
		"vp6630": lab.RouterHomeAddress, "um760": platformAddress, "ms-02-a": "10.10.20.23", "ms-02-b": "10.10.20.24", "ms-02-c": "10.10.20.25",
	}[machine]
}

// press starts a machine from the network, like an operator.
func (w *wrecked) press(ctx context.Context, machine string) {
	w.t.Helper()
	m := w.machines[machine]
	m.SetNextBoot(lab.NextNetwork)
	require.NoError(w.t, m.PowerCycle(ctx))
}

// A sideEffect is the external effect of a step.
type sideEffect struct {
	// activity is the activity of Genesis that causes the effect or waits for it.
	activity string
	// done reports that the effect has happened, so that only its record is missing: the record
	// needs Temporal, which is frozen then.
	done func() bool
	// let allows an effect that is held back until Temporal is frozen.
	let func()
}

// agrees reports whether a probe has succeeded from now on.
func (w *wrecked) agrees(activity string) func() bool {
	st, err := os.Stat(w.log.Name())
	require.NoError(w.t, err)
	return func() bool {
		return w.logged(st.Size(), "finished waiting: the condition is met", "activity="+activity)
	}
}

// sideEffectOf returns the effect of a step: every kind has one. The migration's effect is its
// beginning; see migrated for its end.
func (w *wrecked) sideEffectOf(ctx context.Context, s inventory.OperationStep) sideEffect {
	st, err := os.Stat(w.log.Name())
	require.NoError(w.t, err)
	switch kindOf(s.Name) {
	case genesis.StepPreflight:
		// It tries addresses for a while, and stores the machines at the end.
		return sideEffect{activity: "Preflight", let: func() {}, done: func() bool {
			var list struct{ Items []inventory.Machine }
			return w.REST(ctx, http.MethodGet, "/v1/machines", nil, &list) == nil && len(list.Items) == len(w.machines)
		}}
	case genesis.StepRouter, genesis.StepCreate, genesis.StepJoin:
		return sideEffect{activity: "AwaitRun", done: func() bool {
			var list struct{ Items []inventory.Event }
			err := w.REST(ctx, http.MethodGet, "/v1/machines/"+s.Machine+"/events", nil, &list)
			return err == nil && slices.ContainsFunc(list.Items, func(e inventory.Event) bool {
				return e.Kind == inventory.EventPhoneHome || e.Kind == inventory.EventInstalled
			})
		}}
	case genesis.StepPlatform: // only its API shows that it is installed
		return sideEffect{activity: "AwaitRun", done: func() bool {
			text, err := w.guest(ctx, http.MethodGet, platformAddress, "/")
			return err == nil && strings.Contains(text, `"stage":"running"`)
		}}
	case genesis.StepRelay: // the only DISCOVER: the button is not pressed again
		return sideEffect{
			activity: "RelayProven",
			let:      func() { w.press(ctx, "um760") },
			done:     func() bool { return w.logged(st.Size(), "a relay is used", lab.DirectGateway) },
		}
	case genesis.StepKubernetes:
		return sideEffect{activity: "TalosBootstrap", let: func() { w.mend(ctx, "um760") }, done: func() bool { return w.bootstraps() == 1 }}
	case genesis.StepMigrate:
		return sideEffect{activity: "DeployTarget", done: func() bool { return w.secret(ctx) != "" }}
	case genesis.StepVIP:
		return sideEffect{activity: "ClusterReady", let: func() { w.mend(ctx, "ms-02-a") }, done: w.agrees("ClusterReady")}
	case genesis.StepProven:
		return sideEffect{activity: "ClusterHas", let: func() { w.mend(ctx, "ms-02-c") }, done: w.agrees("ClusterHas")}
	}
	w.t.Fatalf("step %s has no effect that this test could see", s.Name)
	return sideEffect{}
}

// bootstraps returns how many times etcd was bootstrapped.
func (w *wrecked) bootstraps() (n int) {
	text, err := w.machines["um760"].Serial()
	require.NoError(w.t, err)
	for line := range strings.Lines(text) {
		if strings.HasSuffix(strings.TrimSpace(line), "LAB-TALOS Bootstrap") {
			n++
		}
	}
	return n
}

// applied returns the objects of the standby on the platform.
func (w *wrecked) applied(ctx context.Context) (out []applied) {
	var now struct{ Objects []applied }
	text, err := w.guest(ctx, http.MethodGet, platformAddress, "/applied")
	if err != nil || json.Unmarshal([]byte(text), &now) != nil {
		return nil
	}
	for _, o := range now.Objects {
		if o.Metadata.Namespace == "ingot" {
			out = append(out, o)
		}
	}
	return out
}

// secret returns the standby's identity, or "" while it is incomplete.
func (w *wrecked) secret(ctx context.Context) (text string) {
	deployed := false
	for _, o := range w.applied(ctx) {
		deployed = deployed || o.Kind == "Deployment"
		if o.Kind == "Secret" {
			text = fmt.Sprint(o.Data)
		}
	}
	if !deployed {
		return ""
	}
	return text
}

// underway returns the activity for which Genesis waits in the step.
func (w *wrecked) underway(ctx context.Context, ask client.Client, step, activity string) (kill, bool) {
	o, err := w.record(ctx)
	if err != nil {
		return kill{}, false
	}
	require.False(w.t, inventory.Final(o.State), "%s: %s", o.Step, o.Message)
	require.NotEqual(w.t, inventory.StepDone, rowOf(o, step).State, "step %s had ended before the server could be killed", step)
	// While it waits for an operator, the running activity ends after the operator's action.
	if rowOf(o, step).State != inventory.StepRunning {
		return kill{}, false
	}
	d, err := ask.DescribeWorkflowExecution(ctx, workflows.GenesisID("home"), w.run)
	if err != nil {
		return kill{}, false
	}
	for _, a := range d.GetPendingActivities() {
		if a.GetActivityType().GetName() == activity && a.GetState() == enumspb.PENDING_ACTIVITY_STATE_STARTED {
			return kill{step: step, run: w.run, activity: activity, id: a.GetActivityId(), attempt: a.GetAttempt()}, true
		}
	}
	return kill{}, false
}

// kill kills the server in a step, after the step's effect and before its record: Temporal is
// frozen from before the effect until the server is dead. recorded checks that in the history.
func (w *wrecked) kill(ctx context.Context, s inventory.OperationStep, d sideEffect) {
	w.t.Helper()
	ask, err := client.NewLazyClient(client.Options{HostPort: w.Temporal, Logger: quiet{}})
	require.NoError(w.t, err)
	defer ask.Close()
	wait := func(what string, cond func() bool) {
		w.t.Helper()
		for !cond() {
			select {
			case <-ctx.Done():
				w.t.Fatalf("timed out waiting for: %s of step %s", what, s.Name)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	var k kill
	wait("activity "+d.activity, func() (ok bool) {
		k, ok = w.underway(ctx, ask, s.Name, d.activity)
		return ok && (d.let != nil || d.done())
	})
	require.Len(w.t, w.temporals(), 1)
	temporal := w.temporals()[0]
	undo, err := w.Freeze(ctx, temporal)
	require.NoError(w.t, err)
	if d.let != nil {
		d.let()
		wait("effect", d.done)
	}
	o, err := w.record(ctx)
	require.NoError(w.t, err)
	require.NotEqual(w.t, inventory.StepDone, rowOf(o, s.Name).State, "step %s: the effect was recorded", s.Name)
	w.Kill()
	lab.Kill(temporal) // if it continued, it would record its received requests before it notices that its parent has died
	require.NoError(w.t, undo())
	w.t.Logf("%s: killed in %s, attempt %d", s.Name, k.activity, k.attempt)
	require.NoError(w.t, w.Start(ctx))
	w.kills = append(w.kills, k)
}

// killMigration kills the server twice in the step that moves it: here after the standby was
// deployed, and at the target when the migration is complete.
func (w *wrecked) killMigration(ctx context.Context, s inventory.OperationStep) {
	w.t.Helper()
	w.relays(ctx, noServer, true)
	d, before := w.sideEffectOf(ctx, s), ""
	d.done = func() bool {
		before = w.secret(ctx)
		return before != ""
	}
	w.kill(ctx, s, d)
	w.moves(ctx)
	w.served = append(w.served, [2]string{before, w.secret(ctx)})
	eventually(ctx, w.t, "the end of the migration", func() bool {
		out, err := w.TemporalCLI(ctx, "workflow", "describe", "--workflow-id", contract.MigrateID("platform"), "-o", "json")
		return err == nil && strings.Contains(out, "WORKFLOW_EXECUTION_STATUS_COMPLETED")
	})
	w.kill(ctx, s, w.migrated(ctx))
}

// migrated is the effect of the whole migration: the site is at the target and its workflow has
// ended, but the relay still lists one server too many.
func (w *wrecked) migrated(ctx context.Context) sideEffect {
	return sideEffect{activity: "Migrated", let: func() { w.relays(ctx, noServer, false) }, done: w.agrees("Migrated")}
}

// noServer is an unused address.
const noServer = "10.10.20.99"

// relays adds a server to the router's relay, or removes it.
func (w *wrecked) relays(ctx context.Context, server string, listed bool) {
	w.t.Helper()
	at, err := w.Forward(ctx, lab.Host, "127.0.0.1:0", lab.Seed, lab.RouterHomeAddress+":443")
	require.NoError(w.t, err)
	router := inventory.Endpoint{URL: "https://" + at, Insecure: true}
	require.NoError(w.t, vyos.Client{}.SetRelayServer(ctx, router, inventory.NewSecret(genesisKey), server, listed))
}

// moves runs the standby, waits until the site is there, and continues there.
func (w *wrecked) moves(ctx context.Context) {
	w.t.Helper()
	w.runs(ctx, w.target)
	eventually(ctx, w.t, "the site at the target", func() bool {
		return w.target.is().Role == handover.Active && w.is().Role == handover.Retired
	})
	require.NoError(w.t, w.target.WaitReady(ctx))
	w.genesisRun = &genesisRun{Site: w.target, t: w.t, machines: w.machines, file: w.file}
}

// recorded checks in the histories that each kill was between the effect and its record: the
// activity was started again.
func (w *wrecked) recorded(ctx context.Context) {
	w.t.Helper()
	ask, err := client.NewLazyClient(client.Options{HostPort: w.Temporal, Logger: quiet{}})
	require.NoError(w.t, err)
	defer ask.Close()
	for _, k := range w.kills {
		scheduled, last := map[int64]string{}, int32(0)
		events := ask.GetWorkflowHistory(ctx, workflows.GenesisID("home"), k.run, false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for events.HasNext() {
			e, err := events.Next()
			require.NoError(w.t, err)
			if a := e.GetActivityTaskScheduledEventAttributes(); a != nil {
				scheduled[e.GetEventId()] = a.GetActivityId()
			}
			if a := e.GetActivityTaskStartedEventAttributes(); a != nil && scheduled[a.GetScheduledEventId()] == k.id {
				last = a.GetAttempt()
			}
		}
		require.Greater(w.t, last, k.attempt, "step %s: %s was recorded before the server was killed", k.step, k.activity)
		w.t.Logf("%-14s %s: attempt %d was lost with the server, attempt %d is the recorded one", k.step, k.activity, k.attempt, last)
	}
}

// once checks that no harmful action was repeated.
func (w *wrecked) once(ctx context.Context, again ...string) {
	w.t.Helper()
	var list struct{ Items []inventory.Workflow }
	require.NoError(w.t, w.REST(ctx, http.MethodGet, "/v1/workflows", nil, &list))
	for name, m := range w.machines {
		n := 0
		for _, x := range list.Items {
			if x.Machine == name && x.Type == inventory.TypeProvision {
				n++
			}
		}
		want := 1
		if slices.Contains(again, name) {
			want = 2
		}
		require.Equal(w.t, want, n, "installations of %s", name)
		if strings.HasPrefix(name, "ms-") {
			require.Equal(w.t, want, m.PowerOns(), "power of %s", name)
		}
	}
	require.Equal(w.t, 1, w.bootstraps(), "etcd is bootstrapped once in the life of a cluster")
	for _, s := range w.served {
		require.Equal(w.t, s[0], s[1], "the standby that was deployed keeps its identity")
	}
}

// A failure is a fault in a step, until it is removed.
type failure struct {
	says   string // in the question
	undone func() // checks that the effect of the step was undone
	mend   func()
}

// undo returns the table's text for the undo of the step that installs a machine.
func (w *wrecked) undo(machine string) string {
	for _, s := range w.steps {
		if s.Machine == machine && !strings.HasPrefix(s.Undo, "none: ") {
			return s.Undo
		}
	}
	return ""
}

// breaks prepares the failures of each step before the Genesis starts.
func (w *wrecked) breaks(ctx context.Context) map[string]failure {
	t := w.t
	off := func(machine string) func() {
		return func() {
			w.closed(ctx, t, machine)
			require.Contains(t, w.undo(machine), "disarmed and switched off")
			require.Equal(t, lab.Off, w.machines[machine].PowerState(), "the power of %s", machine)
		}
	}
	disarmed := func(machine string) func() { // a machine without a BMC that could switch it off
		return func() {
			w.closed(ctx, t, machine)
			require.Contains(t, w.undo(machine), "disarmed; an operator switches it off")
		}
	}
	ip := func(ns lab.Namespace, args ...string) {
		out, err := w.Command(ctx, ns, "ip", args...).Output()
		require.NoError(t, err, "%s", out)
	}
	guests := map[string][]string{ // failures of each machine's guests, one after another
		"vp6630": {
			"phone-home",
		},
		"um760":   {"install", "bootstrap"},
		"ms-02-a": {"install", "ready"},
		"ms-02-b": {"webhook"},
		"ms-02-c": {"join", "node"},
	}
	next := func(machine string) func() {
		return func() {
			guests[machine] = guests[machine][1:]
			w.machines[machine].SetFailures(guests[machine][:min(1, len(guests[machine]))]...)
		}
	}
	all := map[string]failure{
		genesis.StepPreflight: {says: "192.168.1.2, the address for machine vp6630", mend: func() {
			ip(lab.HomeRouter, "addr", "del", lab.RouterHomeAddress+"/24", "dev", "eth0")
			ip(lab.Seed, "neigh", "flush", "all")
		}},
		genesis.StepRouter: {says: "the step's budget of", undone: disarmed("vp6630"), mend: next("vp6630")},
		genesis.StepRelay: {says: "the BMC of \"ms-02-c\" does not report the power state", mend: func() {
			w.machines["ms-02-c"].AMT().Pretend(lab.AMTFaults{})
		}},
		genesis.StepPlatform:        {says: "the step's budget of", undone: disarmed("um760"), mend: next("um760")},
		genesis.StepKubernetes:      {says: "told to fail", mend: func() { w.mend(ctx, "um760") }},
		genesis.StepCreate:          {says: "the installer reported that it failed", undone: off("ms-02-a"), mend: next("ms-02-a")},
		genesis.StepVIP:             {says: "10.10.20.30", mend: func() { w.mend(ctx, "ms-02-a") }},
		genesis.JoinStep("ms-02-b"): {says: "the step's budget of", undone: off("ms-02-b"), mend: next("ms-02-b")},
		genesis.JoinStep("ms-02-c"): {says: "the cluster lists 2 of 3 nodes", undone: off("ms-02-c"), mend: next("ms-02-c")},
		genesis.StepProven:          {says: "2 of 3 nodes are ready; not ready: ms-02-c", mend: func() { w.mend(ctx, "ms-02-c") }},
	}
	if w.target != nil {
		all[genesis.StepMigrate] = w.occupied(ctx)
	}
	return all
}

// occupied is a target with a port that another process uses.
func (w *wrecked) occupied(ctx context.Context) failure {
	var other net.Listener
	require.NoError(w.t, w.InNamespace(lab.Target, func() (err error) {
		other, err = net.Listen("tcp4", lab.TargetAddress+":7080")
		return err
	}))
	target := w.target
	return failure{
		says: "is in use by another program",
		undone: func() {
			require.Empty(w.t, w.applied(ctx), "what the platform runs")
			require.NotContains(w.t, w.must(ctx, w.t, "peer", "list"), "platform")
			target.Stop() // as the platform does with a deleted object
		},
		mend: func() { require.NoError(w.t, other.Close()) },
	}
}

// prepare enables the failures of these steps.
func (w *wrecked) prepare(ctx context.Context, all map[string]failure) {
	w.t.Helper()
	for step := range all {
		switch step {
		case genesis.StepPreflight:
			out, err := w.Command(ctx, lab.HomeRouter, "ip", "addr", "add", lab.RouterHomeAddress+"/24", "dev", "eth0").Output()
			require.NoError(w.t, err, "%s", out)
		case genesis.StepRelay:
			w.machines["ms-02-c"].AMT().Pretend(lab.AMTFaults{OtherPassword: true})
		case genesis.StepRouter:
			w.machines["vp6630"].SetFailures("phone-home")
		case genesis.StepPlatform:
			w.machines["um760"].SetFailures("install")
		case genesis.StepCreate:
			w.machines["ms-02-a"].SetFailures("install")
		case genesis.JoinStep("ms-02-b"):
			w.machines["ms-02-b"].SetFailures("webhook")
		case genesis.JoinStep("ms-02-c"):
			w.machines["ms-02-c"].SetFailures("join")
		}
	}
}

// asks waits until Genesis asks about the step, and returns its record. If a busy host has exceeded
// a budget, it is granted once more.
func (w *wrecked) asks(ctx context.Context, step string, says string) inventory.Operation {
	w.t.Helper()
	for unasked := 0; ; {
		o, err := w.record(ctx)
		if q := o.Question; err == nil && q != nil {
			if strings.HasPrefix(q.ID, step+".") && strings.Contains(q.Text, says) {
				return o
			}
			unasked++
			require.LessOrEqual(w.t, unasked, 3, q.Text)
			require.Contains(w.t, q.Text, "the step's budget of", "in step %s", step)
			w.t.Logf("unasked for: %s", q.Text)
			w.decide(ctx, o, contract.Retry)
		}
		require.False(w.t, inventory.Final(o.State), "%s: %s", o.Step, o.Message)
		select {
		case <-ctx.Done():
			w.t.Fatalf("timed out waiting for the question of step %s: %s: %s", step, o.Step, o.Message)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// decide answers the question, and returns when the answer is accepted.
func (w *wrecked) decide(ctx context.Context, o inventory.Operation, choice string) {
	w.t.Helper()
	w.must(ctx, w.t, "operation", "decide", o.ID, "--question", o.Question.ID, "--choice", choice)
	eventually(ctx, w.t, "the answer "+choice, func() bool {
		now, err := w.record(ctx)
		return err == nil && (now.Question == nil || now.Question.ID != o.Question.ID)
	})
}

// fails makes a step fail, has it undone if possible, aborts the Genesis, removes the fault and
// resumes.
func (w *wrecked) fails(ctx context.Context, s inventory.OperationStep, f failure) {
	w.t.Helper()
	if s.Name == genesis.StepMigrate {
		w.runs(ctx, w.target)
	}
	o := w.asks(ctx, s.Name, f.says)
	w.t.Logf("%s: %s", s.Name, o.Question.Text)
	reason, none := strings.CutPrefix(s.Undo, "none: ")
	if none {
		require.Greater(w.t, len(reason), 10, "the reason why step %s has no undo", s.Name)
		require.Nil(w.t, f.undone)
		require.NotContains(w.t, o.Question.Choices, contract.Undo)
	} else {
		require.NotNil(w.t, f.undone, "no test looks at the undo of step %s", s.Name)
		require.Contains(w.t, o.Question.Choices, contract.Undo)
		w.decide(ctx, o, contract.Undo)
		o = w.asks(ctx, s.Name, "undone: ")
		f.undone()
		w.t.Logf("%s: seen to be undone: %s", s.Name, s.Undo)
	}
	w.decide(ctx, o, contract.Abort)
	eventually(ctx, w.t, "the end of the Genesis", func() bool {
		o, err := w.record(ctx)
		return err == nil && inventory.Final(o.State)
	})
	f.mend()
	w.failed = append(w.failed, s.Name)
	w.must(ctx, w.t, "genesis", "resume", "home")
	eventually(ctx, w.t, "the Genesis that is resumed", func() bool {
		o, err := w.now(ctx)
		if err != nil || o.Run == w.run {
			return false
		}
		w.run = o.Run
		return true
	})
}

// TestGenesisKilled kills the server in every step of the table, between the step's effect and its
// record, and in the migration's step at either end. The steps come from the table itself. Actions
// that must not be repeated happen once, and no operator is needed.
func TestGenesisKilled(t *testing.T) {
	runInTurn(t, 230, 10)
	ctx := needLab(t)
	w := newWrecked(ctx, t, true, nil)
	w.absent.Store(true)
	w.machines["um760"].SetFailures("bootstrap")
	w.machines["ms-02-a"].SetFailures("ready")
	w.machines["ms-02-c"].SetFailures("node")
	w.begin(ctx)
	for _, s := range w.steps {
		if s.Name == genesis.StepMigrate {
			w.killMigration(ctx, s)
			continue
		}
		w.kill(ctx, s, w.sideEffectOf(ctx, s))
	}
	w.whole(ctx, w.ends(ctx))
	w.recorded(ctx)
	w.once(ctx)
	require.Len(t, w.kills, len(w.steps)+1)
}

// shortBudgets are long enough for simulated machines.
func shortBudgets() map[string]time.Duration {
	return map[string]time.Duration{
		genesis.StepRouter:          25 * time.Second,
		genesis.StepPlatform:        25 * time.Second,
		genesis.StepKubernetes:      15 * time.Second,
		genesis.StepVIP:             15 * time.Second,
		genesis.JoinStep("ms-02-b"): 25 * time.Second,
		genesis.JoinStep("ms-02-c"): 25 * time.Second,
		genesis.StepProven:          15 * time.Second,
	}
}

// TestGenesisFails makes every step of the table fail: the step is undone, which is checked
// externally, or the table has the reason why it cannot be undone. Then the Genesis is aborted and
// resumed, eleven times.
func TestGenesisFails(t *testing.T) {
	runInTurn(t, 300, 10)
	ctx := needLab(t)
	w := newWrecked(ctx, t, true, shortBudgets())
	all := w.breaks(ctx)
	w.prepare(ctx, all)
	w.begin(ctx)
	for _, s := range w.steps {
		f, ok := all[s.Name]
		require.True(t, ok, "nothing fails in step %s", s.Name)
		w.fails(ctx, s, f)
		if s.Name == genesis.StepMigrate {
			w.moves(ctx)
		}
	}
	w.whole(ctx, w.ends(ctx))
	require.Len(t, w.failed, len(w.steps))
	w.once(ctx, "vp6630", "um760", "ms-02-a", "ms-02-b", "ms-02-c")
}

// TestGenesisChaos is the short form of both: the server is killed in a step that only listens, in
// one that happens once, and in one that installs. Two steps fail, one without an undo and one with
// it.
func TestGenesisChaos(t *testing.T) {
	runInTurn(t, 95, 10)
	ctx := needLab(t)
	w := newWrecked(ctx, t, false, nil)
	w.absent.Store(true)
	all := w.breaks(ctx)
	for step := range all {
		if step != genesis.StepPreflight && step != genesis.StepCreate {
			delete(all, step)
		}
	}
	w.prepare(ctx, all)
	w.machines["um760"].SetFailures("bootstrap")
	w.begin(ctx)
	for _, s := range w.steps {
		if f, ok := all[s.Name]; ok {
			w.fails(ctx, s, f)
			if s.Name == genesis.StepCreate {
				w.machines["ms-02-a"].SetFailures()
			}
		} else if slices.Contains([]string{genesis.StepRelay, genesis.StepKubernetes, genesis.JoinStep("ms-02-b")}, s.Name) {
			w.kill(ctx, s, w.sideEffectOf(ctx, s))
		}
	}
	w.whole(ctx, w.ends(ctx))
	w.recorded(ctx)
	w.once(ctx, "ms-02-a")
	require.Len(t, w.kills, 3)
	require.Len(t, w.failed, 2)
}
