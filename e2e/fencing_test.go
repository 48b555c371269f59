package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestBetweenRuns covers effects of an earlier run and repeated requests: they must not harm the
// next run. Every part runs on a separate machine, in parallel with the others.
func TestBetweenRuns(t *testing.T) {
	runInTurn(t, 32, 7)
	ctx := needLab(t)
	s := site(ctx, t)
	s.template(ctx, t, "two-empty", `version: "0.1"
name: two-empty
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: one, image: noop, timeout: 600}
  - {name: two, image: noop, timeout: 600}
`)
	s.template(ctx, t, "writes", `version: "0.1"
name: writes
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 600, environment: {IMG_URL: "{{.url}}", IMG_SHA256: "{{.sum}}", DEST_DISK: /dev/vda}}
  - {name: "off", image: poweroff, timeout: 60}
`)
	for _, part := range []struct {
		name string
		run  func(context.Context, *testing.T, *Site)
	}{
		{"a second claimant", secondClaimant},
		{"a report sent three times counts once", reportThrice},
		{"what run 1 left arrives during run 2", leftovers},
		{"a claim's answer is lost", lostAnswer},
		{"a decision sent twice, and one for an old question", oldDecisions},
		{"S11 starters at once", startersAtOnce},
		{"S12 terminated with the window open", terminatedWhileOpen},
		{"S12 cancelled with the window open", cancelledWhileOpen},
		{"S12 cancelled under an agent's action", cancelledInAction},
		{"terminated in mid-write, and started again at once", terminatedInMidWrite},
		{"reset in mid-write, aborted, and started again", resetInMidWrite},
		{"terminated in mid-write with a BMC, and started again at once", terminatedUnderBMC},
		{"power-on of a terminated run arrives during the next", latePowerOn},
		{"power-off of a terminated run arrives during the next", latePowerOff},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
			defer cancel()
			part.run(ctx, t, s)
		})
	}
}

// bare adds a machine without a BMC to the inventory. n determines its MAC and its address.
func (s *Site) bare(ctx context.Context, t *testing.T, name string, n int) *Simulated {
	t.Helper()
	m := s.Simulate(name, fmt.Sprintf("52:54:02:00:00:%02x", n))
	doc := map[string]any{"name": name, "interfaces": []any{map[string]any{
		"mac": m.MAC, "address": fmt.Sprintf("10.10.20.%d", 230+n), "netmask": "255.255.255.0",
	}}}
	require.NoError(t, s.REST(ctx, http.MethodPost, "/v1/machines", map[string]any{"machines": []any{doc}}, nil))
	return m
}

// begun starts a run and returns its id and the contents of its boot script.
func (s *Site) begun(ctx context.Context, t *testing.T, m *Simulated, in contract.ProvisionInput) (run string, args map[string]string) {
	t.Helper()
	in.Machine = m.Name
	run, err := s.Provision(ctx, in)
	require.NoError(t, err)
	args, err = m.armed(ctx)
	require.NoError(t, err)
	return run, args
}

// assigned waits for the machine's next assignment.
func (m *Simulated) assigned(ctx context.Context, t *testing.T) *action.Assignment {
	t.Helper()
	for {
		a, err := m.Next(ctx)
		require.NoError(t, err)
		if a != nil {
			return a
		}
	}
}

// obey acknowledges the remaining actions of the run without carrying them out.
func (m *Simulated) obey(ctx context.Context, t *testing.T) {
	t.Helper()
	for {
		a := m.assigned(ctx, t)
		require.NoError(t, m.Done(ctx, a))
		if a.Leaving {
			return
		}
	}
}

// of calls see with the record of a run at each change until see returns true.
func (s *Site) of(ctx context.Context, t *testing.T, run string, see func(w inventory.Workflow) bool) inventory.Workflow {
	t.Helper()
	for {
		var w inventory.Workflow
		err := s.REST(ctx, http.MethodGet, "/v1/workflows/"+run, nil, &w)
		if err == nil && see(w) {
			return w
		}
		if err == nil && inventory.Final(w.State) {
			require.Fail(t, "the run has ended", "%s: %s %s", run, w.State, w.Message)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			require.NoError(t, errors.Join(ctx.Err(), err), "last seen of run %s: %s %s %s", run, w.State, w.Phase, w.Message)
		}
	}
}

func final(w inventory.Workflow) bool { return inventory.Final(w.State) }

// seen waits until an event of the run is stored, and returns all events of this kind.
func (s *Site) seen(ctx context.Context, t *testing.T, run, kind string) []inventory.Event {
	t.Helper()
	for {
		if found := s.eventsOfKind(ctx, t, run, kind); len(found) > 0 {
			return found
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			require.NoError(t, ctx.Err(), "waiting for an event %q of run %s", kind, run)
		}
	}
}

