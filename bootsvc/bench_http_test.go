package bootsvc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/internal/netserve/httpserve"
)

const (
	httpRuns      = 5
	imageRuns     = 30
	httpFor       = 2 * time.Second
	httpConns     = 16
	httpFloor     = 81 // the port of serveFloor
	benchImageLen = 512 << 20
)

// TestBenchHTTP measures with wrk the answers to machines that boot and to installed systems in requests per
// second, over 16 connections that stay open, compared to net/http with a handler that does nothing: that is
// what the host and its load permit. Each request is for another machine. It measures the image server
// in comparison with nginx and its sendfile. The figures are medians.
//
// Connections use cubic, the kernel's default. With BBR, one client gets about half as much from either server, and runs differ
// more.
func TestBenchHTTP(t *testing.T) {
	setHost(t, "ipv4/tcp_congestion_control", "cubic")
	dir, ok := beginBench(t)
	if !ok {
		return
	}
	fmt.Printf("%-44s %9s %9s %6s %9s %9s %9s %9s   (medians of %d)\n", "requests/s, 16 connections", "ingot", "net/http", "ratio",
		"p99, ms", "net/http", "CPU, µs", "net/http", httpRuns)
	metadata := func(int) string { return "/2021-03-23/meta-data/instance-id" }
	script := func(n int) string { return "/ipxe/script/" + benchMAC(n).String() + "/auto.ipxe" }
	for _, c := range []struct {
		name            string
		machines, armed int
		port            int
		path            func(n int) string
	}{
		{"metadata, 1000 machines", 1000, 0, 7172, metadata},
		{"metadata, 10000 machines", 10_000, 0, 7172, metadata},
		{"boot script, not armed, 1000 machines", 1000, 0, 80, script},
		{"boot script, armed, 200 machines", 200, 200, 80, script},
	} {
		at := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-"))
		write(t, filepath.Join(at, "vmlinuz"), "a kernel")
		server := startServer(t, benchInventory(t, at, c.machines, c.armed), at, filepath.Base(at))
		var lines strings.Builder
		for n := range c.machines {
			fmt.Fprintln(&lines, c.path(n), benchAddress(benchNet, n))
		}
		requests := filepath.Join(at, "requests")
		write(t, requests, lines.String())
		var rates, slow, cpu [2][]float64
		for range httpRuns {
			for n, port := range []int{c.port, httpFloor} {
				before := server.cpu(t)
				rate, p99 := load(t, fmt.Sprintf("%s:%d", benchSelf, port), requests)
				used := server.cpu(t) - before
				rates[n], slow[n] = append(rates[n], rate), append(slow[n], float64(p99.Microseconds())/1000)
				cpu[n] = append(cpu[n], float64(used.Microseconds())/(rate*httpFor.Seconds()))
			}
		}
		server.stop()
		fmt.Printf("%-44s %9.0f %9.0f %6.2f %9.1f %9.1f %9.1f %9.1f\n", c.name, median(rates[0]), median(rates[1]),
			median(ratios(rates[0], rates[1])), median(slow[0]), median(slow[1]), median(cpu[0]), median(cpu[1]))
	}
	benchImages(t, dir)
}

// serveFloor answers every request with a few bytes until ctx ends.
func serveFloor(ctx context.Context) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", fmt.Sprintf("%s:%d", benchSelf, httpFloor))
	if err != nil {
		return err
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "a few bytes") // a disconnected client needs no answer
	})}
	return httpserve.Run(ctx, "the floor", srv, l, time.Second)
}

// wrkScript makes wrk send one request for each line of a file, again and again, and print the rate and the
// 99th percentile of the time to the end of the answer in µs.
const wrkScript = `
local requests, next = {}, 0
function init(args)
	for line in io.lines(args[1]) do
		local path, source = line:match("(%S+) (%S+)")
		requests[#requests + 1] = wrk.format("GET", path, { ["Host"] = "m", ["X-Forwarded-For"] = source })
	end
end
function request()
	next = next % #requests + 1
	return requests[next]
end
function done(summary, latency)
	local e = summary.errors
	io.write(string.format("RESULT %f %d %d\n", summary.requests / summary.duration * 1e6, latency:percentile(99),
		e.connect + e.read + e.write + e.status + e.timeout))
end
`

// load runs wrk in the client's namespace with httpConns connections for httpFor. Each line of the file
// requests has a path and the source address that is in the request. It returns the rate and the 99th
// percentile of the time to the end of the answer.
func load(t *testing.T, addr, requests string) (rate float64, p99 time.Duration) {
	t.Helper()
	script := filepath.Join(filepath.Dir(requests), "requests.lua")
	write(t, script, wrkScript)
	out, err := inNamespace(clientNS, peerProgram(t, "wrk", "wrk", "--threads", "1", "--connections", strconv.Itoa(httpConns),
		"--duration", httpFor.String(), "--script", script, "http://"+addr, requests)).CombinedOutput()
	if err != nil {
		t.Fatalf("wrk: %v %s", err, out)
	}
	var micros, failed int
	_, result, _ := strings.Cut(string(out), "RESULT ")
	if n, err := fmt.Sscan(result, &rate, &micros, &failed); n != 3 || failed > 0 {
		t.Fatalf("wrk: %v %s", err, out)
	}
	return rate, time.Duration(micros) * time.Microsecond
}

