package host

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
)

// A habit is a command as someone types it who knows other tools, with the exit code and a pattern of what is printed.
type habit struct {
	typed string
	code  int
	says  string
}

// habits are commands that are typed by habit from kubectl, talosctl, maas, tink and temporal. Each works, or is answered
// with the command to use.
var habits = []habit{
	{"get machines", 0, "^node-1 "},
	{"get machine node-1", 0, "name: +node-1"},
	{"machines", 2, "^next: ingot machine list$"},
	{"nodes", 2, "^next: ingot machine list$"},
	{"describe node-1", 0, "name: +node-1"},
	{"describe machine node-1", 0, "name: +node-1"},
	{"apply -f x.yaml", 2, "^x.yaml: open x.yaml: no such file"},
	{"logs node-1", 0, "^no space left$"},
	{"events", 2, "ingot events NAME; to see all runs change: ingot workflow list --watch$"},
	{"events -f", 2, "ingot events NAME; to see all runs change: ingot workflow list --watch$"},
	{"machine ssh node-1", 2, "^next: ingot machine get node-1  ?#"},
	{"machine console node-1", 2, "^next: ingot machine log node-1 "},
	{"machine edit node-1", 2, "an editor needs a terminal"},
	{"machine show node-1", 0, "name: +node-1"},
	{"machine describe node-1", 0, "name: +node-1"},
	{"machine list -o wide", 0, "^node-1 +02:00:00:00:00:01 .* rack=a1$"},
	{"machine list -o name", 0, `\Anode-1\n\z`},
	{"machine list -o json", 0, `"name": "node-1"`},
	{"machine ls", 0, "^node-1 "},
	{"machine list --watch", 0, "^node-1 "},
	{"machine list -w", 0, "^node-1 "},
	{"machine list -l rack=a1", 0, "^node-1 "},
	{"machine list --selector rack=a1", 0, "^node-1 "},
	{"machine label node-1 rack=a1", 0, "^machine node-1 not changed$"},
	{"machine set node-1 --label rack=a1", 2, "^next: ingot machine set --help$"},
	{"machine update node-1 --label rack=a1", 2, "^next: ingot machine set NAME KEY=VALUE$"},
	{"machine rm nope", 3, `machine "nope": not found`},
	{"machine delete nope", 3, `machine "nope": not found`},
	{"template show image", 0, "^name: image$"},
	{"template get image", 0, "^name: image$"},
	{"template create -f x", 2, "open x: no such file"},
	{"image rm nope", 3, `image "nope": not found`},
	{"image fetch debian-12", 2, "^next: ingot image add debian-12$"},
	{"image import x", 2, "^next: ingot image add NAME x$"},
	{"workflow show node-1", 0, "machine: +node-1"},
	{"workflow describe node-1", 0, "machine: +node-1"},
	{"workflow logs node-1", 0, "^no space left$"},
	{"workflow cancel nope", 3, `machine "nope": not found`},
	{"power status node-1", 2, "^next: ingot machine power status node-1$"},
	{"machine power status node-1", 2, "has no BMC"},
	{"machine on node-1", 2, "^next: ingot machine power on node-1$"},
	{"machine reboot node-1", 2, "^next: ingot machine power cycle node-1$"},
	{"machine deploy node-1", 2, "^next: ingot machine provision node-1$"},
	{"provision node-1", 0, "has begun$"},
	{"version", 0, "^test$"},
	{"version -o json", 0, `"version": "test"`},
	{"version --client", 0, "^test$"},
	{"--version", 0, "version test$"},
	{"config view", 2, "^next: ingot config check --output yaml$"},
	{"config show", 2, "^next: ingot config check --output yaml$"},
	{"dashboard", 2, "^next: ingot login-link$"},
	{"ui", 2, "^next: ingot login-link$"},
	{"web", 2, "^next: ingot login-link$"},
	{"open", 2, "^next: ingot login-link$"},
	{"health", 2, "^next: ingot status$"},
	{"top", 2, "^next: ingot workflow list --open --watch$"},
	{"audit", 2, "^next: ingot events NAME "},
	{"user list", 2, "^next: ingot token list$"},
	{"token create", 2, "^next: ingot token create --help$"},
	{"machine get node-1 --json", 2, "unknown flag: --json; use: --output json$"},
	{"machine get node-1 -ojson", 0, `"name": "node-1"`},
	{"machine get node-1 -o jsonpath={.name}", 0, `\Anode-1\n\z`},
	{"machine get nod-1", 3, "not found; did you mean node-1[?]$"},
	{"machin list", 2, "did you mean machine[?]$"},
	{"machine lst", 2, "did you mean list[?]$"},
	{"explain machine", 2, "^next: ingot schema machine$"},
	{"schema machine", 0, `"interfaces"`},
	{"api-resources", 2, "^next: ingot get$"},
	{"tag list", 2, "^next: ingot machine label NAME KEY=VALUE  ?# ingot machine list --output wide "},
	{"hardware list", 0, "^node-1 "},
	{"machine hardware node-1", 2, "^next: ingot machine disks node-1$"},
	{"machine disks node-1", 0, "^/dev/sda "},
	{"disks node-1", 2, "^next: ingot machine disks node-1$"},
	{"reset node-1", 2, "^next: ingot machine decommission node-1 .* ingot machine power reset node-1 "},
	{"upgrade", 2, "^next: ingot backup --to FILE "},
	{"support", 2, "^next: ingot doctor$"},
	{"context", 2, "^next: ingot login URL$"},
	{"machine wait node-1", 2, "^next: ingot workflow wait node-1$"},
	{"workflow wait node-1", 1, "ended as FAILED$"},
	{"workflow watch node-1", 1, "ended as FAILED$"},
	{"network list", 2, "^next: ingot status "},
	{"subnet list", 2, "^next: ingot status "},
	{"dhcp leases", 0, "no machine has asked"},
}

