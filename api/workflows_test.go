package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func (s *site) image(name string) {
	s.T.Helper()
	require.Equal(s.T, http.StatusCreated, s.do(http.MethodPut, "/v1/images/"+name, "an image called "+name).Code)
}

// TestS11ProvisionStartsOneRunPerMachine: the workflow id is fixed, and a second start is
// refused.
func TestS11ProvisionStartsOneRunPerMachine(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.image("debian-12")
	st := decode[apitypes.Started](
		t,
		s.do(http.MethodPost, "/v1/machines/m1/provision", `{"image":"debian-12","retries":{"count":2}}`),
		http.StatusAccepted,
	)
	require.Equal(t, "machine/m1", st.Workflow)
	o := s.Temporal.Options[0]
	require.Equal(t, "machine/m1", o.ID)
	require.Equal(t, workflows.TaskQueue, o.TaskQueue)
	require.Equal(t, enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL, o.WorkflowIDConflictPolicy)
	require.True(t, o.WorkflowExecutionErrorWhenAlreadyStarted)
	require.Equal(t, enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE, o.WorkflowIDReusePolicy)
	require.Zero(t, o.WorkflowExecutionTimeout)
	for key, want := range map[string]string{workflows.AttrMachine: "m1", workflows.AttrTemplate: "image"} {
		got, ok := o.TypedSearchAttributes.GetKeyword(temporal.NewSearchAttributeKeyKeyword(key))
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	require.Equal(t, "Provision", s.Temporal.Types[0])
	require.Equal(
		t,
		contract.ProvisionInput{Machine: "m1", Image: "debian-12", Retries: contract.Retries{Count: 2}, By: "admin"},
		s.Temporal.Inputs[0],
	)

	// It is shown before a worker has taken it up.
	w := decode[inventory.Workflow](t, s.do(http.MethodGet, "/v1/machines/m1/workflow", nil), http.StatusOK)
	require.Equal(t, st.Run, w.Run)
	require.Equal(t, inventory.StatePreparing, w.State)

	for _, path := range []string{"provision", "inspect"} {
		a := decode[answer](
			t,
			s.do(http.MethodPost, "/v1/machines/m1/"+path, `{}`, header{"X-Path", path}),
			map[string]int{"provision": http.StatusBadRequest, "inspect": http.StatusConflict}[path],
		)
		if path == "inspect" {
			require.Contains(t, a.Error, st.Run)
			require.Equal(t, "ingot workflow get "+st.Run, a.Next)
		} else {
			require.NotEmpty(t, a.Problems) // no image is named
		}
	}
	a := decode[answer](t, s.do(http.MethodPost, "/v1/machines/m1/provision", `{"image":"debian-12"}`), http.StatusConflict)
	require.Contains(t, a.Error, "machine/m1")
	require.Contains(t, a.Error, st.Run)
}

func TestBadInputStartsNothing(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	require.NoError(t, s.Store.Machines.PutMachines(t.Context(), []inventory.Machine{machine("manual", "52:54:00:00:00:0c")}, false, "test"))
	for in, want := range map[string]string{
		`{"type":"Provision","input":{"machine":"m1","template":"nothing","image":"nothing","retries":{"count":-1,"from":"middle"}}}`: "template image retries.count retries.from",
		`{"type":"Provision","input":{"machine":"m1","colour":"red"}}`:                                                                "input",
		`{"type":"Provision","input":"m1"}`:                                 "input",
		`{"type":"Provision"}`:                                              "input",
		`{"type":"BMCJob","input":{"machine":"m1","job":"a/b","tasks":[]}}`: "job tasks",
		`{"type":"BMCJob","input":{"machine":"m1","tasks":[{"powerAction":"explode"},{},{"bootDevice":{"device":"tape"}}]}}`: "tasks[0].powerAction tasks[1] tasks[2].bootDevice.device",
		`{"type":"BMCJob","input":{"machine":"m1","tasks":[{"powerAction":"on","bootDevice":{"device":"pxe"}}]}}`:            "tasks[0]",
		`{"type":"BMCJob","input":{"machine":"manual","tasks":[{"powerAction":"on"}]}}`:                                      "machine",
		`{"type":"Other","input":{}}`: "type",
		`{"kind":"Provision"}`:        "",
		`[]`:                          "",
	} {
		a := decode[answer](t, s.do(http.MethodPost, "/v1/workflows", in), http.StatusBadRequest)
		var fields []string
		for _, p := range a.Problems {
			if p.Field != "" {
				fields = append(fields, p.Field)
			}
		}
		require.Equal(t, want, strings.Join(fields, " "), in)
	}
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, "/v1/workflows", `{"type":"Inspect","input":{"machine":"nobody"}}`).Code)
	require.Empty(t, s.Temporal.Options)
}

