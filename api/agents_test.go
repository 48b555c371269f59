package api

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

func TestClaimIsTheSameForUnknownClosedAndWrong(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.AddMachine("m2", "52:54:00:00:00:0b")
	o := s.Arm("m1", "r1")

	wrong := s.hello(o, 1, nonceA)
	wrong.Claim = wrong.Claim[1:] + "0"
	unknown := s.hello(o, 1, nonceA)
	unknown.Machine = "nobody"
	never := s.hello(inventory.Owner{Machine: "m2"}, 0, nonceA) // the claim of an empty grant is refused
	early := s.hello(o, 2, nonceA)
	var answers []*httptest.ResponseRecorder
	for _, h := range []action.Hello{wrong, unknown, never, early} {
		answers = append(answers, send(t, s.agent, http.MethodPost, "/agent/v1/claim", h))
	}
	right := s.hello(o, 1, nonceA)
	s.Clock.Move(2 * time.Hour) // the window closes
	answers = append(answers, send(t, s.agent, http.MethodPost, "/agent/v1/claim", right))
	for _, a := range answers {
		require.Equal(t, http.StatusNotFound, a.Code)
		require.Equal(t, answers[0].Body.String(), a.Body.String())
		require.Equal(t, answers[0].Header(), a.Header())
	}
	require.Zero(t, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventHello])
}

func TestLostAnswerOfClaimIsGivenAgain(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")

	first, again := s.welcome(o, nonceA), s.welcome(o, nonceA)
	require.Equal(t, first, again)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(first.Token)).Code)
	// After the first use of the token, a repeated claim comes from another client.
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonceA)).Code)
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventHello])
}

func TestSecondNonceIsAConflictAndRevokes(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonceB)).Code)
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventClaimConflict])
	s.holds(o, w)
}

// holds requires that the agent is told to hold, whatever it asks, until its run has ended.
func (s *site) holds(o inventory.Owner, w action.Welcome) {
	s.T.Helper()
	report := action.Result{Key: s.Assign(o), ID: "r", State: action.Success}
	for _, code := range []int{http.StatusForbidden, http.StatusGone} {
		if code == http.StatusGone {
			require.NoError(s.T, s.Store.Grants.EndGrant(s.T.Context(), o))
		}
		for _, r := range []struct {
			method, path string
			in           any
		}{
			{http.MethodGet, "/agent/v1/next", nil},
			{http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}},
			{http.MethodPost, "/agent/v1/report", report},
			{http.MethodGet, "/agent/v1/images/x", nil},
			{http.MethodGet, "/agent/v1/runtime", nil},
		} {
			require.Equal(s.T, code, send(s.T, s.agent, r.method, r.path, r.in, bearer(w.Token)).Code, r.path)
		}
	}
	_, err := s.Store.Assignments.Result(s.T.Context(), o.Run, report.Key)
	require.ErrorIs(s.T, err, inventory.ErrNotFound)
}

// TestS36FirmwareIsRecorded: the view of a machine has the firmware's version as its newest agent has found it.
func TestS36FirmwareIsRecorded(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	firmware := func() string {
		return decode[apitypes.MachineView](t, s.do(http.MethodGet, "/v1/machines/m1", nil), http.StatusOK).Firmware
	}
	require.Empty(t, firmware(), "no agent has looked at it")
	for epoch, version := range []string{"American Megatrends 2.3 03/04/2024", "American Megatrends 2.4 01/02/2025"} {
		o := s.Arm("m1", fmt.Sprintf("r%d", epoch))
		h := s.hello(o, 1, nonceA)
		h.Facts.BIOS = version
		require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/claim", h).Code)
		require.Equal(t, version, firmware())
		require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	}
}