// answers are those of a server that has the machine node-1, whose run has failed.
var answers = map[string]string{
	"/v1/machines": `{"items":[` + machine + `]}`, "/v1/machines/node-1": machine,
	"/v1/machines/node-1/workflow": failedRun, "/v1/workflows/r1": failedRun,
	"/v1/machines/node-1/disks": `{"items":[{"path":"/dev/sda","size":1073741824}],"at":"2026-01-01T00:00:00Z"}`,
	"/v1/workflows/r1/logs":     "no space left\n", "/v1/workflows/r1/events": `{"items":[]}`,
	"/v1/machines/node-1/provision": `{"workflow":"machine/node-1","run":"r2"}`,
	"/v1/templates":                 `{"items":[{"name":"image"}]}`, "/v1/templates/image": `{"name":"image","source":"name: image\n"}`,
	"/v1/images": `{"items":[]}`, "/v1/dhcp/leases": `{"items":[]}`,
}

const (
	machine = `{"name":"node-1","labels":{"rack":"a1"},"interfaces":[{"mac":"02:00:00:00:00:01","address":"10.0.0.11"}]}`

	failedRun = `{"run":"r1","id":"machine/node-1","machine":"node-1","type":"Provision","state":"FAILED","phase":"failed"}`
)

// answerHabits answers as a server does, from answers.
func answerHabits(w http.ResponseWriter, r *http.Request) {
	if answer, ok := answers[r.URL.Path]; ok {
		_, _ = io.WriteString(w, answer)
		return
	}

	kind, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	status, code, text := http.StatusNotFound, "not_found", fmt.Sprintf("%s %q: not found", strings.TrimSuffix(kind, "s"), path.Base(name))
	switch path.Base(name) {
	case "workflow":
		text = fmt.Sprintf("machine %q: not found", path.Dir(name))
	case "power":
		status, code, text = http.StatusUnprocessableEntity, "invalid", "the machine has no BMC"
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text, "code": code}) // fails only if the command has gone
}

// output is the output of a command. A command that watches ends as by Ctrl-C after its first output.
type output struct {
	text bytes.Buffer
	stop func()
}

func (o *output) Write(b []byte) (int, error) {
	defer o.stop()
	return o.text.Write(b)
}

// TestHabits types each of habits, and checks that the answer is the wanted one.
func TestHabits(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(answerHabits))
	defer server.Close()
	t.Chdir(t.TempDir())
	t.Setenv("INGOT_SERVER", server.URL)
	t.Setenv("INGOT_TOKEN", "secret")

	require.Len(t, habits, 83)
	for _, h := range habits {
		t.Run(h.typed, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := output{stop: func() {}}
			words := strings.Fields(h.typed)
			if last := words[len(words)-1]; last == "--watch" || last == "-w" {
				out.stop = cancel
			}

			root := cli.Root("test", AddCommands)
			root.SetArgs(words)
			root.SetIn(strings.NewReader(""))
			code := cli.Run(ctx, root, &out, &out)
			require.Equal(t, h.code, code, out.text.String())
			require.Regexp(t, regexp.MustCompile("(?m)"+h.says), out.text.String())
		})
	}
}

// TestHabitsNameCommands: each command to use in place of another one exists, and takes the place of none.
func TestHabitsNameCommands(t *testing.T) {
	n := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			use := sub.Annotations[cli.InsteadOf]
			if use == "" {
				visit(sub)
				continue
			}
			n++
			require.Contains(t, use, "ingot", sub.CommandPath())
			for _, words := range ingotCommands(use) {
				require.NoError(t, documentedCommand{sub.CommandPath(), words, false}.check(), sub.CommandPath())
			}
			for _, other := range c.Commands() {
				if other != sub {
					require.NotContains(t, append(sub.Aliases, sub.Name()), other.Name(), "%s: the command exists: remove the habit", sub.CommandPath())
					require.False(t, slices.ContainsFunc(other.Aliases, sub.HasAlias), "%s has an alias of %s", sub.CommandPath(), other.CommandPath())
				}
			}
		}
	}
	visit(cli.Root("test", AddCommands))
	require.Greater(t, n, 40)
}
