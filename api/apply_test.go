package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/inventory"
)

// m1Document returns the document of machine m1 with further fields.
func m1Document(more string) string {
	return `{"name":"m1","interfaces":[{"mac":"` + mac + `"}]` + more + `}`
}

// apply applies machines, with further fields of the request such as ,"prune":true.
func (s *site) apply(more string, machines ...string) *answered[apitypes.Application] {
	s.T.Helper()
	list := ""
	for n, m := range machines {
		if n > 0 {
			list += ","
		}
		list += m
	}
	return s.answerOf(s.do(http.MethodPost, "/v1/apply", `{"machines":[`+list+`]`+more+`}`))
}

// answerOf reads the answer of POST /v1/apply.
func (s *site) answerOf(rec *httptest.ResponseRecorder) *answered[apitypes.Application] {
	s.T.Helper()
	require.NotContains(s.T, rec.Body.String(), "canary")
	out := &answered[apitypes.Application]{status: rec.Code}
	if rec.Code == http.StatusOK {
		out.value = decode[apitypes.Application](s.T, rec, http.StatusOK)
	} else {
		out.err = decode[answer](s.T, rec, rec.Code)
	}
	return out
}

// answered is an answer, or an error.
type answered[T any] struct {
	status int
	value  T
	err    answer
}

// results returns the results, each as KIND NAME RESULT and the changed fields.
func results(t *testing.T, a *answered[apitypes.Application]) (out []string) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.status, "%v", a.err)
	for _, x := range a.value.Items {
		line := x.Kind + " " + x.Name + " " + x.Result
		for _, c := range x.Changes {
			line += " " + c.Field
			if c.Conflict {
				line += "!"
			}
		}
		out = append(out, line)
	}
	return out
}

// conflicting returns the fields of a refused request.
func conflicting(t *testing.T, a *answered[apitypes.Application]) (out []string) {
	t.Helper()
	require.Equal(t, http.StatusConflict, a.status, "%v", a.value)
	for _, p := range a.err.Problems {
		out = append(out, p.Field)
	}
	return out
}

func (s *site) storedMachine(name string) inventory.Machine {
	s.T.Helper()
	m, err := s.Store.Machines.Machine(s.T.Context(), name)
	require.NoError(s.T, err)
	return m
}

func TestApplyChangesWhatTheDocumentsChange(t *testing.T) {
	s := newSite(t)
	first := m1Document(`,"image":"debian-12","template":"image","labels":{"rack":"a1","row":"2"}`)
	require.Equal(t, []string{"machine m1 added"}, results(t, s.apply(`,"dryRun":true`, first)))
	_, err := s.Store.Machines.Machine(t.Context(), "m1")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.Equal(t, []string{"machine m1 added"}, results(t, s.apply("", first)))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", first)))
	version := s.storedMachine("m1").Version

	// What somebody else adds stays; what the document leaves out now is removed.
	require.Equal(t, http.StatusOK, s.patch("", `{"labels":{"by":"hand"},"kernelArgs":["quiet"]}`).Code)
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", first)))
	second := m1Document(`,"image":"debian-13","labels":{"rack":"a1"}`)
	require.Equal(t, []string{"machine m1 changed image labels.row template"}, results(t, s.apply("", second)))
	got := s.storedMachine("m1")
	require.Equal(t, map[string]string{"rack": "a1", "by": "hand"}, got.Labels)
	require.Equal(t, []string{"quiet"}, got.KernelArgs)
	require.Equal(t, "debian-13", got.Image)
	require.Empty(t, got.Template)
	require.Equal(t, version+2, got.Version)
	require.Equal(t, []string{"machine m1 changed labels.rack"}, results(t, s.apply("", m1Document(`,"image":"debian-13"`))))
	require.Equal(t, map[string]string{"by": "hand"}, s.storedMachine("m1").Labels)
}

