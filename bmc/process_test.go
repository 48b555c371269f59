package bmc

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// serverDir is the environment variable of the process that plays the killed server.
const serverDir = "INGOT_TEST_SERVER_DIR"

// slow is a power command that takes effect when its fifo is written to. "on" does it
// itself, "late" in a child process.
const slow = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
effect() { read -r _ <fifo && echo effect >>log; }
case $1 in
  status) echo status >>log; echo off ;;
  on) echo $$ >>begun; effect ;;
  late) (echo $$ >>begun; effect) & wait ;;
esac
`

func slowDriver(dir string, log slog.Handler) *Driver {
	command := filepath.Join(dir, "command")
	status := []string{command, "status"}
	return New(Config{
		Log: slog.New(log), LockFile: filepath.Join(dir, "bmc.lock"), Step: time.Millisecond, Hard: time.Millisecond,
		Commands: map[string]Command{
			"on":   {On: []string{command, "on"}, Off: status, Status: status, Timeout: time.Minute},
			"late": {On: []string{command, "late"}, Off: status, Status: status, Timeout: time.Minute},
		},
	})
}

// TestServerThatIsKilled is the server process of TestCommandDiesWithServer. In
// an ordinary test run it does nothing.
func TestServerThatIsKilled(t *testing.T) {
	dir, command, _ := strings.Cut(os.Getenv(serverDir), ":")
	if dir == "" {
		return
	}
	b := inventory.BMC{Driver: inventory.DriverExec, Command: command, Machine: "m"}
	t.Log(slowDriver(dir, slog.DiscardHandler).Set(context.Background(), b, inventory.Secret{}, "on", nil))
}

// A command of a killed server takes effect before the next server's first
// command, or never.
func TestCommandDiesWithServer(t *testing.T) {
	for command, want := range map[string]string{"on": "status\nstatus\n", "late": "status\neffect\nstatus\n"} {
		t.Run(command, func(t *testing.T) {
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			writeProgram(t, file("command"), []byte(slow))
			require.NoError(t, syscall.Mkfifo(file("fifo"), 0o600))
			// Open it for reading as well, so that writing does not block.
			fifo, err := os.OpenFile(file("fifo"), os.O_RDWR, 0)
			require.NoError(t, err)
			defer func() { require.NoError(t, fifo.Close()) }()

			server := exec.Command(os.Args[0], "-test.run=^TestServerThatIsKilled$")
			server.Env = append(os.Environ(), serverDir+"="+dir+":"+command)
			require.NoError(t, server.Start())
			var pid []byte
			require.Eventually(t, func() bool {
				pid, _ = os.ReadFile(file("begun"))
				return len(pid) > 0
			}, time.Minute, time.Millisecond)
			require.NoError(t, server.Process.Kill())
			_ = server.Wait() // "signal: killed"

			handler := &waitingHandler{waiting: make(chan struct{})}
			next := slowDriver(dir, handler)
			done := make(chan error, 1)
			go func() {
				_, err := next.State(t.Context(), inventory.BMC{Driver: inventory.DriverExec, Command: command, Machine: "m"}, inventory.Secret{})
				done <- err
			}()
			if command == "late" {
				<-handler.waiting
			} else {
				require.NoError(t, <-done)
				done <- nil
				args, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/cmdline") // of a zombie: empty
				require.True(t, err != nil || len(args) == 0, "the command lives on: %q", args)
			}
			_, err = fmt.Fprintln(fifo, "go")
			require.NoError(t, err)
			require.NoError(t, <-done)
			require.NoError(t, next.Close())
			log, err := os.ReadFile(file("log"))
			require.NoError(t, err)
			require.Equal(t, want, string(log))
		})
	}
}

// waitingHandler closes waiting when the driver logs that it waits.
type waitingHandler struct {
	slog.Handler
	once    sync.Once
	waiting chan struct{}
}

func (h *waitingHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *waitingHandler) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "earlier server") {
		h.once.Do(func() { close(h.waiting) })
	}
	return nil
}

// lockFile returns the name of a lock file, and the open file that holds its lock as a
// program of an earlier server does.
func lockFile(t *testing.T) (name string, earlier *os.File) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "bmc.lock")
	earlier, err := os.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = earlier.Close() })
	require.NoError(t, syscall.Flock(int(earlier.Fd()), syscall.LOCK_EX))
	return name, earlier
}

func waitingProcesses(file string) *processes {
	return &processes{log: slog.New(slog.DiscardHandler), slots: make(chan struct{}, maxProcesses), file: file, patience: time.Minute}
}

// A lock that was not free in time is taken when it becomes free. Programs that were
// started before then hold it, too.
func TestLockIsTakenAfterPatience(t *testing.T) {
	name, earlier := lockFile(t)
	synctest.Test(t, func(t *testing.T) {
		p := waitingProcesses(name)
		leave, err := p.enter(t.Context())
		require.NoError(t, err)
		leave()
		require.NoError(t, earlier.Close())
		leave, err = p.enter(t.Context())
		require.NoError(t, err)
		leave()
		next, err := os.Open(name)
		require.NoError(t, err)
		require.ErrorIs(t, syscall.Flock(int(next.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK, "the next server does not wait")
		require.NoError(t, next.Close())
		require.NoError(t, p.close())
	})
}

// Patience counts from the first caller's wait, also if each caller gives up earlier.
func TestPatienceIsSharedByCallers(t *testing.T) {
	name, _ := lockFile(t)
	synctest.Test(t, func(t *testing.T) {
		p := waitingProcesses(name)
		enter := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			defer cancel()
			leave, err := p.enter(ctx)
			if err == nil {
				leave()
			}
			return err
		}
		require.ErrorIs(t, enter(), context.DeadlineExceeded)
		require.ErrorIs(t, enter(), context.DeadlineExceeded)
		require.NoError(t, enter())
		require.NoError(t, p.close())
	})
}

// While one caller waits for the lock, another caller can still time out. close ends
// all waits.
func TestWaitingForLockDelaysNoOther(t *testing.T) {
	name, _ := lockFile(t)
	synctest.Test(t, func(t *testing.T) {
		p := waitingProcesses(name)
		done := make(chan error, 1)
		go func() {
			_, err := p.enter(t.Context())
			done <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.enter(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, p.close())
		require.ErrorIs(t, <-done, errClosed)
	})
}

// At most maxProcesses programs run at once.
func TestProcessesAreLimited(t *testing.T) {
	const extra = 40
	dir := t.TempDir()
	command := filepath.Join(dir, "command")
	writeProgram(t, command, []byte("#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho >>begun\nread -r _ <fifo\necho off\n"))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	fifo, err := os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, fifo.Close()) }()
	status := []string{command}
	d := New(Config{
		Networks: []netip.Prefix{},
		Commands: map[string]Command{"c": {On: status, Off: status, Status: status, Timeout: time.Minute}},
	})
	var all sync.WaitGroup
	for i := range maxProcesses + extra {
		all.Go(func() {
			_, err := d.State(t.Context(), inventory.BMC{Driver: inventory.DriverExec, Command: "c", Machine: fmt.Sprint("m", i)},
				inventory.Secret{})
			if err != nil {
				t.Error(err)
			}
		})
	}
	begun := func() int {
		b, err := os.ReadFile(filepath.Join(dir, "begun"))
		if err != nil {
			return 0
		}
		return len(b)
	}
	for ended := range maxProcesses + extra {
		want := min(ended+maxProcesses, maxProcesses+extra)
		require.Eventually(t, func() bool { return begun() >= want }, time.Minute, time.Millisecond)
		require.LessOrEqual(t, begun(), want)
		_, err := fmt.Fprintln(fifo)
		require.NoError(t, err)
	}
	all.Wait()
}

// Every driver that starts programs waits for a free slot.
func TestDriversWaitForASlot(t *testing.T) {
	for name, b := range map[string]inventory.BMC{
		"exec": {Driver: inventory.DriverExec, Command: "c", Machine: "m"},
		"ipmi": {Driver: inventory.DriverIPMI, Host: "192.0.2.10", User: "admin", Machine: "m"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			program, begun := filepath.Join(dir, "program"), filepath.Join(dir, "begun")
			writeProgram(t, program, []byte("#!/bin/sh\n: >"+begun+"\necho Chassis Power is off\n"))
			synctest.Test(t, func(t *testing.T) {
				argv := []string{program}
				d := New(Config{
					Ipmitool: program,
					Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
					Commands: map[string]Command{"c": {On: argv, Off: argv, Status: argv, Timeout: time.Minute}},
				})
				var leave func()
				for range maxProcesses {
					var err error
					leave, err = d.processes.enter(t.Context())
					require.NoError(t, err)
				}
				done := make(chan error, 1)
				go func() {
					_, err := d.State(t.Context(), b, password())
					done <- err
				}()
				synctest.Wait()
				require.NoFileExists(t, begun, "a program was started although no slot was free")
				leave()
				require.NoError(t, <-done)
				require.FileExists(t, begun)
			})
		})
	}
}
