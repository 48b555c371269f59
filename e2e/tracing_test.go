package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/lab/fakecollector"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// collectorAt is where the collector of a test listens.
const collectorAt = lab.DirectGateway + ":4318"

// collect starts the collector, and returns what the configuration of a server says of it. The server sends token.
func collect(t *testing.T, token string) (c *fakecollector.Collector, top string) {
	t.Helper()
	headers := filepath.Join(t.TempDir(), "headers")
	require.NoError(t, os.WriteFile(headers, []byte("Authorization: Bearer "+token+"\n"), 0o600))
	c = &fakecollector.Collector{Answer: func(r *http.Request) int {
		if r.Header.Get("Authorization") != "Bearer "+token || r.URL.Path != "/v1/traces" {
			return http.StatusUnauthorized
		}
		return http.StatusOK
	}}
	return c, fmt.Sprintf("tracing: {endpoint: \"http://%s\", headers_file: %s}\n", collectorAt, headers)
}

// serveCollector lets a collector answer in the lab.
func (s *Site) serveCollector(ctx context.Context, t *testing.T, c *fakecollector.Collector) {
	t.Helper()
	l, err := s.Listen(ctx, lab.Router, collectorAt)
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: c}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
}

// TestS62Traces: the trace of a run has one root, the request that started it as part of the client's trace, and every
// other span has its parent, although the server is killed in the middle of the run. The spans are of the workflow,
// its activities, the BMC, the network, the agent's actions and the phone-home. They hold no secret.
func TestS62Traces(t *testing.T) {
	runInTurn(t, 40, 10)
	ctx, cancel := context.WithTimeout(needLab(t), 5*time.Minute)
	defer cancel()
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	token := newCanary()
	c, top := collect(t, token)
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Top: top, Home: true})
	require.NoError(t, err)
	s.keep(t)
	s.serveCollector(ctx, t, c)
	s.must(ctx, t, "image", "add", "sim", image.Zst)

	secrets := map[string]string{"the collector's token": token, "user data": newCanary(), "the BMC's password": newCanary()}
	m, err := s.Add(ctx, lab.Spec{
		Name: "node", Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent"), BMCPassword: secrets["the BMC's password"],
		DiskSerial: "MAIN", Decoys: []string{"OTHER"},
	}, func(doc map[string]any) {
		doc["image"], doc["userData"] = "sim", "#cloud-config\n# "+secrets["user data"]+"\n{}\n"
	})
	require.NoError(t, err)

	const trace, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	run := s.startTraced(ctx, t, contract.ProvisionInput{Machine: m.Name()}, "00-"+trace+"-"+caller+"-01")
	// The server is killed in the middle, while the run asks which of two disks is meant.
	asking := s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil })
	before := []string{
		"POST /v1/workflows", "RunActivity:Plan", "RunActivity:Power", "bmc power off", "bmc boot device", "bmc power on", "DHCP",
		"GET /ipxe/script/{mac}/auto.ipxe", "GET /boot/{mac}/{token}/{kernel}", "GET /boot/{mac}/{token}/{initrd}",
		"POST /agent/v1/claim", inventory.PhasePower,
	}
	awaitSpans(ctx, t, c, trace, before...)
	s.Kill()
	require.NoError(t, s.Start(ctx))
	require.NoError(t, s.decides(ctx, m.Name(), contract.Decision{
		Question: asking.Question.ID, Choice: contract.Retry, DiskSelector: &inventory.DiskSelector{Serial: "MAIN"},
	}))
	w := s.ended(ctx, t, m.Name(), inventory.StateSuccess)
	require.Equal(t, trace, w.Trace.ID)

	all := append(before, "RunWorkflow:Provision", "RunActivity:End", "GET /images/{image}", "action write-image",
		"POST /phone-home/{machine}/{nonce}", inventory.PhaseWaiting, inventory.PhaseAction, inventory.PhaseReady)
	spans := awaitSpans(ctx, t, c, trace, all...)
	root, err := fakecollector.Root(spans, caller)
	require.NoError(t, err)
	require.Equal(t, "POST /v1/workflows", root.Name)
	for _, name := range all {
		span := spans[slices.IndexFunc(spans, named(name))]
		require.False(t, span.Failed, name)
		require.Equal(t, m.Name(), span.Keys["ingot.machine"], name)
		require.Equal(t, "ingot", span.Keys["service.name"], name)
		if !strings.HasPrefix(name, "bmc ") { // their parents name the run
			require.Equal(t, run, span.Keys["ingot.run"], name)
		}
	}
	require.Contains(t, s.must(ctx, t, "metrics", "show"), `ingot_trace_spans_dropped_total{reason="refused"} 0`)
	s.noSecrets(t, c, run, m.Spec().MAC, secrets)
}

// tracesOf returns all that a collector has received, as soon as it has the whole traces of these runs.
func tracesOf(ctx context.Context, t *testing.T, c *fakecollector.Collector, s *Site, runs map[string]string) []byte {
	t.Helper()
	for _, run := range runs {
		w := s.of(ctx, t, run, final)
		require.NotNil(t, w.Trace)
		spans := awaitSpans(ctx, t, c, w.Trace.ID, "RunWorkflow:"+w.Type)
		_, err := fakecollector.Root(spans, "")
		require.NoError(t, err)
	}
	return c.Text()
}

// noSecrets requires that no span holds a secret.
func (s *Site) noSecrets(t *testing.T, c *fakecollector.Collector, run, mac string, secrets map[string]string) {
	t.Helper()
	text := c.Text()
	require.Contains(t, string(text), run, "the search finds something")
	require.Contains(t, string(text), "ingot.machine")
	require.NotContains(t, string(text), mac)
	for what, secret := range secrets {
		require.False(t, canary{what: what, text: []byte(secret)}.in(text), what)
	}
	for _, x := range s.siteSecrets(t) {
		require.False(t, x.in(text), x.what)
	}
	for r, nonce := range s.nonces(t) {
		require.False(t, canary{text: []byte(nonce)}.in(text), "the nonce of the agent of run %s", r)
	}
}

// awaitSpans returns the spans of a trace as soon as it has spans of all these names.
func awaitSpans(ctx context.Context, t *testing.T, c *fakecollector.Collector, trace string, wanted ...string) []fakecollector.Span {
	t.Helper()
	var missing []string
	spans, err := c.Await(ctx, trace, func(spans []fakecollector.Span) bool {
		missing = slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return slices.ContainsFunc(spans, named(name)) })
		return len(missing) == 0
	})
	require.NoError(t, err, "spans %q are missing", missing)
	return spans
}

// startTraced starts a Provision as a client that has a trace of its own.
func (s *Site) startTraced(ctx context.Context, t *testing.T, in contract.ProvisionInput, traceparent string) (run string) {
	t.Helper()
	var out struct{ Run string }
	require.NoError(t, s.RESTWith(ctx, http.Header{"Traceparent": {traceparent}}, http.MethodPost, "/v1/workflows",
		map[string]any{"type": inventory.TypeProvision, "input": in}, &out))
	return out.Run
}

// named returns a test for spans of that name.
func named(name string) func(fakecollector.Span) bool {
	return func(s fakecollector.Span) bool { return s.Name == name }
}