func TestStrangeHardwareIsAConflict(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	h := s.hello(o, 1, nonceA)
	h.MAC, h.Facts.NICs = "02:00:00:00:00:01", []action.NIC{{Name: "eth0", MAC: "02:00:00:00:00:01"}}
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", h).Code)
	again := h
	again.Nonce = nonceB
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", again).Code)
	require.Equal(
		t,
		map[string]int{inventory.EventGrant: 1, inventory.EventArmed: 1, inventory.EventPhase: 1, inventory.EventClaimConflict: 1},
		s.Events(inventory.EventFilter{Run: "r1"}),
		"an attacker decides how often he asks, not how much is stored",
	)
	s.welcome(o, nonceB) // the machine itself is not locked out
}

// Foreign hardware reports after the machine: which of the two is genuine cannot be known.
func TestStrangeHardwareRevokesTheAgent(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
	h := s.hello(o, 1, nonceA)
	h.MAC = "02:00:00:00:00:01"
	for range 3 {
		require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", h).Code)
	}
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventClaimConflict])
	s.holds(o, w)
}

// S1: a claim whose answer was lost gets it again, even from a restarted server.
func TestS1LostAnswerSurvivesARestart(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	first := s.welcome(o, nonceA)
	s.restart()
	s.Clock.Move(2 * time.Hour) // and the window has closed since
	second := s.welcome(o, nonceA)
	require.Equal(t, first.Token, second.Token)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(first.Token)).Code)
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonceA)).Code)
	require.Equal(
		t,
		http.StatusOK,
		send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(first.Token)).Code,
		"a repetition revokes nothing",
	)
}

// A run's record may be deleted while its last agent is up: the agent is told that its run
// has ended.
func TestAgentOfADeletedRunIsToldToGo(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	rec, err := s.Store.Workflows.Workflow(t.Context(), "r1")
	require.NoError(t, err)
	rec.State = inventory.StateSuccess
	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), rec))
	require.NoError(t, s.Store.Workflows.DeleteWorkflow(t.Context(), "r1", "ann"))
	require.Equal(t, http.StatusGone, send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{}, bearer(w.Token)).Code)
}

// An agent with another protocol version is refused with a remedy.
func TestProtocols(t *testing.T) {
	for protocol, remedy := range map[int]string{
		action.Protocol - 1: "too old", action.Protocol: "", action.Protocol + 1: "newer than the server",
	} {
		s := newSite(t)
		s.AddMachine("m1", mac)
		o := s.Arm("m1", "r1")
		h := s.hello(o, 1, nonceA)
		h.Protocol = protocol
		rec := send(t, s.agent, http.MethodPost, "/agent/v1/claim", h)
		if remedy != "" {
			require.Equal(t, http.StatusBadRequest, rec.Code)
			require.Contains(t, rec.Body.String(), remedy)
			require.Contains(t, rec.Body.String(), "agent OS")
			continue
		}
		w := decode[action.Welcome](t, rec, http.StatusOK)
		require.Equal(t, protocol, w.Protocol)
		k := action.Key{Epoch: o.Epoch, Attempt: 1}
		as := action.Assignment{Key: k, Run: o.Run, Action: action.Action{Name: "write", Image: "noop", Timeout: 600}}
		_, signer, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		as.Signed, err = action.Sign(signer, action.Order{Machine: "m1", Boot: 1, Plan: "p", Assignment: as})
		require.NoError(t, err)
		require.NoError(t, s.Store.Assignments.Assign(t.Context(), inventory.Assignment{Owner: o, Boot: 1, Key: k, Payload: as}))
		got := decode[action.Assignment](t, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)), http.StatusOK)
		require.Equal(t, as, got)
		order, err := got.Signed.Verify(signer.Public().(ed25519.PublicKey))
		require.NoError(t, err)
		require.Equal(t, "write", order.Action.Name)
		// Fields that the server does not know are ignored.
		require.Equal(
			t,
			http.StatusOK,
			send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", `{"idle":true,"mood":{"good":1}}`, bearer(w.Token)).Code,
		)
		require.Equal(t, http.StatusNoContent, send(
			t,
			s.agent,
			http.MethodPost,
			"/agent/v1/report",
			fmt.Sprintf(
				`{"key":{"epoch":%d,"action":0,"attempt":1,"lap":3},"id":"r","state":"SUCCESS","mood":"good"}`,
				o.Epoch,
			),
			bearer(w.Token),
		).Code)
	}
}