func (s *Site) eventsOfKind(ctx context.Context, t *testing.T, run, kind string) (found []inventory.Event) {
	t.Helper()
	var all struct{ Items []inventory.Event }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows/"+run+"/events?limit=1000", nil, &all))
	for _, e := range all.Items {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// historyEvent is the part of "temporal workflow show" that the tests read.
type historyEvent struct {
	ID       string `json:"eventId"`
	Type     string `json:"eventType"`
	Signaled struct {
		Name string `json:"signalName"`
	} `json:"workflowExecutionSignaledEventAttributes"`
}

// shown returns a run's history as the unmodified temporal command shows it.
func (s *Site) shown(ctx context.Context, t *testing.T, machine, run string) (events []historyEvent) {
	t.Helper()
	out, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", workflows.MachineID(machine), "--run-id", run, "-o", "json")
	require.NoError(t, err)
	var history struct {
		Events []historyEvent `json:"events"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &history))
	require.NotEmpty(t, history.Events)
	return history.Events
}

// signals counts the signals with that name.
func signals(events []historyEvent, name string) (n int) {
	for _, e := range events {
		if e.Signaled.Name == name {
			n++
		}
	}
	return n
}

// signal sends a signal like any client with access to Temporal: with the workflow's id alone, it
// goes to the current run.
func (s *Site) signal(ctx context.Context, t *testing.T, machine, name string, payload any) {
	t.Helper()
	b, err := json.Marshal(payload)
	require.NoError(t, err)
	_, err = s.TemporalCLI(ctx, "workflow", "signal", "--workflow-id", workflows.MachineID(machine), "--name", name, "--input", string(b))
	require.NoError(t, err)
}

// decides answers a question with the temporal command.
func (s *Site) decides(ctx context.Context, machine string, d contract.Decision) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	_, err = s.TemporalCLI(ctx, "workflow", "update", "execute", "--workflow-id", workflows.MachineID(machine), "--name",
		workflows.UpdateDecide, "--input", string(b))
	return err
}

// asks returns the run's own answer: the run has then processed all earlier signals.
func (s *Site) asks(ctx context.Context, t *testing.T, machine string) workflows.Status {
	t.Helper()
	var out string
	until(ctx, t, "Temporal answers a query of "+machine, func() bool {
		var err error
		out, err = s.TemporalCLI(ctx, "workflow", "query", "--workflow-id", workflows.MachineID(machine), "--type",
			workflows.QueryStatus, "-o", "json")
		if err != nil && strings.Contains(err.Error(), "Workflow is busy") {
			return false // a server that has just started holds the workflow's lock
		}
		require.NoError(t, err)
		return true
	})
	var q struct {
		Result []workflows.Status `json:"queryResult"`
	}
	if json.Unmarshal([]byte(out), &q) != nil || len(q.Result) != 1 {
		var one struct {
			Result workflows.Status `json:"queryResult"`
		}
		require.NoError(t, json.Unmarshal([]byte(out), &one), "%s", out)
		return one.Result
	}
	return q.Result[0]
}

func (s *Site) terminate(ctx context.Context, t *testing.T, machine, run string) {
	t.Helper()
	_, err := s.TemporalCLI(ctx, "workflow", "terminate", "--workflow-id", workflows.MachineID(machine), "--run-id", run, "--reason", "test")
	require.NoError(t, err)
}

// gone requires that a claim is refused like an unknown one.
func (m *Simulated) gone(ctx context.Context, t *testing.T, args map[string]string, nonce string) {
	t.Helper()
	late, err := m.Redeem(ctx, args, nonce)
	require.NoError(t, err)
	never, err := m.Redeem(ctx, map[string]string{"server": args["server"], "pin": args["pin"], "claim": strings.Repeat("0", 64)}, nonce)
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, late.Status)
	require.Equal(t, never.String(), late.String(), "a claim of an earlier run is answered like an unknown one")
}

func reportThrice(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "thrice", 1)
	run, _ := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	_, err := m.Boot(ctx)
	require.NoError(t, err)
	a := m.assigned(ctx, t)
	r := action.Result{Key: a.Key, ID: "the-report", State: action.Success, Message: "once", Started: time.Now(), Ended: time.Now()}
	var all sync.WaitGroup
	for range 2 { // two at the same time, and one after them
		all.Go(func() { assert.NoError(t, m.Report(ctx, r)) })
	}
	all.Wait()
	require.NoError(t, m.Report(ctx, r))
	b := m.assigned(ctx, t)
	require.Equal(t, action.Key{Epoch: a.Key.Epoch, Action: 1, Attempt: 1}, b.Key)
	require.NoError(t, m.Report(ctx, r), "a spool that is sent again is acknowledged")
	require.NoError(t, m.Done(ctx, b))
	m.obey(ctx, t)
	w := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateSuccess, w.State)

	kinds := map[string]int{}
	for _, kind := range []string{inventory.EventActionDone, inventory.EventAssigned} {
		for _, e := range s.eventsOfKind(ctx, t, run, kind) {
			key, _, _ := strings.Cut(e.Key, " ")
			kinds[kind+" "+key]++
		}
	}
	for what, n := range kinds {
		require.Equal(t, 1, n, what)
	}
	require.Len(t, kinds, 6, "three actions, assigned once and done once each: %v", kinds)
	n := signals(s.shown(ctx, t, m.Name, run), workflows.SignalActionCompleted)
	require.Equal(t, 3, n, "one signal for each of three actions")
	t.Logf("one report sent four times: %d signals for 3 actions, %v", n, kinds)
}

func leftovers(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "leftovers", 2)
	first, old := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	nonce := Nonce()
	answer, err := m.Redeem(ctx, old, nonce)
	require.NoError(t, err)
	w, err := answer.Welcome()
	require.NoError(t, err)
	m.Use(w.Token)
	held := m.assigned(ctx, t) // its report is delayed for a long time
	s.terminate(ctx, t, m.Name, first)
	second, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name, Template: "two-empty"})
	require.NoError(t, err)
	s.of(ctx, t, second, func(w inventory.Workflow) bool { return w.Phase == inventory.PhasePower })

	// Before run 2 has an agent, and again while its agent works.
	leftover := func() {
		token := m.Use(w.Token)
		for path, body := range map[string]any{
			"/agent/v1/report": action.Result{
				Key: held.Key, ID: "late", State: action.Failed, Message: "run 1", Started: time.Now(), Ended: time.Now(),
			},
			"/agent/v1/heartbeat": action.Heartbeat{Running: &action.Progress{Key: held.Key, Done: 1, Total: 2, Log: "run 1"}},
		} {
			a, err := m.Ask(ctx, http.MethodPost, path, body)
			require.NoError(t, err)
			require.Equal(t, http.StatusGone, a.Status, "%s of run 1: %s", path, a)
		}
		a, err := m.Ask(ctx, http.MethodGet, "/agent/v1/next?wait=30s", nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusGone, a.Status, "%s", a)
		m.Use("")
		m.gone(ctx, t, old, nonce)
		m.gone(ctx, t, old, Nonce())
		// A token of run 1 cannot speak for run 2 either.
		forged := held.Key
		forged.Epoch++
		m.Use(w.Token)
		a, err = m.Ask(ctx, http.MethodPost, "/agent/v1/report",
			action.Result{Key: forged, ID: "late-2", State: action.Failed, Started: time.Now(), Ended: time.Now()})
		require.NoError(t, err)
		require.Equal(t, http.StatusGone, a.Status, "%s", a)
		m.Use(token)
	}
	_, err = m.armed(ctx)
	require.NoError(t, err)
	leftover()
	_, err = m.Boot(ctx)
	require.NoError(t, err)
	now := m.assigned(ctx, t)
	require.Equal(t, held.Key.Epoch+1, now.Key.Epoch)
	leftover()
	for _, d := range []workflows.ActionCompleted{
		{Key: held.Key, State: action.Failed, Message: "of run 1, without a run's id"},
		{Key: action.Key{Epoch: held.Key.Epoch, Action: 1, Attempt: 1}, State: action.Success},
	} {
		s.signal(ctx, t, m.Name, workflows.SignalActionCompleted, d)
	}
	s.signal(ctx, t, m.Name, workflows.SignalEvent, workflows.Event{Kind: inventory.EventFenced, Epoch: held.Key.Epoch})
	s.signal(ctx, t, m.Name, workflows.SignalEvent, workflows.Event{Kind: inventory.EventAgentLost, Epoch: held.Key.Epoch, Key: &held.Key})
	status := s.asks(ctx, t, m.Name)
	require.Equal(t, second, status.Run)
	require.Equal(t, "one", status.Action, "run 2 is where it was")
	require.Equal(t, action.Running, status.Actions[0].State)
	require.Equal(t, action.Pending, status.Actions[1].State)

	require.NoError(
		t,
		m.Report(ctx,
			action.Result{Key: now.Key, ID: "own", State: action.Success, Message: "of run 2", Started: time.Now(), Ended: time.Now()}),
	)
	m.obey(ctx, t)
	end := s.of(ctx, t, second, final)
	require.Equal(t, inventory.StateSuccess, end.State, end.Message)
	require.Equal(t, "of run 2", end.Actions[0].Message)
	require.Empty(t, s.eventsOfKind(ctx, t, first, inventory.EventActionDone), "nothing was reported to run 1")
	require.Len(t, s.eventsOfKind(ctx, t, second, inventory.EventActionDone), 3)
	ended := s.of(ctx, t, first, final)
	require.Equal(t, inventory.StateFailed, ended.State)
	t.Logf("run 1 ended as %s (%s); run 2 received %d of its own reports and 2 forged ones, and ended as %s",
		ended.State, ended.Message, signals(s.shown(ctx, t, m.Name, second), workflows.SignalActionCompleted)-2, end.State)
}

func lostAnswer(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "unheard", 3)
	run, args := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	nonce := Nonce()
	drop, err := m.RedeemWithoutAnswer(ctx, args, nonce)
	require.NoError(t, err)
	require.Len(t, s.seen(ctx, t, run, inventory.EventHello), 1)
	require.NoError(t, drop()) // the server has answered, and the answer is lost
	tokens := map[string]bool{}
	for range 2 {
		answer, err := m.Redeem(ctx, args, nonce)
		require.NoError(t, err)
		w, err := answer.Welcome()
		require.NoError(t, err)
		tokens[w.Token] = true
		m.Use(w.Token)
	}
	require.Len(t, tokens, 1, "the same claim and nonce have the same answer")
	require.Len(t, s.seen(ctx, t, run, inventory.EventHello), 1)
	first := m.assigned(ctx, t) // the token's first use
	again, err := m.Redeem(ctx, args, nonce)
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, again.Status, "a token that was used is not given again: %s", again)

	require.NoError(t, m.Done(ctx, first))
	m.obey(ctx, t)
	require.Equal(t, inventory.StateSuccess, s.of(ctx, t, run, final).State)
}

func secondClaimant(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "contested", 8)
	run, args := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	_, err := m.Boot(ctx)
	require.NoError(t, err)
	m.assigned(ctx, t)
	a, err := m.Redeem(ctx, args, Nonce())
	require.NoError(t, err)
	require.Equal(t, http.StatusConflict, a.Status, "%s", a)
	require.Contains(t, string(a.Body), "claim-conflict")
	a, err = m.Ask(ctx, http.MethodGet, "/agent/v1/next", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, a.Status, "neither of two claimants is believed: %s", a)
	m.Use("")
	asked := s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil })
	require.Equal(t, "1.claim.1", asked.Question.ID)
	require.Contains(t, asked.Question.Text, "switch the machine off", "the first claimant may be writing, and there is no BMC")
	require.NoError(t, s.decides(ctx, m.Name, contract.Decision{Question: "1.claim.1", Choice: contract.Restart}))
	until(ctx, t, "there is another boot", func() bool {
		again, err := m.armed(ctx)
		require.NoError(t, err)
		return again["claim"] != args["claim"]
	})
	_, err = m.Boot(ctx)
	require.NoError(t, err)
	m.obey(ctx, t)
	w := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateSuccess, w.State, w.Message)
	require.Len(t, s.eventsOfKind(ctx, t, run, inventory.EventClaimConflict), 1)
	require.Len(t, s.eventsOfKind(ctx, t, run, inventory.EventArmed), 2)
}

// oldDecisions answers questions about the disk; the machine has two.
func oldDecisions(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "undecided", 9)
	m.Facts.Disks = []action.Disk{
		{Path: "/dev/vda", Serial: "A", Size: 64 << 20, Blank: true},
		{Path: "/dev/vdb", Serial: "B", Size: 64 << 20, Blank: true},
	}
	run, _ := s.begun(
		ctx,
		t,
		m,
		contract.ProvisionInput{
			Template:    "writes",
			HardwareMap: map[string]string{"url": "http://192.0.2.1/", "sum": strings.Repeat("0", 64)},
		},
	)
	_, err := m.Boot(ctx)
	require.NoError(t, err)
	asks := func(id string) {
		s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil && w.Question.ID == id })
	}
	var refusals []string
	refuse := func(text, question, choice string) {
		err := s.decides(ctx, m.Name, contract.Decision{Question: question, Choice: choice})
		require.ErrorContains(t, err, text)
		refusals = append(refusals, question+" "+choice)
	}
	bySignal := func(question, choice string) {
		s.signal(ctx, t, m.Name, workflows.SignalDecide, contract.Decision{Question: question, Choice: choice})
	}
	asks("1.bind.1")
	refuse(`invalid choice \"continue\"`, "1.bind.1", contract.Continue)
	// By an update, and again in each way, also with another choice.
	require.NoError(t, s.decides(ctx, m.Name, contract.Decision{Question: "1.bind.1", Choice: contract.Retry}))
	asks("1.bind.2")
	refuse(`the decision is for question \"1.bind.1\", but the run asks question \"1.bind.2\"`, "1.bind.1", contract.Retry)
	refuse(`the run asks question \"1.bind.2\"`, "1.bind.1", contract.Abort)
	bySignal("1.bind.1", contract.Abort)
	status := s.asks(ctx, t, m.Name)
	require.NotNil(t, status.Question, "an old decision answers no new question")
	require.Equal(t, "1.bind.2", status.Question.ID)
	// By a signal first.
	bySignal("1.bind.2", contract.Retry)
	asks("1.bind.3")
	bySignal("1.bind.2", contract.Retry)
	refuse(`the run asks question \"1.bind.3\"`, "1.bind.2", contract.Retry)
	require.Equal(t, "1.bind.3", s.asks(ctx, t, m.Name).Question.ID)
	require.NoError(
		t,
		s.decides(ctx, m.Name,
			contract.Decision{Question: "1.bind.3", Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "B"}}),
	)
	given := m.assigned(ctx, t)
	require.Equal(t, "B", given.Disk.Serial)
	refuse("the run has no open question", "1.bind.3", contract.Abort)
	_, err = s.CLI(ctx, "workflow", "decide", m.Name, "--question", "1.bind.3", "--choice", "abort")
	require.ErrorContains(t, err, "no open question")
	bySignal("1.bind.3", contract.Abort)
	require.Equal(t, "write", s.asks(ctx, t, m.Name).Action)
	require.NoError(t, m.Done(ctx, given))
	m.obey(ctx, t)
	w := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateSuccess, w.State, w.Message)
	t.Logf("refused with a clear text: %q; and four signals without effect", refusals)
}

func startersAtOnce(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "wanted", 4)
	in, err := json.Marshal(contract.ProvisionInput{Machine: m.Name, Template: "two-empty"})
	require.NoError(t, err)
	byCommand := func() error {
		_, err := s.TemporalCLI(ctx, "workflow", "start", "--type", inventory.TypeProvision, "--task-queue", workflows.TaskQueue,
			"--workflow-id", workflows.MachineID(m.Name), "--id-conflict-policy", "Fail", "--fail-existing", "--input", string(in))
		return err
	}
	byREST := func() error {
		_, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name, Template: "two-empty"})
		return err
	}
	starters := []func() error{byCommand, byREST, byCommand, byREST}
	errs := make([]error, len(starters))
	var all sync.WaitGroup
	for i, start := range starters {
		all.Go(func() { errs[i] = start() })
	}
	all.Wait()
	var refusals []string
	for _, err := range errs {
		if err == nil {
			continue
		}
		text := strings.ToLower(err.Error())
		require.True(t, strings.Contains(text, "409") || strings.Contains(text, "already"), "refused because it runs: %v", err)
		refusals = append(refusals, err.Error())
	}
	require.Len(t, refusals, 3, "one of four starts is taken: %v", errs)
	run := s.asks(ctx, t, m.Name).Run
	require.ErrorContains(t, byREST(), run, "the refusal names the run that is there")
	list, err := s.TemporalCLI(ctx, "workflow", "count", "--query", `WorkflowId="`+workflows.MachineID(m.Name)+`"`)
	require.NoError(t, err)
	require.Contains(t, list, "1")
	s.must(ctx, t, "workflow", "cancel", m.Name)
	s.of(ctx, t, run, final)
	s.closed(ctx, t, m.Name)
}

