package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows"
)

// pages reads a list page by page and returns the keys of its items.
func (c checker) pages(path, key string) (keys []string) {
	c.T.Helper()
	type answer struct {
		Items []map[string]any
		Next  string
	}
	for after := ""; ; {
		to := path
		if after != "" {
			to += "&after=" + url.QueryEscape(after)
		}
		got := decode[answer](c.T, c.op(http.StatusOK, http.MethodGet, to, nil), http.StatusOK)
		for _, item := range got.Items {
			keys = append(keys, fmt.Sprint(item[key]))
		}
		if got.Next == "" {
			return keys
		}
		require.NotEqual(c.T, after, got.Next)
		after = got.Next
	}
}

// TestListsPageSortAndFilter: pages are cut by the store, and a cursor holds when
// rows are added or removed between two pages.
func TestListsPageSortAndFilter(t *testing.T) {
	c := checking(newSite(t))
	for n := range 5 {
		m := machine(fmt.Sprintf("m%d", n), fmt.Sprintf("52:54:00:00:01:%02x", n))
		m.Labels = map[string]string{"rack": fmt.Sprint(n % 2), "site": "x"}
		require.NoError(t, c.Store.Machines.PutMachines(t.Context(), []inventory.Machine{m}, false, "test"))
		state := inventory.StateSuccess
		if n > 2 {
			state = inventory.StateFailed
		}
		for i, started := range []time.Duration{0, time.Duration(n) * time.Minute} { // the first of all begin together
			require.NoError(t, c.Store.Workflows.PutWorkflow(t.Context(), inventory.Workflow{
				Run: fmt.Sprintf("r%d%d", n, i), ID: workflows.MachineID(m.Name), Type: inventory.TypeProvision, Machine: m.Name,
				State: state, Phase: inventory.PhaseDone, Started: c.Clock.Now().Add(started + time.Duration(i)*time.Hour),
			}))
		}
	}

	for path, want := range map[string]string{
		"/v1/machines?limit=2":                                    "m0 m1 m2 m3 m4",
		"/v1/machines?limit=2&sort=-name":                         "m4 m3 m2 m1 m0",
		"/v1/machines?limit=1&selector=rack%3D1":                  "m1 m3",
		"/v1/machines?selector=rack%3D0,site%3Dx":                 "m0 m2 m4",
		"/v1/machines?limit=1&sort=-name&selector=rack!%3D1,site": "m4 m2 m0",
		"/v1/machines?limit=2&selector=rack+in+(0,2),!old":        "m0 m2 m4",
		"/v1/machines?selector=!site":                             "",
		"/v1/machines?limit=1&state=FAILED":                       "m3 m4",
		"/v1/templates?limit=1&sort=name":                         "image",
		"/v1/machines?state=RUNNING&selector=rack=1":              "",
	} {
		got := c.pages(path, "name")
		if strings.HasPrefix(path, "/v1/templates") {
			require.Contains(t, got, want, path)
			continue
		}
		require.Equal(t, want, strings.Join(got, " "), path)
	}
	for path, want := range map[string]string{
		"/v1/workflows?limit=3":                                      "r41 r31 r21 r11 r01 r40 r30 r20 r10 r00",
		"/v1/workflows?limit=3&sort=started":                         "r00 r10 r20 r30 r40 r01 r11 r21 r31 r41",
		"/v1/workflows?limit=1&selector=rack%3D1":                    "r31 r11 r30 r10",
		"/v1/workflows?limit=2&sort=started&selector=rack+notin+(1)": "r00 r20 r40 r01 r21 r41",
		"/v1/workflows?limit=1&state=FAILED&sort=-started":           "r41 r31 r40 r30",
		"/v1/workflows?limit=1&machine=m2&sort=started&open=0":       "r20 r21",
	} {
		require.Equal(t, want, strings.Join(c.pages(path, "run"), " "), path)
	}

	for n := range 4 {
		require.NoError(t, c.Store.Operations.PutOperation(t.Context(), inventory.Operation{
			Run: fmt.Sprintf("o%d", n), ID: fmt.Sprintf("recover/o%d", n), Type: inventory.TypeRecover, State: inventory.StateSuccess,
			Steps: []inventory.OperationStep{}, Started: c.Clock.Now().Add(time.Duration(n/2) * time.Hour), // two and two begin together
		}))
	}
	require.Equal(t, "o3 o2 o1 o0", strings.Join(c.pages("/v1/operations?limit=1", "run"), " "))
	require.Equal(t, "o0 o1 o2 o3", strings.Join(c.pages("/v1/operations?limit=3&sort=started&type=Recover", "run"), " "))

	all := c.pages("/v1/machines/m1/events?limit=1", "seq")
	require.NotEmpty(t, all)
	reversed := c.pages("/v1/machines/m1/events?limit=1&sort=-seq", "seq")
	require.Len(t, reversed, len(all))
	require.Equal(t, all[0], reversed[len(all)-1])

	// The run at which a page ends is deleted before the next one is read.
	first := decode[struct{ Next string }](t, c.op(200, "GET", "/v1/workflows?limit=7", nil), 200)
	require.NoError(t, c.Store.Workflows.DeleteWorkflow(t.Context(), "r30", "test"))
	require.NotEmpty(t, first.Next)
	c.op(200, "GET", "/v1/workflows?limit=7&after="+url.QueryEscape(first.Next), nil)

	for _, bad := range []string{
		"/v1/machines?sort=size", "/v1/workflows?after=x", "/v1/workflows?sort=name",
		"/v1/templates?sort=x", "/v1/images?sort=x", "/v1/machines/m1/events?after=x", "/v1/machines/m1/events?sort=x",
		"/v1/machines?limit=x", "/v1/operations?after=x", "/v1/operations?sort=name",
	} {
		require.Equal(t, http.StatusBadRequest, c.do(http.MethodGet, bad, nil).Code, bad)
	}
	for _, list := range []string{"/v1/machines", "/v1/workflows"} {
		got := c.op(http.StatusBadRequest, http.MethodGet, list+"?selector=rack%3E1", nil)
		require.JSONEq(t, `[{"field": "selector", "what": "invalid operator \">\" at character 5", "remedy": "use =, ==, !=, in or notin"}]`,
			string(decode[struct{ Problems json.RawMessage }](t, got, http.StatusBadRequest).Problems))
	}
}
