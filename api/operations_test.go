package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func (s *site) operation(id, kind string, steps ...inventory.OperationStep) {
	s.T.Helper()
	o := inventory.Operation{
		Run:     "r1",
		ID:      id,
		Type:    kind,
		Name:    "lab",
		State:   inventory.StateRunning,
		Step:    "router",
		Steps:   steps,
		Started: time.Unix(1, 0),
		Seq:     1,
	}
	require.NoError(s.T, s.Store.Operations.PutOperation(s.T.Context(), o))
}

func TestOperations(t *testing.T) {
	s := newSite(t)
	c := checking(s)
	s.operation(
		"genesis/lab",
		inventory.TypeGenesis,
		inventory.OperationStep{
			Name:    "router",
			Machine: "vp6630",
			Does:    "installs the router",
			Undo:    "none: it is wiped again",
			State:   inventory.StepRunning,
			Budget:  time.Hour,
		},
	)
	s.Temporal.Open("genesis/lab", "r1")
	for _, path := range []string{"/v1/operations", "/v1/operations?open=true&type=Genesis", "/v1/operations/r1", "/v1/operations/genesis.lab"} {
		rec := c.op(http.StatusOK, http.MethodGet, path, nil)
		require.Contains(t, rec.Body.String(), "installs the router", path)
	}
	c.op(http.StatusNotFound, http.MethodGet, "/v1/operations/genesis.other", nil)

	decide := func(status int, d contract.Decision) string {
		t.Helper()
		return c.op(status, http.MethodPost, "/v1/operations/genesis.lab/decide", d).Body.String()
	}
	decide(http.StatusOK, contract.Decision{Question: "router.1", Choice: contract.Undo})
	require.Equal(t, "genesis/lab", s.Temporal.Updates[0].WorkflowID)
	require.Equal(t, "admin", s.Temporal.Updates[0].Args[0].(contract.Decision).By)

	rec := s.do(http.MethodPost, "/v1/operations/r1/decide", `{"choice":"restart"}`)
	require.Equal(t, http.StatusBadRequest, rec.Code, rec.Body)
	require.Contains(t, rec.Body.String(), "question")
	require.Contains(t, rec.Body.String(), "restart")

	for range 2 {
		c.op(http.StatusAccepted, http.MethodPost, "/v1/operations/r1/cancel", nil)
	}
	require.Equal(t, 2, s.Temporal.Runs["r1"].Cancels)
}

// TestCancelOfAnOperationThatHasEnded says how it has ended.
func TestCancelOfAnOperationThatHasEnded(t *testing.T) {
	s := newSite(t)
	for state, want := range map[string]int{
		inventory.StateCancelled: http.StatusAccepted, inventory.StateSuccess: http.StatusConflict, inventory.StateFailed: http.StatusConflict,
	} {
		require.NoError(t, s.Store.Operations.PutOperation(t.Context(), inventory.Operation{
			Run: state, ID: "recover/" + state, Type: inventory.TypeRecover, State: state, Started: s.Clock.Now(), Ended: s.Clock.Now(),
		}))
		require.Equal(t, want, s.do(http.MethodPost, "/v1/operations/"+state+"/cancel", nil).Code, state)
	}
}

func TestOneOperationOfATypeAtATime(t *testing.T) {
	s := newSite(t)
	in := workflows.GenesisInput{Name: "lab"}
	st, err := s.api.operations.start(t.Context(), engine.Start{Type: inventory.TypeGenesis, ID: workflows.GenesisID("lab"), Input: in}, "lab")
	require.NoError(t, err)
	o, err := s.Store.Operations.Operation(t.Context(), st.Run)
	require.NoError(t, err)
	require.Equal(t, inventory.StatePreparing, o.State)
	require.JSONEq(t, `{"name":"lab"}`, string(o.Input))

	for _, name := range []string{"lab", "other"} {
		_, err = s.api.operations.start(
			t.Context(),
			engine.Start{Type: inventory.TypeGenesis, ID: workflows.GenesisID(name), Input: workflows.GenesisInput{Name: name}},
			name,
		)
		require.ErrorIs(t, err, inventory.ErrConflict)
		require.ErrorContains(t, err, "genesis/lab is already running as run "+st.Run)
	}
	_, err = s.api.operations.start(
		t.Context(),
		engine.Start{Type: inventory.TypeRecover, ID: contract.RecoverID("rack"), Input: contract.RecoverInput{Name: "rack"}},
		"rack",
	)
	require.NoError(t, err, "another type")
}