func TestWithoutTemporalTheRestWorks(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Temporal.Down = true
	a := decode[answer](t, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil), http.StatusServiceUnavailable)
	require.Equal(t, httpapi.CodeUnavailable, a.Code)
	require.Contains(t, a.Error, "Temporal")
	for _, path := range []string{"/v1/machines", "/v1/workflows", "/v1/status", "/v1/templates", "/v1/images", "/v1/why/" + mac} {
		require.Equal(t, http.StatusOK, s.do(http.MethodGet, path, nil).Code, path)
	}
	require.Equal(t, http.StatusOK, s.do(http.MethodPost, "/v1/machines/m1/netboot", `{"arm":true}`).Code)
}

// failed makes a run of m1 that failed.
func (s *site) failed(run string, in contract.ProvisionInput) {
	s.T.Helper()
	raw, err := json.Marshal(in)
	require.NoError(s.T, err)
	require.NoError(s.T, s.Store.Workflows.PutWorkflow(s.T.Context(), inventory.Workflow{
		Run:     run,
		ID:      "machine/m1",
		Type:    inventory.TypeProvision,
		Machine: "m1",
		State:   inventory.StateFailed,
		Phase:   inventory.PhaseFailed,
		Input:   raw,
		Actions: []inventory.ActionRecord{{Name: "one", State: action.Success}, {Name: "two", State: action.Failed, Message: "no space left"}},
		Started: s.Clock.Now(),
		Ended:   s.Clock.Now(),
		Updated: s.Clock.Now(),
	}))
}

func TestRetryIsANewRun(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.image("debian-12")
	in := contract.ProvisionInput{Machine: "m1", Image: "debian-12", HardwareMap: map[string]string{"a": "b"}, Resume: "r0", By: "alice"}
	s.failed("r1", in)
	require.NoError(t, s.Store.Plans.PutPlan(t.Context(), inventory.Plan{Run: "r1", Digest: "d"}))
	st := decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/workflows/r1/retry", nil), http.StatusAccepted)
	require.NotEqual(t, "r1", st.Run)
	in.Resume, in.By = "r1", "admin"
	require.Equal(t, in, s.Temporal.Inputs[0])
	s.Temporal.End(st.Run, enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, nil)
	decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/workflows/r1/retry", `{"from":"start"}`), http.StatusAccepted)
	in.Resume = ""
	require.Equal(t, in, s.Temporal.Inputs[1])
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/workflows/r1/retry", `{"from":"middle"}`).Code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, "/v1/workflows/r9/retry", nil).Code)
	require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/workflows/r1", nil).Code)
}

