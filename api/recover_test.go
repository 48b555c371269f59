package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/selector"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func TestReprovisionAndDecommissionStartRuns(t *testing.T) {
	c := checking(newSite(t))
	for _, x := range []struct {
		machine, path, body, kind string
		want                      any
	}{
		{"m1", "reprovision", `{"policy":"pause"}`, "Reprovision", contract.ProvisionInput{Machine: "m1", Policy: "pause", By: "admin"}},
		{"m2", "decommission", `{"wipe":"metadata","keepAddress":true}`, "Decommission", contract.DecommissionInput{Machine: "m2", Wipe: "metadata", KeepAddress: true, By: "admin"}},
	} {
		n := len(c.Temporal.Inputs)
		m := machine(x.machine, "52:54:00:00:01:0"+x.machine[1:])
		m.Image, m.ProtectedDisks = "debian-12", []action.DiskID{{Serial: "KEEP"}, {WWN: "0x5"}}
		if n == 0 {
			c.image("debian-12")
		}
		require.NoError(t, c.Store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
		require.Contains(
			t,
			c.op(http.StatusOK, http.MethodGet, "/v1/machines/"+x.machine, nil).Body.String(),
			`"protectedDisks":[{"serial":"KEEP"},{"wwn":"0x5"}]`,
		)
		c.op(http.StatusAccepted, http.MethodPost, "/v1/machines/"+x.machine+"/"+x.path, x.body)
		require.Equal(t, x.kind, c.Temporal.Types[n])
		require.Equal(t, x.want, c.Temporal.Inputs[n])
		require.Equal(t, "machine/"+x.machine, c.Temporal.Options[n].ID)
		c.op(http.StatusConflict, http.MethodPost, "/v1/machines/"+x.machine+"/decommission", nil)
	}
	a := decode[answer](t, c.do(http.MethodPost, "/v1/machines/m2/decommission", `{"wipe":"secure"}`), http.StatusBadRequest)
	require.Equal(t, "wipe", a.Problems[0].Field)
}

func TestQuarantinedMachinesAreNotInstalled(t *testing.T) {
	c := checking(newSite(t))
	c.AddMachine("m1", mac)
	c.image("sim")
	ctx := t.Context()
	g, err := c.Store.Grants.TakeGrant(ctx, "m1", "r1", "machine/m1", false)
	require.NoError(t, err)
	require.NoError(
		t,
		c.Store.Machines.Retire(
			ctx,
			g.Owner,
			inventory.Standing{State: inventory.StandingQuarantined, Reason: "sector 7 refuses", Since: c.Clock.Now()},
			true,
		),
	)
	require.NoError(t, c.Store.Grants.EndGrant(ctx, g.Owner))
	require.Contains(
		t,
		c.op(http.StatusOK, http.MethodGet, "/v1/machines/m1", nil).Body.String(),
		`"standing":{"state":"quarantined","reason":"sector 7 refuses"`,
	)
	for _, path := range []string{"provision", "reprovision"} {
		a := decode[answer](t, c.do(http.MethodPost, "/v1/machines/m1/"+path, `{"image":"sim"}`), http.StatusConflict)
		require.Contains(t, a.Error, "sector 7 refuses")
		require.Contains(t, a.Next, "ingot machine release m1")
	}
	require.Empty(t, c.Temporal.Inputs)
	require.NotContains(t, c.op(http.StatusOK, http.MethodPost, "/v1/machines/m1/release", nil).Body.String(), "standing")
	c.op(http.StatusAccepted, http.MethodPost, "/v1/machines/m1/provision", `{"image":"sim"}`)
	c.op(http.StatusNotFound, http.MethodPost, "/v1/machines/nobody/release", nil)
}

