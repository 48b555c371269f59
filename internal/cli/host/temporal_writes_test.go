package host

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// refuseWrites UI LINK sends every write that Temporal's UI could pass on, about the run of node-1, to the UI without a log-in at the URL
// UI, and to the one that LINK opens. Both must refuse it; the latter answers nothing without a session.
func refuseWrites(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: refusewrites UI LINK")
	}
	open, link := args[0], args[1]
	opened := send(ts, http.MethodGet, link, nil)
	if opened.StatusCode != http.StatusSeeOther || len(opened.Cookies()) != 1 {
		ts.Fatalf("opening %s: %s", link, opened.Status)
	}
	behindSession, _, _ := strings.Cut(link, "/open/")
	session := http.Header{"Cookie": {opened.Cookies()[0].Name + "=" + opened.Cookies()[0].Value}, "Origin": {behindSession}}
	refuse := func(method, path string, header http.Header) {
		all := maps.Clone(header)
		maps.Copy(all, session)
		for _, c := range []struct {
			to     string
			header http.Header
			want   int
		}{
			{open, header, http.StatusMethodNotAllowed},
			{behindSession, header, http.StatusUnauthorized},
			{behindSession, all, http.StatusMethodNotAllowed},
		} {
			if got := send(ts, method, c.to+path, c.header).StatusCode; got != c.want {
				ts.Fatalf("%s %s %v: %d, want %d", method, c.to+path, c.header, got, c.want)
			}
		}
	}

	writes := temporalWrites(ts)
	for _, w := range writes {
		for _, path := range disguise(w.path) {
			refuse(w.method, path, http.Header{"Content-Type": {"application/json"}})
		}
		for _, header := range overrides(w.method) {
			refuse(http.MethodPost, w.path, header)
			// These pass as reads. The script checks that the run goes on.
			send(ts, http.MethodGet, open+w.path, header)
			send(ts, http.MethodPost, open+"/api/v1/namespaces/default/workflows/machine%2Fnode-1/query/status", header)
		}
	}
	ts.Logf("%d writes are refused", len(writes))
}

// A temporalWrite is a request that Temporal's HTTP API takes for a write.
type temporalWrite struct{ method, path string }

// temporalWrites returns all of them: those that the definitions of Temporal's services name, for the run of the machine node-1.
func temporalWrites(ts *testscript.TestScript) (out []temporalWrite) {
	variable := regexp.MustCompile(`\{[^}]*\}`)
	reads := regexp.MustCompile(`^(Get|List|Describe|Count|Poll|Query|Fetch)`)
	for _, file := range []protoreflect.FileDescriptor{
		workflowservice.File_temporal_api_workflowservice_v1_service_proto, operatorservice.File_temporal_api_operatorservice_v1_service_proto,
	} {
		calls := file.Services().Get(0).Methods()
		for i := range calls.Len() {
			name := string(calls.Get(i).Name())
			for _, rule := range httpRules(calls.Get(i)) {
				rule.path = strings.ReplaceAll(rule.path, "{namespace}", "default")
				rule.path = variable.ReplaceAllString(rule.path, "machine%2Fnode-1")
				switch {
				case rule.method == http.MethodGet && !reads.MatchString(name):
					ts.Fatalf("%s is no read, and GET %s calls it", name, rule.path)
				case rule.method != http.MethodGet && name != "QueryWorkflow":
					out = append(out, rule)
				}
			}
		}
	}
	if len(out) < 100 {
		ts.Fatalf("only %d writes are known", len(out))
	}
	return out
}

// httpRules returns the requests that call a method.
func httpRules(call protoreflect.MethodDescriptor) (out []temporalWrite) {
	var read func(rule protoreflect.Message)
	read = func(rule protoreflect.Message) {
		rule.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch f.Name() {
			case "get", "put", "post", "delete", "patch":
				out = append(out, temporalWrite{strings.ToUpper(string(f.Name())), v.String()})
			case "additional_bindings":
				for i := range v.List().Len() {
					read(v.List().Get(i).Message())
				}
			}
			return true
		})
	}
	call.Options().ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if f.FullName() == "google.api.http" {
			read(v.Message())
		}
		return true
	})
	return out
}

// disguise returns a path, and forms of it that a filter might take for another, such as a query.
func disguise(path string) []string {
	const query = "/query/status"
	last := strings.LastIndexByte(path, '/')
	out := []string{
		path, path + "/", "/" + path, strings.ToUpper(path), path[:last] + "%2F" + path[last+1:], path[:last] + "/.%2F" + path[last+1:],
		"/api/v1/namespaces/default/workflows/x" + query + "/../../../../../../.." + path, path + "%2Fquery%2Fstatus", path + ";" + query,
		path + "?x=/api/v1/namespaces/default/workflows/x" + query,
	}
	if !strings.HasSuffix(path, "/workflows/machine%2Fnode-1") { // otherwise it is a query
		out = append(out, path+query)
	}
	return out
}

// overrides returns headers by which servers may take a request for one with another method.
func overrides(method string) []http.Header {
	const form = "application/x-www-form-urlencoded" // as the gateway of Temporal's API needs it
	return []http.Header{
		{"X-Http-Method-Override": {method}, "Content-Type": {form}},
		{
			"X-Http-Method-Override": {http.MethodGet}, "X-Http-Method": {http.MethodGet}, "X-Method-Override": {http.MethodGet},
			"Content-Type": {form},
		},
	}
}

// send sends a request with an empty document, follows no redirect, and reads the answer.
func send(ts *testscript.TestScript, method, to string, header http.Header) *http.Response {
	req, err := http.NewRequest(method, to, strings.NewReader("{}"))
	ts.Check(err)
	if header != nil {
		req.Header = header
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	ts.Check(err)
	_, err = io.Copy(io.Discard, res.Body)
	ts.Check(errors.Join(err, res.Body.Close()))
	return res
}