// TestRetryFromTheFailedStepIsRefused: a retry from the failed step needs the plan, and no
// other run may have written to the disk since.
func TestRetryFromTheFailedStepIsRefused(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.image("debian-12")
	in := contract.ProvisionInput{Machine: "m1", Image: "debian-12"}
	refused := func(run, why, next string) {
		t.Helper()
		resume, err := json.Marshal(
			map[string]any{"type": inventory.TypeProvision, "input": contract.ProvisionInput{Machine: "m1", Resume: run}},
		)
		require.NoError(t, err)
		for path, body := range map[string]any{"/v1/workflows/" + run + "/retry": nil, "/v1/workflows": string(resume)} {
			a := decode[answer](t, s.do(http.MethodPost, path, body), http.StatusConflict)
			require.Contains(t, a.Error, why)
			require.True(t, strings.HasPrefix(a.Next, next), a.Next)
		}
		require.Empty(t, s.Temporal.Options)
		w := decode[inventory.Workflow](t, s.do(http.MethodGet, "/v1/workflows/"+run, nil), http.StatusOK)
		require.Equal(t, next, w.Next)
	}
	suggest := func(run string) {
		t.Helper()
		w, err := s.Store.Workflows.Workflow(t.Context(), run)
		require.NoError(t, err)
		w.Next = "ingot workflow logs m1; ingot workflow retry m1 --from failed-step"
		require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), w))
	}
	s.failed("r1", in)
	suggest("r1")
	refused("r1", "its plan is not stored", "ingot workflow retry r1 --from start")

	s.failed("r2", in)
	suggest("r2")
	require.NoError(t, s.Store.Plans.PutPlan(t.Context(), inventory.Plan{Run: "r2", Digest: "d"}))
	w := decode[inventory.Workflow](t, s.do(http.MethodGet, "/v1/workflows/r2", nil), http.StatusOK)
	require.Contains(t, w.Next, "--from failed-step")
	o := s.Arm("m1", "r3")
	require.NoError(t, s.Store.Disks.DiskWritten(t.Context(), o, action.Disk{Path: "/dev/vda", Serial: "D1"}))
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	refused("r2", `run "r3" of machine "m1" is newer, and only the newest run can be retried`, "ingot workflow get r3")
}

// TestOnlyTheNewestOrderIsRetried: an old decommission would wipe the system that was installed since.
func TestOnlyTheNewestOrderIsRetried(t *testing.T) {
	kinds := []string{
		inventory.TypeProvision,
		inventory.TypeReprovision,
		inventory.TypeDecommission,
		inventory.TypeInspect,
		inventory.TypeBMCJob,
	}
	for _, old := range kinds {
		for _, later := range kinds {
			s := newSite(t)
			s.AddMachine("m1", mac)
			s.image("debian-12")
			for _, r := range []inventory.Workflow{
				{Run: "old", Type: old, State: inventory.StateCancelled}, {Run: "later", Type: later, State: inventory.StateSuccess},
			} {
				r.Machine, r.Image, r.Epoch, r.Started, r.Ended, r.Updated = "m1", "debian-12", 1, s.Clock.Now(), s.Clock.Now(), s.Clock.Now()
				require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), r))
			}
			writes := func(kind string) bool { return kind != inventory.TypeInspect && kind != inventory.TypeBMCJob }
			want := http.StatusAccepted
			if old == inventory.TypeBMCJob || writes(old) && writes(later) {
				want = http.StatusConflict
			}
			if want == http.StatusConflict { // also when the record of the later run is gone
				got := s.do(http.MethodPost, "/v1/workflows/old/retry", `{"from":"start"}`)
				require.Equal(t, want, got.Code, "%s, then %s: %s", old, later, got.Body)
			}
			require.Equal(t, http.StatusNoContent, s.do(http.MethodDelete, "/v1/workflows/later", nil).Code)
			got := s.do(http.MethodPost, "/v1/workflows/old/retry", `{"from":"start"}`)
			require.Equal(t, want, got.Code, "%s, then %s, deleted: %s", old, later, got.Body)
		}
	}
}

