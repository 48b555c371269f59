package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
)

// twoInterfaces returns the document of machine m1 with two interfaces.
func twoInterfaces(first, second string) string {
	return `{"name":"m1","interfaces":[` + first + `,` + second + `]}`
}

// A field of an interface belongs to its MAC: a document with another order takes no value from the interface that another client changed.
func TestS65ApplyFollowsInterfacesByMAC(t *testing.T) {
	s := newSite(t)
	const gateway = `,"gateway":"10.0.0.1"`
	a := `{"mac":"` + mac + `","address":"10.0.0.11","netmask":"255.255.255.0"` + gateway
	b := `{"mac":"02:00:00:00:00:99","address":"10.0.1.12","netmask":"255.255.255.0"`
	a, added, b := a+"}", b+`,"gateway":"10.0.1.1","domain":"example.org"}`, b+"}"
	results(t, s.apply("", twoInterfaces(a, b)))
	require.Equal(t, http.StatusOK, s.patch("", `{"interfaces":[`+a+`,`+added+`]}`).Code)
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", twoInterfaces(a, b))))
	require.Equal(t, []string{"machine m1 changed interfaces[0].mac interfaces[1].mac"}, results(t, s.apply("", twoInterfaces(b, a))))
	got := s.storedMachine("m1").Interfaces
	require.Equal(t, "10.0.1.1 example.org 10.0.0.1", fmt.Sprint(got[0].Gateway, " ", got[0].Domain, " ", got[1].Gateway))

	require.Equal(t, http.StatusOK, s.patch("", `{"interfaces":[`+a+`,`+added+`]}`).Code)
	require.Equal(t, []string{"m1: interfaces[0].mac", "m1: interfaces[1].mac"}, conflicting(t, s.apply("", twoInterfaces(b, a))))
	other := `{"mac":"02:00:00:00:00:98"}`
	require.Equal(t, []string{
		"m1: interfaces[02:00:00:00:00:99].domain", "m1: interfaces[02:00:00:00:00:99].gateway",
		"m1: interfaces[0].mac", "m1: interfaces[1].mac",
	}, conflicting(t, s.apply("", twoInterfaces(other, a))))
}

// Names of labels may contain each other, and a label may be empty.
func TestApplyTellsLabelsApart(t *testing.T) {
	s := newSite(t)
	doc := m1Document(`,"labels":{"app.example/name":"x","worker":""}`)
	results(t, s.apply("", m1Document("")))
	require.Equal(t, []string{"machine m1 changed labels.app.example/name labels.worker"}, results(t, s.apply("", doc)))
	require.Equal(t, http.StatusOK, s.patch("", `{"labels":{"app":"hand"}}`).Code)
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", doc)))
	require.Equal(t, map[string]string{"app": "hand", "app.example/name": "x", "worker": ""}, s.storedMachine("m1").Labels)
	require.Equal(t, []string{"machine m1 changed labels.app.example/name labels.worker"}, results(t, s.apply("", m1Document(``))))
	require.Equal(t, map[string]string{"app": "hand"}, s.storedMachine("m1").Labels)

	require.Equal(t, http.StatusOK, s.patch("", `{"labels":{"empty":""}}`).Code)
	require.Equal(t, []string{"m1: labels.empty"}, conflicting(t, s.apply("", m1Document(`,"labels":{"empty":"x"}`))))
}

func TestApplyTellsListsApart(t *testing.T) {
	s := newSite(t)
	const one, two = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBERERERERERERERERERERERERERERERERERERERERER a",
		"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIi b"
	results(t, s.apply("", m1Document(`,"sshKeys":["`+one+", "+two+`"]`)))
	require.Equal(t, []string{"machine m1 changed sshKeys"}, results(t, s.apply("", m1Document(`,"sshKeys":["`+one+`","`+two+`"]`))))
}

// A BMC password that another client has set is deleted with any setting for reaching the BMC: that is a conflict.
func TestS65ApplyKeepsPasswordsOfOthers(t *testing.T) {
	s := newSite(t)
	with := func(more string) string {
		return m1Document(`,"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin"` + more + `}`)
	}
	results(t, s.apply("", with("")))
	require.Equal(t, http.StatusOK, s.patch("", `{"bmc":{"password":"canary-1"}}`).Code)
	require.Equal(t, []string{"m1: bmc.password"}, conflicting(t, s.apply("", with(`,"port":6230`))))
	require.Equal(t, []string{"m1: bmc.password"}, conflicting(t, s.apply("", with(`,"port":6230,"hasPassword":true`))))
	require.True(t, s.storedMachine("m1").BMC.HasPassword)
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", with(`,"password":"canary-1"`))))
	require.Equal(t, []string{"machine m1 changed bmc.password bmc.port"}, results(t, s.apply("", with(`,"port":6230,"password":"canary-1"`))))
}

// A BMC that is named manual is the same as none.
func TestApplyReplacesManualBMC(t *testing.T) {
	s := newSite(t)
	results(t, s.apply("", m1Document("")))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", m1Document(`,"bmc":{"driver":"manual"}`))))
	results(t, s.apply("", m1Document(`,"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","password":"canary"}`)))
	require.Equal(t, []string{"machine m1 changed bmc.driver bmc.host bmc.password bmc.user"}, results(t, s.apply("", m1Document(""))))
}

