package bootsvc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/host/memlimit"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// The benchmarks compared to other servers (make bench-wire). This server runs in a process of its own, in
// the namespace of the test, with a real inventory on the disk of /var/tmp: events are recorded, and
// fsync is on. The other server runs in a third namespace. The client has one veth pair to each. All
// share the processors, so the two servers are measured in turns.

const (
	benchDB  = "INGOT_BENCH_DB"  // the inventory that a process serves instead of running the benchmark
	benchDir = "INGOT_BENCH_DIR" // its loaders and its image
	// benchImage is the name of the image.
	benchImage = "image.raw"
)

var (
	benchNet  = netip.MustParsePrefix("10.76.0.0/14") // of the machines
	benchSelf = netip.MustParseAddr("10.76.0.1")
	peerNet   = netip.MustParsePrefix("10.80.0.0/14") // of the same machines at the other server
	peerSelf  = netip.MustParseAddr("10.80.0.1")
	peerNS    = namespace("peer")
)

// benchMAC is the MAC of machine n.
func benchMAC(n int) net.HardwareAddr {
	return net.HardwareAddr{0, 0x0c, 1, byte(n >> 16), byte(n >> 8), byte(n)}
}

// benchAddress is the address of machine n in a network.
func benchAddress(network netip.Prefix, n int) netip.Addr {
	b := network.Addr().As4()
	n += 256
	return netip.AddrFrom4([4]byte{b[0], b[1] + byte(n>>16), byte(n >> 8), byte(n)})
}

// benchInventory makes an inventory of that many machines and returns its file. The first ones are armed.
func benchInventory(t testing.TB, dir string, machines, armed int) string {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("%d.db", machines))
	store, err := sqlite.Open(t.Context(), path, noKeys{})
	if err != nil {
		t.Fatal(err)
	}
	var ms []inventory.Machine
	for n := range machines {
		ms = append(ms, inventory.Machine{
			Name: fmt.Sprintf("m%06d", n), Labels: map[string]string{"rack": fmt.Sprint(n / 40)},
			SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFvz operator@example"},
			Interfaces: []inventory.Interface{{
				MAC: benchMAC(n).String(), Address: benchAddress(benchNet, n), Netmask: "255.252.0.0", Gateway: benchSelf,
				Nameservers: []netip.Addr{benchSelf},
			}},
		})
	}
	err = store.Machines.PutMachines(t.Context(), ms, false, "bench")
	for n := range armed {
		g, e := store.Grants.TakeGrant(t.Context(), ms[n].Name, fmt.Sprintf("run-%d", n), "", false)
		if err = errors.Join(err, e); err == nil {
			_, err = store.Grants.AllowBoot(t.Context(), g.Owner, 1, time.Now().Add(time.Hour))
		}
	}
	if err = errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// serveInventory serves DHCP, HTTP and metadata with an inventory, as ingot serve does, until stdin ends.
func serveInventory(t *testing.T, db, dir string) {
	store, err := sqlite.Open(t.Context(), db, noKeys{})
	if err != nil {
		t.Fatal(err)
	}
	go memlimit.CollectRarely(t.Context(), 192<<20) // as internal/server does
	meta, s := benchServers(t, store, dir)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Run(ctx) })
	g.Go(func() error { return meta.Run(ctx) })
	g.Go(func() error { return serveFloor(ctx) })
	g.Go(func() error { return store.Machines.KeepIndex(ctx) })
	if err := errors.Join(g.Wait(), store.Close()); err != nil {
		t.Fatal(err)
	}
}

// startServer starts serveInventory in a process and returns when it serves. With INGOT_BENCH_PROFILE,
// the process writes a profile of its CPU time into that folder.
func startServer(t *testing.T, db, dir, profile string) *benchProcess {
	t.Helper()
	if folder := os.Getenv("INGOT_BENCH_PROFILE"); folder != "" {
		profile = filepath.Join(folder, profile+".prof")
	} else {
		profile = ""
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.cpuprofile", profile)
	cmd.Env = append(os.Environ(), benchDB+"="+db, benchDir+"="+dir)
	cmd.Stderr = os.Stderr
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool {
		return !slices.ContainsFunc([]int{80, 7172, httpFloor}, func(port int) bool {
			return !connects(t, fmt.Sprintf("%s:%d", benchSelf, port))
		})
	})
	return &benchProcess{cmd.Process.Pid, func() {
		_ = end.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}}
}