// TestCancelOfARunThatHasEnded says how it has ended, and notes nothing.
func TestCancelOfARunThatHasEnded(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	for state, want := range map[string]int{
		inventory.StateCancelled: http.StatusAccepted, inventory.StateSuccess: http.StatusConflict, inventory.StateFailed: http.StatusConflict,
	} {
		require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
			Run:     state,
			Type:    inventory.TypeProvision,
			Machine: "m1",
			State:   state,
			Started: s.Clock.Now(),
			Ended:   s.Clock.Now(),
			Updated: s.Clock.Now(),
		}))
		require.Equal(t, want, s.do(http.MethodPost, "/v1/workflows/"+state+"/cancel", nil).Code, state)
	}
	es, err := s.Store.Events.Events(t.Context(), inventory.EventFilter{Machine: "m1"})
	require.NoError(t, err)
	for _, e := range es {
		require.False(t, e.Kind == inventory.EventOperator && e.Run != "", "%+v", e)
	}
}

// TestS12NetbootIsClosedHoweverARunEnds: a run that Temporal has ended, without a step of its own, leaves no window open.
func TestS12NetbootIsClosedHoweverARunEnds(t *testing.T) {
	for _, end := range []enumspb.WorkflowExecutionStatus{
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, enumspb.WORKFLOW_EXECUTION_STATUS_TIMED_OUT,
		enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED,
	} {
		s := newSite(t)
		s.AddMachine("m1", mac)
		s.Arm("m1", "r1")
		g, err := s.Store.Grants.Grant(t.Context(), "m1")
		require.NoError(t, err)
		require.True(t, g.NetbootOpen(s.Clock.Now()))

		s.Temporal.End("r1", end, nil)
		require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
		g, err = s.Store.Grants.Grant(t.Context(), "m1")
		require.NoError(t, err)
		require.False(t, g.NetbootOpen(s.Clock.Now()), end)
		require.Empty(t, g.Run, end)
	}
}

// TestNextAfterATerminatedRun: a retry from the failed step is suggested only if it is
// possible.
func TestNextAfterATerminatedRun(t *testing.T) {
	for name, c := range map[string]struct {
		planned bool
		next    string
	}{
		"with a plan":    {true, "ingot workflow retry r1 --from failed-step"},
		"without a plan": {false, "ingot workflow retry r1 --from start"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.AddMachine("m1", mac)
			s.Arm("m1", "r1")
			if c.planned {
				require.NoError(t, s.Store.Plans.PutPlan(t.Context(), inventory.Plan{Run: "r1", Digest: "d"}))
			}
			s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
			require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
			w, err := s.Store.Workflows.Workflow(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, c.next, w.Next)
		})
	}
}

func TestDecideIsAnUpdateThatMayBeRefused(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Arm("m1", "r1")
	in := `{"question":"1.0.1","choice":"retry","by":"another client"}`
	require.Equal(t, http.StatusOK, s.do(http.MethodPost, "/v1/workflows/r1/decide", in).Code)
	u := s.Temporal.Updates[0]
	require.Equal(t, []string{"machine/m1", "r1", workflows.UpdateDecide}, []string{u.WorkflowID, u.RunID, u.UpdateName})
	require.Equal(t, []any{contract.Decision{Question: "1.0.1", Choice: contract.Retry, By: "admin"}}, u.Args)
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventDecision])

	s.Temporal.Update = func(context.Context) error { return temporal.NewApplicationError("nobody asks 1.0.1", "Invalid") }
	a := decode[answer](t, s.do(http.MethodPost, "/v1/workflows/r1/decide", in), http.StatusBadRequest)
	require.Contains(t, a.Error, "nobody asks 1.0.1")
	s.Temporal.Update = func(context.Context) error { return context.DeadlineExceeded } // no worker
	a = decode[answer](t, s.do(http.MethodPost, "/v1/workflows/r1/decide", in), http.StatusServiceUnavailable)
	require.Equal(t, httpapi.CodeUnavailable, a.Code)
}

