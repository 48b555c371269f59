package lab

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"
)

func TestRoleMatches(t *testing.T) {
	for _, c := range []struct {
		role Role
		argv string
		want bool
	}{
		{RoleServe, "/x/bin/ingot serve --log-level debug", true},
		{RoleServe, "ingot temporal-child", false},
		{RoleServe, "ingot", false},
		{RoleTemporal, "ingot temporal-child", true},
		{RoleAgent, "/x/bin/worker-agent", true},
		{RoleAgent, "/x/bin/worker-agent serve", true},
		{RoleAgent, "/x/worker-agent/sh", false},
		{RoleAgent, "", false},
	} {
		if got := c.role.matches(strings.Fields(c.argv)); got != c.want {
			t.Errorf("%q is %q: %t", c.argv, c.role, got)
		}
	}
}

func TestUnmountBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	inner := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{filepath.Join(dir, "a"), inner} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", d, "tmpfs", 0, "size=1m"); err != nil {
			t.Skipf("mounting is not allowed here: %v", err)
		}
	}
	if err := unmountBelow(dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(b), dir) {
		t.Errorf("still mounted (%v)", err)
	}
}

// start starts a process of the lab with pipes at its ends.
func start(t *testing.T, c *Cmd) (in io.Writer, out *bufio.Reader) {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdin, c.Stdout, c.Stderr = inR, outW, outW
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(inR.Close(), inW.Close(), outR.Close()) })
	_ = outW.Close() // the process has its own
	return inW, bufio.NewReader(outR)
}

// say writes a line to a process and expect reads one from it.
func say(t *testing.T, w io.Writer, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(w, line); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for %q: %v (%q)", want, err, line)
		}
		if line = strings.TrimSpace(line); line == want {
			return
		}
		t.Logf("%q", line)
	}
}

func undo(t *testing.T, u Undo) {
	t.Helper()
	if err := u(); err != nil {
		t.Error(err)
	}
	if err := u(); err != nil {
		t.Errorf("undone again: %v", err)
	}
}

