package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
)

// runCommandLine runs a command with arguments and returns its standard output.
func runCommandLine(ctx context.Context, t *testing.T, cmd *cobra.Command, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	require.NoError(t, cmd.ExecuteContext(ctx))
	return out.String()
}

// Lists fit a terminal of 120 columns with the names, addresses and messages of an ordinary site.
func TestListsFit120Columns(t *testing.T) {
	long := strings.Repeat("the disk that the run should write to was not found ", 4)
	started := time.Now().Add(-26 * time.Hour)
	for name, c := range map[string]struct {
		list func(o *Options) *cobra.Command
		item any
	}{
		"machine": {machineListCommand, map[string]any{
			"name": "rack12-node-07", "labels": map[string]string{"rack": "a1", "role": "db"}, "template": "ubuntu-lvm", "image": "ubuntu-24.04",
			"interfaces": []any{map[string]any{"mac": "02:00:00:00:00:01", "address": "192.168.100.111"}}, "lastSeen": started,
			"installed": map[string]any{"run": "r", "image": "ubuntu-24.04", "state": "SUCCESS", "at": started},
			"netboot":   map[string]any{"allowPXE": true, "run": "r", "until": time.Now().Add(30 * time.Hour)},
			"workflow":  map[string]any{"run": "r", "state": "RUNNING", "phase": inventory.PhaseWaiting},
		}},
		"workflow": {workflowListCommand, inventory.Workflow{
			Machine: "rack12-node-07", Type: inventory.TypeDecommission, State: inventory.StateCancelled, Phase: inventory.PhaseWaiting,
			Started: started, Run: "3f2c8d10-0000-4000-8000-000000000001", Message: long,
		}},
		"operation": {operationListCommand, inventory.Operation{
			ID: "recover/rack-12-a", State: inventory.StateRunning, Step: "provision rack12-node-07", Started: started,
			Run: "3f2c8d10-0000-4000-8000-000000000001", Message: long,
		}},
		"image": {imageListCommand, inventory.Image{
			Name: "ubuntu-24.04-lvm", Format: "zst", Size: 3 << 40, DiskSize: 4 << 40, SHA256: strings.Repeat("a", 64), FirstSeen: true,
			Created: started, URL: "https://images.example.com/24.04/disk.qcow2", Contents: long,
		}},
		"BMC job": {jobListCommand, inventory.BMCJob{
			Machine: "rack12-node-07", Name: "power-cycle-1a2b3c4d", State: "RUNNING", Inline: true,
			Run: "3f2c8d10-0000-4000-8000-000000000001", Started: started, Tasks: []inventory.BMCTask{{Power: "on"}, {Power: "off"}, {Power: "on"}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o := fakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
				require.NoError(t, json.NewEncoder(w).Encode(map[string]any{"items": []any{c.item}}))
			})
			text := runCommandLine(t.Context(), t, c.list(o))
			require.Len(t, strings.Split(strings.TrimSpace(text), "\n"), 2)
			for line := range strings.Lines(text) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), maxTableWidth, line)
			}

			o.output = outputWide
			wide := runCommandLine(t.Context(), t, c.list(o))
			require.Greater(t, len(wide), len(text), "wide shows more")
		})
	}
}

// The formats for programs select from the answer of a list and of an object.
func TestFormatsForPrograms(t *testing.T) {
	const list = `{"items":[{"name":"a","size":123456789012,"labels":{"rack":"r1"}},{"name":"b","size":2}]}`
	for output, want := range map[string]string{
		"name":                                   "a\nb\n",
		"jsonpath={.items[*].name}":              "a b\n",
		"jsonpath={.items[0].size}":              "123456789012\n",
		"jsonpath=.items[1].name":                "b\n",
		`jsonpath={.items[?(@.name=="b")].size}`: "2\n",
		`jsonpath={.items[?(@.size>2)].name}`:    "a\n",
		`jsonpath={.items[?(@.size==2)].name}`:   "b\n",
		`jsonpath={range .items[*]}{.name}{"\t"}{.labels.rack}{"\n"}{end}`: "a\tr1\nb\t\n",
		"jsonpath={.nothing}": "",
	} {
		o := Options{output: output}
		require.NoError(t, o.checkOutput(&cobra.Command{}), output)
		var b bytes.Buffer
		require.NoError(t, o.print(&b, json.RawMessage(list), nil), output)
		require.Equal(t, want, b.String(), output)
	}

	o := Options{output: "name"}
	var b bytes.Buffer
	require.NoError(t, o.print(&b, json.RawMessage(`{"workflow":"machine/a","run":"r1"}`), nil))
	require.Equal(t, "r1\n", b.String(), "a run that was started")
	require.ErrorIs(t, o.print(&b, json.RawMessage(`{"version":"1"}`), nil), inventory.ErrInvalid)
	o.output = "jsonpath={.items[}"
	require.ErrorContains(t, o.checkOutput(&cobra.Command{}), "write for example jsonpath={.name}")
}