func TestApplyAgainInAnotherForm(t *testing.T) {
	s := newSite(t)
	doc := `{"name":"m1","interfaces":[{"mac":"02-AA-00-00-00-0B","hostname":"M1.","domain":"Example.org.","arch":"amd64",` +
		`"address":"::ffff:10.0.0.5","netmask":"255.255.255.0"}],"diskSelector":{"byID":"/dev/disk/by-id/x"},` +
		`"bmc":{"driver":"IPMI","host":"BMC.Example","user":"a","password":"canary"}}`
	require.Equal(t, []string{"machine m1 added"}, results(t, s.apply("", doc)))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, s.apply("", doc)))
}

// A machine under a new name, with the MAC and the BMC of the pruned one.
func TestApplyRenamesByPruning(t *testing.T) {
	s := newSite(t)
	named := func(name string) string {
		return `{"name":"` + name + `","interfaces":[{"mac":"` + mac + `"}],` +
			`"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin","password":"canary"}}`
	}
	results(t, s.apply(`,"set":"r"`, named("m1")))
	require.Equal(t, http.StatusConflict, s.apply(`,"set":"r"`, named("m2")).status)
	require.Equal(t, []string{"machine m2 added", "machine m1 deleted"}, results(t, s.apply(`,"set":"r","prune":true`, named("m2"))))
}

// What another client has added is lost with a machine as well; the password of a BMC belongs to the BMC of the document.
func TestS65PruneKeepsWhatOthersAdded(t *testing.T) {
	s := newSite(t)
	const bmc = `,"bmc":{"driver":"ipmi","host":"192.0.2.10","user":"admin"}`
	other := `{"name":"m2","interfaces":[{"mac":"02:00:00:00:00:98"}]}`
	results(t, s.apply(`,"set":"r"`, m1Document(bmc)))
	require.Equal(t, http.StatusOK, s.patch("", `{"labels":{"by":"hand"},"bmc":{"password":"canary"},"userData":"canary"}`).Code)
	kept := s.apply(`,"set":"r","prune":true`, other)
	require.Equal(t, []string{"machine m2 added", "machine m1 kept"}, results(t, kept))
	require.Equal(t, []string{"", "changed since: labels.by, userData"}, whys(kept.value))
	require.Equal(t, http.StatusOK, s.patch("?clear=userData", `{"labels":{"by":null},"userData":null}`).Code)
	require.Equal(t, []string{"machine m2 unchanged", "machine m1 deleted"}, results(t, s.apply(`,"set":"r","prune":true`, other)))
}

func TestPruneDeletesTheTemplateThatNothingNamesNow(t *testing.T) {
	s := newSite(t)
	own := `,"set":"r","templates":[{"source":"version: '0.1'\nname: own\n` +
		`tasks: [{name: a, worker: x, actions: [{name: b, image: reboot, timeout: 60}]}]\n"}]`
	results(t, s.apply(own, m1Document(`,"template":"own"`)))
	require.Equal(t, []string{"machine m1 changed template", "template own deleted"},
		results(t, s.apply(`,"set":"r","prune":true`, m1Document(`,"template":"image"`))))
}

// A file is read by the server as "ingot apply" reads it, and its problems have lines, also those that only the store can find.
func TestApplyReadsFiles(t *testing.T) {
	s := newSite(t)
	send := func(more string, files ...string) *answered[apitypes.Application] {
		t.Helper()
		list := []map[string]string{}
		for _, f := range files {
			list = append(list, map[string]string{"name": "f.yaml", "text": f})
		}
		b, err := json.Marshal(list)
		require.NoError(t, err)
		return s.answerOf(s.do(http.MethodPost, "/v1/apply", `{"files":`+string(b)+more+`}`))
	}
	one := "name: m1\ninterfaces: [{mac: '" + mac + "'}]\nbmc: {driver: ipmi, host: 192.0.2.10, user: a, password: canary}\n"
	require.Equal(t, []string{"machine m1 added"}, results(t, send(`,"dryRun":true`, one)))
	require.Equal(t, []string{"machine m1 added"}, results(t, send(`,"set":"r"`, one)))
	require.Equal(t, []string{"machine m1 unchanged"}, results(t, send(`,"set":"r"`, one)))

	wrong := send("", "---\n"+one, "name: m2\ncolour: red\ninterfaces: [{mac: x}]\n")
	require.Equal(t, http.StatusBadRequest, wrong.status)
	require.Equal(t, []int{2, 3}, []int{wrong.err.Problems[0].Line, wrong.err.Problems[1].Line})
	foreign := send("", "---\n---\n"+one)
	require.Equal(t, []string{""}, conflicting(t, foreign), "it belongs to the set r")
	require.Equal(t, 3, foreign.err.Problems[0].Line)
	taken := send("", one, "\nname: m2\ninterfaces:\n- {mac: '02:00:00:00:00:98'}\n- {mac: '02:00:00:00:00:98'}\n")
	require.Equal(t, 5, taken.err.Problems[0].Line)

	starts := send("", "type: Inspect\ninput: {machine: m1}\n")
	require.Empty(t, results(t, starts))
	require.False(t, starts.value.Stored)
	require.Contains(t, starts.value.Warnings[0], "f.yaml:1: workflow Inspect of m1 is not started")
	require.Equal(t, http.StatusBadRequest, send(`,"machines":[`+m1Document("")+`]`, one).status)
	require.Equal(t, http.StatusBadRequest, send("", strings.Repeat("#", maxFiles+1)).status)
}
