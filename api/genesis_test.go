package api

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enumspb "go.temporal.io/api/enums/v1"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/engine"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

type bundleBody struct {
	File    string            `json:"file"`
	Files   map[string]string `json:"files"`
	Replace bool              `json:"replace,omitempty"`
	Only    bool              `json:"only,omitempty"`
}

// exampleLab is deploy/genesis as the command line sends it.
func exampleLab(t *testing.T) bundleBody {
	t.Helper()
	b := bundleBody{File: "lab.yaml", Files: map[string]string{}}
	entries, err := os.ReadDir("../deploy/genesis")
	require.NoError(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join("../deploy/genesis", e.Name()))
		require.NoError(t, err)
		b.Files[e.Name()] = string(text)
	}
	return b
}

// stock gives the store the images and templates that the lab needs.
func (s *site) stock() {
	s.T.Helper()
	for n, name := range []string{
		"vyos", "talos-kernel", "talos-initramfs", "harvester-v1.4.0-vmlinuz-amd64", "harvester-v1.4.0-initrd-amd64",
		"harvester-v1.4.0-rootfs-amd64.squashfs", "harvester-v1.4.0-amd64.iso",
	} {
		require.NoError(
			s.T,
			s.Store.Images.PutImage(
				s.T.Context(),
				inventory.Image{Name: name, File: name, SHA256: strings.Repeat(string(rune('1'+n)), 64), Format: "raw"},
				"test",
			),
		)
	}
	for _, name := range []string{"vyos", "talos", "harvester-create", "harvester-join"} {
		require.NoError(s.T, s.Store.Templates.PutTemplate(s.T.Context(), inventory.Template{Name: name, Source: oneAction}, "test"))
	}
}

func TestGenesis(t *testing.T) {
	s := newSite(t)
	c := checking(s)
	lab := exampleLab(t)
	c.op(http.StatusNotFound, http.MethodGet, "/v1/genesis/home", nil)
	c.op(http.StatusNotFound, http.MethodPost, "/v1/genesis/home/start", nil)

	// Warnings that do not prevent storing are returned.
	only := lab
	only.Only = true
	c.op(http.StatusOK, http.MethodPut, "/v1/genesis/home", only)
	c.op(http.StatusNotFound, http.MethodGet, "/v1/genesis/home", nil)

	p := decode[genesis.Plan](t, c.op(http.StatusOK, http.MethodPut, "/v1/genesis/home", lab), http.StatusOK)
	require.Len(t, p.Steps, 11)
	require.Len(t, p.Destroys, 5)
	require.Len(t, p.Problems, 7+lacking(s, "vyos", "talos", "harvester-create", "harvester-join", "harvester-join"), "%v", p.Problems)
	ms, err := s.Store.Machines.Machines(t.Context())
	require.NoError(t, err)
	require.Empty(t, ms, "storing the file changes nothing else")

	// None of its secrets is shown again.
	for _, r := range []struct{ method, path string }{{"GET", "/v1/genesis"}, {"GET", "/v1/genesis/home"}, {"POST", "/v1/genesis/home/plan"}} {
		rec := c.op(http.StatusOK, r.method, r.path, nil)
		require.NotContains(t, rec.Body.String(), "EXAMPLE-make-your-own", r.path)
		require.NotContains(t, rec.Body.String(), "PRIVATE", r.path)
	}

	rec := c.op(http.StatusBadRequest, http.MethodPost, "/v1/genesis/home/start", nil)
	require.Contains(t, rec.Body.String(), "images[6].name")
	s.stock()
	p = decode[genesis.Plan](t, c.op(http.StatusOK, http.MethodPost, "/v1/genesis/home/plan", nil), http.StatusOK)
	require.Empty(t, p.Problems)

	// A machine of the inventory that differs is overwritten only on request.
	other := inventory.Machine{Name: "um760", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:07:61"}}}
	require.NoError(t, s.Store.Machines.PutMachines(t.Context(), []inventory.Machine{other}, false, "test"))
	rec = c.op(http.StatusBadRequest, http.MethodPost, "/v1/genesis/home/start", nil)
	require.Contains(t, rec.Body.String(), "differs in bmc, diskSelector, interfaces, labels, template, userData")
	lab.Replace = true
	c.op(http.StatusOK, http.MethodPut, "/v1/genesis/home", lab)

	run := decode[apitypes.Started](t, c.op(http.StatusAccepted, http.MethodPost, "/v1/genesis/home/start", nil), http.StatusAccepted)
	require.Equal(t, "genesis/home", run.Workflow)
	require.Equal(t, workflows.GenesisInput{Name: "home", By: "admin"}, s.Temporal.Inputs[0])
	c.op(http.StatusOK, http.MethodGet, "/v1/genesis/home/status", nil)
	c.op(http.StatusConflict, http.MethodPost, "/v1/genesis/home/resume", nil) // it asks nothing

	// While it runs, its file stays, and neither a second one nor a migration begins.
	c.op(http.StatusConflict, http.MethodPut, "/v1/genesis/home", lab)
	c.op(http.StatusConflict, http.MethodDelete, "/v1/genesis/home", nil)
	second := exampleLab(t)
	second.Files["lab.yaml"] = strings.Replace(second.Files["lab.yaml"], "name: home\n", "name: away\n", 1)
	second.Replace = true
	c.op(http.StatusOK, http.MethodPut, "/v1/genesis/away", second)
	rec = c.op(http.StatusConflict, http.MethodPost, "/v1/genesis/away/start", nil)
	require.Contains(t, rec.Body.String(), "genesis/home is already running as run "+run.Run)
	_, err = s.api.operations.start(
		t.Context(),
		engine.Start{Type: inventory.TypeMigrate, ID: contract.MigrateID("platform"), Input: contract.MigrateInput{Name: "platform"}},
		"platform",
	)
	require.ErrorIs(t, err, inventory.ErrConflict)
	require.ErrorContains(t, err, "genesis/home")
	c.op(http.StatusAccepted, http.MethodPost, "/v1/genesis/home/cancel", nil)
	require.Equal(t, 1, s.Temporal.Runs[run.Run].Cancels)
}

// The plan reports an image that cannot be fetched, with the line in the file, before the
// start.
func TestGenesisAsksForWhatItWouldFetch(t *testing.T) {
	here := http.HandlerFunc(http.NotFound)
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { here.ServeHTTP(w, r) }))
	t.Cleanup(target.Close)
	s := newSite(t, func(c *siteConfig) { c.FetchHosts = []string{"127.0.0.1"} })
	c := checking(s)
	lab := exampleLab(t)
	lab.Files["lab.yaml"] = strings.Replace(lab.Files["lab.yaml"], "file: images/kernel-amd64", "url: "+target.URL+"/kernel", 1)
	lab.Only = true
	of := func() (out []string) {
		p := decode[genesis.Plan](t, c.op(http.StatusOK, http.MethodPut, "/v1/genesis/home", lab), http.StatusOK)
		for _, x := range p.Problems {
			if strings.HasSuffix(x.Field, "].url") {
				require.NotZero(t, x.Line)
				out = append(out, x.File+" "+x.Field+" "+x.What)
			}
		}
		return out
	}
	got := of()
	require.Len(t, got, 1)
	require.Contains(t, got[0], `lab.yaml images[1].url image "talos-kernel" cannot be fetched: requesting`)
	require.Contains(t, got[0], "404 Not Found")
	here = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	require.Empty(t, of())
	require.NoError(
		t,
		s.Store.Images.PutImage(
			t.Context(),
			inventory.Image{Name: "talos-kernel", File: "x", SHA256: strings.Repeat("2", 64), Format: "raw"},
			"test",
		),
	)
	here = http.NotFound
	require.Empty(t, of(), "the server has it")
}

