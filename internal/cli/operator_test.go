package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// With JSON output, errors are JSON too, in the form of the API's.
func TestErrorsHaveTheFormThatWasAskedFor(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want map[string]any
	}{
		"of the server": {
			commandError{&client.Error{Text: "machine \"a\": not found", Code: "not_found", Next: "ingot machine list"}},
			map[string]any{"error": "machine \"a\": not found", "code": "not_found", "next": "ingot machine list"},
		},
		"problems": {
			commandError{inventory.Problems{{File: "m.yaml", Line: 3, Field: "name", What: "is bad", Remedy: "correct it"}}},
			map[string]any{
				"error": "m.yaml:3: name: is bad (correct it)", "code": "invalid",
				"problems": []any{map[string]any{"file": "m.yaml", "line": 3.0, "field": "name", "what": "is bad", "remedy": "correct it"}},
			},
		},
		"usage": {errors.New("unknown flag: --foo"), map[string]any{"error": "unknown flag: --foo", "code": "invalid", "next": "ingot x --help"}},
		"unavailable": {
			commandError{human.Advise(fmt.Errorf("no answer: %w", client.ErrUnavailable), "ingot serve")},
			map[string]any{"error": "no answer: not available now", "code": "unavailable", "next": "ingot serve"},
		},
		"failure": {commandError{errors.New("it broke")}, map[string]any{"error": "it broke", "code": "failed"}},
	} {
		var out, errs bytes.Buffer
		root := &cobra.Command{Use: "ingot"}
		root.PersistentFlags().String("output", "json", "")
		x := &cobra.Command{Use: "x"}
		root.AddCommand(x)
		x.SetOut(&out)
		x.SetErr(&errs)
		report(x, c.err)
		var got map[string]any
		require.NoError(t, json.Unmarshal(errs.Bytes(), &got), "%s: %s", name, errs.String())
		require.Equal(t, c.want, got, name)
		require.Empty(t, out.String(), "%s: standard output is for answers", name)
	}
}

// installed is a machine with or without a system that a run installed.
func installed(state string) map[string]any {
	m := map[string]any{
		"name":       "node-1",
		"interfaces": []any{map[string]any{"mac": "02:00:00:00:00:01", "address": "10.0.0.11"}},
		"netboot": map[string]any{
			"allowPXE":      true,
			"allowWorkflow": true,
			"run":           "run-2",
			"until":         time.Now().Add(30 * time.Hour),
		},
		"workflow": nil,
	}
	if state != "" {
		m["installed"] = map[string]any{
			"run":      "run-1",
			"type":     "Provision",
			"template": "image",
			"image":    "debian-12",
			"state":    state,
			"at":       time.Now(),
		}
	}
	return m
}

// A system that Ingot has installed is overwritten only on request.
func TestProvisionAsksBeforeItWritesOverASystem(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		args  []string
		runs  bool
	}{
		"an installed system":          {inventory.StateSuccess, nil, false},
		"an installed system, --yes":   {inventory.StateSuccess, []string{"--yes"}, true},
		"nothing":                      {"", nil, true},
		"a run that failed on its way": {inventory.StateFailed, nil, true},
	} {
		started := false
		o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				started = true
				_, _ = io.WriteString(w, `{"workflow":"machine/node-1","run":"run-2"}`)
				return
			}
			if err := json.NewEncoder(w).Encode(installed(c.state)); err != nil {
				t.Error(err)
			}
		})
		cmd := machineProvisionCommand(o)
		cmd.SetArgs(append([]string{"node-1", "--image", "debian-13"}, c.args...))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetIn(strings.NewReader(""))
		err := cmd.ExecuteContext(context.WithoutCancel(t.Context()))
		require.Equal(t, c.runs, started, name)
		if !c.runs {
			require.ErrorContains(t, err, "debian-12", name)
			require.ErrorContains(t, err, "give --yes", name)
		}
	}
}

// The list says what is installed, and until when netboot is open.
func TestMachineListShowsWhatIsInstalled(t *testing.T) {
	for state, want := range map[string]string{inventory.StateSuccess: "debian-12 ", inventory.StateFailed: "debian-12 (FAILED)"} {
		o := fakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
			if err := json.NewEncoder(w).Encode(map[string]any{"items": []any{installed(state)}}); err != nil {
				t.Error(err)
			}
		})
		var out bytes.Buffer
		cmd := machineListCommand(o)
		cmd.SetArgs(nil)
		cmd.SetOut(&out)
		require.NoError(t, cmd.ExecuteContext(t.Context()))
		require.Contains(t, out.String(), "INSTALLED")
		require.Contains(t, out.String(), want)
		require.Contains(t, out.String(), "open until "+time.Now().Add(30*time.Hour).Format("2006-01-02"), "the day, if it is another one")
	}
}

// The list of unknown machines says that there were more than are listed. S47: what they say of themselves is inert.
func TestMachineSeenCountsWhatIsNotListed(t *testing.T) {
	o := fakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(
			w,
			`{"items":[{"mac":"02:00:00:00:00:09","first":"2026-01-01T00:00:00Z","last":"2026-01-01T00:00:00Z","count":1}],"dropped":7000}`,
		)
	})
	var errs bytes.Buffer
	cmd := machineSeenCommand(o)
	cmd.SetArgs(nil)
	cmd.SetOut(io.Discard)
	cmd.SetErr(&errs)
	require.NoError(t, cmd.ExecuteContext(t.Context()))
	require.Contains(t, errs.String(), "7000 packets")
}

// A file with a mistake in each row fills no screen. Programs get every problem.
func TestManyProblemsAreCut(t *testing.T) {
	var ps inventory.Problems
	for n := range 350 {
		ps = append(ps, inventory.Problem{File: "f.csv", Line: n + 2, What: "invalid MAC address"})
	}
	for output, lines := range map[string]int{"table": 102, "json": 350} {
		var errs bytes.Buffer
		x := &cobra.Command{Use: "import"}
		x.Flags().String("output", output, "")
		x.SetErr(&errs)
		report(x, commandError{ps})
		if output == "json" {
			var got client.Error
			require.NoError(t, json.Unmarshal(errs.Bytes(), &got))
			require.Len(t, got.Problems, lines)
			continue
		}
		text := strings.Split(strings.TrimSpace(errs.String()), "\n")
		require.Len(t, text, lines)
		require.Equal(t, "f.csv:101: invalid MAC address", text[99])
		require.Equal(t, "… and 250 problems more; --output json shows all", text[100])
		require.Equal(t, "ingot: 350 problems; nothing was changed", text[101])
	}
}