func TestLabFreezeAndKill(t *testing.T) {
	l := newLab(t)
	ctx := deadline(t, time.Minute)
	c := l.Command(ctx, Server, "cat")
	in, out := start(t, c)
	thaw, err := l.Freeze(ctx, c.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if still, err := standsStill(c.Pid()); !still || err != nil {
		t.Errorf("frozen: %t, %v", still, err)
	}
	say(t, in, "received")
	undo(t, thaw)
	expect(t, out, "received")

	// A frozen process can be killed, and Undo is not an error afterwards.
	thaw, err = l.Freeze(ctx, c.Pid())
	if err != nil {
		t.Fatal(err)
	}
	Kill(c.Pid())
	<-c.Done()
	undo(t, thaw)
	if _, err := l.Freeze(ctx, c.Pid()); err == nil {
		t.Error("freezing a process that has ended: no error")
	}
	Kill(c.Pid())
}

// TestLabRoles finds programs by their command line, and only in this lab.
func TestLabRoles(t *testing.T) {
	l, other := newLab(t), newLab(t)
	ctx := deadline(t, time.Minute)
	dir := t.TempDir()
	shell, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"ingot", "worker-agent"} {
		if err := os.WriteFile(filepath.Join(dir, program), shell, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, script := range []string{"serve", "work"} {
		if err := os.WriteFile(filepath.Join(dir, script), []byte("echo up; read x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(l *Lab, ns Namespace, program, script string) *Cmd {
		c := l.Command(ctx, ns, filepath.Join(dir, program), script)
		c.Dir = dir
		_, out := start(t, c)
		expect(t, out, "up")
		return c
	}
	serve, agent, stranger := run(l, Server, "ingot", "serve"), run(l, Client, "worker-agent", "work"), run(other, Server, "ingot", "serve")
	if pids, err := l.Processes(RoleServe); err != nil || len(pids) != 1 || pids[0] != serve.Pid() {
		t.Errorf("serve is %v, want %d (%v)", pids, serve.Pid(), err)
	}
	if pids, err := l.Processes(RoleTemporal); err != nil || len(pids) != 0 {
		t.Errorf("Temporal is %v (%v)", pids, err)
	}
	for role, c := range map[Role]*Cmd{RoleServe: serve, RoleAgent: agent} {
		if n, err := l.KillRole(role); n != 1 || err != nil {
			t.Errorf("killed %d of role %q (%v)", n, role, err)
		}
		<-c.Done()
	}
	if pids, err := other.Processes(RoleServe); err != nil || len(pids) != 1 || pids[0] != stranger.Pid() {
		t.Errorf("the other lab's server: %v (%v)", pids, err)
	}
}

// ear receives datagrams in a namespace; mouth sends some to it.
func ear(t *testing.T, l *Lab, ns Namespace, addr string) net.PacketConn {
	t.Helper()
	var c net.PacketConn
	err := l.InNamespace(ns, func() (err error) {
		var lc net.ListenConfig
		c, err = lc.ListenPacket(t.Context(), "udp4", addr)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c
}

func mouth(t *testing.T, l *Lab, ns Namespace, addr string) net.Conn {
	t.Helper()
	c, err := l.DialContext(t.Context(), ns, "udp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func hear(t *testing.T, c net.PacketConn) string {
	t.Helper()
	buf := make([]byte, 2048)
	n, _, err := c.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// lost waits until the faults of the switch have dropped at least n frames.
func lost(t *testing.T, l *Lab, n int) {
	t.Helper()
	err := poll(deadline(t, time.Minute), func() (bool, error) {
		have, err := l.Lost()
		return have >= n, err
	})
	if err != nil {
		t.Fatalf("waiting for %d frames to be lost: %v", n, err)
	}
}

// routerLink is the router's link on VLAN 20, which replaces a machine in tests of network faults.
const routerLink Link = "p-rtr-eth20"

func TestLabCutAndLose(t *testing.T) {
	l := newLab(t)
	server, router := ear(t, l, Server, ServerAddress+":9"), ear(t, l, Router, DirectGateway+":9")
	up, down := mouth(t, l, Router, ServerAddress+":9"), mouth(t, l, Server, DirectGateway+":9")
	say(t, up, "0") // and resolve the addresses
	say(t, down, "0")
	if got := hear(t, server) + hear(t, router); got != "0\n0\n" {
		t.Fatalf("received %q", got)
	}
	for _, link := range []Link{ServerLink, routerLink} {
		cut, err := l.Cut(link)
		if err != nil {
			t.Fatal(err)
		}
		say(t, up, "lost")
		say(t, down, "lost")
		lost(t, l, 2)
		for _, other := range []Link{ServerLink, routerLink} {
			if n, err := l.Lost(other); err != nil || n > 0 != (other == link) {
				t.Errorf("%d frames of link %q were lost by a cut of %q (%v)", n, other, link, err)
			}
		}
		undo(t, cut)
		say(t, up, "1")
		say(t, down, "1")
		if got := hear(t, server) + hear(t, router); got != "1\n1\n" {
			t.Errorf("after link %q was cut: received %q", link, got)
		}
	}
	lose, err := l.Lose(routerLink, 50)
	if err != nil {
		t.Fatal(err)
	}
	const sent = 400
	for range sent {
		say(t, up, "some")
	}
	undo(t, lose)
	say(t, up, "end")
	came := 0
	for hear(t, server) != "end\n" {
		came++
	}
	if came < sent/4 || came > sent*3/4 {
		t.Errorf("%d of %d came through a loss of a half", came, sent)
	}
	if out, err := l.outside(Switch, "", "nft", "list", "tables"); err != nil || out != "" {
		t.Errorf("tables left: %q (%v)", out, err)
	}
}

func TestLabDelay(t *testing.T) {
	l := newLab(t)
	server := ear(t, l, Server, ServerAddress+":9")
	up := mouth(t, l, Router, ServerAddress+":9")
	say(t, up, "0")
	hear(t, server)
	const d = 200 * time.Millisecond
	delay, err := l.Delay(ServerLink, d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Delay(ServerLink, d); err == nil {
		t.Error("a delay of a delayed link: no error")
	}
	begin := time.Now()
	say(t, up, "1")
	if got, took := hear(t, server), time.Since(begin); got != "1\n" || took < d {
		t.Errorf("received %q after %s", got, took)
	}
	// Segments whose splitting and checksums the kernel has left to the network card must arrive
	// intact, too.
	transfer(t, l, 1<<20)
	undo(t, delay)
	say(t, up, "2")
	if got := hear(t, server); got != "2\n" {
		t.Errorf("received %q", got)
	}
	transfer(t, l, 1<<20)
}

// transfer moves bytes from the server to the router over TCP.
func transfer(t *testing.T, l *Lab, size int) {
	t.Helper()
	want := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	s, err := l.Listen(t.Context(), Server, ServerAddress+":7080")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // nothing more is written
	go func() {
		if c, err := s.Accept(); err == nil {
			_, _ = c.Write(want) // the other end tells
			_ = c.Close()
		}
	}()
	c, err := l.DialContext(deadline(t, time.Minute), Router, "tcp", ServerAddress+":7080")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // nothing more is written
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d of %d bytes came, or others (%v)", len(got), len(want), err)
	}
}

func TestLabStallAndReset(t *testing.T) {
	l := newLab(t)
	ctx := deadline(t, time.Minute)
	s, err := l.Listen(ctx, Server, ServerAddress+":7080")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // nothing more is written
	const size, after = 16 << 20, 1 << 20
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close() // the other end tells
				_, _ = c.Write(make([]byte, size))
			}()
		}
	}()
	fetch := func() (*atomic.Int64, <-chan error) {
		c, err := l.DialContext(ctx, Router, "tcp", ServerAddress+":7080")
		if err != nil {
			t.Fatal(err)
		}
		var n atomic.Int64
		done := make(chan error, 1)
		go func() {
			defer c.Close() // nothing more is written
			buf := make([]byte, 1<<16)
			for {
				k, err := c.Read(buf)
				n.Add(int64(k))
				if err != nil {
					done <- err
					return
				}
			}
		}()
		return &n, done
	}
	stall, err := l.Stall(routerLink, 7080, after)
	if err != nil {
		t.Fatal(err)
	}
	n, done := fetch()
	lost(t, l, 3)
	if got := n.Load(); got > after {
		t.Errorf("%d bytes came in spite of the stall after %d", got, after)
	}
	undo(t, stall)
	if err := <-done; !errors.Is(err, io.EOF) || n.Load() != size {
		t.Errorf("after the stall: %d of %d bytes, %v", n.Load(), size, err)
	}

	if stall, err = l.Stall(ServerLink, 7080, 0); err != nil {
		t.Fatal(err)
	}
	undo(t, stall)
	if stall, err = l.Stall(ServerLink, 7080, after); err != nil {
		t.Fatal(err)
	}
	n, done = fetch()
	lost(t, l, 1) // in mid-transfer
	if cut, err := l.ResetTransfers(7080, DirectGateway); cut != 1 || err != nil {
		t.Errorf("%d connections reset (%v)", cut, err)
	}
	undo(t, stall)
	if err := <-done; !errors.Is(err, syscall.ECONNRESET) || n.Load() >= size {
		t.Errorf("after the reset: %d bytes, %v", n.Load(), err)
	}
}

// TestLabSever cuts one process off from a port that all others can reach.
func TestLabSever(t *testing.T) {
	l := newLab(t)
	ctx := deadline(t, time.Minute)
	s, err := l.Listen(ctx, Server, "127.0.0.1:7233")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() // nothing more is written
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello\n") // the other end tells
		}
	}()
	const script = `
while exec 3<>/dev/tcp/127.0.0.1/7233; do
	read -r line <&3; echo "connected $line"
	read -r line <&3; echo lost
	read -r line
done
echo refused
read -r line
exec 3<>/dev/tcp/127.0.0.1/7233; read -r line <&3; echo "connected $line"; read -r line`
	c := l.Command(ctx, Server, "bash", "-c", script)
	in, out := start(t, c)
	expect(t, out, "connected hello")
	sever, err := l.Sever(Server, c.Pid(), 7233)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, out, "lost")
	other, err := l.DialContext(ctx, Server, "tcp", "127.0.0.1:7233")
	if err != nil {
		t.Fatalf("another client: %v", err)
	}
	defer other.Close() // nothing more is written
	if line, err := bufio.NewReader(other).ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("another client received %q (%v)", line, err)
	}
	say(t, in, "again")
	expect(t, out, "refused")
	undo(t, sever)
	say(t, in, "again")
	expect(t, out, "connected hello")
	root, err := cgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(root, l.Name()+"-*")); err != nil || len(left) > 0 {
		t.Errorf("groups left: %v (%v)", left, err)
	}
}