// benchProcess is a server that is measured.
type benchProcess struct {
	pid  int
	stop func()
}

// cpu returns the processor time that the process has used, from fields 14 and 15 of proc_pid_stat(5),
// in ticks of 10 ms.
func (p *benchProcess) cpu(t *testing.T) (used time.Duration) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	for _, field := range strings.Fields(rest)[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		used += time.Duration(ticks) * 10 * time.Millisecond
	}
	return used
}

// connects reports whether a server accepts connections.
func connects(t *testing.T, addr string) (ok bool) {
	atClient(t, func() error {
		c, err := net.DialTimeout("tcp4", addr, time.Second)
		if ok = err == nil; ok {
			return c.Close()
		}
		return nil
	})
	return ok
}

// addPeer makes the namespace of the other server, with peer0. The client's ends are cli0 and cli1.
func addPeer(t *testing.T) {
	t.Helper()
	ip(t, "addr", "add", benchSelf.String()+"/14", "dev", "srv0")
	ip(t, "-n", clientNS, "addr", "add", benchSelf.Next().String()+"/14", "dev", "cli0")
	ip(t, "netns", "add", peerNS)
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", "netns", "del", peerNS).CombinedOutput(); err != nil {
			t.Errorf("removing namespace %s: %v %s", peerNS, err, out)
		}
	})
	ip(t, "-n", peerNS, "link", "set", "lo", "up")
	ip(t, "-n", peerNS, "link", "add", "peer0", "type", "veth", "peer", "name", "cli1", "netns", clientNS)
	ip(t, "-n", peerNS, "addr", "add", peerSelf.String()+"/14", "dev", "peer0")
	ip(t, "-n", clientNS, "addr", "add", peerSelf.Next().String()+"/14", "dev", "cli1")
	ip(t, "-n", peerNS, "link", "set", "peer0", "up")
	ip(t, "-n", clientNS, "link", "set", "cli1", "up")
}

// inNamespace makes cmd run in a network namespace.
func inNamespace(name string, cmd *exec.Cmd) *exec.Cmd {
	cmd.Args = append([]string{"ip", "netns", "exec", name, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/sbin/ip"
	return cmd
}

// startPeer starts the other server.
func startPeer(t *testing.T, cmd *exec.Cmd) *benchProcess {
	t.Helper()
	cmd = inNamespace(peerNS, cmd)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &benchProcess{cmd.Process.Pid, func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // nginx ends its workers; it may have ended
		_ = cmd.Wait()
	}}
}

// benchTemp returns a folder on a disk, whatever TMPDIR is.
func benchTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "ingot-bench-") //nolint:usetesting // TMPDIR may be in memory, where fsync costs nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// setHost sets a file below /proc/sys/net until a benchmark ends. New network namespaces get it; in them it cannot be set.
func setHost(t *testing.T, setting, value string) {
	t.Helper()
	if !*bench || os.Getenv(inside) != "" {
		return
	}
	setting = filepath.Join("/proc/sys/net", setting)
	before, err := os.ReadFile(setting)
	if err != nil {
		t.Fatal(err)
	}
	set := func(value string) {
		if err := os.WriteFile(setting, []byte(value), 0o644); err != nil { //nolint:gosec // the file's own mode
			t.Fatal(err)
		}
	}
	set(value)
	t.Cleanup(func() { set(string(before)) })
}

// beginBench prepares a benchmark against another server: the network, and a folder on a disk. ok is false in
// the process that serves for the benchmark (startServer), after it has served, and outside the namespace.
func beginBench(t *testing.T) (dir string, ok bool) {
	t.Helper()
	if db := os.Getenv(benchDB); db != "" {
		serveInventory(t, db, os.Getenv(benchDir))
		return "", false
	}
	if !benchmarks(t) {
		return "", false
	}
	addPeer(t)
	return benchTemp(t), true
}

// benchmarks skips a test that measures, unless it is asked for. It reports whether the test runs in its namespace.
func benchmarks(t *testing.T) bool {
	t.Helper()
	if !*bench && os.Getenv(inside) == "" {
		t.Skip("measures: make bench-wire")
	}
	return inNamespaces(t)
}