// sinceOver is the time limit in S12.
const sinceOver = 30 * time.Second

// shut waits until the machine may not boot from the network and no run owns it, up to the limit of
// S12, and returns how long it took.
func (s *Site) shut(ctx context.Context, t *testing.T, m *Simulated, from time.Time) time.Duration {
	t.Helper()
	for {
		_, err := m.Arguments(ctx)
		if err != nil {
			require.ErrorIs(t, err, ErrNotArmed)
		}
		var got struct{ Netboot inventory.Netboot }
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines/"+m.Name, nil, &got))
		took := time.Since(from)
		if err != nil && !got.Netboot.AllowPXE && !got.Netboot.AllowWorkflow {
			return took
		}
		require.Less(t, took, sinceOver, "network boot of a run that has ended must be closed")
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			require.NoError(t, ctx.Err())
		}
	}
}

func terminatedWhileOpen(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "open", 5)
	run, args := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	began := time.Now()
	s.terminate(ctx, t, m.Name, run)
	took := s.shut(ctx, t, m, began)
	m.gone(ctx, t, args, Nonce())
	w := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateFailed, w.State)
	t.Logf("terminated while the window was open: closed after %.1f s", took.Seconds())
}

func cancelledWhileOpen(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "opened", 10)
	run, args := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	s.cancelled(ctx, t, m, run)
	m.gone(ctx, t, args, Nonce())
}