func TestRecoverStartsAnOperation(t *testing.T) {
	c := checking(newSite(t))
	c.AddMachine("m1", mac)
	require.NoError(t, c.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "empty", Source: oneAction}, "test"))
	c.op(http.StatusAccepted, http.MethodPost, "/v1/recover", `{"name":"flood","machines":["m1"],"abortAfter":1,"template":"empty"}`)
	require.Equal(t, "Recover", c.Temporal.Types[0])
	require.Equal(t, "recover/flood", c.Temporal.Options[0].ID)
	require.Equal(
		t,
		contract.RecoverInput{Name: "flood", Machines: []string{"m1"}, AbortAfter: 1, Template: "empty", By: "admin"},
		c.Temporal.Inputs[0],
	)
	require.Contains(t, c.op(http.StatusOK, http.MethodGet, "/v1/operations/recover.flood", nil).Body.String(), `"type":"Recover"`)
	c.op(http.StatusConflict, http.MethodPost, "/v1/recover", `{"name":"another","machines":["m1"],"template":"empty"}`)
	none := decode[answer](t, c.do(http.MethodPost, "/v1/recover", `{"name":"none","machines":["m1"]}`), http.StatusBadRequest)
	require.Contains(t, none.Error, `template "image" writes an image, but machine "m1" has none`)

	a := decode[answer](
		t,
		c.do(
			http.MethodPost,
			"/v1/recover",
			`{"name":"a/b","machines":["m9"],"order":[["m1"]],"concurrency":-1,"abortAfter":-1,"template":"nothing"}`,
		),
		http.StatusBadRequest,
	)
	var fields []string
	for _, p := range a.Problems {
		fields = append(fields, p.Field)
	}
	require.ElementsMatch(t, []string{"name", "concurrency", "abortAfter", "template", "machines[0]", "order[0][0]"}, fields)
	require.Len(t, c.Temporal.Inputs, 1)
}

func TestRecoverBySelector(t *testing.T) {
	site := func() checker {
		c := checking(newSite(t))
		c.AddMachine("m1", mac)
		require.NoError(t, c.Store.Templates.PutTemplate(t.Context(), inventory.Template{Name: "empty", Source: oneAction}, "test"))
		return c
	}
	want := selector.Selector{{Key: "rack", Operator: selector.NotIn, Values: []string{"b2"}}}
	for name, text := range map[string]string{
		"text": `"rack != b2"`, "object": `{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["b2"]}]}`,
	} {
		c := site()
		c.op(http.StatusAccepted, http.MethodPost, "/v1/recover", `{"name":"flood","template":"empty","selector":`+text+`}`)
		require.Equal(t, want, c.Temporal.Inputs[0].(contract.RecoverInput).Selector, name)
	}

	c := site()
	for text, problem := range map[string]inventory.Problem{
		`"rack>1"`:  {Field: "selector", What: `invalid operator ">" at character 5`, Remedy: "use =, ==, !=, in or notin"},
		`"rack=z9"`: {Field: "selector", What: `"rack=z9" selects no machine in service`, Remedy: "list labels with: ingot machine list --output wide"},
		`""`:        {Field: "machines", What: "no machine is named", Remedy: "name machines, or give a selector of labels"},
	} {
		in := `{"name":"flood","template":"empty","selector":` + text + `}`
		a := decode[answer](t, c.do(http.MethodPost, "/v1/recover", in), http.StatusBadRequest)
		require.Equal(t, []inventory.Problem{problem}, a.Problems, text)
		a = decode[answer](t, c.do(http.MethodPost, "/v1/workflows", `{"type":"Recover","input":`+in+`}`), http.StatusBadRequest)
		require.Len(t, a.Problems, 1)
		require.Contains(t, a.Problems[0].Field, problem.Field)
	}
	require.Empty(t, c.Temporal.Inputs)
}