// dialAll opens connections from the client's namespace.
func dialAll(t *testing.T, addr string, n int) (out []net.Conn) {
	t.Helper()
	atClient(t, func() (err error) {
		for range n {
			c, e := net.Dial("tcp4", addr)
			if err = errors.Join(err, e); e == nil {
				out = append(out, c)
			}
		}
		return err
	})
	return out
}

// discardAnswer reads one answer, which must be a 200 with its length.
func discardAnswer(c *net.TCPConn) error {
	b := make([]byte, 256<<10)
	have := 0
	for {
		n, err := c.Read(b[have:])
		if err != nil {
			return err
		}
		have += n
		if head, body, ok := bytes.Cut(b[:have], []byte("\r\n\r\n")); ok {
			length, err := lengthOf(head)
			for left := length - len(body); err == nil && left > 0; left -= n {
				n, err = discard(c, b)
			}
			return err
		}
	}
}

// discard makes the kernel discard up to len(b) received bytes, and returns how many: see MSG_TRUNC in tcp(7).
func discard(c *net.TCPConn, b []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	waitErr := raw.Read(func(fd uintptr) bool {
		n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_TRUNC)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, errors.Join(err, waitErr)
}

func lengthOf(head []byte) (int, error) {
	_, rest, ok := bytes.Cut(head, []byte("Content-Length: "))
	if !ok || !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return 0, fmt.Errorf("answer %q", head)
	}
	digits, _, _ := bytes.Cut(rest, []byte("\r\n"))
	return strconv.Atoi(string(digits))
}

// benchImages compares the image server with nginx. The clients discard in the kernel what they receive: copying it
// takes longer than sending it, so otherwise the clients would be measured.
func benchImages(t *testing.T, dir string) {
	t.Helper()
	files := t.TempDir() // in memory, with make bench-wire
	write(t, filepath.Join(files, benchImage), strings.Repeat("0123456789abcdef", benchImageLen/16))
	defer startServer(t, benchInventory(t, dir, 1000, 0), files, "images").stop()
	config := filepath.Join(files, "nginx.conf")
	write(t, config, fmt.Sprintf(`daemon off; user root root; worker_processes 2; pid %[1]s/nginx.pid; error_log stderr error;
events { worker_connections 1024; }
http {
	sendfile on; tcp_nopush on; access_log off;
	client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server { listen %[2]s:80; root %[1]s; }
}
`, files, peerSelf))
	defer startPeer(t, peerProgram(t, "nginx", "nginx", "-e", "stderr", "-c", config)).stop()
	waitFor(t, func() bool { return connects(t, peerSelf.String()+":80") })

	fmt.Printf("%-44s %9s %9s %6s   (medians)\n", "MB/s", "ingot", "nginx", "ratio")
	servers := [2]struct{ addr, path string }{
		{benchSelf.String() + ":80", "/images/" + benchImage}, {peerSelf.String() + ":80", "/" + benchImage},
	}
	for _, clients := range []int{1, 16} {
		var speeds [2][]float64
		for pair := range imageRuns * max(1, 5/clients) { // one client takes 0.1 s, and its speed varies
			for turn := range speeds {
				n := (turn + pair) % len(speeds) // alternate which server is measured first
				speeds[n] = append(speeds[n], fetchAll(t, servers[n].addr, servers[n].path, clients))
			}
		}
		sorted := slices.Sorted(slices.Values(ratios(speeds[0], speeds[1])))
		fmt.Printf("%-44s %9.0f %9.0f %6.2f   (middle half: %.2f to %.2f)\n", fmt.Sprintf("image of 512 MiB, clients: %d", clients),
			median(speeds[0]), median(speeds[1]), median(sorted), sorted[len(sorted)/4], sorted[len(sorted)*3/4])
	}
}

// fetchAll returns the speed of that many clients together, each fetching the image once, in MB/s.
func fetchAll(t *testing.T, addr, path string, clients int) float64 {
	t.Helper()
	begun := time.Now()
	var g errgroup.Group
	for _, c := range dialAll(t, addr, clients) {
		g.Go(func() error {
			defer c.Close()
			if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: m\r\n\r\n", path); err != nil {
				return err
			}
			return discardAnswer(c.(*net.TCPConn))
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return float64(clients) * benchImageLen / 1e6 / time.Since(begun).Seconds()
}
