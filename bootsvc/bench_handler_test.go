package bootsvc

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
	"github.com/ingotmetal/ingot/lab/fakesite"
	"github.com/ingotmetal/ingot/metadatasvc"
)

// BenchmarkHandlers measures what a request costs above net/http, with a real inventory of 100 machines in memory.
func BenchmarkHandlers(b *testing.B) {
	const machines, armed = 100, 50
	dir := b.TempDir()
	store, err := sqlite.Open(b.Context(), benchInventory(b, dir, machines, armed), noKeys{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	meta, s := benchServers(b, store, dir)
	go func() { _ = store.Machines.KeepIndex(b.Context()) }()
	for !store.Machines.InReservedNetwork(benchAddress(benchNet, 0)) {
		if b.Context().Err() != nil {
			return
		}
	}

	for _, c := range []struct {
		name        string
		handler     http.Handler
		first, last int
		request     func(b *testing.B, n int) *http.Request
	}{
		{"metadata", meta.Handler(), armed, machines, func(b *testing.B, n int) *http.Request {
			b.Helper()
			r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/2021-03-23/meta-data/instance-id", nil)
			r.RemoteAddr = netip.AddrPortFrom(benchAddress(benchNet, n), 1024).String()
			return r
		}},
		{"script", s.Handler(), armed, machines, benchScript},
		{"script-armed", s.Handler(), 0, armed, benchScript},
	} {
		b.Run(c.name, func(b *testing.B) {
			var requests []*http.Request
			for n := c.first; n < c.last; n++ {
				requests = append(requests, c.request(b, n))
			}
			w := answer{header: http.Header{}}
			b.ReportAllocs()
			begun := cpuTime(b)
			for n := 0; b.Loop(); n++ {
				clear(w.header)
				w.length = 0
				c.handler.ServeHTTP(&w, requests[n%len(requests)])
				if w.length == 0 {
					b.Fatal("no answer")
				}
			}
			b.ReportMetric(float64(cpuTime(b)-begun)/float64(b.N), "cpu-ns/op") // on a busy host, ns/op says little
		})
	}
}

func benchScript(b *testing.B, n int) *http.Request {
	b.Helper()
	return httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/ipxe/script/"+benchMAC(n).String()+"/auto.ipxe", nil)
}

// cpuTime returns the processor time of this process.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// An answer keeps the length of a successful answer.
type answer struct {
	header http.Header
	length int
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(int) {}

func (a *answer) Write(b []byte) (int, error) {
	if !strings.Contains(string(b), "not found") {
		a.length += len(b)
	}
	return len(b), nil
}

// benchServers returns servers with an inventory, as ingot serve has them.
func benchServers(t testing.TB, store *sqlite.Store, dir string) (*metadatasvc.Server, *Server) {
	t.Helper()
	all := fakesite.InventoryOf(store)
	meta, err := metadatasvc.New(metadatasvc.Config{
		Address: benchSelf, Addrs: []string{":7172"}, Key: testKey, Proxies: []netip.Prefix{benchNet},
	}, all, all)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{
		Interfaces: []string{"srv0"}, Address: benchSelf, HTTPAddr: []string{":80"}, AgentURL: "https://10.76.0.1:7443",
		AgentPin: "sha256:" + strings.Repeat("ab", 32), PlanKey: "ed25519:" + strings.Repeat("k", 43), LoaderDir: dir,
		KernelPath: filepath.Join(dir, "vmlinuz"), InitramfsPath: filepath.Join(dir, "initrd.img"), ClaimKey: testKey,
		Images: fakeImages{filepath.Join(dir, benchImage), inventory.Image{Name: benchImage}}, Fallback: meta.Handler(),
	}, all, all)
	if err != nil {
		t.Fatal(err)
	}
	return meta, s
}
