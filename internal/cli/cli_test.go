package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

func TestExitCodes(t *testing.T) {
	ran := func(err error) error { return commandError{fmt.Errorf("doing it: %w", err)} }
	for _, c := range []struct {
		err  error
		code int
	}{
		{nil, exitOK},
		{errors.New("unknown command"), exitUsage}, // cobra's own: nothing ran
		{ran(errors.New("anything")), exitFailure},
		{ran(UsageError("wrong")), exitUsage},
		{ran(inventory.Problems{{What: "wrong"}}), exitUsage},
		{ran(inventory.ErrNotFound), exitNotFound},
		{ran(inventory.ErrConflict), exitConflict},
		{ran(inventory.ErrSecondServer), exitSecondServer},
		{ran(client.ErrUnavailable), exitUnavailable},
		{ran(&client.Error{Code: "not_found"}), exitNotFound},
		{ran(&client.Error{Code: "conflict"}), exitConflict},
		{ran(&client.Error{Code: "fenced"}), exitConflict},
		{ran(&client.Error{Code: "invalid"}), exitUsage},
		{ran(&client.Error{Code: "unavailable"}), exitUnavailable},
		{ran(&client.Error{Code: "internal"}), exitFailure},
		{ran(endedError{"r", "FAILED"}), exitFailure},
	} {
		require.Equal(t, c.code, exitCode(c.err), "%v", c.err)
	}
}

// hostile is text that a machine could put into its serial number or its log.
const hostile = "\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnp.exe\r\x00ok"

func TestTerminalIsInert(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "tty"))
	require.NoError(t, err)
	w := &terminal{file: file}
	text := []byte("name\tä€😀\n" + hostile)
	for _, b := range text { // byte by byte: characters are cut
		_, err := w.Write([]byte{b})
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
	got, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(got), "name\tä€😀\n"), "%q", got)
	for _, r := range string(got) {
		require.False(t, r != '\n' && r != '\t' && human.Dangerous(r), "%U is left in %q", r, got)
	}
	require.True(t, strings.HasSuffix(string(got), "ok"))
}

// JSON and YAML output is safe and keeps the values.
func TestFormsKeepTheValue(t *testing.T) {
	raw, err := json.Marshal(map[string]string{"serial": hostile + "\u0085"})
	require.NoError(t, err)
	for _, form := range []string{"json", "yaml"} {
		var b bytes.Buffer
		o := Options{output: form}
		require.NoError(t, o.print(&b, raw, nil))
		for _, r := range b.String() {
			require.False(t, r != '\n' && human.Dangerous(r), "%U is left in %q", r, b.String())
		}
		if form == "json" {
			var back map[string]string
			require.NoError(t, json.Unmarshal(b.Bytes(), &back))
			require.Equal(t, hostile+"\u0085", back["serial"])
		}
	}
	require.Error(t, (&Options{output: "xml"}).checkOutput(&cobra.Command{}))
}

// A machine's text cannot add a row to a table.
func TestTableCellsAreOneLine(t *testing.T) {
	var b bytes.Buffer
	tab := NewTable(&b, "A", "B")
	tab.Row("x\ny\tz", "")
	require.NoError(t, tab.Flush())
	require.Equal(t, "A      B\nx y z  –\n", b.String())
	require.Equal(t, `'$(reboot)'`, ShellWord("$(reboot)"))
	require.Equal(t, `'a'\''b'`, ShellWord("a'b"))
	require.Equal(t, "S3Z9NX0M", ShellWord("S3Z9NX0M"))
}

// Secrets reach the server, and no command prints them.
func TestWireRevealsSecrets(t *testing.T) {
	m := inventory.Machine{
		Name:       "a",
		UserData:   inventory.NewSecret("one\xff\x00"),
		VendorData: inventory.NewSecret("two"),
		BMC: &inventory.BMC{
			Driver:   "ipmi",
			Host:     "h",
			Password: inventory.NewSecret("three"),
		},
		DiskSelector: &inventory.DiskSelector{MinSize: 1<<53 + 1},
	}
	b, err := marshalWithSecrets(m)
	require.NoError(t, err)
	var back inventory.Machine
	require.NoError(t, json.Unmarshal(b, &back))
	require.Equal(t, m, back)
	plain, err := json.Marshal(m)
	require.NoError(t, err)
	require.NotContains(t, string(plain), "three")
}