func TestS65ApplyOverwritesNothingOfOthers(t *testing.T) {
	s := newSite(t)
	results(t, s.apply("", m1Document(`,"image":"debian-12","labels":{"rack":"a1","row":"2"}`)))
	require.Equal(t, http.StatusOK, s.patch("", `{"image":"debian-13","labels":{"rack":"b2","row":null}}`).Code)
	before := s.storedMachine("m1")

	stale := m1Document(`,"image":"debian-14","labels":{"rack":"a1","row":"2"}`)
	fields := []string{"m1: image", "m1: labels.rack", "m1: labels.row"}
	require.Equal(t, fields, conflicting(t, s.apply("", stale)))
	require.Equal(t, []string{"machine m1 changed image! labels.rack! labels.row!"}, results(t, s.apply(`,"dryRun":true`, stale)))
	require.Equal(t, []string{"m1: image", "m1: labels.rack"}, conflicting(t, s.apply("", m1Document(""))),
		"to remove a value of another client is a conflict, and a label that it has removed is not")
	require.Equal(t, before, s.storedMachine("m1"))

	// Nothing of the request is stored if one object is in conflict.
	require.Equal(t, fields, conflicting(t, s.apply("", `{"name":"m2","interfaces":[{"mac":"02:00:00:00:00:72"}]}`, stale)))
	_, err := s.Store.Machines.Machine(t.Context(), "m2")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// A document that was made from what is stored now is not in conflict, and --force-conflicts overwrites.
	current := m1Document(fmt.Sprintf(`,"image":"debian-14","labels":{"rack":"b2"},"version":%d`, before.Version))
	require.Equal(t, []string{"machine m1 changed image"}, results(t, s.apply("", current)))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", current)), "the same file, though the version is old now")
	require.Equal(t, http.StatusOK, s.patch("", `{"image":"debian-15"}`).Code)
	require.Equal(t, []string{"machine m1 changed image! labels.rack labels.row"}, results(t, s.apply(`,"forceConflicts":true`, stale)))
	require.Equal(t, "debian-14", s.storedMachine("m1").Image)
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", stale)))
}

// A machine that no document has described yet: equal values are taken over, other ones are in conflict.
func TestApplyTakesMachinesOver(t *testing.T) {
	s := withSecrets(t)
	require.Equal(t, []string{"machine m1 changed template"}, results(t, s.apply("", m1Document(`,"image":"debian-12","template":"image"`))))
	require.Equal(t, []string{"machine m1 changed image"}, results(t, s.apply("", m1Document(`,"image":"debian-13","template":"image"`))))
	require.Equal(t, map[string]string{"rack": "a1", "row": "2"}, s.storedMachine("m1").Labels)

	other := withSecrets(t)
	require.Equal(t, []string{"m1: image"}, conflicting(t, other.apply("", m1Document(`,"image":"debian-13"`))))
}

// Secrets are compared, and a changed one is a conflict as any other field is.
func TestS65ApplyComparesSecrets(t *testing.T) {
	s := newSite(t)
	with := func(password, user string) string {
		return m1Document(`,"userData":"` + user + `","bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","password":"` + password + `"}`)
	}
	results(t, s.apply("", with("canary-1", "canary-user")))
	version := s.storedMachine("m1").Version
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", with("canary-1", "canary-user"))))
	require.Equal(t, version, s.storedMachine("m1").Version)
	require.Equal(t, []string{"machine m1 changed bmc.password"}, results(t, s.apply("", with("canary-2", "canary-user"))))

	require.Equal(t, http.StatusOK, s.patch("", `{"bmc":{"password":"canary-3"},"userData":"canary-other"}`).Code)
	require.Equal(t, []string{"m1: bmc.password", "m1: userData"}, conflicting(t, s.apply("", with("canary-2", "canary-user"))))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", with("canary-3", "canary-other"))))

	// A secret that the document has no more is removed; one that it only declares is kept.
	declared := m1Document(`,"hasUserData":true,"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","hasPassword":true}`)
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", declared)))
	results(t, s.apply("", with("canary-3", "canary-other")))
	gone := m1Document(`,"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","hasPassword":true}`)
	require.Equal(t, []string{"machine m1 changed userData"}, results(t, s.apply("", gone)))
	require.False(t, s.storedMachine("m1").HasUserData)

	// Another BMC address would delete the password of the old one.
	moved := m1Document(`,"bmc":{"driver":"ipmi","host":"192.0.2.11","user":"admin"}`)
	a := s.apply("", moved)
	require.Equal(t, []string{"m1: bmc.password"}, conflicting(t, a))
	require.Contains(t, a.err.Problems[0].What, "another client has set bmc.password to another secret")
}