func TestCancelMayBeRepeated(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Arm("m1", "r1")
	for range 2 {
		require.Equal(t, http.StatusAccepted, s.do(http.MethodPost, "/v1/workflows/r1/cancel", `{"reason":"wrong machine"}`).Code)
	}
	require.Equal(t, 2, s.Temporal.Runs["r1"].Cancels)
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED, nil)
	require.Equal(t, http.StatusAccepted, s.do(http.MethodPost, "/v1/workflows/r1/cancel", nil).Code)
	require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
	require.Equal(t, http.StatusAccepted, s.do(http.MethodPost, "/v1/workflows/r1/cancel", nil).Code)
	require.Equal(t, http.StatusConflict, s.do(http.MethodPost, "/v1/workflows/r1/powered-on", nil).Code)
}

func TestBMCJobUnderARunNeedsForce(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Arm("m1", "r1")
	a := decode[answer](t, s.do(http.MethodPost, "/v1/machines/m1/power", `{"action":"off"}`), http.StatusConflict)
	require.Contains(t, a.Error, "r1")
	st := decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/machines/m1/power", `{"action":"status"}`), http.StatusAccepted)
	require.Equal(t, "bmc/m1/"+st.Job, st.Workflow)
	job := decode[inventory.BMCJob](t, s.do(http.MethodGet, "/v1/bmc/jobs/m1/"+st.Job, nil), http.StatusOK)
	require.Equal(t, []inventory.BMCTask{{Power: "status"}}, job.Tasks) // shown before a worker took it up
	require.Equal(t, http.StatusNotFound, s.do(http.MethodGet, "/v1/bmc/jobs/m1/other", nil).Code)
	decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/machines/m1/power", `{"action":"off","force":true}`), http.StatusAccepted)
	require.True(t, s.Temporal.Inputs[1].(contract.BMCJobInput).Force)
	require.Equal(
		t,
		"r1",
		decode[inventory.Workflow](t, s.do(http.MethodGet, "/v1/machines/m1/workflow", nil), http.StatusOK).Run,
		"a job is not the machine's workflow",
	)
}

func TestPushIsAllOrNothing(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	a := decode[answer](t, s.do(http.MethodPost, "/v1/machines", `{"machines":[
		{"name":"m2","interfaces":[{"mac":"52:54:00:00:00:0b"}]},
		{"name":"M 3","interfaces":[{"mac":"52:54:00:00:00:0c"}]},
		{"name":"m4","interfaces":[{"mac":"xx"}]}]}`), http.StatusBadRequest)
	require.GreaterOrEqual(t, len(a.Problems), 2, "all problems at once")
	a = decode[answer](t, s.do(http.MethodPost, "/v1/machines", `{"machines":[
		{"name":"m2","interfaces":[{"mac":"52:54:00:00:00:0b"}]},
		{"name":"m5","interfaces":[{"mac":"`+mac+`"}]}]}`), http.StatusConflict)
	require.Contains(t, a.Error, "m1")
	require.Equal(t, http.StatusNotFound, s.do(http.MethodGet, "/v1/machines/m2", nil).Code)
	require.Equal(t, http.StatusBadRequest, s.do(http.MethodPost, "/v1/machines", `{"machines":[]} trailing`).Code)
	require.Equal(
		t,
		http.StatusRequestEntityTooLarge,
		s.do(http.MethodPost, "/v1/machines", `{"machines":["`+strings.Repeat("x", maxPush)+`"]}`).Code,
	)
	require.Equal(t, http.StatusMethodNotAllowed, s.do(http.MethodPut, "/v1/machines", nil).Code)
}

// frame is one event of a stream.
type frame struct{ event, data string }

// watch opens a stream and returns its frames.
func (s *site) watch() <-chan frame {
	s.T.Helper()
	srv := httptest.NewServer(s.operator)
	s.T.Cleanup(srv.Close)
	ctx, cancel := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+"/v1/events/stream", nil)
	require.NoError(s.T, err)
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := srv.Client().Do(req)
	require.NoError(s.T, err)
	s.T.Cleanup(func() {
		cancel()
		_ = resp.Body.Close() // the request was cancelled
	})
	require.Equal(s.T, http.StatusOK, resp.StatusCode)
	require.Equal(s.T, "text/event-stream", resp.Header.Get("Content-Type"))
	out := make(chan frame, 1000)
	go func() {
		defer close(out)
		var f frame
		for in := bufio.NewScanner(resp.Body); in.Scan(); {
			switch k, v, _ := strings.Cut(in.Text(), ": "); k {
			case "event":
				f.event = v
			case "data":
				f.data = v
			case "":
				if f.event != "" {
					out <- f
				}
				f = frame{}
			}
		}
	}()
	return out
}

