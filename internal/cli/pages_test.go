package cli

import (
	"io"
	"net/http"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// twoPages answers each list with the first page, and with the second one if it
// is asked for what comes after "1".
func twoPages(first, second string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer := `{"items":[` + first + `],"next":"1"}`
		if r.URL.Query().Get("after") == "1" {
			answer = `{"items":[` + second + `]}`
		}
		_, _ = io.WriteString(w, answer)
	}
}

// Commands that need a whole list read all of its pages.
func TestWholeListsAreRead(t *testing.T) {
	o := fakeServer(t, twoPages(
		`{"name":"a","file":"a.raw","interfaces":[{"mac":"02:00:00:00:00:01"}]}`,
		`{"name":"b","file":"b.raw","interfaces":[{"mac":"02:00:00:00:00:02"}]}`))
	c, _, _ := newCall(t.Context(), o)
	both := []string{"a", "b"}

	name, err := findMachine(c, "02:00:00:00:00:02")
	require.NoError(t, err)
	require.Equal(t, "b", name)

	names, err := findRecoveredMachines(c, contract.RecoverInput{Machines: both})
	require.NoError(t, err)
	require.ElementsMatch(t, both, names)

	names, err = imagesToVerify(c)
	require.NoError(t, err)
	require.Equal(t, both, names)

	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	words, _ := o.machines()(cmd, nil, "")
	require.Equal(t, both, words)
}

// The query of a route is part of the request for each page.
func TestEachPageHasTheQuery(t *testing.T) {
	var asked []string
	pages := twoPages(`{"name":"a"}`, `{"name":"b"}`)
	c, _, _ := newCall(t.Context(), fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.RawQuery)
		pages(w, r)
	}))

	_, err := getAll[inventory.Image](c, client.Path("images")+"?unused=true")
	require.NoError(t, err)
	require.Equal(t, []string{"unused=true", "after=1&unused=true"}, asked)
}

// An empty list is [] in JSON.
func TestEmptyListIsNotNull(t *testing.T) {
	c, _, _ := newCall(t.Context(), fakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"items":[]}`)
	}))

	a, err := getAll[inventory.Event](c, client.Path("events"))
	require.NoError(t, err)
	require.JSONEq(t, `{"items":[]}`, string(a.Raw))
}

// The boot that an operator looks at may be on the last page of events.
func TestBootProgressReadsAllEvents(t *testing.T) {
	c, _, _ := newCall(t.Context(), fakeServer(t, twoPages(
		`{"kind":"`+inventory.EventDHCP+`","boot":1}`, `{"kind":"`+inventory.EventLoader+`","boot":2}`)))

	text := bootProgress(c, inventory.Workflow{Run: "r", Phase: inventory.PhaseLoader})
	require.Contains(t, text, "seen:    fetched the boot loader (once)")
}
