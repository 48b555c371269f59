package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

var mergePatch = header{"Content-Type", "application/merge-patch+json"}

// patch changes m1, from the version that is stored now.
func (s *site) patch(query, in string) *httptest.ResponseRecorder {
	s.T.Helper()
	tag := s.do(http.MethodGet, "/v1/machines/m1", nil).Header().Get("ETag")
	return s.do(http.MethodPatch, "/v1/machines/m1"+query, in, mergePatch, header{"If-Match", tag})
}

// withSecrets returns a site with the machine m1, which has all secrets.
func withSecrets(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	m := machine("m1", mac)
	m.Image, m.Labels = "debian-12", map[string]string{"rack": "a1", "row": "2"}
	m.UserData, m.VendorData = inventory.NewSecret("canary-user"), inventory.NewSecret("canary-vendor")
	m.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: "192.0.2.10", User: "admin", Password: inventory.NewSecret("canary-bmc")}
	require.NoError(t, s.Store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
	return s
}

func TestPatchChangesOnlyWhatItNames(t *testing.T) {
	s := withSecrets(t)
	before := decode[apitypes.MachineView](t, s.do(http.MethodGet, "/v1/machines/m1", nil), 200)
	rec := s.patch("", `{"image":null,"template":"image","labels":{"rack":"b2"},"bmc":{"port":6230},"userData":"canary-new"}`)
	got := decode[apitypes.MachineView](t, rec, http.StatusOK)
	require.Equal(t, before.Version+1, got.Version)
	require.Equal(t, got.ETag(), rec.Header().Get("ETag"))
	require.Empty(t, got.Image)
	require.Equal(t, "image", got.Template)
	require.Equal(t, map[string]string{"rack": "b2", "row": "2"}, got.Labels)
	require.Equal(t, "192.0.2.10", got.BMC.Host)
	require.True(t, got.HasUserData && got.HasVendorData)
	require.NotContains(t, rec.Body.String(), "canary")

	// The port belongs to the address: its password is gone, and the answer says so.
	require.False(t, got.BMC.HasPassword)
	require.Len(t, got.Warnings, 1)
	require.Contains(t, got.Warnings[0], "the BMC password was deleted")

	user, vendor, err := s.Store.Machines.UserData(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, "canary-new canary-vendor", user.Reveal()+" "+vendor.Reveal())
	events, err := s.Store.Events.Events(t.Context(), inventory.EventFilter{Machine: "m1"})
	require.NoError(t, err)
	last := events[len(events)-1]
	require.Equal(t, "admin", last.By)
	require.Equal(t, "machine changed: bmc.port, image, labels.rack, template, userData; "+
		"BMC password deleted, because the settings for reaching the BMC changed", last.Message)
}

// S65: Of two editors of the same version, the second is refused, also if it changes another field.
func TestPatchNeedsTheVersionThatWasRead(t *testing.T) {
	s := withSecrets(t)
	tag := s.do(http.MethodGet, "/v1/machines/m1", nil).Header().Get("ETag")
	patch := func(in string, hs ...header) *httptest.ResponseRecorder {
		return s.do(http.MethodPatch, "/v1/machines/m1", in, append([]header{mergePatch}, hs...)...)
	}
	require.Equal(t, http.StatusOK, patch(`{"image":"first"}`, header{"If-Match", tag}).Code)
	e := decode[answer](t, patch(`{"template":"image"}`, header{"If-Match", tag}), http.StatusPreconditionFailed)
	require.Equal(t, httpapi.CodeConflict, e.Code)
	require.Contains(t, e.Error, "the change was made to version "+strings.Trim(tag, `"`))
	require.Equal(t, "first", decode[apitypes.MachineView](t, s.do(http.MethodGet, "/v1/machines/m1", nil), 200).Image)

	require.Equal(t, http.StatusPreconditionRequired, patch(`{}`).Code)
	for _, tag := range []string{"*", `"1", "2"`, `W/"1"`, "1x", `"-1"`} {
		require.Equal(t, http.StatusBadRequest, patch(`{}`, header{"If-Match", tag}).Code, tag)
	}
	require.Equal(t, http.StatusUnsupportedMediaType,
		s.do(http.MethodPatch, "/v1/machines/m1", `{"allowPXE":true}`, header{"Content-Type", "application/json"}).Code)
	require.Equal(t, http.StatusNotFound, s.do(http.MethodPatch, "/v1/machines/m9", `{}`, mergePatch, header{"If-Match", tag}).Code)
}

// A secret is removed only by a null that ?clear names; all problems come at once.
func TestPatchKeepsSecrets(t *testing.T) {
	s := withSecrets(t)
	fields := func(rec *httptest.ResponseRecorder) (out []string) {
		for _, p := range decode[answer](t, rec, http.StatusBadRequest).Problems {
			out = append(out, p.Field)
		}
		return out
	}
	require.Equal(t, []string{"userData", "vendorData", "bmc.password"},
		fields(s.patch("", `{"userData":null,"vendorData":"","bmc":{"password":null}}`)))
	require.Equal(t, []string{"bmc.password"}, fields(s.patch("?clear=userData", `{"userData":null,"bmc":{"password":null}}`)))
	require.Equal(t, []string{"clear"}, fields(s.patch("?clear=userData", `{"image":"x"}`)))
	require.Equal(t, []string{"clear"}, fields(s.patch("?clear=image", `{"image":null}`)))
	require.Equal(t, []string{"bmc.password"}, fields(s.patch("", `{"bmc":null}`)), "the object takes its secret along")
	require.Equal(t, http.StatusBadRequest, s.patch("", `{"userData":"[redacted]"}`).Code)
	require.Equal(t, []string{"colour", "interfaces[0].speed", "bmc.hasPassword", "version", "name", "bmc.port"},
		fields(s.patch("", `{"colour":1,"interfaces":[{"mac":"02:00:00:00:00:01","speed":1}],"version":7,"name":"m2",
			"bmc":{"hasPassword":false,"port":70000}}`)))
	require.Equal(t, http.StatusBadRequest, s.patch("", `[1]`).Code)

	got := decode[apitypes.MachineView](t, s.patch("?clear=userData,bmc.password", `{"userData":null,"bmc":{"password":null}}`), 200)
	require.False(t, got.HasUserData || got.BMC.HasPassword)
	require.True(t, got.HasVendorData)
	require.Empty(t, got.Warnings)
}