func lacking(s *site, names ...string) (n int) {
	s.T.Helper()
	for _, name := range names {
		if _, err := s.api.templates.find(s.T.Context(), name); err != nil {
			n++
		}
	}
	return n
}

func TestGenesisIsRefusedWithEverythingWrong(t *testing.T) {
	s := newSite(t)
	c := checking(s)
	lab := exampleLab(t)
	c.op(http.StatusBadRequest, http.MethodPut, "/v1/genesis/other", lab) // it is called home
	lab.Files["lab.yaml"] = strings.NewReplacer("vlan: 20", "vlann: 20", "create: ms-02-a", "create: ms-02-x").Replace(lab.Files["lab.yaml"])
	lab.Files["harvester-join.yaml"] = strings.Replace(lab.Files["harvester-join.yaml"], "server_url:", "#", 1)
	rec := c.op(http.StatusBadRequest, http.MethodPut, "/v1/genesis/home", lab)
	for _, what := range []string{"network.vlann", "cluster.create", "server_url"} {
		require.Contains(t, rec.Body.String(), `"field":"`+what+`"`)
	}
	c.op(http.StatusNotFound, http.MethodGet, "/v1/genesis/home", nil)
	delete(lab.Files, "lab.yaml")
	c.op(http.StatusBadRequest, http.MethodPut, "/v1/genesis/home", lab)
}