// until returns the first frame that fits.
func until(t *testing.T, frames <-chan frame, fits func(frame) bool) frame {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30e9)
	defer cancel()
	for {
		select {
		case f, ok := <-frames:
			require.True(t, ok, "the stream ended")
			if fits(f) {
				return f
			}
		case <-ctx.Done():
			t.Fatal("no such event came")
		}
	}
}

func TestStreamShowsEverythingThenChanges(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	frames := s.watch()
	f := until(t, frames, func(f frame) bool { return f.event == "machines" })
	var all struct{ Items []apitypes.MachineView }
	require.NoError(t, json.Unmarshal([]byte(f.data), &all))
	require.Len(t, all.Items, 1)
	require.Equal(t, "r1", all.Items[0].Workflow.Run)
	until(t, frames, func(f frame) bool { return f.event == "status" })

	of := func(name, text string) func(frame) bool {
		return func(f frame) bool {
			return f.event == "machine" && strings.Contains(f.data, `"name":"`+name+`"`) && strings.Contains(f.data, text)
		}
	}
	w := s.welcome(o, nonceA)
	k := s.Assign(o)
	for done := int64(1); done <= 3; done++ {
		require.Equal(
			t,
			http.StatusOK,
			send(
				t,
				s.agent,
				http.MethodPost,
				"/agent/v1/heartbeat",
				action.Heartbeat{Running: &action.Progress{Key: k, Done: done, Total: 3}},
				bearer(w.Token),
			).Code,
		)
	}
	until(t, frames, of("m1", `"done":3`))

	s.AddMachine("m2", "52:54:00:00:00:0b")
	until(t, frames, of("m2", ""))
	second := s.watch() // another viewer gets what the first was told, at once
	f = until(t, second, func(f frame) bool { return f.event == "machines" })
	require.Contains(t, f.data, `"m2"`)
	require.Contains(t, f.data, `"done":3`)
	require.NoError(t, s.Store.Machines.DeleteMachine(t.Context(), "m2", "test"))
	for _, viewer := range []<-chan frame{frames, second} {
		f = until(t, viewer, func(f frame) bool { return strings.Contains(f.data, `"deleted":true`) })
		require.JSONEq(t, `{"name":"m2","deleted":true}`, f.data)
	}
	require.NoError(
		t,
		s.Store.Operations.PutOperation(
			t.Context(),
			inventory.Operation{Run: "op", ID: "recover/x", Type: "Recover", Name: "x", State: inventory.StateRunning},
		),
	)
	until(t, frames, func(f frame) bool { return f.event == "operation" && strings.Contains(f.data, `"recover/x"`) })

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.engine.Run(ctx)) // a server that stops ends its streams
	for range frames {
	}
	for range second {
	}
}

// TestStreamShowsAFreshRun: a run that has no record yet is shown, and so is what it tries again.
func TestStreamShowsAFreshRun(t *testing.T) {
	s := newSite(t, func(c *siteConfig) {
		c.Retrying = func(string) []string { return []string{"PowerOff failed 2 times: no answer"} }
	})
	s.AddMachine("m1", mac)
	frames := s.watch()
	until(t, frames, func(f frame) bool { return f.event == "machines" })
	decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil), http.StatusAccepted)
	f := until(t, frames, func(f frame) bool { return f.event == "machine" && strings.Contains(f.data, `"PREPARING"`) })
	require.Contains(t, f.data, `"retrying":["PowerOff failed 2 times: no answer"]`)
}

