package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// twoWorkers is a template for two machines.
const twoWorkers = `version: "0.1"
name: cluster
global_timeout: 600
tasks:
  - {name: server, worker: "{{.device_1}}", actions: [{name: first, image: noop, timeout: 60}]}
  - {name: client, worker: "{{.device_2}}", actions: [{name: join, image: noop, timeout: 60}]}
`

// cluster makes the machines n1 to n4 and the template cluster.
func (s *site) cluster() {
	s.T.Helper()
	for i := 1; i <= 4; i++ {
		m := machine(fmt.Sprint("n", i), fmt.Sprintf("52:54:00:00:03:0%d", i))
		require.NoError(s.T, s.Store.Machines.PutMachines(s.T.Context(), []inventory.Machine{m}, false, "test"))
	}
	require.NoError(s.T, s.Store.Templates.PutTemplate(s.T.Context(), inventory.Template{Name: "cluster", Source: twoWorkers}, "test"))
}

// togetherEnded stores an operation that has ended in this state, with one step for each machine.
func (s *site) togetherEnded(run, state string, in contract.TogetherInput, steps ...inventory.OperationStep) {
	s.T.Helper()
	input, err := json.Marshal(in)
	require.NoError(s.T, err)
	s.Clock.Move(1)
	require.NoError(s.T, s.Store.Operations.PutOperation(s.T.Context(), inventory.Operation{
		Run: run, ID: contract.TogetherID(in.Name), Type: inventory.TypeTogether, Name: in.Name, State: state, Input: input, Steps: steps,
		Started: s.Clock.Now(), Ended: s.Clock.Now(),
	}))
}

func TestTogetherStartsAnOperation(t *testing.T) {
	c := checking(newSite(t))
	c.cluster()
	in := contract.TogetherInput{
		Name: "k3s", Template: "cluster", HardwareMap: map[string]string{"device_1": "n1", "device_2": "52:54:00:00:03:02", "version": "1.30"},
		Retries: contract.Retries{Count: 1}, Policy: contract.Pause,
	}
	c.op(http.StatusAccepted, http.MethodPost, "/v1/together", in)
	require.Equal(t, inventory.TypeTogether, c.Temporal.Types[0])
	require.Equal(t, "together/k3s", c.Temporal.Options[0].ID)
	in.By = "admin"
	require.Equal(t, in, c.Temporal.Inputs[0])
	require.Contains(t, c.op(http.StatusOK, http.MethodGet, "/v1/operations/together.k3s", nil).Body.String(), `"type":"ProvisionTogether"`)

	in.By, in.HardwareMap = "", map[string]string{"device_1": "n3", "device_2": "n4"}
	a := decode[answer](t, c.do(http.MethodPost, "/v1/together", in), http.StatusConflict)
	require.Contains(t, a.Error, "together/k3s is already running")
	in.Name = "another" // several may be open
	c.op(http.StatusAccepted, http.MethodPost, "/v1/workflows", map[string]any{"type": inventory.TypeTogether, "input": in})
	require.Equal(t, "together/another", c.Temporal.Options[1].ID)
}

// TestTogetherReportsAllProblems: nothing is started until all machines and the template are valid.
func TestTogetherReportsAllProblems(t *testing.T) {
	c := checking(newSite(t))
	c.cluster()
	ctx := t.Context()
	problems := func(in contract.TogetherInput) (out []string) {
		a := decode[answer](t, c.do(http.MethodPost, "/v1/together", in), http.StatusBadRequest)
		for _, p := range a.Problems {
			out = append(out, p.Field+": "+p.What)
		}
		return out
	}
	require.ElementsMatch(t, []string{
		`name: invalid name of an operation "a/b"`,
		`resume: must be left out: only a retry of the operation sets this field`,
		`policy: invalid value "maybe"; must be one of [fail pause]`,
		`template: there is no template "nothing"`,
		`image: there is no image "nothing"`,
		`hardwareMap.device_2: "n9" is neither the name of a machine nor the MAC address of an interface`,
	}, problems(contract.TogetherInput{
		Name:        "a/b",
		Template:    "nothing",
		Image:       "nothing",
		Policy:      "maybe",
		Resume:      "r",
		HardwareMap: map[string]string{"device_1": "n1", "device_2": "n9"},
	}))
	require.Equal(t, []string{`hardwareMap: names 1 machines, but at least two are needed`},
		problems(contract.TogetherInput{Name: "x", Template: "cluster", HardwareMap: map[string]string{"device_1": "n1"}}))

	// n3 carries out no task; and there is no such function.
	of := map[string]string{"device_1": "n1", "device_2": "n2", "device_3": "n3"}
	require.Equal(t, []string{`tasks: no task is for machine "n3" (machine n3)`},
		problems(contract.TogetherInput{Name: "x", Template: "cluster", HardwareMap: of}))
	require.NoError(t, c.Store.Templates.PutTemplate(ctx, inventory.Template{Name: "broken", Source: twoWorkers + "{{.nothing}}"}, "test"))
	require.Len(t, problems(contract.TogetherInput{Name: "x", Template: "broken", HardwareMap: of}), 1, "the same for all machines")

	c.Arm("n2", "r2")
	g, err := c.Store.Grants.TakeGrant(ctx, "n3", "r3", "machine/n3", false)
	require.NoError(t, err)
	quarantined := inventory.Standing{State: inventory.StandingQuarantined, Reason: "sector 7 refuses", Since: c.Clock.Now()}
	require.NoError(t, c.Store.Machines.Retire(ctx, g.Owner, quarantined, true))
	require.Equal(t, []string{
		`hardwareMap: machine "n2" is busy with run r2`, `hardwareMap: machine "n3" is quarantined: sector 7 refuses`,
	}, problems(contract.TogetherInput{Name: "x", Template: "cluster", HardwareMap: of}))
	require.Empty(t, c.Temporal.Inputs)
}

