package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// killed is a server that is killed at one of its calls, counted from 1.
type killed struct {
	Store
	calls, at int
}

// call is a moment at which the server may be killed.
func (k *killed) call() func() {
	if k.calls++; k.calls == k.at {
		panic("killed")
	}
	return func() {
		if k.calls++; k.calls == k.at {
			panic("killed")
		}
	}
}

func (k *killed) BeginKeyedRequest(ctx context.Context, r inventory.KeyedRequest) (inventory.KeyedRequest, error) {
	defer k.call()()
	return k.Store.BeginKeyedRequest(ctx, r)
}

func (k *killed) SetKeyedWorkflow(ctx context.Context, id, workflow, before string) error {
	defer k.call()()
	return k.Store.SetKeyedWorkflow(ctx, id, workflow, before)
}

func (k *killed) AnswerKeyedRequest(ctx context.Context, r inventory.KeyedRequest) error {
	defer k.call()()
	return k.Store.AnswerKeyedRequest(ctx, r)
}

func (k *killed) PutOperation(ctx context.Context, o inventory.Operation) error {
	defer k.call()()
	return k.Store.PutOperation(ctx, o)
}

func (k *killed) PutMachines(ctx context.Context, ms []inventory.Machine, replace bool, by string) error {
	defer k.call()()
	return k.Store.PutMachines(ctx, ms, replace, by)
}

func (k *killed) PutTemplate(ctx context.Context, x inventory.Template, by string) error {
	defer k.call()()
	return k.Store.PutTemplate(ctx, x, by)
}

func (k *killed) Release(ctx context.Context, machine, by string) error {
	defer k.call()()
	return k.Store.Release(ctx, machine, by)
}

func (k *killed) ArmByHand(ctx context.Context, machine, by string, until time.Time) (inventory.Grant, error) {
	defer k.call()()
	return k.Store.ArmByHand(ctx, machine, by, until)
}

// effects counts what requests have done.
func (s *site) effects() (n int) {
	s.T.Helper()
	n = len(s.Temporal.Runs) + len(s.Temporal.Kept)
	ids := map[string]bool{}
	for _, u := range s.Temporal.Updates {
		ids[u.UpdateID] = true // Temporal takes each once
	}
	events, err := s.Store.Events.Events(s.T.Context(), inventory.EventFilter{})
	require.NoError(s.T, err)
	for _, e := range events {
		if e.Kind == inventory.EventOperator && e.Message != "powered on" && e.Message != "cancel" &&
			!strings.HasPrefix(e.Message, startedMessage) || e.Kind == inventory.EventArmed {
			n++
		}
	}
	for _, r := range s.Temporal.Runs {
		n += min(r.Cancels, 1) // a cancellation can be repeated
	}
	return n + len(ids)
}

// prepare makes the machines that the requests below need.
func (s *site) prepare() {
	s.T.Helper()
	ctx := s.T.Context()
	s.AddMachine("m1", mac)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	s.AddMachine("m3", "52:54:00:00:00:0c")
	s.image("debian-12")
	require.NoError(s.T, s.Store.Templates.PutTemplate(ctx, inventory.Template{Name: "empty", Source: oneAction}, "test"))
	s.Arm("m2", "r2")
	g, err := s.Store.Grants.TakeGrant(ctx, "m3", "r3", "machine/m3", false)
	require.NoError(s.T, err)
	quarantined := inventory.Standing{State: inventory.StandingQuarantined, Reason: "sector 7 refuses", Since: s.Clock.Now()}
	require.NoError(s.T, s.Store.Machines.Retire(ctx, g.Owner, quarantined, true))
}

// labFile stores a lab file, and what it needs.
func (s *site) labFile() {
	s.T.Helper()
	s.stock()
	require.Equal(s.T, http.StatusOK, s.do(http.MethodPut, "/v1/genesis/home", exampleLab(s.T)).Code)
}

// genesis makes a Genesis run of that lab file.
func (s *site) genesis(state string) {
	s.T.Helper()
	s.operation("genesis/home", inventory.TypeGenesis)
	s.Temporal.Open("genesis/home", "r1")
	if inventory.Final(state) {
		o, err := s.Store.Operations.Operation(s.T.Context(), "r1")
		require.NoError(s.T, err)
		o.State, o.Seq = state, o.Seq+1
		require.NoError(s.T, s.Store.Operations.PutOperation(s.T.Context(), o))
		s.Temporal.End("r1", enumspb.WORKFLOW_EXECUTION_STATUS_FAILED, nil)
	}
}

// recovery makes an open run that installs many machines.
func (s *site) recovery() {
	s.T.Helper()
	s.operation("recover/all", inventory.TypeRecover)
	s.Temporal.Open("recover/all", "r1")
}

