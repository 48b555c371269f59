package temporalserver_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestS49TemporalUIAnswersOnlyNamesOfThisHost: a web page whose name is rebound to 127.0.0.1
// cannot read anything. No request
// starts or changes a workflow, however its path is encoded.
func TestS49TemporalUIAnswersOnlyNamesOfThisHost(t *testing.T) {
	t.Parallel()
	s, _ := supervise(t, testConfig(t))
	srv := await(t, s)
	get := func(method, path, host string, header ...string) (int, string) {
		t.Helper()
		for {
			req, err := http.NewRequestWithContext(testContext(t), method, "http://"+srv.UI+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			for i := 0; i+1 < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			resp, err := http.DefaultClient.Do(req)
			if errors.Is(err, syscall.ECONNREFUSED) && req.Context().Err() == nil {
				continue // the UI starts in parallel with the server
			}
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode == http.StatusServiceUnavailable && req.Context().Err() == nil {
				continue
			}
			return resp.StatusCode, string(body)
		}
	}
	uiShowsAndChangesNothing(t, srv)
	paths := []string{"/", "/api/v1/namespaces/default", "/api/v1/settings", "/api/v1/namespaces/default/workflows", "/healthz"}
	for _, path := range paths {
		for _, host := range []string{srv.UI, "localhost:8233", "LOCALHOST", "127.0.0.1", "[::1]:8233"} {
			if code, body := get(http.MethodGet, path, host); code == http.StatusForbidden {
				t.Errorf("%s under %s: %d %.100q", path, host, code, body)
			}
		}
		for _, host := range []string{
			"evil.example", "evil.example:8233", "127.0.0.1.evil.example", "localhost.evil.example:8233", "169.254.169.254",
			"10.0.0.1:8233", "127.0.0.2", "localhost.",
		} {
			if code, body := get(http.MethodGet, path, host); code != http.StatusForbidden || strings.Contains(body, srv.ClusterName) {
				t.Errorf("%s under %s: %d %.100q", path, host, code, body)
			}
		}
	}
	if code, _ := get(
		http.MethodPost,
		"/api/v1/namespaces/default/workflows/x/query/status",
		srv.UI,
		"Origin",
		"http://evil.example",
	); code != http.StatusForbidden {
		t.Errorf("a write from another origin: %d", code)
	}

	own := []string{"Sec-Fetch-Site", "same-origin", "Content-Type", "application/json"} // as the UI's page asks
	for _, path := range []string{
		"workflows/machine%2Fn1/signal-with-start/x%2Fquery%2Fy", "workflows/machine%2Fn1%2Fquery%2Fstatus/cancel",
		"workflows/machine%2Fn1%2Fquery%2Fstatus", "schedules/workflows%2Fx%2Fquery%2Fstatus",
	} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			code, body := get(method, "/api/v1/namespaces/default/"+path, srv.UI, own...)
			if code != http.StatusMethodNotAllowed || !strings.Contains(body, "only shows workflows") {
				t.Errorf("%s %s: %d %.100q", method, path, code, body)
			}
		}
	}
	code, body := get(http.MethodPost, "/api/v1/namespaces/default/workflows/machine%2Fn1/query/status", srv.UI, own...)
	if code != http.StatusNotFound || !strings.Contains(body, "machine/n1") {
		t.Errorf("a query of a run that does not exist: %d %.200q", code, body)
	}
}