// A list that is watched without a terminal prints the rows that are new or have changed, aligned with the first ones.
func TestWatchPrintsChangedRows(t *testing.T) {
	const first = `{"machine":"node-1","run":"r1","state":"RUNNING","phase":"dhcp"},{"machine":"node-22","run":"r2","state":"RUNNING"}`
	answers := []string{first, first, `{"machine":"node-1","run":"r1","state":"SUCCESS","phase":"done"}`}
	for output, want := range map[string][]string{
		outputTable: {"MACHINE", "node-1 ", "node-22 ", "node-1 "},
		outputJSON:  {`{"machine":"node-1"`, `{"machine":"node-22"`, `{"machine":"node-1"`},
		outputName:  {"r1", "r2", "r1"},
	} {
		t.Run(output, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
				if n == len(answers) {
					cancel() // as Ctrl-C
					<-r.Context().Done()
					return
				}
				n++
				if n == 2 {
					w.WriteHeader(http.StatusServiceUnavailable) // a server that restarts ends nothing
					return
				}
				_, _ = io.WriteString(w, `{"items":[`+answers[n-1]+`]}`)
			})
			o.output, o.watchEvery = output, time.Millisecond
			lines := strings.Split(strings.TrimSpace(runCommandLine(ctx, t, workflowListCommand(o), "-w")), "\n")
			require.Len(t, lines, len(want), "%q", lines)
			for i, prefix := range want {
				require.True(t, strings.HasPrefix(lines[i], prefix), lines[i])
			}
			if output == outputTable {
				require.Contains(t, lines[1], "node-1   –")
				require.Contains(t, lines[3], "node-1   –")
			}
		})
	}
}

// Only the state has a colour, and columns stay aligned.
func TestTableColours(t *testing.T) {
	var b bytes.Buffer
	table := Table{w: &b, colour: true}
	table.Row("NAME", "STATE", "SEEN")
	table.Row("SUCCESS", State("SUCCESS (evidence: weak)"), "now")
	table.Row("b", State("FAILED"), hostile)
	table.Row("c", State("RUNNING waiting-for-operator"), "")
	table.Row("d", State("RUNNING dhcp"), "")
	require.NoError(t, table.Flush())
	require.Equal(t, "NAME     STATE                         SEEN\n"+
		"SUCCESS  \x1b[32mSUCCESS (evidence: weak)\x1b[0m      now\n"+
		"b        \x1b[31mFAILED\x1b[0m                        "+Inert(hostile)+"\n"+
		"c        \x1b[33mRUNNING waiting-for-operator\x1b[0m  –\n"+
		"d        RUNNING dhcp                  –\n", b.String())
}

// A terminal gets colours, unless they are switched off, and a list that is watched takes the place of the last one.
func TestTerminal(t *testing.T) {
	file, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	t.Setenv("TERM", "xterm")
	require.True(t, NewTable(&terminal{file: file}).colour)
	require.False(t, NewTable(&bytes.Buffer{}).colour)
	t.Setenv("TERM", "dumb")
	require.False(t, NewTable(&terminal{file: file}).colour)
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "1")
	require.False(t, NewTable(&terminal{file: file}).colour)

	c, out, _ := newCall(t.Context(), &Options{})
	screen, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	require.NoError(t, err)
	defer func() { require.NoError(t, screen.Close()) }()
	list := listing[string]{head: []string{"NAME"}, row: func(name string) []any { return []any{name} }}
	w := listWatcher[string]{listing: list, c: c}
	require.NoError(t, w.redraw(screen, client.List[string]{Items: []string{"a"}}))
	cleared, err := os.ReadFile(screen.Name())
	require.NoError(t, err)
	require.Equal(t, "\x1b[H\x1b[2J", string(cleared))
	require.Equal(t, "NAME\na\n", out.String())
}

// The flags of a list and a name exclude each other; a second word after describe must be one of its kinds.
func TestSecondNamesRefuse(t *testing.T) {
	for typed, want := range map[string]string{
		"get machine node-1 --watch": "--watch is for lists: leave out node-1, or the flag",
		"get machines -l rack>1":     "--selector: invalid operator \">\" at character 5",
		"get machinz":                "did you mean machine?",
		"describe machin node-1":     `unknown command "machin" for "ingot describe"; did you mean machine?`,
		"rm node-1":                  `unknown command "node-1" for "ingot rm"`,
		"machin --bogus list":        `unknown command "machin" for "ingot"; did you mean machine?`,
	} {
		root := Root("test")
		root.SetArgs(strings.Fields(typed))
		var out bytes.Buffer
		require.Equal(t, exitUsage, Run(t.Context(), root, &out, &out), typed)
		require.Contains(t, out.String(), want, typed)
	}
}

// A second object with a similar name is suggested; an object with another number is not.
func TestSuggestedName(t *testing.T) {
	o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/machines" {
			_, _ = io.WriteString(w, `{"items":[{"name":"node-1"},{"name":"node-2"},{"name":"rack-a"}]}`)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":"not found","code":"not_found","next":"ingot machine list"}`)
	})
	for typed, want := range map[string]string{"nod-2": "node-2", "NODE_1": "node-1", "rakc-a": "rack-a", "node-3": "", "zebra": "", "node-1": ""} {
		cmd := machineGetCommand(o)
		cmd.SetArgs([]string{typed})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		require.Equal(t, exitNotFound, exitCode(err))
		e := describeError(cmd, err)
		require.Equal(t, "ingot machine list", e.Next)
		if want == "" {
			require.NotContains(t, e.Text, "did you mean", typed)
		} else {
			require.True(t, strings.HasSuffix(e.Text, "; did you mean "+want+"?"), "%s: %s", typed, e.Text)
		}
	}
}