// TestKeyedRequestsHappenOnceThoughTheServerIsKilled kills the server before and after each call of a request that writes.
// The request is then sent again to a new server: it has one effect, and each repetition gets the same answer.
func TestKeyedRequestsHappenOnceThoughTheServerIsKilled(t *testing.T) {
	type row struct {
		path, body string
		status     int
		prepare    func(s *site) // what else the request needs; nil: nothing
	}
	rows := []row{
		{"/v1/machines/m1/provision", `{"image":"debian-12"}`, http.StatusAccepted, nil},
		{"/v1/machines/m1/inspect", ``, http.StatusAccepted, nil},
		{"/v1/workflows", `{"type":"Decommission","input":{"machine":"m1"}}`, http.StatusAccepted, nil},
		{"/v1/machines/m1/power", `{"action":"on"}`, http.StatusAccepted, nil},
		{"/v1/bmc/jobs", `{"machine":"m1","tasks":[{"powerAction":"off"}]}`, http.StatusAccepted, nil},
		{"/v1/recover", `{"name":"all","machines":["m1"],"template":"empty"}`, http.StatusAccepted, nil},
		{"/v1/provision", `{"name":"all","machines":["m1"],"template":"empty"}`, http.StatusAccepted, nil},
		{
			"/v1/together",
			`{"name":"k3s","template":"cluster","hardwareMap":{"device_1":"n1","device_2":"n2"}}`,
			http.StatusAccepted,
			(*site).cluster,
		},
		{"/v1/operations/together.k3s/retry", ``, http.StatusAccepted, func(s *site) {
			s.cluster()
			of := map[string]string{"device_1": "n1", "device_2": "n2"}
			s.togetherEnded("r9", inventory.StateFailed, contract.TogetherInput{Name: "k3s", Template: "cluster", HardwareMap: of})
		}},
		{"/v1/workflows/r2/powered-on", ``, http.StatusAccepted, nil},
		{"/v1/workflows/r2/decide", `{"question":"q1","choice":"retry"}`, http.StatusOK, nil},
		{"/v1/machines", `{"machines":[{"name":"m9","interfaces":[{"mac":"52:54:00:00:00:09"}]}]}`, http.StatusCreated, nil},
		{"/v1/apply", `{"machines":[{"name":"m10","interfaces":[{"mac":"52:54:00:00:00:10"}]}]}`, http.StatusOK, nil},
		{"/v1/seen/52:54:00:00:00:09/accept", `{"name":"m9"}`, http.StatusCreated, nil},
		{"/v1/templates", `{"name":"mine","source":` + fmt.Sprintf("%q", oneAction) + `}`, http.StatusCreated, nil},
		{"/v1/machines/m3/release", ``, http.StatusOK, nil},
		{"/v1/machines/m1/netboot", `{"arm":true}`, http.StatusOK, nil},
		{"/v1/machines/m1/reprovision", `{"image":"debian-12"}`, http.StatusAccepted, nil},
		{"/v1/machines/m1/decommission", ``, http.StatusAccepted, nil},
		{"/v1/machines/m1/boot-device", `{"device":"pxe"}`, http.StatusAccepted, nil},
		{"/v1/workflows/r1/retry", `{"from":"start"}`, http.StatusAccepted, func(s *site) {
			s.failed("r1", contract.ProvisionInput{Machine: "m1", Image: "debian-12"})
		}},
		{"/v1/workflows/r2/cancel", ``, http.StatusAccepted, nil},
		{"/v1/genesis/home/start", ``, http.StatusAccepted, (*site).labFile},
		{"/v1/genesis/home/resume", ``, http.StatusAccepted, func(s *site) {
			s.labFile()
			s.genesis(inventory.StateFailed)
		}},
		{"/v1/genesis/home/cancel", ``, http.StatusAccepted, func(s *site) { s.genesis(inventory.StateRunning) }},
		{"/v1/operations/genesis.home/decide", `{"question":"q1","choice":"retry"}`, http.StatusOK, func(s *site) {
			s.genesis(inventory.StateRunning)
		}},
		{"/v1/operations/r1/cancel", ``, http.StatusAccepted, func(s *site) { s.genesis(inventory.StateRunning) }},
		{"/v1/operations/recover.all/pause", ``, http.StatusOK, (*site).recovery},
		{"/v1/operations/recover.all/resume", ``, http.StatusOK, (*site).recovery},
		{"/v1/migrate", `{"target":"um760"}`, http.StatusAccepted, nil},
	}
	for _, x := range rows {
		t.Run(x.path, func(t *testing.T) {
			t.Parallel()
			for at := 1; ; at++ {
				s := newSite(t, func(c *siteConfig) {
					c.Site = &peers{st: inventory.SiteStatus{Role: "active", Peers: []inventory.Peer{{Name: "um760"}}}}
				})
				s.prepare()
				if x.prepare != nil {
					x.prepare(s)
				}
				before := s.effects()
				k := &killed{Store: fakesite.InventoryOf(s.Store), at: at}
				s.Temporal.Called = func() { k.call() }
				s.restart(func(c *siteConfig) { c.Store, c.Log = k, slog.New(slog.DiscardHandler) })
				survived := s.post(x.path, x.body, "key").Code == x.status

				s.Temporal.Called = nil
				s.restart(func(c *siteConfig) { c.Store = fakesite.InventoryOf(s.Store) })
				again := s.post(x.path, x.body, "key")
				require.Equal(t, x.status, again.Code, "killed at call %d: %s", at, again.Body)
				require.Equal(t, again.Body.String(), s.post(x.path, x.body, "key").Body.String())
				require.Equal(t, before+1, s.effects(), "killed at call %d", at)
				if survived {
					require.Greater(t, at, 2, "the server was killed at some calls")
					return
				}
			}
		})
	}
}