// TestBoardSendsChangesAlone: a write that changes one machine sends one row, and one that changes nothing that is shown
// sends none.
func TestBoardSendsChangesAlone(t *testing.T) {
	s := newSite(t)
	for n := range 9 {
		s.AddMachine(fmt.Sprintf("m%d", n), fmt.Sprintf("52:54:00:00:01:%02x", n))
	}
	b := s.api.board
	var cancel func()
	b.take, cancel = s.Store.Changes.Follow()
	defer cancel()
	refresh := func(all bool) string {
		t.Helper()
		if all {
			b.loaded = time.Time{}
		}
		before := b.version
		require.NoError(t, s.api.board.refresh(t.Context(), false))
		text, _, err := b.since(before)
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, 9, strings.Count(refresh(true), `"mac"`))
	require.Empty(t, refresh(false))
	require.Empty(t, refresh(true), "reading everything again")
	s.Arm("m7", "r7")
	require.Equal(t, 1, strings.Count(refresh(false), "event: machine\n"))
	seen := inventory.Event{Machine: "m7", Kind: inventory.EventOS}
	require.NoError(t, s.Store.Events.AppendEvents(t.Context(), []inventory.Event{seen}))
	require.Empty(t, refresh(false), "a packet of the machine changes nothing that is shown")
	require.NoError(t, s.Store.Machines.DeleteMachine(t.Context(), "m3", "test"))
	require.Equal(t, 1, strings.Count(refresh(false), `"deleted":true`))
	require.NoError(t, s.Store.Machines.DeleteMachine(t.Context(), "m4", "test"))
	b.take() // a deletion that was not told
	require.Equal(t, 1, strings.Count(refresh(true), `"deleted":true`))

	// What was taken when reading failed is read again.
	s.Arm("m5", "r5")
	ended, end := context.WithCancel(t.Context())
	end()
	require.Error(t, s.api.board.refresh(ended, false))
	require.Equal(t, 1, strings.Count(refresh(false), "event: machine\n"))

	// A viewer that is too slow for the changes that are kept gets everything.
	old := b.version
	for range maxBatches + 1 {
		b.mu.Lock()
		b.publish(map[cellKey][]byte{{"status", ""}: []byte(fmt.Sprint(b.version))})
		b.mu.Unlock()
	}
	text, _, err := b.since(old)
	require.NoError(t, err)
	require.Contains(t, string(text), "event: machines\n")
}

func TestStreamsAreBounded(t *testing.T) {
	s := newSite(t)
	streams := &s.api.board.streams
	for range maxTokenStreams {
		require.True(t, streams.enter(inventory.AdminToken))
	}
	require.Equal(t, http.StatusServiceUnavailable, s.do(http.MethodGet, "/v1/events/stream", nil).Code)
	require.True(t, streams.enter("another"), "a token leaves others a place")
	for n := range maxStreams - maxTokenStreams - 1 {
		require.True(t, streams.enter(fmt.Sprint(n)))
	}
	require.False(t, streams.enter("one more"))
	streams.leave("another")
	require.True(t, streams.enter("one more"))
}

// TestWhatIsTriedAgainIsShown: retried activities are shown although the database, and so
// the record, cannot be written.
func TestWhatIsTriedAgainIsShown(t *testing.T) {
	s := newSite(t, func(c *siteConfig) {
		c.Retrying = func(run string) []string { return []string{"Record of " + run + " failed 7 times: disk full"} }
	})
	s.AddMachine("m1", mac)
	s.Arm("m1", "r1")
	require.Contains(t, s.do(http.MethodGet, "/v1/workflows/r1", nil).Body.String(), "Record of r1 failed 7 times")
	require.Contains(t, s.do(http.MethodGet, "/v1/status", nil).Body.String(), "m1: Record of r1 failed 7 times")
	rec, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.State, rec.Phase = inventory.StateSuccess, inventory.PhaseDone
	rec.Seq++
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
	require.NotContains(t, s.do(http.MethodGet, "/v1/workflows/r1", nil).Body.String(), "disk full", "it has ended")
}
