package bootsvc

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/inventory"
)

var bench = flag.Bool("bench", false, "measure next to other servers (make bench-wire)")

const (
	benchRuns   = 15
	benchServer = "INGOT_BENCH_SERVER" // the folder that a process serves instead of running the benchmark
	benchPort   = 6901                 // of this server; tftpd-hpa and atftpd have the next ones
)

// TestBenchTFTP measures this server, tftpd-hpa and atftpd, in turns, over a veth pair between two network
// namespaces: the medians of the speeds and of the ratios. The clients are one of this test, which does as little as
// possible, and atftp, which others have written. Servers and clients share the processors.
func TestBenchTFTP(t *testing.T) {
	if dir := os.Getenv(benchServer); dir != "" {
		serveBench(t, dir)
		return
	}
	if !*bench && os.Getenv("INGOT_BOOTSVC_LAB") == "" {
		t.Skip("measures: make bench-wire")
	}
	if !inNamespaces(t) {
		return
	}
	ip(t, "-n", clientNS, "addr", "add", testAddr+"/24", "dev", "cli0")
	dir := t.TempDir()
	write(t, filepath.Join(dir, "large.efi"), strings.Repeat("0123456789abcdef", 32<<16))
	write(t, filepath.Join(dir, "loader.efi"), strings.Repeat("0123456789abcdef", 1<<16))
	startBench(t, dir)

	fmt.Printf("MB/s, median of %d        ingot       hpa    atftpd   ingot/hpa  ingot/atftpd\n", benchRuns)
	for _, c := range []struct {
		name    string
		file    string
		clients int
		window  int
		fetch   func(t *testing.T, port int, file string, clients, window int) error
	}{
		{"32 MiB", "large.efi", 1, 0, tryTFTP},
		{"1 MiB, 32 clients", "loader.efi", 32, 0, tryTFTP},
		{"32 MiB, windowsize 4", "large.efi", 1, 4, tryTFTP},
		{"32 MiB, windowsize 8", "large.efi", 1, 8, tryTFTP},
		{"32 MiB, windowsize 32", "large.efi", 1, 32, tryTFTP},
		{"atftp, 32 MiB", "large.efi", 1, 0, tryATFTP},
		{"atftp, windowsize 8", "large.efi", 1, 8, tryATFTP},
		{"atftp, windowsize 32", "large.efi", 1, 32, tryATFTP},
	} {
		var speeds [3][]float64
		for range benchRuns {
			for n := range speeds {
				size := map[string]float64{"large.efi": 32 << 20, "loader.efi": 1 << 20}[c.file]
				begun := time.Now()
				if err := c.fetch(t, benchPort+n, c.file, c.clients, c.window); err != nil {
					t.Fatal(err)
				}
				speeds[n] = append(speeds[n], float64(c.clients)*size/1e6/time.Since(begun).Seconds())
			}
		}
		fmt.Printf("%-22s %9.1f %9.1f %9.1f %11.2f %13.2f\n", c.name, median(speeds[0]), median(speeds[1]), median(speeds[2]),
			median(ratios(speeds[0], speeds[1])), median(ratios(speeds[0], speeds[2])))
	}
}

// ratios compares each of our turns with the other server's turn after it: other programs on this host then slow both.
func ratios(ours, theirs []float64) (out []float64) {
	for n := range ours {
		out = append(out, ours[n]/theirs[n])
	}
	return out
}

func median(s []float64) float64 { return slices.Sorted(slices.Values(s))[len(s)/2] }

// startBench starts the three servers, and waits until each of them serves.
func startBench(t *testing.T, dir string) {
	t.Helper()
	own := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run", "^TestBenchTFTP$",
		"-test.cpuprofile", os.Getenv("INGOT_BENCH_PROFILE"))
	own.Env = append(os.Environ(), benchServer+"="+dir)
	stop, err := own.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	for n, cmd := range []*exec.Cmd{
		own,
		tftpProgram(t, "in.tftpd", "--foreground", "--address", fmt.Sprintf("%s:%d", testSelf, benchPort+1), "--user", "root", "--secure", dir),
		tftpProgram(t, "atftpd", "--daemon", "--no-fork", "--user", "root.root", "--bind-address", testSelf.String(),
			"--port", fmt.Sprint(benchPort+2), "--logfile", "-", "--verbose=0", dir),
	} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if n == 0 {
				_ = stop.Close() // it writes its profile
			} else {
				_ = cmd.Process.Kill()
			}
			_ = cmd.Wait()
		})
		waitFor(t, func() bool { return tryTFTP(t, benchPort+n, "loader.efi", 1, 0) == nil })
	}
}

