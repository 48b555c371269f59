package host

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/temporal/temporalchild"
	"github.com/ingotmetal/ingot/lab/freeport"
	"github.com/ingotmetal/ingot/lab/registry"
)

func TestMain(m *testing.M) {
	// The server starts its Temporal by executing itself, under a name that testscript does
	// not know.
	if len(os.Args) > 1 && os.Args[1] == temporalchild.Subcommand {
		execProgram()
	}
	testscript.Main(m, map[string]func(){
		"ingot":        func() { os.Exit(cli.Main("test", AddCommands)) },
		"ingot-client": func() { os.Exit(cli.Main("test", cli.ClientOnly)) },
	})
}

// program is bin/ingot.
func program() string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "../../../bin/ingot")
}

// execProgram becomes bin/ingot, which has the embedded Temporal. The test binary has not: with the race detector the
// Temporal server would have to be compiled a second time.
func execProgram() {
	file := program()
	err := syscall.Exec(file, append([]string{file}, os.Args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "starting %s (make build makes it): %v\n", file, err)
	os.Exit(1)
}

// The scripts are what an operator types, against a real server with its own
// Temporal on free ports of loopback. "exec ingot" is a process of its own;
// "run ingot" runs in this one, which takes less time.
func TestScripts(t *testing.T) {
	require.FileExists(t, program(), "the servers of the scripts start their Temporal by it: make build")
	here, err := os.Getwd() // before a command changes the working directory
	require.NoError(t, err)
	lab := filepath.Join(here, "../../../deploy/genesis")
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join(here, "testdata/script"), RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			port, err := freeport.Find(7) // Temporal takes four in a row
			if err != nil {
				return err
			}
			// A program with the race detector sleeps for a second before it exits, to
			// hear of the last races. The scripts start some hundreds.
			e.Setenv("GORACE", "atexit_sleep_ms=20")
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, "etc"))
			e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, "state"))
			e.Setenv("LISTEN", config.Join("127.0.0.1", port))
			// The example lab of docs/genesis.md.
			if err := os.CopyFS(filepath.Join(e.WorkDir, "lab"), os.DirFS(lab)); err != nil {
				return err
			}
			for _, page := range []string{"rest", "automation"} {
				if err := writePageScript(e, page, config.Join("127.0.0.1", port)); err != nil {
					return err
				}
			}
			// The files that init writes, with ports of this test.
			return os.WriteFile(filepath.Join(e.WorkDir, "site.yaml"), fmt.Appendf(nil,
				"listen: 127.0.0.1:%d\ntemporal: {port: %d, ui_port: %d, ui_listen: '127.0.0.1:%d'}\nmin_free_mib: 1\n",
				port, port+1, port+5, port+6), 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"run": runCLI, "exits": exits, "waitfor": waitFor, "loseanswers": loseAnswers, "remember": remember,
			"refusewrites": refuseWrites, "registry": func(ts *testscript.TestScript, _ bool, args []string) { serveImage(ts, t, args) },
		},
	})
}

// writePageScript writes the shell lines of docs/PAGE.md to PAGE.sh, for this test's server.
func writePageScript(e *testscript.Env, page, listen string) error {
	_, here, _, _ := runtime.Caller(0)
	doc, err := os.ReadFile(filepath.Join(filepath.Dir(here), "../../../docs", page+".md"))
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, m := range codeBlock.FindAllStringSubmatch(string(doc), -1) {
		if m[1] == "sh" {
			lines.WriteString(m[2])
		}
	}
	script := strings.NewReplacer("127.0.0.1:8080", listen, "/etc/ingot/token", filepath.Join(e.WorkDir, "etc/ingot/token")).
		Replace(lines.String())
	return os.WriteFile(filepath.Join(e.WorkDir, page+".sh"), []byte(script), 0o600)
}

// processState is held by a command that uses the environment and the working
// directory of this process.
var processState sync.Mutex

