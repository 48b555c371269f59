package metadatasvc

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// fakeInstallers has a run's plan and the reports of its installer.
type fakeInstallers struct {
	plan  inventory.Plan
	err   error
	said  []string
	owner inventory.Owner
}

func (f *fakeInstallers) Plan(context.Context, string) (inventory.Plan, error) { return f.plan, f.err }

func (f *fakeInstallers) InstallerReported(_ context.Context, o inventory.Owner, failed bool, message string) (bool, error) {
	if f.err != nil {
		return false, f.err
	}
	f.owner = o
	word := "installed: "
	if failed {
		word = "failed: "
	}
	f.said = append(f.said, word+message)
	return len(f.said) == 1, nil
}

// withInstaller returns a server whose machine node1 boots an installer.
func withInstaller(t *testing.T) (*Server, *fakeMachines, *fakeJournal, *fakeInstallers) {
	t.Helper()
	s, f, j := newServer(t)
	g := f.grants["node1"]
	g.Installer = true
	f.grants["node1"] = g
	i := &fakeInstallers{plan: inventory.Plan{Documents: []inventory.Document{
		{
			Name: "config",
			Kind: inventory.DocumentText,
			Contents: "hook: " + inventory.RefWebhookURL + "SUCCEEDED\nhome: " + inventory.RefPhoneHomeURL +
				"\nuser: " + inventory.RefUserData + "\nodd: ingot@@something-else@@\n",
		},
	}}}
	s.cfg.Installers = i
	return s, f, j, i
}

func TestDocumentsOfTheRun(t *testing.T) {
	s, f, j, i := withInstaller(t)
	o := f.grants["node1"].Owner
	path := strings.TrimPrefix(cloudinit.DocumentsURL("", testKey, o), "")
	w := get(t, s, path+"config", "192.0.2.1")
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := "hook: " + cloudinit.WebhookURL(s.cfg.URL, testKey, o) + "SUCCEEDED\nhome: " + cloudinit.PhoneHomeURL(s.cfg.URL, testKey, o) +
		"\nuser: #cloud-config\npassword: " + canary + "\n\nodd: ingot@@something-else@@\n"
	if w.Body.String() != want {
		t.Errorf("%s\nwant\n%s", w.Body, want)
	}
	if len(j.events) != 1 || j.events[0].Kind != inventory.EventDocument || j.events[0].Key != "config" || j.events[0].Boot != 1 {
		t.Errorf("%+v", j.events)
	}
	// A plan from before the site moved has the old URL of images.
	i.plan.ImagesURL = "http://192.0.2.1/images"
	i.plan.Documents[0].Contents = "iso: http://192.0.2.1/images/x.iso\nbase: http://192.0.2.1/images\nother: http://192.0.2.1/images-of-others/x\n"
	s.cfg.ImageURL = func() string { return "http://198.51.100.1:7080/images" }
	if w := get(
		t,
		s,
		path+"config",
		"192.0.2.1",
	); w.Body.String() != "iso: http://198.51.100.1:7080/images/x.iso\nbase: http://198.51.100.1:7080/images\nother: http://192.0.2.1/images-of-others/x\n" {
		t.Errorf("after a move: %s", w.Body)
	}
	for name, p := range map[string]string{
		"another name": path + "other", "the folder": path, "deeper": path + "config/x", "another machine": strings.Replace(path, "node1", "node2", 1) + "config",
		"by address": "/documents/config", "wrong capability": "/c/node1/" + strings.Repeat("0", 64) + "/documents/config",
	} {
		if w := get(t, s, p, node1); w.Code != http.StatusNotFound || w.Body.String() != "not found\n" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	i.err = inventory.ErrSealed
	if w := get(t, s, path+"config", node1); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "seal") {
		t.Errorf("sealed: %d %s", w.Code, w.Body)
	}
}

// A run proceeds by the record of its document: it is written before the document is sent, also for a
// client that has disconnected, and without it nothing is sent.
func TestADocumentIsRecordedBeforeItIsSent(t *testing.T) {
	s, f, j, _ := withInstaller(t)
	path := cloudinit.DocumentsURL("", testKey, f.grants["node1"].Owner) + "config"
	j.err = errors.New("the database is locked")
	if w := get(t, s, path, "192.0.2.1"); w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), canary) {
		t.Errorf("without a record: %d %s", w.Code, w.Body)
	}
	j.err = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://10.10.20.2"+path, nil)
	w := recorded{httptest.NewRecorder(), j, t}
	s.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusOK || len(j.events) != 1 || j.events[0].Kind != inventory.EventDocument {
		t.Errorf("%d %+v", w.Code, j.events)
	}
}

// recorded fails a test if a body is written before an event.
type recorded struct {
	*httptest.ResponseRecorder
	journal *fakeJournal
	t       *testing.T
}