func TestClaimRefusesWhatNoAgentSends(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	short := s.hello(o, 1, "0011")
	for _, in := range []any{short, "no json", ""} {
		require.Equal(t, http.StatusBadRequest, send(t, s.agent, http.MethodPost, "/agent/v1/claim", in).Code)
	}
	huge := make([]byte, action.MaxHello+100)
	for i := range huge {
		huge[i] = ' '
	}
	require.Equal(t, http.StatusRequestEntityTooLarge, send(t, s.agent, http.MethodPost, "/agent/v1/claim", huge).Code)
}

func TestTokensOfOthersAreRefused(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	for _, token := range []string{"", "x", adminToken} {
		require.Equal(t, http.StatusUnauthorized, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(token)).Code)
	}
	require.Equal(t, http.StatusUnauthorized, send(t, s.operator, http.MethodGet, "/v1/machines", nil, bearer(w.Token)).Code)
	require.NoError(t, s.Store.Grants.EndGrant(t.Context(), o))
	for _, r := range [][2]string{{http.MethodGet, "/agent/v1/next"}, {http.MethodPost, "/agent/v1/heartbeat"}, {http.MethodPost, "/agent/v1/report"}, {http.MethodGet, "/agent/v1/images/x"}, {http.MethodGet, "/agent/v1/runtime"}} {
		bye := decode[action.Farewell](t, send(t, s.agent, r[0], r[1], "{}", bearer(w.Token)), http.StatusGone)
		require.NotEmpty(t, bye.Reason)
	}
}

func TestPollGetsAnAssignmentTheMomentItIsWritten(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	got := make(chan *httptest.ResponseRecorder)
	go func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/agent/v1/next?wait=60s", nil)
		r.Header.Set("Authorization", "Bearer "+w.Token)
		rec := httptest.NewRecorder()
		s.agent.ServeHTTP(rec, r)
		got <- rec
	}()
	k := s.Assign(o)
	select {
	case rec := <-got:
		a := decode[action.Assignment](t, rec, http.StatusOK)
		require.Equal(t, k, a.Key)
		require.Equal(t, "write", a.Action.Name)
	case <-time.After(30 * time.Second): // far less than the poll's wait
		t.Fatal("the poll did not wake")
	}
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventActionStarted])
	// A lost answer: the same assignment again, and still one start.
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventActionStarted])
}

// TestHeldPollOfARevokedAgentGetsNothing: the token was valid when the poll started.
func TestHeldPollOfARevokedAgentGetsNothing(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	held := &held{Store: s.cfg.Store, looked: make(chan struct{})}
	s.restart(func(c *siteConfig) { c.Store = held })
	got := make(chan *httptest.ResponseRecorder)
	go func() {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/agent/v1/next?wait=60s", nil)
		r.Header.Set("Authorization", "Bearer "+w.Token)
		rec := httptest.NewRecorder()
		s.agent.ServeHTTP(rec, r)
		got <- rec
	}()
	<-held.looked
	require.Equal(t, http.StatusConflict, send(t, s.agent, http.MethodPost, "/agent/v1/claim", s.hello(o, 1, nonceB)).Code)
	s.Assign(o)
	select {
	case rec := <-got:
		require.Equal(t, http.StatusForbidden, rec.Code)
	case <-time.After(30 * time.Second):
		t.Fatal("the poll did not end")
	}
	require.Zero(t, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventActionStarted])
}

// held reports when a poll has looked for work for the first time.
type held struct {
	Store
	once   sync.Once
	looked chan struct{}
}

func (h *held) NextAssignment(ctx context.Context, o inventory.Owner) (inventory.Assignment, error) {
	a, err := h.Store.NextAssignment(ctx, o)
	h.once.Do(func() { close(h.looked) })
	return a, err
}