// fakeServer is a server that answers with h; the options point to it.
func fakeServer(t *testing.T, h http.HandlerFunc) *Options {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	o := &Options{
		Lookup: client.Lookup{
			ServerURL:  s.URL,
			ConfigFile: filepath.Join(dir, "ingot.yaml"),
			TokenFile:  filepath.Join(dir, "token"),
		},
		pollEvery: time.Millisecond,
	}
	require.NoError(t, os.WriteFile(o.TokenFile, []byte("secret\n"), 0o600))
	return o
}

// newCall is a call under way with its standard output and standard error.
func newCall(ctx context.Context, o *Options) (c *Call, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	cmd.SetIn(strings.NewReader(""))
	return &Call{Command: cmd, Options: o}, out, errs
}

// TestPruneGoesOnPastAConflict: an image that has come into use since it was listed stays,
// and the others are removed.
func TestPruneGoesOnPastAConflict(t *testing.T) {
	var deleted []string
	o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			_, _ = io.WriteString(w, `{"items":[{"name":"a"},{"name":"b"},{"name":"c"}]}`)
		case r.URL.Path == "/v1/images/b":
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"error":"run r1 uses image \"b\"","code":"conflict"}`)
		default:
			deleted = append(deleted, r.URL.Path)
			w.WriteHeader(http.StatusNoContent)
		}
	})
	c := imagePruneCommand(o)
	var errs bytes.Buffer
	c.SetErr(&errs)
	c.SetArgs([]string{"--yes"})
	require.NoError(t, c.ExecuteContext(t.Context()))
	require.Equal(t, []string{"/v1/images/a", "/v1/images/c"}, deleted)
	require.Contains(t, errs.String(), `image b was not deleted: run r1 uses image "b"`)
}

// runs answers a workflow's records one after the other, the last one forever.
func runs(t *testing.T, records ...any) http.HandlerFunc {
	t.Helper()
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/events"):
			_, _ = io.WriteString(w, `{"items":[{"seq":1,"kind":"dhcp","boot":1,"count":3},{"seq":2,"kind":"loader","boot":1,"count":1}]}`)
		case strings.HasSuffix(r.URL.Path, "/logs"):
			_, _ = io.WriteString(w, "line one\nno space left\x1b[2J\n")
		default:
			x := records[min(n, len(records)-1)]
			n++
			if code, ok := x.(int); ok {
				w.WriteHeader(code)
				return
			}
			if err := json.NewEncoder(w).Encode(x); err != nil {
				slog.New(slog.DiscardHandler).Debug("the client has gone", "error", err)
			}
		}
	}
}

func TestWaitShowsARunUntilItSucceeds(t *testing.T) {
	x := inventory.Workflow{
		Run:     "r",
		Machine: "node-1",
		State:   inventory.StatePending,
		Phase:   inventory.PhaseDHCP,
		Message: "waiting for the firmware",
		Started: time.Now(),
	}
	writing := x
	writing.State, writing.Phase = inventory.StateRunning, inventory.PhaseAction
	writing.Actions = []inventory.ActionRecord{
		{Name: "write-image", State: action.Running, Attempt: 1, Done: 1 << 30, Total: 2 << 30},
		{Name: "reboot", State: action.Pending},
	}
	done := x
	done.State, done.Phase, done.Message, done.Ended = inventory.StateSuccess, inventory.PhaseDone, "it phoned home", x.Started.Add(
		time.Minute,
	)
	o := fakeServer(t, runs(t, x, x, http.StatusServiceUnavailable, http.StatusServiceUnavailable, writing, writing, done))
	c, out, _ := newCall(t.Context(), o)
	require.NoError(t, waitForRun(c, "r"))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 6, "%s", out)
	require.Contains(t, lines[1], "waiting for the firmware")
	require.Contains(t, lines[2], "the run goes on; asking the server again")
	require.Contains(t, lines[3], "the server is back")
	require.Contains(t, lines[4], "write-image (1 of 2): 1.0 GiB of 2.0 GiB, 50 %")
	require.Contains(t, lines[5], "node-1 after 1m0s  it phoned home")
}

// While the run waits for an operator, its line is printed once, with the command to use.
func TestWaitForTheButtonPrintsOneLine(t *testing.T) {
	x := inventory.Workflow{
		Run: "r", Machine: "node-1", State: inventory.StatePending, Phase: inventory.PhasePower, Message: "power the machine on now",
		Next: "ingot workflow powered-on node-1", Started: time.Now(),
	}
	done := x
	done.State, done.Phase, done.Next, done.Ended = inventory.StateSuccess, inventory.PhaseDone, "", x.Started
	o := fakeServer(t, runs(t, x, x, done))
	c, out, _ := newCall(t.Context(), o)
	w := runWatcher{c: c, last: client.Answer[inventory.Workflow]{Value: x}}
	for range 2 {
		over, err := w.look()
		require.NoError(t, err)
		require.False(t, over)
		w.printed = w.printed.Add(-printEvery)
	}
	require.Equal(t, 1, strings.Count(out.String(), "power the machine on now; then: ingot workflow powered-on node-1\n"), "%s", out)
	require.Equal(t, 1, strings.Count(out.String(), "\n"))
}

// A machine is not installed again without confirmation while its disk may hold a system: a run that only writes a file leaves
// the one that an earlier run has installed.
func TestConfirmationOverASystem(t *testing.T) {
	for name, c := range map[string]struct {
		installed *inventory.Installed
		says      string
	}{
		"nothing":           {nil, ""},
		"wiped":             {&inventory.Installed{Run: "r1", Type: inventory.TypeDecommission, State: inventory.StateSuccess}, ""},
		"a system":          {&inventory.Installed{Run: "r1", Image: "debian-12", State: inventory.StateSuccess}, "overwrites debian-12, which run r1 installed"},
		"a file in it":      {&inventory.Installed{Run: "r2", Template: "motd", State: inventory.StateSuccess, NoSystem: true}, "r2 (motd), wrote no system"},
		"a file, not whole": {&inventory.Installed{Run: "r2", Template: "motd", State: inventory.StateFailed, NoSystem: true}, "r2 (motd), wrote no system"},
	} {
		t.Run(name, func(t *testing.T) {
			cl, _, _ := newCall(t.Context(), fakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
				require.NoError(t, json.NewEncoder(w).Encode(apitypes.MachineView{Machine: inventory.Machine{Name: "node-1"}, Installed: c.installed}))
			}))
			err := confirmOverInstalled(cl, false, "node-1")
			if c.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.says)
			require.NoError(t, confirmOverInstalled(cl, true, "node-1"))
		})
	}
}

// A run that asks has one way to be ended.
func TestInterruptedWaitForAnAnswerNamesTheAnswer(t *testing.T) {
	c, _, errs := newCall(t.Context(), fakeServer(t, runs(t)))
	x := inventory.Workflow{Run: "r", Machine: "node-1", Question: &inventory.Question{ID: "3.bind.1", Choices: []string{"retry", "abort"}}}
	require.Error(t, runGoesOn(c, x))
	require.Contains(t, errs.String(), "ingot workflow decide node-1 --choice abort")
	require.NotContains(t, errs.String(), "workflow cancel")
}

// With --output json a program gets the last record and nothing else.
func TestWaitForPrograms(t *testing.T) {
	x := inventory.Workflow{Run: "r", Machine: "node-1", State: inventory.StateRunning}
	over := x
	over.State = inventory.StateTimeout
	o := fakeServer(t, runs(t, x, http.StatusBadGateway, over))
	o.output = "json"
	c, out, _ := newCall(t.Context(), o)
	require.Equal(t, endedError{"r", inventory.StateTimeout}, waitForRun(c, "r"))
	var got inventory.Workflow
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, inventory.StateTimeout, got.State)
}

// With --require-evidence a success that nothing shows has an exit code of its own; without it, the end says so.
func TestWaitRequiresEvidence(t *testing.T) {
	for name, c := range map[string]struct {
		kind, state, evidence string
		with                  int
	}{
		"phone-home":   {inventory.TypeProvision, inventory.StateSuccess, "phone-home", exitOK},
		"operator":     {inventory.TypeReprovision, inventory.StateSuccess, "operator", exitOK},
		"weak":         {inventory.TypeProvision, inventory.StateSuccess, "weak", exitWeak},
		"no system":    {inventory.TypeProvision, inventory.StateSuccess, "", exitWeak},
		"failed":       {inventory.TypeProvision, inventory.StateFailed, "", exitFailure},
		"decommission": {inventory.TypeDecommission, inventory.StateSuccess, "", exitOK},
	} {
		for _, output := range []string{"table", "json"} {
			t.Run(name+"/"+output, func(t *testing.T) {
				x := inventory.Workflow{Run: "r", Machine: "node-1", Type: c.kind, State: c.state, Evidence: c.evidence, Message: "it is over"}
				o := fakeServer(t, runs(t, x, x))
				o.output = output
				cl, out, _ := newCall(t.Context(), o)
				without := waitForRun(cl, "r")
				require.Equal(t, c.state == inventory.StateSuccess, without == nil)
				require.Equal(t, c.evidence == "weak", strings.Contains(out.String(), "weak"), out.String())

				waitFlags(cl.Command)
				require.NoError(t, cl.Flags().Set(requireEvidence, "true"))
				err := waitForRun(cl, "r")
				if err != nil {
					err = commandError{err}
				}
				require.Equal(t, c.with, exitCode(err), "%v", err)
			})
		}
	}

	// An operation is as weak as the weakest run of its steps.
	op := inventory.Operation{
		ID:    "recover/x",
		Run:   "o",
		State: inventory.StateSuccess,
		Steps: []inventory.OperationStep{{Run: "a"}, {Run: "gone"}, {}, {Run: "b"}},
	}
	o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
		var answer any = op
		switch name, ofRun := strings.CutPrefix(r.URL.Path, "/v1/workflows/"); {
		case ofRun && name == "gone":
			w.WriteHeader(http.StatusNotFound)
			return
		case ofRun:
			answer = inventory.Workflow{
				Run: name, Machine: "m-" + name, Type: inventory.TypeProvision, State: inventory.StateSuccess,
				Evidence: map[string]string{"a": "phone-home", "b": "weak"}[name],
			}
		}
		require.NoError(t, json.NewEncoder(w).Encode(answer))
	})
	cl, _, _ := newCall(t.Context(), o)
	require.NoError(t, waitForOperation(cl, "recover/x"))
	waitFlags(cl.Command)
	require.NoError(t, cl.Flags().Set(requireEvidence, "true"))
	err := waitForOperation(cl, "recover/x")
	require.Equal(t, exitWeak, exitCode(commandError{err}), "%v", err)
	require.ErrorContains(t, err, "run b of m-b")
	require.ErrorContains(t, err, "run gone (its record was deleted)")
	require.NotContains(t, err.Error(), "m-a")
}

func TestSpeed(t *testing.T) {
	require.Equal(t, ", 1.0 MiB/s, 10s left", speedText(10<<20, 10*time.Second, 10<<20))
	require.Equal(t, ", 512 B/s", speedText(1024, 2*time.Second, 0))
	require.Empty(t, speedText(0, time.Second, 1))
}

func TestWaitShowsWhyARunFailed(t *testing.T) {
	x := inventory.Workflow{
		Run:     "r",
		Machine: "node-1",
		State:   inventory.StateFailed,
		Phase:   inventory.PhaseFailed,
		Message: "action write-image failed",
		Next:    "ingot workflow logs node-1",
		Actions: []inventory.ActionRecord{{Name: "write-image", State: action.Failed, Attempt: 2, Message: "write /dev/sda: no space left"}},
	}
	o := fakeServer(t, runs(t, x))
	c, out, _ := newCall(t.Context(), o)
	err := waitForRun(c, "r")
	require.Equal(t, exitFailure, exitCode(commandError{err}))
	for _, want := range []string{"action write-image failed", "write /dev/sda: no space left", "  | no space left[2J", "next: ingot workflow logs node-1"} {
		require.Contains(t, out.String(), want)
	}
}

// A waiting run shows what was observed, the disks, and commands to paste.
func TestWaitAsks(t *testing.T) {
	x := inventory.Workflow{
		Run: "r", Machine: "node-1", State: inventory.StatePending, Phase: inventory.PhaseWaiting, Message: "two disks match",
		Question: &inventory.Question{ID: "3.bind.1", Text: "two disks match", Choices: []string{"retry", "abort"}, Disks: []action.Disk{
			{
				Path:       "/dev/sda",
				Serial:     "S1",
				Size:       1 << 40,
				Signatures: []string{"gpt", "ext4"},
			},
			{Path: "/dev/sdb", WWN: "0x5000", Size: 1 << 40, Blank: true},
		}},
	}
	over := x
	over.State, over.Question = inventory.StateCancelled, nil
	o := fakeServer(t, runs(t, x, x, over))
	c, out, _ := newCall(t.Context(), o)
	require.Error(t, waitForRun(c, "r"))
	for _, want := range []string{
		"gpt, ext4", "--disk-serial S1", "--disk-wwn 0x5000",
		"ingot workflow decide node-1 --question 3.bind.1 --choice retry --disk-serial S1\n",
		"ingot workflow decide node-1 --question 3.bind.1 --choice retry --disk-wwn 0x5000\n", "ingot workflow decide node-1 --question 3.bind.1 --choice abort",
	} {
		require.Contains(t, out.String(), want)
	}
	require.Equal(t, 1, strings.Count(out.String(), "SELECT WITH"), "a question is shown once")

	x.Question.Disks, x.Actions = nil, []inventory.ActionRecord{{Name: "a", State: action.Pending}}
	o = fakeServer(t, runs(t, x, over))
	c, out, _ = newCall(t.Context(), o)
	require.Error(t, waitForRun(c, "r"))
	require.Contains(t, out.String(), "seen:    asked for an address and a boot file (3 times), fetched the boot loader (once)")
	require.Contains(t, out.String(), "missing: fetched the boot script, ")
}

func TestInterruptedWaitSaysThatTheRunGoesOn(t *testing.T) {
	x := inventory.Workflow{Run: "r", Machine: "node-1", State: inventory.StatePending, Phase: inventory.PhaseDHCP}
	for name, test := range map[string]struct {
		output string
		wait   func(c *Call, run string) error
	}{
		"table": {"table", waitForRun}, "json": {"json", waitForRun}, "events": {"table", followEvents},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			n := 0
			o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
				if n++; n == 3 {
					cancel()
				}
				runs(t, x)(w, r)
			})
			o.output = test.output
			c, _, errs := newCall(ctx, o)
			err := test.wait(c, "r")
			require.Equal(t, exitFailure, exitCode(commandError{err}))
			require.Contains(t, errs.String(), "ingot workflow get node-1")
			report(c.Command, err)
			require.NotContains(t, errs.String(), "canceled", "the operator pressed Ctrl-C")
		})
	}
}

// An upload that breaks off continues where it stopped, and its digest is compared.
func TestUploadGoesOn(t *testing.T) {
	image := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, image, 0o600))
	for _, test := range []struct {
		name    string
		had     []byte // of an earlier upload
		offsets []string
	}{
		{name: "at once twice", offsets: []string{"0", "300000"}},
		{name: "by an earlier command", had: image[:500], offsets: []string{"500", "300500"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var mu sync.Mutex // the request that breaks off may end after the next has begun
			have := test.had
			var offsets []string
			sum := sha256.Sum256(image)
			content := hex.EncodeToString(sum[:])
			o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					noImage(w)
					return
				}
				assert.Equal(t, content, r.URL.Query().Get("content"), "each request names the file")
				assert.Empty(t, r.URL.Query().Get("sha256"), "nothing was declared")
				mu.Lock()
				defer mu.Unlock()
				switch r.Method {
				case http.MethodHead:
					w.Header().Set("Upload-Offset", strconv.Itoa(len(have)))
				case http.MethodPut:
					at := r.URL.Query().Get("offset")
					offsets = append(offsets, at)
					if at == "0" {
						have = nil
					}
					if len(offsets) == 1 {
						part, _ := io.ReadAll(io.LimitReader(r.Body, 300000))
						have = append(bytes.Clone(have), part...)
						panic(http.ErrAbortHandler) // the line breaks
					}
					part, _ := io.ReadAll(r.Body)
					have = append(bytes.Clone(have), part...)
					w.WriteHeader(http.StatusCreated)
					_, _ = fmt.Fprintf(w, `{"name":"i","size":%d,"sha256":"%s"}`, len(have), content)
				}
			})
			c, _, errs := newCall(t.Context(), o)
			_, err := uploadImage(c, upload{name: "i"}, file)
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, test.offsets, offsets)
			require.Contains(t, errs.String(), "resuming")
			require.Equal(t, image, have)
		})
	}
}

// noImage is the server's answer before the image is stored.
func noImage(w http.ResponseWriter) {
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, `{"error":"image \"i\": not found","code":"not_found"}`)
}

// The advice to repeat an upload is not given for a permanent refusal.
func TestARefusedUploadIsNotRepeated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "image")
	require.NoError(t, os.WriteFile(file, []byte("an archive"), 0o600))
	for status, again := range map[int]bool{http.StatusBadRequest: false, http.StatusForbidden: false, http.StatusInsufficientStorage: true, http.StatusServiceUnavailable: true} {
		puts := 0
		o := fakeServer(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.Method {
			case http.MethodGet:
				noImage(w)
				return
			case http.MethodHead:
				return
			}
			puts++
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error":"this is a tar archive","code":"invalid"}`)
		})
		c, _, errs := newCall(t.Context(), o)
		_, err := uploadImage(c, upload{name: "i"}, file)
		require.ErrorContains(t, err, "tar archive")
		require.Equal(t, 1, puts)
		report(c.Command, err)
		require.Equal(t, again, strings.Contains(errs.String(), "run the same command again"), "%d: %s", status, errs)
	}
	o := fakeServer(t, func(http.ResponseWriter, *http.Request) { t.Error("the server was asked") })
	c, _, _ := newCall(t.Context(), o)
	_, err := uploadImage(c, upload{name: "i", sha256: strings.Repeat("0", 64)}, file)
	require.ErrorContains(t, err, "nothing was sent")
}