// What an open run relies on does not change.
func TestPatchRemovesABMC(t *testing.T) {
	s := withSecrets(t)
	got := decode[apitypes.MachineView](t, s.patch("?clear=bmc.password", `{"bmc":null}`), http.StatusOK)
	require.Nil(t, got.BMC)
	require.True(t, got.HasUserData)
}

func TestPatchDuringARun(t *testing.T) {
	s := withSecrets(t)
	s.Arm("m1", "run-1")
	e := decode[answer](t, s.patch("", `{"interfaces":[{"mac":"02:00:00:00:00:09"}]}`), http.StatusConflict)
	require.Contains(t, e.Error, "MACs, addresses and disks cannot change until the run ends")
	require.Equal(t, http.StatusOK, s.patch("", `{"labels":{"rack":"c3"}}`).Code)
}

// S65: A document that was exported does not replace what was changed since.
func TestPushOfAStaleVersion(t *testing.T) {
	s := withSecrets(t)
	exported := decode[apitypes.MachineView](t, s.do(http.MethodGet, "/v1/machines/m1", nil), 200).Machine
	push := func(m inventory.Machine) *httptest.ResponseRecorder {
		return s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}, "replace": true})
	}
	require.Equal(t, http.StatusOK, s.patch("", `{"image":"debian-13"}`).Code)
	e := decode[answer](t, push(exported), http.StatusConflict)
	require.Equal(t, "version", e.Problems[0].Field)
	require.Contains(t, e.Problems[0].What, "they differ in image")
	exported.Version = 0
	require.Equal(t, http.StatusCreated, push(exported).Code)
}

func TestTemplateOfAnotherVersion(t *testing.T) {
	s := newSite(t)
	in := map[string]any{"name": "t1", "source": oneAction}
	first := decode[inventory.Template](t, s.do(http.MethodPost, "/v1/templates", in), http.StatusCreated)
	in["updated"] = first.Updated
	s.Clock.Move(time.Second)
	require.Equal(t, http.StatusCreated, s.do(http.MethodPost, "/v1/templates", in).Code)
	require.Equal(t, http.StatusPreconditionFailed, s.do(http.MethodPost, "/v1/templates", in).Code)
	in["name"] = "t2"
	require.Equal(t, http.StatusPreconditionFailed, s.do(http.MethodPost, "/v1/templates", in).Code, "it was deleted")
}

func TestPatchTakesNetworkAndStorageAsYAML(t *testing.T) {
	s := withSecrets(t)
	send := func(query string, texts map[string]any) *httptest.ResponseRecorder {
		t.Helper()
		raw, err := json.Marshal(texts)
		require.NoError(t, err)
		return s.patch(query, string(raw))
	}
	const good = "ethernets:\n- name: nic0\n  mac: " + mac + "\nvlans:\n- {name: v7, id: 7, link: nic0, addresses: [10.0.7.11/24]}\n"
	const disks = "disks:\n- device: /dev/sda\n  partitions:\n  - {label: ROOT, number: 1, size: 0}\n"
	rec := send("?yaml=network,storage", map[string]any{"network": good, "storage": disks, "image": "other"})
	got := decode[apitypes.MachineView](t, rec, 200)
	require.Equal(t, 7, got.Network.VLANs[0].ID)
	require.Equal(t, "/dev/sda", got.Storage.Disks[0].Device)
	require.Equal(t, "other", got.Image)

	// Problems of the text and of its validation name their lines.
	const bad = "ethernets:\n- name: nic0\n  mac: " + mac + "\n  colour: red\nbonds:\n- name: bond0\n  interfaces: [nic0]\n  mode: odd\n"
	e := decode[answer](t, send("?yaml=network", map[string]any{"network": bad}), http.StatusBadRequest)
	lines := map[string]int{}
	for _, p := range e.Problems {
		lines[p.Field] = p.Line
	}
	require.Equal(t, map[string]int{"network.ethernets[0].colour": 4, "network.bonds[0].mode": 8}, lines)
	e = decode[answer](t, send("?yaml=storage", map[string]any{"storage": "disks: [\n"}), http.StatusBadRequest)
	require.Equal(t, "storage", e.Problems[0].Field)
	require.Positive(t, e.Problems[0].Line)

	// A text replaces the whole field, and a blank one removes it.
	got = decode[apitypes.MachineView](t, send("?yaml=network", map[string]any{"network": good[:strings.Index(good, "vlans")]}), 200)
	require.Empty(t, got.Network.VLANs)
	got = decode[apitypes.MachineView](t, send("?yaml=network,storage", map[string]any{"network": " \n", "storage": ""}), 200)
	require.Nil(t, got.Network)
	require.Nil(t, got.Storage)

	for query, value := range map[string]any{"?yaml=network": map[string]any{}, "?yaml=image": "x", "?yaml=storage": nil} {
		field := strings.TrimPrefix(query, "?yaml=")
		require.Equal(t, http.StatusBadRequest, send(query, map[string]any{field: value}).Code, query)
	}
}