func TestReconcileEndsOperationsThatAreOver(t *testing.T) {
	for status, want := range map[enumspb.WorkflowExecutionStatus]string{
		enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED: inventory.StateFailed,
		enumspb.WORKFLOW_EXECUTION_STATUS_CANCELED:   inventory.StateCancelled,
		enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING:    inventory.StateRunning,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := newSite(t)
			s.operation("recover/rack", inventory.TypeRecover)
			s.Temporal.Open("recover/rack", "r1")
			s.Temporal.End("r1", status, nil)
			require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
			o, err := s.Store.Operations.Operation(t.Context(), "r1")
			require.NoError(t, err)
			require.Equal(t, want, o.State)
			b, err := json.Marshal(o)
			require.NoError(t, err)
			require.Equal(t, inventory.Final(want), !o.Ended.IsZero(), string(b))
		})
	}
}

// A recovery whose history was full continues as new under the record of its first
// execution. Decisions and cancellations go to that record.
func TestOperationThatContinuesKeepsItsRecord(t *testing.T) {
	s := newSite(t)
	s.operation("recover/rack", inventory.TypeRecover)
	judged := func() inventory.Operation {
		t.Helper()
		require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
		o, err := s.Store.Operations.Operation(t.Context(), "r1")
		require.NoError(t, err)
		return o
	}
	s.Temporal.Open("recover/rack", "r1")
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW, nil)
	s.Temporal.Open("recover/rack", "r2")
	o := judged()
	require.Equal(t, inventory.StateRunning, o.State, "r2 will record that it goes on")
	checking(s).op(http.StatusAccepted, http.MethodPost, "/v1/operations/r1/cancel", nil)
	require.Equal(t, 1, s.Temporal.Runs["r2"].Cancels, "before it has recorded anything")

	o.Execution = "r2"
	o.Seq++
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(), o))
	delete(s.Temporal.Runs, "r1") // Temporal forgets the first execution
	for range 2 {
		require.Equal(t, inventory.StateRunning, judged().State)
	}
	checking(s).op(http.StatusAccepted, http.MethodPost, "/v1/operations/r1/cancel", nil)
	require.Equal(t, 2, s.Temporal.Runs["r2"].Cancels)
	checking(
		s,
	).op(http.StatusOK, http.MethodPost, "/v1/operations/recover.rack/decide", contract.Decision{Question: "q.1", Choice: contract.Retry})
	require.Equal(t, "r2", s.Temporal.Updates[0].RunID)

	// r2 was reset from outside, which gives it a record of its own.
	s.Temporal.End("r2", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	s.Temporal.Open("recover/rack", "r3")
	require.Equal(t, inventory.StateFailed, judged().State)
	require.Zero(t, s.Temporal.Runs["r3"].Cancels)
}

// The next execution ended before it recorded anything.
func TestOperationWhoseContinuationEndedIsOver(t *testing.T) {
	s := newSite(t)
	s.operation("recover/rack", inventory.TypeRecover)
	s.Temporal.Open("recover/rack", "r1")
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_CONTINUED_AS_NEW, nil)
	s.Temporal.Open("recover/rack", "r2")
	s.Temporal.End("r2", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
	o, err := s.Store.Operations.Operation(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, inventory.StateFailed, o.State)
}

