package temporalserver

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

func TestS49OnlyQueriesPass(t *testing.T) {
	t.Parallel()
	const workflows = "/api/v1/namespaces/default/workflows/"
	for _, path := range []string{
		workflows + "machine%2Fn1/query/status",
		workflows + "machine%2fn1/query/__stack_trace",
		workflows + "bmc%2Fn1%2Fpower-off/query/__enhanced_stack_trace",
		workflows + "x/query/__temporal_workflow_metadata",
		"/api/v1/namespaces/ingot-prod_2/workflows/genesis%2Flab/query/status",
	} {
		if !isQuery(path) {
			t.Errorf("%s is refused", path)
		}
	}

	ui := readsOnly(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, path := range writesAsQueries() {
		decoded, err := url.PathUnescape(path)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		ui.ServeHTTP(w, &http.Request{Method: http.MethodPost, URL: &url.URL{Path: decoded, RawPath: path}})
		if isQuery(path) || w.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s passes: %d", path, w.Code)
		}
	}
}

// writesAsQueries returns escaped paths of writes, and of paths that some decoder could take for one.
func writesAsQueries() []string {
	const workflows = "/api/v1/namespaces/default/workflows/"
	verbs := []string{"signal-with-start/x", "signal/x", "update/x", "cancel", "terminate", "reset", "pause"}
	out := []string{
		"", "/", "/query/status", workflows, workflows + "query/status", workflows + "/query/status",
		workflows + "machine/n1/query/status",          // not escaped: not a segment
		workflows + "machine%252Fn1/query/status",      // decoded twice
		workflows + "..%2F..%2Fx/query/status",         // cleaned
		workflows + "../query/status",                  //
		workflows + "%2E%2E/query/status",              //
		workflows + "a%2F%2Fb/query/status",            //
		workflows + "%2Fa/query/status",                //
		workflows + "a%3Fb/query/status",               // cut at ?
		workflows + "a;x/query/status",                 //
		workflows + "a%3Bx/query/status",               //
		workflows + "a/query/other",                    // not on the list
		workflows + "a/query/status%2Fx",               //
		workflows + "a/query/%73tatus",                 //
		workflows + "a/%71uery/status",                 //
		workflows + "a/query/status/",                  //
		workflows + "a/QUERY/status",                   //
		"/api/v1" + workflows + "a/query/status",       //
		"/namespaces/default/workflows/a/query/status", // the gateway's other form
		"//api/v1/namespaces/default/workflows/a/query/status",
		"/api/v1/namespaces/default%2Fworkflows%2Fa%2Fcancel/workflows/a/query/status",
		"/api/v1/namespaces/../workflows/a/query/status",
		"/api/v1/namespaces//workflows/a/query/status",
		"/api/v1/namespaces/default/activities/a/query/status",
		"/api/v1/namespaces/default/schedules/workflows%2Fa%2Fquery%2Fstatus",
		"/api/v1/namespaces/default/batch-operations/workflows%2Fa%2Fquery%2Fstatus",
		"/api/v1/namespaces/workflows%2Fquery%2F",
	}
	for _, verb := range verbs {
		for _, id := range []string{"machine%2Fn1", "n1"} {
			plain := workflows + id + "/" + verb
			out = append(out, plain, plain+"%2Fquery%2Fstatus", plain+"%2fquery%2fy", plain+"/query/status", plain+"%252Fquery%252Fstatus",
				workflows+id+"%2Fquery%2Fstatus/"+verb)
		}
	}
	return out
}