// TestGenesisTellsMistakesAndWhatIsLackingTogether: mistakes in the file do not hide what
// the server knows, and cause no false problems.
func TestGenesisTellsMistakesAndWhatIsLackingTogether(t *testing.T) {
	s := newSite(t)
	c := checking(s)
	s.stock()
	require.NoError(t, s.Store.Images.DeleteImage(t.Context(), "talos-kernel", "test"))
	for _, m := range []inventory.Machine{
		{Name: "um760", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:07:61"}}},
		{Name: "ms-02-b", Interfaces: []inventory.Interface{{MAC: "02:00:00:02:0b:03"}}},
	} {
		require.NoError(t, s.Store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
	}
	for name, x := range map[string]struct {
		swaps []string
		name  string
		want  []string
	}{
		"a key": {[]string{"  vlan: 20", "  vlann: 20"}, "home", []string{
			"network.vlann", "images[1].name", "machines[1].name", "machines[3].name",
		}},
		"a machine that is not read as meant": {[]string{"labels: {role: platform,", "lables: {role: platform,"}, "home", []string{
			"images[1].name", "machines[1].labels", "machines[1].labels", "machines[1].lables", "machines[3].name",
		}},
		"an image": {[]string{"name: talos-kernel, file: images/kernel-amd64,", "name: talos-kernel, fil: images/kernel-amd64,"}, "home", []string{
			"images[1].fil", "machines[1].name", "machines[3].name",
		}},
		"a role, and so a template": {[]string{"create: ms-02-a", "create: ms-02-x"}, "home", []string{"images[1].name", "cluster.create"}},
		"all images":                {[]string{"images:  ", "images: nil\nimagess:  "}, "home", []string{"images", "imagess", "machines[1].name", "machines[3].name"}},
		"all machines":              {[]string{"machines:\n", "machines: nil\nmachiness:\n"}, "home", []string{"images[1].name", "machines", "machiness"}},
		"another name":              {[]string{"  vlan: 20", "  vlann: 20"}, "away", []string{"name", "network.vlann", "images[1].name", "machines[1].name", "machines[3].name"}},
		"not YAML":                  {[]string{"name: home", "name: [home"}, "home", []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			lab := exampleLab(t)
			text := strings.NewReplacer(x.swaps...).Replace(lab.Files["lab.yaml"])
			require.NotEqual(t, lab.Files["lab.yaml"], text)
			lab.Files["lab.yaml"] = text
			a := decode[answer](t, c.op(http.StatusBadRequest, http.MethodPut, "/v1/genesis/"+x.name, lab), http.StatusBadRequest)
			var got []string
			for _, p := range a.Problems {
				require.Equal(t, "lab.yaml", p.File)
				got = append(got, p.Field)
			}
			require.Equal(t, x.want, got, "%v", a.Problems)
			c.op(http.StatusNotFound, http.MethodGet, "/v1/genesis/"+x.name, nil)
		})
	}
}

func TestGenesisResumes(t *testing.T) {
	s := newSite(t)
	c := checking(s)
	s.stock()
	c.op(http.StatusOK, http.MethodPut, "/v1/genesis/home", exampleLab(t))
	c.op(http.StatusNotFound, http.MethodPost, "/v1/genesis/home/resume", nil)

	// A Genesis that waits for the operator is told to try again.
	s.operation("genesis/home", inventory.TypeGenesis)
	s.Temporal.Open("genesis/home", "r1")
	o, err := s.Store.Operations.Operation(t.Context(), "r1")
	require.NoError(t, err)
	o.Question, o.Seq = &inventory.Question{
		ID:      "router.1",
		Text:    "step router: no answer",
		Choices: []string{contract.Retry, contract.Abort},
		Since:   time.Unix(2, 0),
	}, 2
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(), o))
	c.op(http.StatusAccepted, http.MethodPost, "/v1/genesis/home/resume", nil)
	d := s.Temporal.Updates[0].Args[0].(contract.Decision)
	require.Equal(t, contract.Decision{Question: "router.1", Choice: contract.Retry, By: "admin"}, d)

	// A failed Genesis starts again where it stopped.
	o.Question, o.State, o.Seq = nil, inventory.StateFailed, 3
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(), o))
	s.Temporal.Mu.Lock()
	delete(s.Temporal.Runs, "r1")
	s.Temporal.Mu.Unlock()
	run := decode[apitypes.Started](t, c.op(http.StatusAccepted, http.MethodPost, "/v1/genesis/home/resume", nil), http.StatusAccepted)
	require.Equal(t, workflows.GenesisInput{Name: "home", Resume: true, By: "admin"}, s.Temporal.Inputs[0])

	// A finished Genesis is not started again.
	o, err = s.Store.Operations.Operation(t.Context(), run.Run)
	require.NoError(t, err)
	o.State = inventory.StateSuccess
	o.Seq = 9
	require.NoError(t, s.Store.Operations.PutOperation(t.Context(), o))
	s.Temporal.End(run.Run, enumspb.WORKFLOW_EXECUTION_STATUS_COMPLETED, nil)
	c.op(http.StatusConflict, http.MethodPost, "/v1/genesis/home/resume", nil)
	c.op(http.StatusAccepted, http.MethodPost, "/v1/genesis/home/start", map[string]bool{"again": true})
}