func TestImageNamesAreCheckedBeforeAnyRequest(t *testing.T) {
	o := fakeServer(t, func(http.ResponseWriter, *http.Request) { t.Error("the server was asked") })
	for _, name := range []string{"Debian-12", "a/b", "a..b", ".hidden", strings.Repeat("a", 64), "x+y"} {
		c := imageAddCommand(o)
		c.SetContext(t.Context())
		c.SetArgs([]string{name, "/dev/null"})
		c.SilenceErrors, c.SilenceUsage = true, true
		require.ErrorContains(t, c.Execute(), fmt.Sprintf("invalid image name %q", name))
	}
}

func TestLoginPinsTheKey(t *testing.T) {
	t.Setenv("INGOT_SERVER", "")
	told := ""
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/status" || r.URL.Path == "/v1/whoami" {
			told = r.Header.Get("Authorization")
		} else if r.Header.Get("Authorization") != "Bearer " {
			told = "too early"
		}
		_, _ = io.WriteString(w, "{}")
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	defer s.Close()
	right := keypin.Of(s.Certificate())
	login := func(fingerprint string) (*Options, error) {
		t.Setenv("INGOT_TOKEN", "the-token")
		o := &Options{Lookup: client.Lookup{ConfigFile: filepath.Join(t.TempDir(), "ingot.yaml")}}
		cmd := loginCommand(o)
		cmd.SetArgs([]string{s.URL, "--fingerprint", fingerprint})
		cmd.SetErr(io.Discard)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.ExecuteContext(t.Context())
		return o, err
	}
	_, err := login("")
	require.ErrorContains(t, err, "not signed by a known authority")
	var hint interface{ Next() string }
	require.ErrorAs(t, err, &hint)
	require.Contains(t, hint.Next(), right)
	o, err := login("sha256:" + strings.Repeat("0", 64))
	require.ErrorContains(t, err, "not the pinned one")
	require.Empty(t, told, "no token is sent to an unknown server")
	require.NoFileExists(t, o.SessionFile())

	o, err = login(right)
	require.NoError(t, err)
	require.Equal(t, "Bearer the-token", told)
	st, err := os.Stat(o.SessionFile())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	t.Setenv("INGOT_TOKEN", "")
	told = ""
	c, err := o.FindServer()
	require.NoError(t, err)
	_, err = client.Get[struct{}](t.Context(), c, client.Path("status"))
	require.NoError(t, err)
	require.Equal(t, "Bearer the-token", told, "the token that login stored")
}

// A capture or a backup on standard output has the bytes of the server, which the filter of terminals would change.
func TestBinaryOutputIsNotChanged(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer file.Close()
	cmd := &cobra.Command{}
	cmd.SetOut(&terminal{file: file})

	w, err := (&Call{Command: cmd}).BinaryOutput("a capture", "--out")
	require.NoError(t, err)
	_, err = w.Write([]byte("\xd4\xc3\xb2\xa1\x02\x00"))
	require.NoError(t, err)
	b, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Equal(t, "\xd4\xc3\xb2\xa1\x02\x00", string(b))
}