func TestPollEndsWithoutWork(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	w := s.welcome(s.Arm("m1", "r1"), nonceA)
	require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodGet, "/agent/v1/next?wait=0", nil, bearer(w.Token)).Code)
	require.Equal(t, http.StatusBadRequest, send(t, s.agent, http.MethodGet, "/agent/v1/next?wait=soon", nil, bearer(w.Token)).Code)
	// A server that stops ends its polls.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.engine.Run(ctx))
	require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodGet, "/agent/v1/next?wait=60", nil, bearer(w.Token)).Code)
}

func TestReportSentThreeTimesIsOneEventAndOneSignal(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	k := s.Assign(o)
	r := action.Result{Key: k, ID: "abc", State: action.Failed, ExitCode: 3, Message: "no space left", Log: "line 1\nline 2\n"}
	for range 3 {
		require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodPost, "/agent/v1/report", r, bearer(w.Token)).Code)
	}
	require.Equal(t, 1, s.Events(inventory.EventFilter{Run: "r1"})[inventory.EventActionDone])
	text, err := s.Store.Workflows.Log(t.Context(), "r1", 0, 0)
	require.NoError(t, err)
	require.Equal(t, r.Log, text)

	for _, bad := range []action.Result{
		{Key: k, ID: "x", State: action.Running}, {Key: k, State: action.Success}, {Key: action.Key{Epoch: k.Epoch}, ID: "x", State: action.Success},
	} {
		require.Equal(t, http.StatusBadRequest, send(t, s.agent, http.MethodPost, "/agent/v1/report", bad, bearer(w.Token)).Code)
	}
	other := action.Result{Key: action.Key{Epoch: k.Epoch + 1, Attempt: 1}, ID: "x", State: action.Success}
	require.Equal(t, http.StatusGone, send(t, s.agent, http.MethodPost, "/agent/v1/report", other, bearer(w.Token)).Code)
}

func TestHeartbeatTellsProgressAndOrders(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	k := s.Assign(o)
	require.Equal(t, http.StatusOK, send(t, s.agent, http.MethodGet, "/agent/v1/next", nil, bearer(w.Token)).Code)
	beat := func(p *action.Progress) action.Orders {
		return decode[action.Orders](
			t,
			send(t, s.agent, http.MethodPost, "/agent/v1/heartbeat", action.Heartbeat{Running: p, Wrote: true}, bearer(w.Token)),
			http.StatusOK,
		)
	}
	seq, err := s.Store.Events.LastSeq(t.Context())
	require.NoError(t, err)
	require.Empty(t, beat(&action.Progress{Key: k, Done: 5, Total: 10, Message: "writing", Log: "one\n"}))
	require.Empty(t, beat(&action.Progress{Key: k, Done: 7, Total: 10, Log: "two\n"}))
	got := decode[inventory.Workflow](t, s.do(http.MethodGet, "/v1/workflows/r1", nil), http.StatusOK)
	require.Equal(t, int64(7), got.Actions[0].Done)
	require.Equal(t, int64(10), got.Actions[0].Total)
	after, err := s.Store.Events.LastSeq(t.Context())
	require.NoError(t, err)
	require.Equal(t, seq, after, "a heartbeat is no write")

	require.Equal(t, "one\ntwo\n", s.do(http.MethodGet, "/v1/workflows/r1/logs?action=0", nil).Body.String())
	a, err := s.Store.Agents.Agent(t.Context(), o)
	require.NoError(t, err)
	require.True(t, a.Wrote)

	require.NoError(t, s.Store.Assignments.StopAssignment(t.Context(), o, k, s.Clock.Now()))
	require.Equal(t, []action.Key{k}, beat(&action.Progress{Key: k, Done: 8, Total: 10}).Stop)
	require.Equal(
		t,
		http.StatusNoContent,
		send(t, s.agent, http.MethodPost, "/agent/v1/report", action.Result{Key: k, ID: "s", State: action.Stopped}, bearer(w.Token)).Code,
	)
	require.Empty(t, beat(nil))
	got = decode[inventory.Workflow](t, s.do(http.MethodGet, "/v1/workflows/r1", nil), http.StatusOK)
	require.Zero(t, got.Actions[0].Done)
}

