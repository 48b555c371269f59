package api

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// keyed is the header of a request with a key.
func keyed(key string) header { return header{"Idempotency-Key", `"` + key + `"`} }

func (s *site) post(path, body, key string) *httptest.ResponseRecorder {
	s.T.Helper()
	return s.do(http.MethodPost, path, body, keyed(key))
}

func TestRepeatedRequestGetsTheFirstAnswer(t *testing.T) {
	c := checking(newSite(t))
	c.AddMachine("m1", mac)
	first := c.op(http.StatusAccepted, http.MethodPost, "/v1/machines/m1/inspect", nil, keyed("a"))
	again := c.op(http.StatusAccepted, http.MethodPost, "/v1/machines/m1/inspect", nil, keyed("a"))
	require.Equal(t, first.Body.String(), again.Body.String())
	require.Equal(t, first.Header().Get("Content-Type"), again.Header().Get("Content-Type"))
	require.Len(t, c.Temporal.Types, 1)

	c.restart()
	require.Equal(t, http.StatusNotFound, c.do(http.MethodGet, "/v1/workflows/run-1", nil).Code, "no worker has recorded it")
	require.Equal(t, first.Body.String(), c.post("/v1/machines/m1/inspect", "", "a").Body.String())
	require.Equal(t, "m1", decode[inventory.Workflow](t, c.do(http.MethodGet, "/v1/workflows/run-1", nil), http.StatusOK).Machine)

	refused := c.op(http.StatusConflict, http.MethodPost, "/v1/machines/m1/inspect", nil, keyed("b"))
	c.Temporal.End("run-1", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
	require.Equal(t, refused.Body.String(),
		c.op(http.StatusConflict, http.MethodPost, "/v1/machines/m1/inspect", nil, keyed("b")).Body.String(), "a refusal is an answer")
	require.Equal(t, first.Body.String(),
		c.op(http.StatusAccepted, http.MethodPost, "/v1/machines/m1/inspect", nil, keyed("a")).Body.String(), "also when the run has ended")

	require.Len(t, c.Temporal.Types, 2)
	next := decode[apitypes.Started](t, c.post("/v1/machines/m1/inspect", "", "c"), http.StatusAccepted)
	require.NotContains(t, first.Body.String(), next.Run, "another key is another request")
}

func TestKeyOfAnotherRequestIsRefused(t *testing.T) {
	c := checking(newSite(t))
	c.AddMachine("m1", mac)
	c.AddMachine("m2", "52:54:00:00:00:0b")
	c.op(http.StatusAccepted, http.MethodPost, "/v1/machines/m1/power", `{"action":"on"}`, keyed("a"))
	for path, body := range map[string]string{
		"/v1/machines/m1/power": `{"action":"off"}`, "/v1/machines/m2/power": `{"action":"on"}`,
		"/v1/machines/m1/power?x=1": `{"action":"on"}`, "/v1/machines/m1/inspect": `{"action":"on"}`,
	} {
		require.Equal(t, http.StatusUnprocessableEntity, c.post(path, body, "a").Code, path)
	}
	c.op(http.StatusUnprocessableEntity, http.MethodPost, "/v1/machines/m1/power", `{"action":"off"}`, keyed("a"))
	require.Len(t, c.Temporal.Types, 1)
}

func TestKeyMustBeAString(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	for _, value := range []string{`a`, `""`, `"`, `"a`, `a"`, `"a"b"`, `"a\b"`, "\"\x7f\"", `"ä"`, `"a";b=1`, `"a", "b"`, `"a\"`, `"` + strings.Repeat("k", 256) + `"`} {
		a := decode[answer](t, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil, header{"Idempotency-Key", value}), http.StatusBadRequest)
		require.Equal(t, "Idempotency-Key", a.Problems[0].Field, value)
	}
	require.Empty(t, s.Temporal.Types)

	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/machines/m1/inspect", nil)
	r.Host, r.Header = "127.0.0.1:8080", http.Header{"Idempotency-Key": {`"a"`, `"b"`}, "Authorization": {"Bearer " + adminToken}}
	rec := httptest.NewRecorder()
	s.operator.ServeHTTP(rec, r)
	require.Equal(t, http.StatusBadRequest, rec.Code, "two keys")

	for value, want := range map[string]string{`"a b"`: "a b", `"\"\\"`: `"\`, ` "` + strings.Repeat("k", 255) + `" `: strings.Repeat("k", 255)} {
		got, err := parseKey([]string{value})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestRepetitionOfARequestUnderWayIsRefused(t *testing.T) {
	c := checking(newSite(t))
	c.AddMachine("m1", mac)
	entered, leave := make(chan struct{}), make(chan struct{})
	c.cfg.Intake = func(context.Context) (string, error) {
		close(entered)
		<-leave
		return "", nil
	}
	c.restart()
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- c.post("/v1/machines/m1/inspect", "", "a") }()
	<-entered
	second := c.op(http.StatusConflict, http.MethodPost, "/v1/machines/m1/inspect", nil, keyed("a"))
	require.Equal(t, httpapi.CodeUnderWay, decode[answer](t, second, http.StatusConflict).Code)
	require.NotEmpty(t, second.Header().Get("Retry-After"))
	close(leave)
	started := <-first
	require.Equal(t, http.StatusAccepted, started.Code)
	require.Equal(t, started.Body.String(), c.post("/v1/machines/m1/inspect", "", "a").Body.String())
	require.Len(t, c.Temporal.Types, 1)
}

func TestKeyExpiresAfterADay(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.post("/v1/machines/m1/inspect", "", "a")
	s.Temporal.End("run-1", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
	s.Clock.Move(24*time.Hour - time.Second)
	require.Contains(t, s.post("/v1/machines/m1/inspect", "", "a").Body.String(), "run-1")
	s.Clock.Move(time.Second)
	require.Contains(t, s.post("/v1/machines/m1/inspect", "", "a").Body.String(), "run-2")
}

// TestRequestsWithoutTemporalAreCarriedOutLater: an answer 5xx is none.
func TestRequestsWithoutTemporalAreCarriedOutLater(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Temporal.Down = true
	require.Equal(t, http.StatusServiceUnavailable, s.post("/v1/machines/m1/inspect", "", "a").Code)
	s.Temporal.Down = false
	require.Equal(t, http.StatusAccepted, s.post("/v1/machines/m1/inspect", "", "a").Code)
	require.Len(t, s.Temporal.Types, 1)
}

// TestInterruptedRequestIsNotCarriedOutAfterAnotherRun: the newest run no longer shows whether it was, so it is refused.
func TestInterruptedRequestIsNotCarriedOutAfterAnotherRun(t *testing.T) {
	for name, after := range map[string]bool{"before its effect": false, "after its effect": true} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.AddMachine("m1", mac)
			calls := 0
			s.Temporal.Called = func() {
				// 1 and 2 are the question for the newest run, 3 and 4 the start.
				if calls++; calls == 4 && after || calls == 3 && !after {
					panic("killed")
				}
			}
			require.Equal(t, http.StatusInternalServerError, s.post("/v1/machines/m1/inspect", "", "a").Code)
			s.Temporal.Called = nil
			s.restart()
			if after {
				s.Temporal.End("run-1", enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
			}
			other := decode[apitypes.Started](t, s.do(http.MethodPost, "/v1/machines/m1/inspect", nil), http.StatusAccepted)
			s.Temporal.End(other.Run, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
			for range 2 {
				a := decode[answer](t, s.post("/v1/machines/m1/inspect", "", "a"), http.StatusConflict)
				require.Contains(t, a.Error, other.Run)
			}
			require.Equal(t, other.Run, s.Temporal.Latest["machine/m1"])
		})
	}
}

// TestStartThatTemporalTookLateIsTheRequestsOwn: a start that was under way when the server was killed is committed after
// the repeated request has asked for it.
func TestStartThatTemporalTookLateIsTheRequestsOwn(t *testing.T) {
	s := newSite(t)
	s.AddMachine("m1", mac)
	s.Temporal.Called = func() {
		s.Temporal.Called = func() {
			s.Temporal.Called = nil
			s.Temporal.Open("machine/m1", "late")
			s.Temporal.Runs["late"].Memo = map[string]any{workflows.MemoKeyedRequest: keyedID("admin", "a")}
		}
	}
	require.Equal(t, "late", decode[apitypes.Started](t, s.post("/v1/machines/m1/inspect", "", "a"), http.StatusAccepted).Run)
}

// TestS63AnswersOfKeyedRequestsHoldNoSecrets: neither the secrets of a body nor a secret answer is stored.
func TestS63AnswersOfKeyedRequestsHoldNoSecrets(t *testing.T) {
	c := &keyedSpy{}
	s := newSite(t, func(x *siteConfig) { c.Store = x.Store; x.Store = c; x.Site = &peers{} })
	require.Equal(t, http.StatusCreated, s.post("/v1/machines",
		`{"machines":[{"name":"m1","interfaces":[{"mac":"52:54:00:00:00:0a"}],"userData":"s3cret-user-data",
		"bmc":{"driver":"ipmi","host":"192.0.2.1","user":"admin","password":"s3cret-password"}}]}`, "a").Code)
	require.Equal(t, http.StatusCreated, s.post(
		"/v1/peers",
		`{"name":"b","url":"https://192.0.2.9:8080","fingerprint":"sha256:`+strings.Repeat("0", 64)+`","token":"s3cret-token"}`,
		"b",
	).Code)
	require.Equal(t, http.StatusBadRequest,
		s.post("/v1/images", `{"name":"i","url":"https://user:s3cret-password@images.example.com:port/"}`, "d").Code)
	link := s.post("/v1/login-links", "", "c")
	require.Equal(t, http.StatusCreated, link.Code)
	require.NotEqual(t, link.Body.String(), s.post("/v1/login-links", "", "c").Body.String(), "a secret answer is not stored")
	require.NotEmpty(t, c.stored)
	for _, r := range c.stored {
		require.NotContains(t, fmt.Sprintf("%+v %s", r, r.Answer), "s3cret")
		require.NotContains(t, string(r.Answer), "/login/")
	}
}

// TestS63FingerprintsNeedTheServersKey: two servers store different digests of the same request. With one
// that needs no key, a reader of the database could guess the password in a body.
func TestS63FingerprintsNeedTheServersKey(t *testing.T) {
	fingerprint := func(claimKey byte) string {
		c := &keyedSpy{}
		s := newSite(t, func(x *siteConfig) {
			x.ClaimKey = bytes.Repeat([]byte{claimKey}, 32)
			c.Store = x.Store
			x.Store = c
		})
		s.post("/v1/images", `{"name":"i","url":"https://user:s3cret@images.example.com:port/"}`, "a")
		require.NotEmpty(t, c.stored)
		return c.stored[0].Fingerprint
	}
	require.Equal(t, fingerprint(1), fingerprint(1))
	require.NotEqual(t, fingerprint(1), fingerprint(2))
}

// keyedSpy keeps what is stored of requests.
type keyedSpy struct {
	Store
	stored []inventory.KeyedRequest
}

func (k *keyedSpy) BeginKeyedRequest(ctx context.Context, r inventory.KeyedRequest) (inventory.KeyedRequest, error) {
	k.stored = append(k.stored, r)
	return k.Store.BeginKeyedRequest(ctx, r)
}

func (k *keyedSpy) AnswerKeyedRequest(ctx context.Context, r inventory.KeyedRequest) error {
	k.stored = append(k.stored, r)
	return k.Store.AnswerKeyedRequest(ctx, r)
}

// TestLargeAnswersAreMadeAgain: an answer that is too large to be stored shows the present state, and nothing is changed twice.
func TestLargeAnswersAreMadeAgain(t *testing.T) {
	s := newSite(t)
	var ms []string
	for i := range 100 {
		ms = append(ms, fmt.Sprintf(`{"name":"m%d","interfaces":[{"mac":"52:54:00:00:01:%02x"}]}`, i, i))
	}
	body := `{"machines":[` + strings.Join(ms, ",") + `]}`
	first := s.post("/v1/machines", body, "a")
	require.Greater(t, first.Body.Len(), maxKeptAnswer)
	require.Equal(t, http.StatusCreated, first.Code)
	again := s.post("/v1/machines", body, "a")
	require.Equal(t, http.StatusCreated, again.Code)
	require.Equal(t, first.Body.String(), again.Body.String())

	large := `{"machines":[` + strings.Repeat(`{"name":"!"},`, 1000) + `{"name":"!"}]}`
	refused := s.post("/v1/machines", large, "b")
	require.Equal(t, http.StatusBadRequest, refused.Code)
	require.Greater(t, refused.Body.Len(), maxKeptAnswer)
	short := decode[answer](t, s.post("/v1/machines", large, "b"), http.StatusBadRequest)
	require.True(t, strings.HasPrefix(decode[answer](t, refused, http.StatusBadRequest).Error, short.Error[:100]))
	require.Empty(t, short.Problems)
}

// TestEveryKeyedRouteIsDescribed: the routes that take a key are those that the document gives the header to.
func TestEveryKeyedRouteIsDescribed(t *testing.T) {
	var described, taken []string
	for path, item := range document(t).Paths.Map() {
		if item.Post == nil {
			continue
		}
		for _, p := range item.Post.Parameters {
			if p.Value.Name == keyHeader {
				described = append(described, path)
			}
		}
	}
	for _, r := range routes(newSite(t).operator) {
		path, isPost := strings.CutPrefix(r, "POST /v1")
		if isPost && !isUnkeyed(ginPath("/v1"+path)) {
			taken = append(taken, "/v1"+path)
		}
	}
	slices.Sort(described)
	require.Equal(t, taken, described)
}

// ginPath writes the parameters of a path as gin does.
func ginPath(path string) string {
	return strings.NewReplacer("{", ":", "}", "").Replace(path)
}

// TestAnInterruptedHandlerHasNoAnswer: what a handler says after its client is gone, or in a server that stops, is not repeated
// as the answer.
func TestAnInterruptedHandlerHasNoAnswer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	k := newKeyedRequests(s.Store.KeyedRequests, s.engine.Runs, []byte("claim"), slog.New(slog.DiscardHandler))
	r := gin.New()
	r.Use(k.handle)
	interrupt, carriedOut := func() {}, 0
	r.POST("/v1/images", func(c *gin.Context) {
		carriedOut++
		interrupt()
		if err := c.Request.Context().Err(); err != nil {
			c.JSON(http.StatusBadRequest, err.Error())
			return
		}
		c.Status(http.StatusCreated)
	})
	ask := func() int {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		interrupt = func() {
			if carriedOut == 1 {
				cancel()
			}
		}
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/images", nil)
		req.Header.Set(keyHeader, `"a"`)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		return w.Code
	}
	require.Equal(t, http.StatusBadRequest, ask())
	require.Equal(t, http.StatusCreated, ask())
	require.Equal(t, http.StatusCreated, ask())
	require.Equal(t, 2, carriedOut)
}