func TestS65ApplyPrunesItsSetOnly(t *testing.T) {
	s := newSite(t)
	at := func(n int) string {
		return fmt.Sprintf(`{"name":"n%d","template":"own","interfaces":[{"mac":"02:00:00:00:00:%02d"}]}`, n, n)
	}
	own := `"templates":[{"source":"version: '0.1'\nname: own\ntasks: [{name: a, worker: x, actions: [{name: b, image: reboot, timeout: 60}]}]\n"}]`
	results(t, s.apply(`,"set":"rack-1",`+own, at(1), at(2), at(3), at(4)))
	results(t, s.apply(`,"set":"rack-2"`, at(5)))
	results(t, s.apply("", at(6)))

	// A machine of another set is not taken along by accident.
	require.Equal(t, []string{"n5"}, conflicting(t, s.apply(`,"set":"rack-1"`, at(5))))
	require.Equal(t, []string{"n6"}, conflicting(t, s.apply(`,"set":"rack-1"`, at(6))))

	require.NoError(t, s.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
		Run: "run-2", ID: "provision/n2", Type: inventory.TypeProvision, Machine: "n2", State: inventory.StateRunning, Started: s.Clock.Now(),
	}))
	rec := s.do(http.MethodPatch, "/v1/machines/n3", `{"image":"by-hand","template":"image"}`, mergePatch,
		header{"If-Match", s.do(http.MethodGet, "/v1/machines/n3", nil).Header().Get("ETag")})
	require.Equal(t, http.StatusOK, rec.Code)
	require.Equal(t, http.StatusBadRequest, s.apply(`,"prune":true`, at(1)).status, "the set without a name is everybody's")

	want := []string{"machine n1 unchanged", "machine n2 kept", "machine n3 kept", "machine n4 deleted", "template own kept"}
	dry := s.apply(`,"set":"rack-1","prune":true,"dryRun":true`, at(1))
	require.Equal(t, want, results(t, dry))
	require.Equal(t, []string{"", "its run run-2 is open", "changed since: image, template", "", "machine n1 names it"}, whys(dry.value))
	// What a client was not asked about stays.
	asked := results(t, s.apply(`,"set":"rack-1","prune":true,"dryRun":true,"pruneOnly":["machine/n9"]`, at(1)))
	require.Equal(t, "machine n4 kept", asked[3])
	require.Equal(t, want, results(t, s.apply(`,"set":"rack-1","prune":true`, at(1))))
	for _, name := range []string{"n1", "n2", "n3", "n5", "n6"} {
		s.storedMachine(name)
	}
	_, err := s.Store.Machines.Machine(t.Context(), "n4")
	require.ErrorIs(t, err, inventory.ErrNotFound)
	require.Equal(t, []string{"machine n5 unchanged"}, results(t, s.apply(`,"set":"rack-1","forceConflicts":true`, at(5))))
	require.Equal(t, []string{"n5"}, conflicting(t, s.apply(`,"set":"rack-2"`, at(5))), "taken over")
}

func whys(a apitypes.Application) (out []string) {
	for _, x := range a.Items {
		out = append(out, x.Why)
	}
	return out
}