func TestLabSmallDisk(t *testing.T) {
	l := newLab(t)
	dir, err := l.SmallDisk(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Fill(t.TempDir(), 0); err == nil {
		t.Error("filling a disk that is not small: no error")
	}
	write := func(size int) error {
		return os.WriteFile(filepath.Join(dir, "file"), make([]byte, size), 0o600)
	}
	fill, err := l.Fill(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(4096); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("writing to a full disk: %v", err)
	}
	undo(t, fill)
	if err := write(1 << 20); err != nil {
		t.Error(err)
	}
	if fill, err = l.Fill(dir, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "file")), write(3<<19)); err != nil {
		t.Errorf("what was left: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "more"), make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("more than what was left: %v", err)
	}
	undo(t, fill)
	full, err := l.KeepFull(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "file")), os.Remove(filepath.Join(dir, "more"))); err != nil {
		t.Fatal(err)
	}
	err = poll(deadline(t, time.Minute), func() (bool, error) {
		err := os.WriteFile(filepath.Join(dir, "more"), make([]byte, 1<<20), 0o600)
		if errors.Is(err, syscall.ENOSPC) {
			return true, nil
		}
		return false, errors.Join(err, os.Remove(filepath.Join(dir, "more")))
	})
	if err != nil {
		t.Errorf("what was freed is not taken: %v", err)
	}
	undo(t, full)
	if err := write(1 << 20); err != nil {
		t.Error(err)
	}
	if fill, err = l.Fill(dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile("/proc/mounts"); err != nil || strings.Contains(string(b), dir) {
		t.Errorf("still mounted after Close (%v)", err)
	}
	undo(t, fill)
}