// cancelledInAction cancels while the agent works: the agent is ordered to stop, and reports that
// it has stopped.
func cancelledInAction(ctx context.Context, t *testing.T, s *Site) {
	m := s.bare(ctx, t, "busy", 11)
	run, _ := s.begun(ctx, t, m, contract.ProvisionInput{Template: "two-empty"})
	_, err := m.Boot(ctx)
	require.NoError(t, err)
	a := m.assigned(ctx, t)
	over := make(chan error, 1)
	go func() { over <- m.stopped(ctx, a) }()
	s.cancelled(ctx, t, m, run)
	require.NoError(t, <-over)
}

// stopped waits until the agent is ordered to stop an attempt, and stops.
func (m *Simulated) stopped(ctx context.Context, a *action.Assignment) error {
	for {
		o, err := m.Heartbeat(ctx, action.Heartbeat{})
		if err != nil {
			return err
		}
		if slices.Contains(o.Stop, a.Key) {
			now := time.Now()
			return m.Report(ctx, action.Result{Key: a.Key, ID: m.Name + "-" + a.Key.String(), State: action.Stopped, Started: now, Ended: now})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// cancelled cancels a run and requires that network boot is closed in time.
func (s *Site) cancelled(ctx context.Context, t *testing.T, m *Simulated, run string) {
	t.Helper()
	began := time.Now()
	s.must(ctx, t, "workflow", "cancel", m.Name)
	took := s.shut(ctx, t, m, began)
	w := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateCancelled, w.State, w.Message)
	t.Logf("cancelled: network boot was closed after %.1f s", took.Seconds())
}

// drip serves one image of random content, slowly until letGo.
type drip struct {
	url, sum string
	size     int64
	fast     chan struct{}
	once     sync.Once
}

// letGo sends the rest of the image and all later requests at full speed.
func (d *drip) letGo() { d.once.Do(func() { close(d.fast) }) }

// drip listens next to the server. perChunk is the pause after each 64 KiB.
func (s *Site) drip(ctx context.Context, t *testing.T, size int64, perChunk time.Duration) *drip {
	t.Helper()
	content := make([]byte, size)
	_, err := rand.Read(content)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	d := &drip{sum: hex.EncodeToString(sum[:]), size: size, fast: make(chan struct{})}
	if perChunk == 0 {
		d.letGo()
	}
	l, err := s.Listen(ctx, lab.Server, lab.ServerAddress+":0")
	require.NoError(t, err)
	d.url = fmt.Sprintf("http://%s/image.raw", l.Addr())
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "image.raw", time.Time{},
			&slowly{Reader: bytes.NewReader(content), ctx: r.Context(), fast: d.fast, pause: perChunk})
	})}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
	return d
}