// What is wrong with any document is found before anything is stored.
func TestApplyRefusesBadDocuments(t *testing.T) {
	s := newSite(t)
	bad := s.apply("", m1Document(`,"image":"a/b"`), `{"name":"n2","interfaces":[{"mac":"zz"}]}`)
	require.Equal(t, http.StatusBadRequest, bad.status)
	require.Len(t, bad.err.Problems, 2)
	require.Equal(t, http.StatusBadRequest, s.apply("").status)
	require.Equal(t, http.StatusBadRequest, s.apply(`,"set":"a/b"`, m1Document("")).status)
	require.Equal(t, http.StatusBadRequest, s.apply("", m1Document(""), m1Document("")).status)
	require.Equal(t, http.StatusConflict, s.apply(`,"templates":[{"name":"image","source":"version: '0.1'\nname: image\n`+
		`tasks: [{name: a, worker: x, actions: [{name: b, image: reboot, timeout: 60}]}]\n"}]`, m1Document("")).status)
	all, err := s.Store.Machines.Machines(t.Context())
	require.NoError(t, err)
	require.Empty(t, all)
}

// "ingot machine push" is an apply that changes nothing which exists or, with --replace, makes a machine what the document says.
func TestApplyCreatesOrReplaces(t *testing.T) {
	s := withSecrets(t)
	const create, replace = `,"create":true`, `,"replace":["machine","template"]`
	require.Equal(t, []string{"m1"}, conflicting(t, s.apply(create, m1Document(`,"image":"debian-13"`))))
	require.Equal(
		t,
		[]string{"m1"},
		conflicting(t, s.apply(create, `{"name":"m2","interfaces":[{"mac":"02:00:00:00:00:72"}]}`, m1Document(`,"image":"debian-13"`))),
	)
	_, err := s.Store.Machines.Machine(t.Context(), "m2")
	require.ErrorIs(t, err, inventory.ErrNotFound)

	// What the document leaves out is removed, also if another client has set it; a secret that it only declares is kept.
	before := s.storedMachine("m1")
	declared := m1Document(`,"hasUserData":true,"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","hasPassword":true}`)
	require.Equal(t, []string{"machine m1 changed image labels.rack labels.row vendorData"}, results(t, s.apply(replace, declared)))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply(create, declared)), "the same file")
	got := s.storedMachine("m1")
	require.True(t, got.HasUserData && got.BMC.HasPassword)
	require.False(t, got.HasVendorData)
	require.Empty(t, got.Labels)

	// A document with a version replaces that version only.
	stale := m1Document(fmt.Sprintf(`,"image":"debian-14","version":%d`, before.Version))
	require.Equal(t, []string{"version"}, conflicting(t, s.apply(replace, stale)))

	// A machine stays in its set, where the change is one of another client.
	results(t, s.apply(`,"set":"r","forceConflicts":true`, m1Document(`,"image":"debian-12"`)))
	require.Equal(t, []string{"machine m1 changed image userData"}, results(t, s.apply(replace, m1Document(`,"image":"debian-14"`))))
	require.Equal(t, []string{"m1: image"}, conflicting(t, s.apply(`,"set":"r"`, m1Document(`,"image":"debian-12"`))))
	require.Equal(t, http.StatusBadRequest, s.apply(`,"replace":["image"]`, m1Document("")).status)
}

// An empty list of documents may be a mistake: what goes has to be named.
func TestApplyEmptiesASet(t *testing.T) {
	s := newSite(t)
	results(t, s.apply(`,"set":"r"`, m1Document("")))
	require.Equal(t, http.StatusBadRequest, s.apply(`,"set":"r","prune":true`).status)
	require.Equal(t, []string{"machine m1 deleted"}, results(t, s.apply(`,"set":"r","prune":true,"dryRun":true`)))
	require.Equal(t, []string{"machine m1 kept"}, results(t, s.apply(`,"set":"r","prune":true,"pruneOnly":[]`)))
	require.Equal(t, []string{"machine m1 deleted"}, results(t, s.apply(`,"set":"r","prune":true,"pruneOnly":["machine/m1"]`)))
}
