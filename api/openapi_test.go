package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

func document(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(openapi)
	require.NoError(t, err)
	require.NoError(t, doc.Validate(t.Context()))
	return doc
}

func routes(h http.Handler) (out []string) {
	param := regexp.MustCompile(`:(\w+)`)
	for _, r := range h.(*gin.Engine).Routes() {
		out = append(out, r.Method+" "+param.ReplaceAllString(r.Path, "{$1}"))
	}
	slices.Sort(out)
	return out
}

// TestS6RoutesPerListener is the allow-list of both listeners; S28: there is no way to pass anything raw to a BMC.
func TestS6RoutesPerListener(t *testing.T) {
	s := newSite(t)
	for name, h := range map[string]http.Handler{"operator": s.operator, "agent": s.agent} {
		list, err := os.ReadFile("testdata/routes-" + name + ".txt")
		require.NoError(t, err)
		var want []string
		for line := range strings.Lines(string(list)) {
			words := strings.Fields(line) // a third word is the role, see TestS37RolesOfRoutes
			want = append(want, words[0]+" "+words[1])
		}
		require.Equal(t, want, routes(h), name)
	}
	for _, r := range routes(s.agent) {
		require.True(t, strings.Contains(r, " /agent/v1/"), r)
	}
	require.Equal(t, http.StatusNotFound, send(t, s.agent, http.MethodGet, "/v1/machines", nil, bearer(adminToken)).Code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPost, "/agent/v1/claim", "{}").Code)
}

// TestDocumentHasEveryRoute keeps openapi.yaml and the routers equal.
func TestDocumentHasEveryRoute(t *testing.T) {
	s, doc := newSite(t), document(t)
	served := append(routes(s.operator), routes(s.agent)...)
	var described []string
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			described = append(described, method+" "+path)
		}
	}
	slices.Sort(served)
	slices.Sort(described)
	require.Equal(t, served, described)
}

// checker sends requests and compares request and answer with the document.
type checker struct {
	*site
	router routers.Router
}

func (c checker) check(h http.Handler, status int, method, path string, in any, hs ...header) *httptest.ResponseRecorder {
	c.T.Helper()
	rec := send(c.T, h, method, path, in, hs...)
	require.Equal(c.T, status, rec.Code, "%s %s: %s", method, path, rec.Body)
	req := httptest.NewRequestWithContext(c.T.Context(), method, path, nil)
	route, params, err := c.router.FindRoute(req)
	require.NoError(c.T, err)
	if in != nil && status < http.StatusBadRequest { // what was taken must be what the document lets people send
		b, isText := in.(string)
		if !isText {
			raw, err := json.Marshal(in)
			require.NoError(c.T, err)
			b = string(raw)
		}
		asked := httptest.NewRequestWithContext(c.T.Context(), method, path, strings.NewReader(b))
		for kind := range route.Operation.RequestBody.Value.Content { // there is one
			asked.Header.Set("Content-Type", kind)
		}
		for _, h := range hs {
			asked.Header.Set(h.name, h.value)
		}
		require.NoError(c.T, openapi3filter.ValidateRequest(c.T.Context(), &openapi3filter.RequestValidationInput{
			Request:    asked,
			PathParams: params,
			Route:      route,
			Options:    &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		}), "%s %s", method, path)
	}
	require.NoError(c.T, openapi3filter.ValidateResponse(c.T.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: req, PathParams: params, Route: route},
		Status:                 rec.Code, Header: rec.Header(), Body: io.NopCloser(bytes.NewReader(rec.Body.Bytes())),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}), "%s %s: %s", method, path, rec.Body)
	return rec
}

func checking(s *site) checker {
	s.T.Helper()
	router, err := gorillamux.NewRouter(document(s.T))
	require.NoError(s.T, err)
	return checker{s, router}
}

func (c checker) op(status int, method, path string, in any, hs ...header) *httptest.ResponseRecorder {
	c.T.Helper()
	return c.check(c.operator, status, method, path, in, append([]header{bearer(adminToken)}, hs...)...)
}