// A migration that was ended from outside did not run its undo.
func TestReconcileTakesNewRunsAgain(t *testing.T) {
	s := newSite(t)
	intake := func() string {
		t.Helper()
		require.NoError(t, s.engine.Reconciler.CheckRuns(t.Context()))
		why, err := s.Store.HandOvers.Intake(t.Context())
		require.NoError(t, err)
		return why
	}
	s.operation("migrate/um760", inventory.TypeMigrate)
	s.Temporal.Open("migrate/um760", "r1")
	require.NoError(t, s.Store.HandOvers.CloseIntake(t.Context(), "migrate/um760 moves this site"))
	require.NotEmpty(t, intake(), "as long as it is open")
	s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_TERMINATED, nil)
	require.NotEmpty(t, intake(), "its record ends in this pass")
	require.Empty(t, intake())
}

// TestWaitingIsShown: status and lists find what waits for an operator, and for what.
func TestWaitingIsShown(t *testing.T) {
	s := newSite(t)
	put := func(n int, phase, next string, q *inventory.Question) {
		name := fmt.Sprintf("m%d", n)
		if n <= 3 {
			s.AddMachine(name, fmt.Sprintf("52:54:00:00:01:%02x", n))
		}
		require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
			Run:      "r" + name,
			ID:       "machine/" + name,
			Type:     inventory.TypeProvision,
			Machine:  name,
			State:    inventory.StatePending,
			Phase:    phase,
			Message:  "power the machine on now",
			Next:     next,
			Question: q,
			Started:  s.Clock.Now().Add(time.Duration(n) * time.Second),
			Updated:  s.Clock.Now(),
		}))
	}
	put(1, inventory.PhaseDHCP, "", nil)
	put(2, inventory.PhasePower, "ingot workflow powered-on m2", nil)
	asked := s.Clock.Now().Add(-time.Hour).UTC()
	question := &inventory.Question{ID: "3.bind.1", Text: "the machine has 2 fixed disks", Choices: []string{"retry", "abort"}, Since: asked}
	put(3, inventory.PhaseWaiting, "ingot workflow decide m3", question)
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(), inventory.Operation{
		Run: "o1", ID: "genesis/lab", Type: inventory.TypeGenesis, Name: "lab", State: inventory.StateRunning,
		Question: &inventory.Question{ID: "relay.1", Text: "the relay is silent", Since: asked}, Next: "ingot operation decide genesis/lab",
	}))

	st := decode[apitypes.Status](t, s.do(http.MethodGet, "/v1/status", nil), http.StatusOK)
	require.Equal(t, []apitypes.WaitingStatus{
		{
			Name: "m2", Type: "Provision", Run: "rm2", Since: s.Clock.Now().UTC(), Text: "power the machine on now",
			Next: "ingot workflow powered-on m2",
		},
		{Name: "m3", Type: "Provision", Run: "rm3", Since: asked, Text: question.Text, Next: "ingot workflow decide m3"},
		{Name: "genesis/lab", Type: "Genesis", Run: "o1", Since: asked, Text: "the relay is silent", Next: "ingot operation decide genesis/lab"},
	}, st.Waiting)
	require.False(t, st.MoreWaiting)

	for route, want := range map[string]int{"workflows": 2, "machines": 2, "operations": 1} {
		for _, word := range []string{"waiting", "WAITING"} {
			found := decode[httpapi.List[map[string]any]](t, s.do(http.MethodGet, "/v1/"+route+"?state="+word, nil), http.StatusOK)
			require.Len(t, found.Items, want, route)
		}
		a := decode[answer](t, s.do(http.MethodGet, "/v1/"+route+"?state=asleep", nil), http.StatusBadRequest)
		require.Contains(t, a.Error, "asleep", "a state that does not exist")
		require.Equal(t, "state", a.Problems[0].Field)
	}

	for n := 4; n < 4+maxWaiting; n++ {
		put(n, inventory.PhaseWaiting, "", question)
	}
	st = decode[apitypes.Status](t, s.do(http.MethodGet, "/v1/status", nil), http.StatusOK)
	require.Len(t, st.Waiting, maxWaiting+1)
	require.True(t, st.MoreWaiting)
}