func TestLogOfHeartbeatsAndReportIsOneText(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	o := s.Arm("m1", "r1")
	w := s.welcome(o, nonceA)
	k := s.Assign(o)
	beat := func(text string) {
		require.Equal(
			t,
			http.StatusOK,
			send(
				t,
				s.agent,
				http.MethodPost,
				"/agent/v1/heartbeat",
				action.Heartbeat{Running: &action.Progress{Key: k, Log: text}},
				bearer(w.Token),
			).Code,
		)
	}
	beat("one\n")
	require.NoError(t, s.engine.Agents.Flush(t.Context()))
	beat("two\n")
	beat("three\n")
	r := action.Result{Key: k, ID: "a", State: action.Failed, Log: "three\nfour\n"}
	require.Equal(t, http.StatusNoContent, send(t, s.agent, http.MethodPost, "/agent/v1/report", r, bearer(w.Token)).Code)
	require.NoError(t, s.engine.Agents.Flush(t.Context()))
	text, err := s.Store.Workflows.Log(t.Context(), "r1", 0, 1)
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\nfour\n", text)
}

func TestAgentImageIsResumedByItsDigest(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	require.Equal(t, http.StatusCreated, s.do(http.MethodPut, "/v1/images/debian-12?asIs=true", "0123456789").Code)
	w := s.welcome(s.Arm("m1", "r1"), nonceA)
	require.Equal(t, http.StatusUnauthorized, send(t, s.agent, http.MethodGet, "/agent/v1/images/debian-12", nil).Code)
	whole := send(t, s.agent, http.MethodGet, "/agent/v1/images/debian-12", nil, bearer(w.Token))
	require.Equal(t, "0123456789", whole.Body.String())
	etag := whole.Header().Get("ETag")
	part := send(
		t,
		s.agent,
		http.MethodGet,
		"/agent/v1/images/debian-12",
		nil,
		bearer(w.Token),
		header{"Range", "bytes=4-"},
		header{"If-Range", etag},
	)
	require.Equal(t, http.StatusPartialContent, part.Code)
	require.Equal(t, "456789", part.Body.String())
	changed := send(
		t,
		s.agent,
		http.MethodGet,
		"/agent/v1/images/debian-12",
		nil,
		bearer(w.Token),
		header{"Range", "bytes=4-"},
		header{"If-Range", `"other"`},
	)
	require.Equal(t, http.StatusOK, changed.Code)
	require.Equal(
		t,
		http.StatusNotFound,
		send(t, s.agent, http.MethodGet, "/agent/v1/images/..%2f..%2fetc%2fpasswd", nil, bearer(w.Token)).Code,
	)
}

func TestAgentFetchesTheContainerRuntime(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	w := s.welcome(s.Arm("m1", "r1"), nonceA)
	require.Equal(t, http.StatusUnauthorized, send(t, s.agent, http.MethodGet, "/agent/v1/runtime", nil).Code)
	none := send(t, s.agent, http.MethodGet, "/agent/v1/runtime", nil, bearer(w.Token))
	require.Equal(t, http.StatusNotFound, none.Code)
	require.Contains(t, none.Body.String(), "this server has no container runtime")
	require.NoError(t, os.WriteFile(filepath.Join(s.cfg.ImageDir, action.RuntimeFile), []byte("0123456789"), 0o600))
	require.Equal(t, "0123456789", send(t, s.agent, http.MethodGet, "/agent/v1/runtime", nil, bearer(w.Token)).Body.String())
	part := send(t, s.agent, http.MethodGet, "/agent/v1/runtime", nil, bearer(w.Token), header{"Range", "bytes=4-"})
	require.Equal(t, http.StatusPartialContent, part.Code)
	require.Equal(t, "456789", part.Body.String())
}
