package bootsvc

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/netserve/guard"
	"github.com/ingotmetal/ingot/inventory"
)

var (
	testNow  = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testKey  = []byte("0123456789abcdef0123456789abcdef")
	testSelf = netip.MustParseAddr("10.10.20.2")
)

const (
	testMAC  = "52:54:00:20:01:01"
	testAddr = "10.10.20.11"
)

// fakeMachines is an inventory in memory.
type fakeMachines struct {
	mu       sync.Mutex
	machines []inventory.Machine
	grants   map[string]inventory.Grant
	err      error
}

func (f *fakeMachines) MachineByMAC(_ context.Context, mac string) (inventory.Machine, inventory.Grant, error) {
	return f.find(func(m inventory.Machine) bool { _, ok := m.InterfaceByMAC(mac); return ok })
}

func (f *fakeMachines) MachineByAddress(_ context.Context, a netip.Addr) (inventory.Machine, inventory.Grant, error) {
	return f.find(func(m inventory.Machine) bool {
		for _, i := range m.Interfaces {
			if i.Address == a {
				return true
			}
		}
		return false
	})
}

func (f *fakeMachines) InReservedNetwork(a netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.machines {
		for _, i := range m.Interfaces {
			if i.Subnet().Masked().Contains(a) {
				return true
			}
		}
	}
	return false
}

func (f *fakeMachines) find(is func(inventory.Machine) bool) (inventory.Machine, inventory.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return inventory.Machine{}, inventory.Grant{}, f.err
	}
	for _, m := range f.machines {
		if is(m) {
			return m, f.grants[m.Name], nil
		}
	}
	return inventory.Machine{}, inventory.Grant{}, fmt.Errorf("finding a machine: %w", inventory.ErrNotFound)
}

func (f *fakeMachines) setGrant(g inventory.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.grants[g.Machine] = g
}

// fakeJournal keeps all records in memory.
type fakeJournal struct {
	mu     sync.Mutex
	events []inventory.Event
	seen   []inventory.Seen
	relays []netip.Addr // one for each PutRelay
	syslog []inventory.SyslogLine
	err    error
	// stall, if set, is called while a relay is being recorded.
	stall func(ctx context.Context, giaddr netip.Addr) error
}

func (f *fakeJournal) AppendEvents(_ context.Context, e []inventory.Event) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.events = append(f.events, e...)
	return nil
}

func (f *fakeJournal) PutSeen(_ context.Context, s []inventory.Seen) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.seen = append(f.seen, s...)
	return nil
}

func (f *fakeJournal) PutSyslog(_ context.Context, lines []inventory.SyslogLine) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.syslog = append(f.syslog, lines...)
	return nil
}

func (f *fakeJournal) PutRelay(ctx context.Context, giaddr netip.Addr, _ time.Time) error {
	if f.stall != nil {
		if err := f.stall(ctx, giaddr); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.relays = append(f.relays, giaddr)
	return nil
}

// kinds flushes the server's recorder and returns the kinds of all events,
// sorted.
func (f *fakeJournal) kinds(t *testing.T, s *Server) string {
	t.Helper()
	s.rec.Flush(t.Context())
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, e := range f.events {
		out = append(out, e.Kind)
	}
	f.events = nil
	slices.Sort(out)
	return strings.Join(out, " ")
}

// fakeImages is one image.
type fakeImages struct {
	file  string
	image inventory.Image
}

func (f fakeImages) OpenImage(_ context.Context, name, sum string) (io.ReadSeekCloser, inventory.Image, error) {
	if name != f.image.Name || sum != "" && sum != f.image.SHA256 {
		return nil, inventory.Image{}, inventory.ErrNotFound
	}
	r, err := os.Open(f.file)
	return r, f.image, err
}

func machine(edit func(*inventory.Machine)) inventory.Machine {
	m := inventory.Machine{Name: "node1", Interfaces: []inventory.Interface{{
		MAC: testMAC, Address: netip.MustParseAddr(testAddr), Netmask: "255.255.255.0", Gateway: netip.MustParseAddr("10.10.20.1"),
		Nameservers: []netip.Addr{netip.MustParseAddr("10.10.20.1")}, Domain: "lab.example",
	}}}
	if edit != nil {
		edit(&m)
	}
	return m
}

func armed(machine string) inventory.Grant {
	return inventory.Grant{
		Owner: inventory.Owner{Machine: machine, Run: "0199aa-run", Epoch: 7}, Boot: 1, BootsLeft: 2,
		NetbootUntil: testNow.Add(time.Hour), SecretsUntil: testNow.Add(time.Hour),
	}
}

// newServer returns a server over f with loaders, kernel and initramfs in a
// temporary directory.
func newServer(t testing.TB, f *fakeMachines, edit func(*Config)) (*Server, *fakeJournal) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"undionly.kpxe", "snponly.efi", "ipxe.efi"} {
		write(t, filepath.Join(dir, "loaders", name), strings.Repeat(name+"\n", 400))
	}
	write(t, filepath.Join(dir, "vmlinuz"), "the kernel")
	write(t, filepath.Join(dir, "initrd.img"), "the initramfs")
	if f.grants == nil {
		f.grants = map[string]inventory.Grant{}
	}
	cfg := Config{
		Interfaces: []string{"lo"}, Address: testSelf, HTTPAddr: []string{":80"}, AgentURL: "https://10.10.20.2:7443",
		AgentPin: "sha256:" + strings.Repeat("ab", 32), PlanKey: "ed25519:" + strings.Repeat("k", 43), LoaderDir: filepath.Join(dir, "loaders"),
		KernelPath: filepath.Join(dir, "vmlinuz"), InitramfsPath: filepath.Join(dir, "initrd.img"), ClaimKey: testKey,
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return testNow },
	}
	if _, fuzzes := t.(*testing.F); fuzzes {
		cfg.Guard = guard.New(slog.New(crash{}))
	}
	if edit != nil {
		edit(&cfg)
	}
	j := &fakeJournal{}
	s, err := New(cfg, f, j)
	if err != nil {
		t.Fatal(err)
	}
	return s, j
}

// crash is the log of a guard.Guard whose panics end the test binary: a fuzz target would not see a panic that
// the server recovers from.
type crash struct{ slog.Handler }

func (crash) Enabled(context.Context, slog.Level) bool { return true }

func (crash) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += "\n" + a.String(); return true })
	panic(text)
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}