// TestDatabaseWriter is not a test: TestLabLockDatabase runs it as the other program that has the
// database open.
func TestDatabaseWriter(t *testing.T) {
	path := os.Getenv("LAB_TEST_DATABASE")
	if path == "" {
		t.Skip("only a part of TestLabLockDatabase")
	}
	db, err := sql.Open("sqlite3", "file:"+path+"?_journal_mode=WAL&_busy_timeout=1&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() // the process ends
	if _, err := db.Exec("CREATE TABLE t (n)"); err != nil {
		t.Fatal(err)
	}
	fmt.Println("open")
	for s := bufio.NewScanner(os.Stdin); s.Scan(); {
		_, err := db.Exec("INSERT INTO t VALUES (1)")
		var busy sqlite3.Error
		switch {
		case err == nil:
			fmt.Println("written")
		case errors.As(err, &busy) && busy.Code == sqlite3.ErrBusy:
			var n int
			if err := db.QueryRow("SELECT count(*) FROM t").Scan(&n); err != nil {
				t.Fatal(err)
			}
			fmt.Println("busy,", n, "read")
		default:
			t.Fatal(err)
		}
	}
}

func TestLabLockDatabase(t *testing.T) {
	l := newLab(t)
	path := filepath.Join(t.TempDir(), "test.db")
	if _, err := l.LockDatabase(path); err == nil {
		t.Error("locking a database that is not there: no error")
	}
	c := l.Command(deadline(t, time.Minute), Host, os.Args[0], "-test.run=^TestDatabaseWriter$")
	c.Env = append(os.Environ(), "LAB_TEST_DATABASE="+path)
	in, out := start(t, c)
	expect(t, out, "open")
	say(t, in, "write")
	expect(t, out, "written")
	lock, err := l.LockDatabase(path)
	if err != nil {
		t.Fatal(err)
	}
	say(t, in, "write")
	expect(t, out, "busy, 1 read")
	undo(t, lock)
	say(t, in, "write")
	expect(t, out, "written")
}

func TestLabBMCLies(t *testing.T) {
	l := newLab(t)
	ctx := deadline(t, 3*time.Minute)
	m := newMachine(t, l, Spec{Name: "bmc"})
	status := func() string { return ipmi(t, m, "chassis", "power", "status") }
	refused := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		out, err := m.BMC().IPMITool(ctx, append([]string{"-N", "1", "-R", "1"}, args...)...).Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Errorf("%q worked: %q (%v)", args, out, err)
		}
	}
	fault := func(u Undo, err error) Undo {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if got := status(); got != "Chassis Power is off" {
		t.Fatal(got)
	}

	u := fault(m.BMC().Lie(On))
	if got := status(); got != "Chassis Power is on" {
		t.Errorf("lying: %q", got)
	}
	if _, err := m.BMC().Idle(); err == nil {
		t.Error("a second fault: no error")
	}
	undo(t, u)

	u = fault(m.BMC().Idle())
	ipmi(t, m, "chassis", "power", "on")
	if got := status(); got != "Chassis Power is off" || m.PowerOns() != 0 {
		t.Errorf("idle: %q, %d power-ons", got, m.PowerOns())
	}
	undo(t, u)

	u = fault(m.BMC().Broken())
	refused("chassis", "power", "status")
	undo(t, u)

	u = fault(m.BMC().Hold())
	answer := make(chan string, 1)
	go func() {
		out, err := m.BMC().IPMITool(ctx, "chassis", "power", "status").Output()
		answer <- fmt.Sprint(strings.TrimSpace(string(out)), err)
	}()
	if err := poll(ctx, func() (bool, error) { return chassisCalled(m.BMC()) }); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-answer:
		t.Errorf("held: %q", got)
	default:
	}
	undo(t, u)
	if got := <-answer; got != "Chassis Power is off<nil>" {
		t.Errorf("held, then undone: %q", got)
	}

	const d = 300 * time.Millisecond
	u = fault(m.BMC().Slow(d))
	begin := time.Now()
	if got := status(); got != "Chassis Power is off" || time.Since(begin) < d {
		t.Errorf("slow: %q after %s", got, time.Since(begin))
	}
	undo(t, u)

	u = fault(m.BMC().Unreachable(ctx))
	refused("chassis", "power", "status")
	undo(t, u)

	u = fault(m.BMC().Refuse(ctx))
	refused("chassis", "power", "status")
	undo(t, u)

	if got := status(); got != "Chassis Power is off" {
		t.Errorf("after all faults: %q", got)
	}
	ipmi(t, m, "chassis", "power", "on")
	if m.PowerState() != On {
		t.Error("after all faults it cannot be switched on")
	}
}

// chassisCalled reports whether the chassis script of a BMC on hold was called.
func chassisCalled(b *BMC) (bool, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, line := range lines {
		if argv, e := os.ReadFile(line); e == nil && bytes.Contains(argv, []byte(filepath.Join(b.dir(), "chassis")+"\x00")) {
			return true, err
		}
	}
	return false, err
}