func TestRetryOfAnOperationTogether(t *testing.T) {
	c := checking(newSite(t))
	c.cluster()
	in := contract.TogetherInput{
		Name: "k3s", Template: "cluster", HardwareMap: map[string]string{"device_1": "n1", "device_2": "n2"}, By: "alice",
	}
	steps := []inventory.OperationStep{
		{Name: "n1", Machine: "n1", Run: "w1", State: inventory.StepDone}, {Name: "n2", Machine: "n2", Run: "w2", State: inventory.StepFailed},
	}
	c.togetherEnded("r1", inventory.StateFailed, in, steps...)
	c.op(http.StatusAccepted, http.MethodPost, "/v1/operations/together.k3s/retry", nil)
	again := in
	again.Resume, again.By = "r1", "admin"
	require.Equal(t, "together/k3s", c.Temporal.Options[0].ID)
	require.Equal(t, again, c.Temporal.Inputs[0])
	c.op(http.StatusConflict, http.MethodPost, "/v1/operations/together.k3s/retry", nil) // it is open
	require.Contains(t, decode[answer](t, c.do(http.MethodPost, "/v1/operations/r1/retry", nil), http.StatusConflict).Error, "is newer")

	// An operation that was cancelled before it had started a run leaves the operation before it as the one to resume.
	again.Name, again.By = "early", "alice"
	c.togetherEnded("r3", inventory.StateCancelled, again, inventory.OperationStep{Name: "n2", Machine: "n2", State: inventory.StepPending})
	c.op(http.StatusAccepted, http.MethodPost, "/v1/operations/r3/retry", nil)
	require.Equal(t, "r1", c.Temporal.Inputs[1].(contract.TogetherInput).Resume)

	in.Name = "good"
	c.togetherEnded("r4", inventory.StateSuccess, in, steps...)
	c.op(http.StatusConflict, http.MethodPost, "/v1/operations/r4/retry", nil)
	in.Name = "busy"
	c.togetherEnded("r5", inventory.StateFailed, in, steps...)
	c.Arm("n1", "w3") // it is installed, and the retry leaves it alone
	c.Arm("n2", "w4")
	a := decode[answer](t, c.do(http.MethodPost, "/v1/operations/r5/retry", nil), http.StatusBadRequest)
	require.Equal(t, `machine "n2" is busy with run w4`, a.Problems[0].What)
	require.Len(t, a.Problems, 1)

	for kind, next := range map[string]string{inventory.TypeRecover: "start it again", inventory.TypeGenesis: "ingot genesis resume x"} {
		require.NoError(t, c.Store.Operations.PutOperation(t.Context(), inventory.Operation{
			Run:     kind,
			ID:      kind + "/x",
			Type:    kind,
			Name:    "x",
			State:   inventory.StateFailed,
			Started: c.Clock.Now(),
			Steps:   []inventory.OperationStep{},
		}))
		a = decode[answer](t, c.do(http.MethodPost, "/v1/operations/"+kind+"/retry", nil), http.StatusBadRequest)
		require.Equal(t, next, a.Problems[0].Remedy)
	}
	c.op(http.StatusNotFound, http.MethodPost, "/v1/operations/r9/retry", nil)
	require.Len(t, c.Temporal.Inputs, 2)
}

// TestRunsOfAnOperationTogetherAreNotRetriedAlone: such a run would take the machine without the others.
func TestRunsOfAnOperationTogetherAreNotRetriedAlone(t *testing.T) {
	c := checking(newSite(t))
	c.cluster()
	c.AddMachine("m1", mac)
	c.failed("r1", contract.ProvisionInput{
		Machine: "m1", Template: "cluster", HardwareMap: map[string]string{"device_1": "m1", "device_2": "n2"}, Parent: "together/k3s",
	})
	const resume = `{"type":"Provision","input":{"machine":"m1","template":"cluster","resume":"r1"}}`
	for path, body := range map[string]string{
		"/v1/workflows/r1/retry": `{"from":"start"}`, "/v1/workflows/r1/retry?": `{"from":"failed-step"}`, "/v1/workflows": resume,
	} {
		a := decode[answer](t, c.do(http.MethodPost, path, body), http.StatusConflict)
		require.Contains(t, a.Error, "is part of together/k3s, which can only be retried as a whole")
		require.Equal(t, "ingot together retry k3s", a.Next)
	}
	for _, kind := range []string{inventory.TypeProvision, inventory.TypeReprovision} {
		a := decode[answer](t, c.do(http.MethodPost, "/v1/workflows",
			`{"type":"`+kind+`","input":{"machine":"m1","template":"cluster","parent":"together/k3s"}}`), http.StatusBadRequest)
		require.Contains(t, a.Problems[0].Field, "parent")
	}
	require.Empty(t, c.Temporal.Inputs)
}

// TestRenderForSeveralMachines: a template is rendered for one machine of those that the hardware map names.
func TestRenderForSeveralMachines(t *testing.T) {
	c := checking(newSite(t))
	c.cluster()
	c.AddMachine("other", "52:54:00:00:04:07")
	in := map[string]any{"machine": "n2", "hardwareMap": map[string]string{"device_1": "n1", "device_2": "n2"}}
	require.Contains(t, c.op(http.StatusOK, http.MethodPost, "/v1/templates/cluster/render", in).Body.String(), `"join"`)
	in["machine"] = "other"
	c.op(http.StatusBadRequest, http.MethodPost, "/v1/templates/cluster/render", in)
	require.Empty(t, c.Temporal.Inputs)
}