// runHere runs ingot in this process, with the environment and the working
// directory of a script, and returns its exit code.
func runHere(ts *testscript.TestScript, args []string) int {
	processState.Lock()
	defer processState.Unlock()
	dir, err := os.Getwd()
	ts.Check(err)
	ts.Check(os.Chdir(ts.MkAbs(".")))
	defer func() { ts.Check(os.Chdir(dir)) }()
	for _, name := range []string{
		"HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "INGOT_SERVER", "INGOT_TOKEN", "INGOT_BMC_PASSWORD",
	} {
		before := os.Getenv(name)
		setEnv(ts, name, ts.Getenv(name))
		defer setEnv(ts, name, before)
	}

	root := cli.Root("test", AddCommands)
	root.SetArgs(args)
	root.SetIn(strings.NewReader(""))
	return cli.Run(context.Background(), root, ts.Stdout(), ts.Stderr())
}

func setEnv(ts *testscript.TestScript, name, value string) {
	if value == "" {
		ts.Check(os.Unsetenv(name))
		return
	}
	ts.Check(os.Setenv(name, value))
}

// runCLI is the command "run ingot ARGS…", which runs ingot in this process.
func runCLI(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) == 0 || args[0] != "ingot" {
		ts.Fatalf("usage: run ingot ARGS…")
	}
	if code := runHere(ts, args[1:]); neg != (code != 0) {
		ts.Fatalf("unexpected exit code %d", code)
	}
}

// exits CODE PROGRAM ARGS… runs a program that must end with that code; "ingot"
// runs in this process, "exec ingot" does not.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	switch args[1] {
	case "ingot":
		got = runHere(ts, args[2:])
	case "exec":
		var ended *exec.ExitError
		if err := ts.Exec(args[2], args[3:]...); errors.As(err, &ended) {
			got = ended.ExitCode()
		} else {
			ts.Check(err)
		}
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// loseAnswers DATABASE makes an inventory look like a killed server's: it had not stored the answers of requests with an
// Idempotency-Key.
func loseAnswers(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: loseanswers DATABASE")
	}
	db, err := sqlx.Open("sqlite3", ts.MkAbs(args[0]))
	ts.Check(err)
	defer func() { ts.Check(db.Close()) }()
	lost, err := db.Exec("UPDATE keyed_request SET status = 0, answer = NULL WHERE status <> 0")
	ts.Check(err)
	if n, err := lost.RowsAffected(); err != nil || n == 0 {
		ts.Fatalf("no answer was stored: %v", err)
	}
}

// serveImage is the command "registry REPOSITORY:TAG", which serves a container image of that name from a registry at $REGISTRY.
func serveImage(ts *testscript.TestScript, t *testing.T, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: registry REPOSITORY:TAG")
	}
	repository, tag, _ := strings.Cut(args[0], ":")
	r := registry.New(t)
	r.Push(repository, tag, registry.Image{Files: map[string]registry.File{"bin/tool": {Content: "#!", Mode: 0o755}}})
	server := httptest.NewServer(r)
	ts.Defer(server.Close)
	ts.Setenv("REGISTRY", strings.TrimPrefix(server.URL, "http://"))
}

// remember sets an environment variable to the first text of the last command's output that matches a pattern.
func remember(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: remember VARIABLE PATTERN")
	}
	pattern, err := regexp.Compile(args[1])
	ts.Check(err)
	found := pattern.FindString(ts.ReadFile("stdout"))
	if found == "" {
		ts.Fatalf("nothing in the output matches %s", args[1])
	}
	ts.Setenv(args[0], found)
}

// waitFor PATTERN ARGS… runs ingot in this process until its output matches.
func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[1] != "ingot" {
		ts.Fatalf("usage: waitfor PATTERN ingot ARGS…")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		code := runHere(ts, args[2:])
		out := ts.Stdout().(*strings.Builder)
		if pattern.MatchString(out.String()) {
			return
		}
		out.Reset()
		select {
		case <-again.C:
		case <-deadline.C:
			ts.Fatalf("the output never matched %q; the last exit code: %d", args[0], code)
		}
	}
}