// TestProvisionMany: machines that may hold a system, are busy or quarantined are refused, all at once.
func TestProvisionMany(t *testing.T) {
	c := checking(newSite(t))
	c.image("debian-12")
	for i := 1; i <= 5; i++ {
		c.AddMachine(fmt.Sprint("m", i), fmt.Sprintf("52:54:00:00:02:0%d", i))
	}
	dry := decode[apitypes.Started](t, c.do(http.MethodPost, "/v1/provision?dryRun=true",
		`{"name":"new","selector":"!old","image":"debian-12","canary":1}`), http.StatusAccepted)
	require.Equal(t, apitypes.Started{Workflow: "recover/new", Machines: []string{"m1", "m2", "m3", "m4", "m5"}}, dry)
	require.Empty(t, c.Temporal.Inputs)
	c.op(http.StatusAccepted, http.MethodPost, "/v1/provision", `{"name":"new","machines":["m1","m2"],"image":"debian-12","canary":1}`)
	require.Equal(t, contract.RecoverInput{
		Name: "new", Machines: []string{"m1", "m2"}, Image: "debian-12", Canary: 1, First: true, By: "admin",
	}, c.Temporal.Inputs[0])

	ctx := t.Context()
	c.Arm("m3", "r3")
	require.NoError(t, c.Store.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "r3", ID: "machine/m3", Machine: "m3", Type: inventory.TypeProvision, State: inventory.StateRunning, Started: c.Clock.Now(),
	}))
	g, err := c.Store.Grants.TakeGrant(ctx, "m4", "r4", "machine/m4", false)
	require.NoError(t, err)
	quarantined := inventory.Standing{State: inventory.StandingQuarantined, Reason: "sector 7 refuses", Since: c.Clock.Now()}
	require.NoError(t, c.Store.Machines.Retire(ctx, g.Owner, quarantined, true))
	require.NoError(t, c.Store.Workflows.PutWorkflow(ctx, inventory.Workflow{
		Run: "r5", ID: "machine/m5", Machine: "m5", Type: inventory.TypeProvision, State: inventory.StateSuccess, Started: c.Clock.Now(),
		Ended: c.Clock.Now(), Image: "debian-12",
	}))
	a := decode[answer](t, c.do(http.MethodPost, "/v1/provision",
		`{"name":"more","machines":["m2","m3","m4","m5"],"image":"nothing","canary":-1}`), http.StatusBadRequest)
	var found []string
	for _, p := range a.Problems {
		found = append(found, p.Field+": "+p.What)
	}
	require.ElementsMatch(t, []string{
		`canary: invalid number of machines -1`, `image: there is no image "nothing"`, `machines: machine "m3" is busy with run r3`,
		`machines: machine "m4" is quarantined: sector 7 refuses`, `machines: machine "m5" may hold the system of run r5`,
	}, found)
	require.Len(t, c.Temporal.Inputs, 1)
}

func TestPauseOfAnOperation(t *testing.T) {
	c := checking(newSite(t))
	put := func(run, kind, state string) {
		require.NoError(t, c.Store.Operations.PutOperation(t.Context(), inventory.Operation{
			Run: run, ID: strings.ToLower(kind) + "/x", Type: kind, Name: "x", State: state, Started: c.Clock.Now(),
			Steps: []inventory.OperationStep{},
		}))
	}
	put("r1", inventory.TypeRecover, inventory.StateRunning)
	put("r2", inventory.TypeGenesis, inventory.StateRunning)
	put("r3", inventory.TypeRecover, inventory.StateFailed)
	c.op(http.StatusOK, http.MethodPost, "/v1/operations/r1/pause", nil)
	c.op(http.StatusOK, http.MethodPost, "/v1/operations/r1/resume", nil)
	require.Len(t, c.Temporal.Updates, 2)
	for i, paused := range []bool{true, false} {
		require.Equal(t, "pause", c.Temporal.Updates[i].UpdateName)
		require.Equal(t, []any{contract.PauseOrder{Paused: paused, By: "admin"}}, c.Temporal.Updates[i].Args)
	}
	c.op(http.StatusBadRequest, http.MethodPost, "/v1/operations/r2/pause", nil)
	c.op(http.StatusConflict, http.MethodPost, "/v1/operations/r3/pause", nil)
	c.op(http.StatusNotFound, http.MethodPost, "/v1/operations/r9/pause", nil)
}
