package cli

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// -l, --selector and --label are one flag; each adds requirements.
func TestSelectorFlag(t *testing.T) {
	for name, list := range map[string]func(o *Options) *cobra.Command{
		"machine list": machineListCommand, "workflow list": workflowListCommand, "export": exportCommand,
		"get machines": func(o *Options) *cobra.Command {
			return getKindCommand("machine", machineListCommand(o), machineGetCommand(o))
		},
	} {
		for args, want := range map[string]string{
			"":                                      "",
			"-l rack=a1":                            "rack=a1",
			"--selector=rack,x!=y":                  "rack,x!=y",
			"--label rack":                          "rack",
			"-l rack=a1 --selector !old --label in": "rack=a1,!old,in",
		} {
			var got []string
			cmd := list(fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
				got = append(got, r.URL.Query().Get("selector"))
				_, _ = io.WriteString(w, `{"items":[]}`)
			}))
			cmd.SetArgs(strings.Fields(args))
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			require.NoError(t, cmd.ExecuteContext(t.Context()), "%s %s", name, args)
			require.Equal(t, want, got[0], "%s %s", name, args)
		}
	}
}

func TestLabelsAreCompleted(t *testing.T) {
	o := fakeServer(t, twoPages(`{"name":"a","labels":{"rack":"a1","role":"db"}}`, `{"name":"b","labels":{"rack":"a1","gpu":""}}`))
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	words, _ := o.labels()(cmd, nil, "")
	require.Equal(t, []string{"gpu=", "rack=a1", "role=db"}, words)
	words, _ = o.labels()(cmd, nil, "!old,r")
	require.Equal(t, []string{"!old,gpu=", "!old,rack=a1", "!old,role=db"}, words)
}