// TestAnswersFitDocument walks through most routes with a real store.
func TestAnswersFitDocument(t *testing.T) {
	c := checking(newSite(t))

	c.op(200, "GET", "/healthz", nil)
	c.op(200, "GET", "/readyz", nil)
	c.op(200, "GET", "/metrics", nil)
	c.op(200, "GET", "/v1/status", nil)
	c.op(200, "GET", "/v1/secrets", nil)
	c.op(200, "GET", "/v1/openapi.yaml", nil)
	c.op(201, "POST", "/v1/login-links", nil)
	c.op(204, "POST", "/v1/logout", nil)

	full := `{"machines":[{"name":"m1","labels":{"rack":"a1"},"interfaces":[{"mac":"52:54:00:00:00:0A","address":"192.0.2.21","netmask":"255.255.255.0",
		"gateway":"192.0.2.1","hostname":"m1","nameservers":["192.0.2.1"],"leaseTime":"1h0m0s","uefi":true}],"disks":[{"device":"/dev/sda"}],
		"diskSelector":{"serial":"S1"},"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","password":"hunter2"},"image":"debian-12",
		"sshKeys":["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGFzZGZhc2RmYXNkZmFzZGZhc2RmYXNkZmFzZGZhc2Rm test"],"userData":"#cloud-config\n","vendorData":{"base64":"I2Nsb3VkLWNvbmZpZwr/"}}]}`
	rec := c.op(201, "POST", "/v1/machines", full)
	require.NotContains(t, rec.Body.String(), "hunter2")
	require.NotContains(t, rec.Body.String(), "cloud-config")
	c.op(409, "POST", "/v1/machines", full)
	c.op(400, "POST", "/v1/machines", `{"machines":[{"name":"M 1","interfaces":[{"mac":"nonsense"}]}]}`)
	c.op(400, "POST", "/v1/machines", `{"machines":[{"name":"m2","colour":"red"}]}`)
	c.op(200, "GET", "/v1/machines", nil)
	c.op(200, "GET", "/v1/machines/m1", nil)
	c.op(404, "GET", "/v1/machines/m2", nil)
	c.op(404, "GET", "/v1/machines/m1/disks", nil)
	c.op(404, "GET", "/v1/machines/m1/workflow", nil)
	c.op(200, "GET", "/v1/machines/m1/events", nil)
	c.op(200, "GET", "/v1/machines/m1/why", nil)
	c.op(200, "GET", "/v1/why/52-54-00-00-00-0a", nil)
	c.op(400, "GET", "/v1/why/nonsense", nil)
	patch := []header{mergePatch, {"If-Match", c.op(200, "GET", "/v1/machines/m1", nil).Header().Get("ETag")}}
	c.op(200, "PATCH", "/v1/machines/m1", `{"image":null,"labels":{"rack":"a2"}}`, patch...)
	c.op(412, "PATCH", "/v1/machines/m1", `{"image":"debian-12"}`, patch...)
	c.op(428, "PATCH", "/v1/machines/m1", `{"image":"debian-12"}`, mergePatch)
	c.op(415, "PATCH", "/v1/machines/m1", `{"image":"debian-12"}`, patch[1])
	patch[1].value = c.op(200, "GET", "/v1/machines/m1", nil).Header().Get("ETag")
	c.op(200, "PATCH", "/v1/machines/m1", `{"image":"debian-12"}`, patch...)
	c.op(200, "POST", "/v1/machines/m1/netboot", `{"arm":true}`)
	c.op(200, "POST", "/v1/machines/m1/netboot", `{"arm":false}`)
	c.op(400, "POST", "/v1/machines/m1/netboot", `{"arm":true,"for":"tomorrow"}`)

	require.NoError(
		t,
		c.Store.Seen.PutSeen(
			t.Context(),
			[]inventory.Seen{{MAC: "52:54:00:00:00:0b", First: c.Clock.Now(), Last: c.Clock.Now(), Count: 3, Class: "PXEClient"}},
		),
	)
	c.op(200, "GET", "/v1/dhcp/leases", nil)
	c.op(200, "GET", "/v1/seen", nil)
	c.op(201, "POST", "/v1/seen/52:54:00:00:00:0b/accept", `{"name":"m3","address":"192.0.2.23","netmask":"255.255.255.0"}`)
	c.op(204, "DELETE", "/v1/machines/m3", nil)

	c.op(200, "GET", "/v1/templates", nil)
	c.op(200, "GET", "/v1/templates/image", nil)
	c.op(409, "DELETE", "/v1/templates/image", nil)
	c.op(400, "POST", "/v1/templates", `{"name":"t1","source":"version: \"0.1\"\nnonsense: 1\n"}`)
	c.op(201, "POST", "/v1/templates", map[string]string{"name": "t1", "source": oneAction})
	c.op(404, "POST", "/v1/templates/t1/render", `{"machine":"m1"}`) // its image is not there yet

	c.op(201, "PUT", "/v1/images/debian-12", "not really an image")
	c.op(200, "POST", "/v1/templates/t1/render", `{"machine":"m1"}`)
	c.op(204, "DELETE", "/v1/templates/t1", nil)
	rec = c.op(200, "POST", "/v1/templates/new/render", map[string]any{"machine": "m1", "source": oneAction, "explain": true})
	require.Contains(t, rec.Body.String(), `"appended":"the template's last action does not leave the agent"`)
	c.op(400, "POST", "/v1/templates/new/render", map[string]any{"machine": "m1", "source": "nonsense: 1\n"})
	c.op(404, "GET", "/v1/templates/new", nil)
	c.op(200, "GET", "/v1/images", nil)
	c.op(200, "GET", "/v1/images?unused=true", nil)
	c.op(200, "GET", "/v1/images/debian-12", nil)
	c.op(200, "POST", "/v1/images/debian-12/verify", nil)
	c.op(202, "PUT", "/v1/images/half?size=10&content="+sumOf("1234567890"), "12345")
	c.op(200, "HEAD", "/v1/images/half/upload", nil)
	c.op(400, "POST", "/v1/images", `{"name":"x","url":"file:///etc/passwd"}`)

	run := decode[apitypes.Started](t, c.op(202, "POST", "/v1/machines/m1/provision", nil), 202).Run
	c.op(409, "POST", "/v1/machines/m1/inspect", nil)
	c.op(202, "POST", "/v1/workflows", `{"type":"BMCJob","input":{"machine":"m1","job":"j1","tasks":[{"powerAction":"status"}]}}`)
	c.op(400, "POST", "/v1/workflows", `{"type":"Demolish","input":{}}`)
	c.op(200, "GET", "/v1/workflows/"+run, nil)
	o := c.Arm("m1", run)
	c.op(409, "DELETE", "/v1/images/debian-12", nil)
	w := c.welcomeChecked(o)
	c.op(200, "GET", "/v1/machines/m1/disks", nil)
	k := c.Assign(o)
	c.check(c.agent, 200, "GET", "/agent/v1/next?wait=1s", nil, bearer(w.Token))
	c.check(
		c.agent,
		200,
		"POST",
		"/agent/v1/heartbeat",
		action.Heartbeat{Running: &action.Progress{Key: k, Done: 5, Total: 10, Log: "a line\n"}},
		bearer(w.Token),
	)
	c.op(200, "GET", "/v1/workflows", nil)
	c.op(200, "GET", "/v1/phases?limit=5", nil)
	c.op(200, "GET", "/v1/workflows/"+run+"/logs?action=write", nil)
	c.op(200, "GET", "/v1/workflows/"+run+"/events?limit=2", nil)
	c.op(404, "GET", "/v1/workflows/"+run+"/logs?action=nothing", nil)
	c.op(200, "POST", "/v1/workflows/"+run+"/decide", `{"question":"1.0.1","choice":"skip"}`)
	c.op(400, "POST", "/v1/workflows/"+run+"/decide", `{"question":"1.0.1","choice":"dance"}`)
	c.op(202, "POST", "/v1/workflows/"+run+"/powered-on", nil)
	c.op(202, "POST", "/v1/workflows/"+run+"/cancel", `{"reason":"test"}`)
	c.op(409, "POST", "/v1/workflows/"+run+"/retry", nil)
	c.op(409, "DELETE", "/v1/workflows/"+run, nil)
	c.op(409, "POST", "/v1/machines/m1/power", `{"action":"off"}`)
	c.op(202, "POST", "/v1/machines/m1/power", `{"action":"off","force":true}`)
	c.op(202, "POST", "/v1/machines/m1/boot-device", `{"device":"pxe","efiBoot":true,"force":true}`)
	c.check(c.agent, 204, "POST", "/agent/v1/report", action.Result{Key: k, ID: "r1", State: action.Success}, bearer(w.Token))
	require.NoError(t, c.Store.Grants.EndGrant(t.Context(), o))
	c.check(c.agent, 410, "GET", "/agent/v1/next", nil, bearer(w.Token))

	require.NoError(t, c.Store.BMCJobs.PutBMCJob(t.Context(), inventory.BMCJob{
		Name: "j1", Machine: "m1", Run: "r", State: inventory.StateSuccess,
		Tasks: []inventory.BMCTask{{Power: "status", State: inventory.StateSuccess, Message: "on"}}, Started: c.Clock.Now(),
	}))
	c.op(200, "GET", "/v1/bmc/jobs", nil)
	c.op(200, "GET", "/v1/bmc/jobs/m1/j1", nil)
	c.op(200, "POST", "/v1/bmc/check", `{"machine":"m1"}`)
	c.op(200, "POST", "/v1/bmc/forget-key", `{"machine":"m1"}`)
	c.op(401, "GET", "/v1/machines", nil, header{"Authorization", ""})
	c.op(403, "GET", "/v1/machines", nil, header{"Host", "evil.example"})
}

func (c checker) welcomeChecked(o inventory.Owner) action.Welcome {
	c.T.Helper()
	return decode[action.Welcome](c.T, c.check(c.agent, 200, "POST", "/agent/v1/claim", c.hello(o, 1, nonceA)), 200)
}

const oneAction = `version: "0.1"
name: t1
global_timeout: 600
tasks:
  - name: all
    worker: "{{.device_1}}"
    actions:
      - name: first
        image: noop
        timeout: 60
`