// serveBench serves the files of dir to a machine with the client's address until stdin ends.
func serveBench(t *testing.T, dir string) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, func(c *Config) { c.LoaderDir = dir })
	f.setGrant(armed("node1"))
	c, err := tftp.Listen(t.Context(), fmt.Sprintf("%s:%d", testSelf, benchPort))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := s.tftp.Serve(ctx, c); err != nil {
		t.Fatal(err)
	}
}

// tryATFTP fetches a file with atftp.
func tryATFTP(t *testing.T, port int, file string, _, window int) error {
	t.Helper()
	args := []string{"--option", "blksize 1468", "--get", "-r", file, "-l", filepath.Join(t.TempDir(), "file")}
	if window > 0 {
		args = append(args, "--option", fmt.Sprintf("windowsize %d", window))
	}
	cmd := tftpProgram(t, "atftp", append(args, testSelf.String(), fmt.Sprint(port))...)
	if out, err := inNamespace(clientNS, cmd).CombinedOutput(); err != nil {
		return fmt.Errorf("running atftp: %w: %s", err, out)
	}
	return nil
}

// tryTFTP fetches a file with that many clients at once, on one thread.
func tryTFTP(t *testing.T, port int, file string, clients, window int) (err error) {
	t.Helper()
	atClient(t, func() error {
		poll, e := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if e != nil {
			return e
		}
		defer unix.Close(poll)
		all := map[int32]*benchClient{}
		for range clients {
			fd, e := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if e != nil {
				return e
			}
			defer unix.Close(fd)
			all[int32(fd)] = &benchClient{fd: fd, window: window}
			err = errors.Join(err, unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}),
				all[int32(fd)].request(port, file))
		}
		for events := make([]unix.EpollEvent, 64); len(all) > 0 && err == nil; {
			n, e := unix.EpollWait(poll, events, 3000)
			if errors.Is(e, unix.EINTR) {
				continue
			}
			if n == 0 || e != nil {
				err = fmt.Errorf("no answer from port %d: %w", port, e)
			}
			for _, event := range events[:max(n, 0)] {
				done, e := all[event.Fd].receive()
				if err = errors.Join(err, e); done {
					delete(all, event.Fd)
				}
			}
		}
		return nil
	})
	return err
}

// benchClient is a client that does as little as possible. It repeats no packet: the server must.
type benchClient struct {
	fd, window int
	started    bool
	have       uint16 // last block
	left       int    // blocks until the next ACK
	b          [2048]byte
}

func (c *benchClient) request(port int, file string) error {
	request := "\x00\x01" + file + "\x00octet\x00blksize\x001468\x00"
	if c.window > 0 {
		request += fmt.Sprintf("windowsize\x00%d\x00", c.window)
	}
	return unix.Sendto(c.fd, []byte(request), 0, &unix.SockaddrInet4{Port: port, Addr: testSelf.As4()})
}

// receive handles one packet of the server, and reports whether it was the last one.
func (c *benchClient) receive() (done bool, err error) {
	if !c.started {
		n, from, err := unix.Recvfrom(c.fd, c.b[:], 0)
		if err == nil {
			err = unix.Connect(c.fd, from)
		}
		if err == nil && (n < 2 || c.b[1] != 6 || !strings.Contains(string(c.b[:n]), "blksize\x001468")) {
			err = fmt.Errorf("the answer is %q", c.b[:n])
		}
		if c.started = true; !strings.Contains(string(c.b[:n]), "windowsize") {
			c.window = 1
		}
		return false, errors.Join(err, c.acknowledge())
	}
	n, err := unix.Read(c.fd, c.b[:])
	if err != nil {
		return false, fmt.Errorf("reading block %d: %w", c.have+1, err)
	}
	if c.b[1] != 3 || binary.BigEndian.Uint16(c.b[2:]) != c.have+1 {
		return false, c.acknowledge() // a block is lost: report the last one that came
	}
	c.have++
	c.left--
	if n < 1472 || c.left == 0 {
		return n < 1472, c.acknowledge()
	}
	return false, nil
}

func (c *benchClient) acknowledge() error {
	c.left = c.window
	_, err := unix.Write(c.fd, []byte{0, 4, byte(c.have >> 8), byte(c.have)})
	return err
}