func (r recorded) Write(b []byte) (int, error) {
	if len(r.journal.events) == 0 {
		r.t.Error("the document is sent first")
	}
	return r.ResponseRecorder.Write(b)
}

// S5: a document is served only while the secrets window is open.
func TestS5DocumentsAreServedInTheWindowAlone(t *testing.T) {
	s, f, _, _ := withInstaller(t)
	g := f.grants["node1"]
	path := cloudinit.DocumentsURL("", testKey, g.Owner) + "config"
	for name, close := range map[string]func(g *inventory.Grant){
		"expired": func(g *inventory.Grant) { g.SecretsUntil = testNow }, "closed": func(g *inventory.Grant) { g.SecretsUntil = time.Time{} },
		"ended": func(g *inventory.Grant) { g.Run = "" }, "the next run": func(g *inventory.Grant) { g.Run, g.Epoch = "run-2", 4 },
	} {
		now := g
		close(&now)
		f.grants["node1"] = now
		if w := get(t, s, path, node1); w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), canary) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	f.grants["node1"] = g
	if w := get(t, s, path, node1); w.Code != http.StatusOK {
		t.Errorf("open: %d", w.Code)
	}
}

func TestWebhook(t *testing.T) {
	s, f, j, i := withInstaller(t)
	g := f.grants["node1"]
	g.SecretsUntil = time.Time{} // a report counts while the operator is asked
	f.grants["node1"] = g
	path := cloudinit.WebhookURL("", testKey, g.Owner)
	post := func(path, body string, header ...string) (int, string) {
		t.Helper()
		w := do(t, s, http.MethodPost, path, "192.0.2.1", body, header...)
		return w.Code, w.Body.String()
	}
	if code, _ := post(
		path+"STARTED",
		"",
	); code != http.StatusOK || len(i.said) > 0 || len(j.events) != 1 ||
		j.events[0].Kind != inventory.EventMetadata {
		t.Errorf("STARTED: %d %v %+v", code, i.said, j.events)
	}
	for _, c := range []struct{ event, body, want string }{
		{"FAILED", `{"message": "no disk\u001b[31m here", "event": "FAILED"}`, "failed: no disk[31m here"},
		{"FAILED", "plain\ntext", "failed: plain text"},
		{"failed", `{"event": "FAILED"}`, "failed: "},
		{"SUCCEEDED", "", "installed: "},
		{"FAILED", strings.Repeat("x", 4096), "failed: " + strings.Repeat("x", maxReport)},
	} {
		i.said = nil
		if code, _ := post(path+c.event, c.body); code != http.StatusOK || len(i.said) != 1 || i.said[0] != c.want {
			t.Errorf("%s %q: %d %q", c.event, c.body, code, i.said)
		}
	}
	i.said = nil
	if code, _ := post(
		path+"FAILED",
		"message=by+form",
		"Content-Type",
		"application/x-www-form-urlencoded",
	); code != http.StatusOK ||
		i.said[0] != "failed: by form" {
		t.Errorf("form: %d %q", code, i.said)
	}
	if i.owner != g.Owner {
		t.Errorf("owner %+v", i.owner)
	}
	i.said = nil
	for name, p := range map[string]string{
		"another event": path + "DELETED", "no event": path, "wrong capability": "/c/node1/" + strings.Repeat("0", 64) + "/webhook/SUCCEEDED",
		"another machine": strings.Replace(path, "node1", "node2", 1) + "SUCCEEDED", "the nonce": "/c/node1/" + inventory.Nonce(testKey, g.Owner) + "/webhook/SUCCEEDED",
		"no run's": "/c/node2/" + inventory.Capability(testKey, inventory.Owner{}) + "/webhook/SUCCEEDED",
	} {
		if code, body := post(p, ""); code != http.StatusNotFound || body != "not found\n" {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
	if w := get(t, s, path+"SUCCEEDED", node1); w.Code != http.StatusNotFound {
		t.Errorf("GET: %d", w.Code)
	}
	if code, _ := post(path+"FAILED", strings.Repeat("x", maxPhoneHome+1)); code != http.StatusRequestEntityTooLarge {
		t.Errorf("large: %d", code)
	}
	agents := g
	agents.Installer = false
	f.grants["node1"] = agents
	if code, _ := post(path+"SUCCEEDED", ""); code != http.StatusNotFound {
		t.Errorf("while the agent is at work: %d", code)
	}
	f.grants["node1"] = g
	i.err = inventory.ErrFenced
	if code, _ := post(path+"SUCCEEDED", ""); code != http.StatusNotFound {
		t.Errorf("fenced: %d", code)
	}
	i.err = errors.New("disk full")
	if code, _ := post(path+"SUCCEEDED", ""); code != http.StatusServiceUnavailable {
		t.Errorf("not stored: %d", code)
	}
	if len(i.said) > 0 {
		t.Errorf("%v", i.said)
	}
}