// slowly is a reader with pauses.
type slowly struct {
	*bytes.Reader
	ctx   context.Context
	fast  <-chan struct{}
	pause time.Duration
}

func (r *slowly) Read(p []byte) (int, error) {
	select {
	case <-r.fast:
	case <-time.After(r.pause):
	case <-r.ctx.Done():
		return 0, io.ErrUnexpectedEOF
	}
	return r.Reader.Read(p[:min(len(p), 64<<10)])
}

// WriteTo replaces the method of bytes.Reader, which would write everything at once.
func (r *slowly) WriteTo(w io.Writer) (n int64, err error) {
	b := make([]byte, 64<<10)
	for {
		k, err := r.Read(b)
		if k > 0 {
			w, e := w.Write(b[:k])
			n += int64(w)
			if e != nil {
				return n, e
			}
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// writers records which processes have a file open for writing.
type writers struct {
	stop    context.CancelFunc
	done    chan struct{}
	most    int
	samples int
	first   map[int]time.Time
	last    map[int]time.Time
}

// watchWriters reads the descriptors of all processes until end is called.
func watchWriters(t *testing.T, file string) *writers {
	t.Helper()
	file, err := filepath.EvalSymlinks(file)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	w := &writers{stop: stop, done: make(chan struct{}), first: map[int]time.Time{}, last: map[int]time.Time{}}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			pids := holders(file)
			w.samples++
			w.most = max(w.most, len(pids))
			now := time.Now()
			for _, pid := range pids {
				if w.first[pid].IsZero() {
					w.first[pid] = now
				}
				w.last[pid] = now
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() { stop(); <-w.done })
	return w
}

// end stops watching and requires that there was only one writer at a time, first before second.
func (w *writers) end(t *testing.T, first, second int) {
	t.Helper()
	w.stop()
	<-w.done
	require.Equal(t, 1, w.most, "never two writers")
	require.Len(t, w.first, 2, "two processes have written, one after the other")
	require.Contains(t, w.last, first)
	require.Contains(t, w.first, second)
	require.True(t, w.first[second].After(w.last[first]), "the second began when the first had closed the disk")
	t.Logf("%d looks at all descriptors: at most %d writer; %.1f s between the first one's last and the second one's first",
		w.samples, w.most, w.first[second].Sub(w.last[first]).Seconds())
}

// holders returns the processes that have file open for writing.
func holders(file string) (pids []int) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		fds, err := os.ReadDir("/proc/" + d.Name() + "/fd")
		if err != nil {
			continue // has ended
		}
		for _, fd := range fds {
			if to, err := os.Readlink("/proc/" + d.Name() + "/fd/" + fd.Name()); err != nil || to != file {
				continue
			}
			info, err := os.ReadFile("/proc/" + d.Name() + "/fdinfo/" + fd.Name())
			if err == nil && openForWriting(string(info)) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

func openForWriting(fdinfo string) bool {
	for line := range strings.Lines(fdinfo) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(v), 8, 64)
			return err == nil && flags&uint64(syscall.O_ACCMODE) != syscall.O_RDONLY
		}
	}
	return false
}

// boots runs the real agent for a boot of the machine, with file as its disk.
func (s *Site) boots(ctx context.Context, t *testing.T, m *Simulated, args map[string]string, file string) *lab.Cmd {
	t.Helper()
	c := s.Command(ctx, lab.Server, filepath.Join(s.root, "bin/worker-agent"), append(agentFlags(args),
		"-machine", m.Name, "-mac", m.MAC, "-disk", "/dev/vda="+file+",serial=D-"+m.Name)...)
	log, err := os.OpenFile(filepath.Join(s.dir, m.Name+"-agent.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { _ = log.Close() }) // the process has its own descriptor
	c.Stdout, c.Stderr = log, log
	require.NoError(t, c.Start())
	return c
}

func (s *Site) blank(t *testing.T, name string, size int64) string {
	t.Helper()
	file := filepath.Join(s.dir, name+".raw")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Truncate(file, size))
	return file
}

// midWrite is a run whose agent is slowly writing an image.
type midWrite struct {
	m      *Simulated
	run    string
	args   map[string]string
	file   string
	agent  *lab.Cmd
	watch  *writers
	second *drip // the image of the next run
	slow   *drip
}

// inMidWrite starts a run on a machine without a BMC, so that nothing else ends its processes, and
// waits until a third of the image is written.
func (s *Site) inMidWrite(ctx context.Context, t *testing.T, name string, n int) midWrite {
	t.Helper()
	w := midWrite{m: s.bare(ctx, t, name, n), file: s.blank(t, name, 64<<20)}
	w.slow, w.second = s.drip(ctx, t, 32<<20, 40*time.Millisecond), s.drip(ctx, t, 24<<20, 0)
	w.watch = watchWriters(t, w.file)
	w.run, w.args = s.begun(ctx, t, w.m, w.slow.input())
	w.agent = s.boots(ctx, t, w.m, w.args, w.file)
	var seen int64
	s.of(ctx, t, w.run, func(r inventory.Workflow) bool {
		if len(r.Actions) == 0 || r.Actions[0].Total == 0 {
			return false
		}
		seen = r.Actions[0].Done * 100 / r.Actions[0].Total
		return seen >= 20
	})
	require.Less(t, seen, int64(90), "it must be in the middle")
	require.Equal(t, []int{w.agent.Pid()}, holders(w.file))
	t.Logf("run 1 is at %d %%", seen)
	return w
}

func (d *drip) input() contract.ProvisionInput {
	return contract.ProvisionInput{Template: "writes", HardwareMap: map[string]string{"url": d.url, "sum": d.sum}}
}

// again lets the next run install after the agent of the first run has ended on its own, and
// requires that its disk is correct.
func (w midWrite) again(ctx context.Context, t *testing.T, s *Site, run string, args map[string]string, over time.Time) {
	t.Helper()
	require.NotEqual(t, w.args["claim"], args["claim"])
	select {
	case <-w.agent.Done():
	case <-ctx.Done():
		require.NoError(t, ctx.Err(), "the agent of run 1 must end: its run has ended")
	}
	require.NoError(t, w.agent.Wait())
	t.Logf("the agent of run 1 has closed the disk and gone %.1f s after its run's end", time.Since(over).Seconds())
	w.m.gone(ctx, t, w.args, Nonce())
	next := s.boots(ctx, t, w.m, args, w.file)
	end := s.of(ctx, t, run, final)
	require.Equal(t, inventory.StateSuccess, end.State, end.Message)
	select {
	case <-next.Done():
	case <-ctx.Done():
		require.NoError(t, ctx.Err())
	}
	w.watch.end(t, w.agent.Pid(), next.Pid())
	got, err := DigestOf(w.file, w.second.size)
	require.NoError(t, err)
	require.Equal(t, w.second.sum, got, "the disk holds the second run's image, bit by bit")
	s.closed(ctx, t, w.m.Name)
}

func terminatedInMidWrite(ctx context.Context, t *testing.T, s *Site) {
	w := s.inMidWrite(ctx, t, "ended", 6)
	over := time.Now()
	s.terminate(ctx, t, w.m.Name, w.run)
	run, args := s.begun(ctx, t, w.m, w.second.input()) // at once: the window that opens belongs to the new run
	t.Logf("run 2 was armed %.1f s after the end of run 1, whose window was closed by then", time.Since(over).Seconds())
	w.again(ctx, t, s, run, args, over)
	require.Equal(t, inventory.StateFailed, s.of(ctx, t, w.run, final).State)
}

func resetInMidWrite(ctx context.Context, t *testing.T, s *Site) {
	w := s.inMidWrite(ctx, t, "reset", 7)
	// The workflow task that assigned the write to the agent: its effects are recorded as markers
	// of local activities after it.
	var point string
	events := s.shown(ctx, t, w.m.Name, w.run)
	for i, e := range events {
		if e.Type == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED" && i+1 < len(events) && events[i+1].Type == "EVENT_TYPE_MARKER_RECORDED" {
			point = e.ID
		}
	}
	require.NotEmpty(t, point)
	over := time.Now()
	out, err := s.TemporalCLI(ctx, "workflow", "reset", "--workflow-id", workflows.MachineID(w.m.Name), "--run-id", w.run,
		"--event-id", point, "--reason", "test", "-o", "json")
	require.NoError(t, err)
	var second struct {
		RunID string `json:"runId"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &second), "%s", out)
	require.NotEmpty(t, second.RunID)
	r := s.of(ctx, t, second.RunID, func(r inventory.Workflow) bool { return r.Question != nil })
	t.Logf("reset to event %s of %d; after %.1f s the run asks: %q %s", point, len(events), time.Since(over).Seconds(),
		r.Question.ID, r.Question.Text)
	require.Contains(t, r.Question.ID, ".fenced.")
	require.Equal(t, []string{contract.Abort}, r.Question.Choices)
	require.NoError(t, s.decides(ctx, w.m.Name, contract.Decision{Question: r.Question.ID, Choice: contract.Abort}))
	r = s.of(ctx, t, second.RunID, final)
	require.Equal(t, inventory.StateFailed, r.State)
	run, args := s.begun(ctx, t, w.m, w.second.input())
	w.again(ctx, t, s, run, args, over)
}

// controller is the process that simulates a machine's BMC.
func (s *Site) controller(t *testing.T, m *lab.Machine) int {
	t.Helper()
	pids, err := s.Processes("ipmi_sim")
	require.NoError(t, err)
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(b), "/"+m.Name()+"/bmc/lan.conf") {
			return pid
		}
	}
	require.Fail(t, "no BMC", "of %s among %v", m.Name(), pids)
	return 0
}

// until polls seen frequently until it returns true.
func until(ctx context.Context, t *testing.T, what string, so func() bool) {
	t.Helper()
	for !so() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			require.NoError(t, ctx.Err(), "waiting until %s", what)
		}
	}
}

// talking reports whether an ipmitool process is using that BMC.
func (s *Site) talking(t *testing.T, address string) bool {
	t.Helper()
	pids, err := s.Processes("ipmitool")
	require.NoError(t, err)
	return slices.ContainsFunc(pids, func(pid int) bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err == nil && strings.Contains(string(b), "\x00"+address+"\x00")
	})
}

// owned waits until a run other than that one has taken the machine.
func (s *Site) owned(ctx context.Context, t *testing.T, machine, notBy string) {
	t.Helper()
	until(ctx, t, "another run owns "+machine, func() bool {
		var all struct{ Items []inventory.Event }
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines/"+machine+"/events?limit=1000", nil, &all))
		return slices.ContainsFunc(all.Items, func(e inventory.Event) bool { return e.Kind == inventory.EventGrant && e.Run != notBy })
	})
}

// jobEnd waits for the end of a list of BMC tasks.
func (s *Site) jobEnd(ctx context.Context, t *testing.T, machine, name string) inventory.BMCJob {
	t.Helper()
	var j inventory.BMCJob
	until(ctx, t, "job "+name+" has ended", func() bool {
		err := s.REST(ctx, http.MethodGet, "/v1/bmc/jobs/"+machine+"/"+name, nil, &j)
		return err == nil && inventory.Final(j.State)
	})
	return j
}

// latePowerOff freezes the BMC of run 1, which is about to switch off a machine. When the BMC
// continues, run 2 has the machine: it is switched off and on for run 2, and stays on.
func latePowerOff(ctx context.Context, t *testing.T, s *Site) {
	gate := lab.NewGate(lab.StageDHCP)
	m, err := s.Add(ctx,
		lab.Spec{Name: "stays-on", Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent"), Stage: gate.Stage},
		nil)
	require.NoError(t, err)
	require.NoError(t, m.PowerOn(ctx))
	thaw, err := s.Freeze(ctx, s.controller(t, m))
	require.NoError(t, err)
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name(), Template: "two-empty"})
	require.NoError(t, err)
	until(ctx, t, "run 1 waits for its BMC", func() bool { return s.talking(t, m.BMC().Address) })
	s.terminate(ctx, t, m.Name(), run)
	second, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name(), Template: "two-empty"})
	require.NoError(t, err)
	s.owned(ctx, t, m.Name(), run)
	require.NoError(t, thaw())
	late := s.jobEnd(ctx, t, m.Name(), "netboot-1-1")
	require.Equal(t, inventory.StateFailed, late.State)
	require.Contains(t, late.Message, "fenced", "run 1's power-off was refused before the BMC received it")
	own := s.jobEnd(ctx, t, m.Name(), "netboot-2-1")
	require.Equal(t, inventory.StateSuccess, own.State, own.Message)
	// Run 2 has switched the machine on, and waits for its agent.
	s.of(ctx, t, second, func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseDHCP })
	require.Empty(t, s.eventsOfKind(ctx, t, run, inventory.EventPower))
	for range 30 {
		require.Equal(t, lab.On, m.PowerState(), "nothing switches off what run 2 has switched on")
		require.Equal(t, 2, m.PowerOns(), "for this test, and for run 2")
		pause(ctx, t, 100*time.Millisecond)
	}
	require.Equal(t, []string{"power 0", "boot pxe", "power 1"}, m.BMC().Told(), "the BMC was told what run 2 wants, and nothing else")
	t.Logf("run 1, late: %s", late.Message)
	s.must(ctx, t, "workflow", "cancel", m.Name())
	s.of(ctx, t, second, final)
	s.closed(ctx, t, m.Name())
	require.NoError(t, m.PowerOff(ctx))
}

// latePowerOn freezes the BMC after run 1 has set the boot device, just before it switches the
// machine on. When the BMC continues, run 2 is using the same BMC.
func latePowerOn(ctx context.Context, t *testing.T, s *Site) {
	m, err := s.Add(ctx, lab.Spec{Name: "one-start"}, nil)
	require.NoError(t, err)
	pid := s.controller(t, m)
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name(), Template: "two-empty"})
	require.NoError(t, err)
	until(ctx, t, "run 1 has chosen the boot device", func() bool { return m.NextBoot() == lab.NextNetwork })
	thaw, err := s.Freeze(ctx, pid)
	require.NoError(t, err)
	require.Zero(t, m.PowerOns())
	s.terminate(ctx, t, m.Name(), run)
	second, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name(), Template: "two-empty"})
	require.NoError(t, err)
	s.owned(ctx, t, m.Name(), run)
	require.NoError(t, thaw())
	late := s.jobEnd(ctx, t, m.Name(), "netboot-1-1")
	require.Equal(t, inventory.StateFailed, late.State)
	own := s.jobEnd(ctx, t, m.Name(), "netboot-2-1")
	require.Equal(t, inventory.StateSuccess, own.State, own.Message)
	require.Equal(t, lab.On, m.PowerState())
	require.Equal(t, 1, m.PowerOns(), "only run 2 has switched the machine on")
	require.Empty(t, slices.DeleteFunc(s.eventsOfKind(ctx, t, run, inventory.EventPower), func(e inventory.Event) bool {
		return !strings.Contains(e.Message, "power on")
	}))
	t.Logf("run 1, late: %s", late.Message)
	s.must(ctx, t, "workflow", "cancel", m.Name())
	s.of(ctx, t, second, final)
	s.closed(ctx, t, m.Name())
	require.NoError(t, m.PowerOff(ctx))
}
