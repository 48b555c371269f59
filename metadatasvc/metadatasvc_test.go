package metadatasvc

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/pcap"
)

var (
	testNow = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testKey = []byte("0123456789abcdef0123456789abcdef")
)

const (
	node1  = "10.10.20.11"
	node2  = "10.10.20.12"
	canary = "canary-7f3a"
)

type fakeMachines struct {
	mu       sync.Mutex
	machines map[string]inventory.Machine
	grants   map[string]inventory.Grant
	user     map[string]inventory.Secret
	vendor   map[string]inventory.Secret
	userErr  error
	grantErr error
}

func (f *fakeMachines) MachineByAddress(_ context.Context, a netip.Addr) (inventory.Machine, inventory.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.machines {
		for _, i := range m.Interfaces {
			if i.Address == a {
				return m, f.grants[m.Name], nil
			}
		}
	}
	return inventory.Machine{}, inventory.Grant{}, fmt.Errorf("address %s: %w", a, inventory.ErrNotFound)
}

func (f *fakeMachines) Machine(_ context.Context, name string) (inventory.Machine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.machines[name]
	if !ok {
		return m, fmt.Errorf("machine %q: %w", name, inventory.ErrNotFound)
	}
	return m, nil
}

func (f *fakeMachines) Grant(_ context.Context, name string) (inventory.Grant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.grants[name], f.grantErr
}

func (f *fakeMachines) UserData(_ context.Context, name string) (user, vendor inventory.Secret, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.user[name], f.vendor[name], f.userErr
}

type fakeJournal struct {
	events []inventory.Event
	err    error
}

func (f *fakeJournal) AppendEvents(ctx context.Context, e []inventory.Event) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if f.err == nil {
		f.events = append(f.events, e...)
	}
	return f.err
}

func newServer(t testing.TB) (*Server, *fakeMachines, *fakeJournal) {
	t.Helper()
	node := func(name, address string) inventory.Machine {
		return inventory.Machine{
			Name:    name,
			SSHKeys: []string{"ssh-ed25519 AAAA " + name, "ssh-rsa BBBB"},
			Disks:   []inventory.DeclaredDisk{{Device: "/dev/sda"}},
			Interfaces: []inventory.Interface{
				{MAC: "52:54:00:20:01:" + address[len(address)-2:], Address: netip.MustParseAddr(address), Netmask: "255.255.255.0"},
			},
		}
	}
	f := &fakeMachines{
		machines: map[string]inventory.Machine{"node1": node("node1", node1), "node2": node("node2", node2)},
		grants:   map[string]inventory.Grant{},
		user:     map[string]inventory.Secret{"node1": inventory.NewSecret("#cloud-config\npassword: " + canary + "\n")},
		vendor:   map[string]inventory.Secret{},
	}
	f.grants["node1"] = inventory.Grant{
		Owner:        inventory.Owner{Machine: "node1", Run: "run-1", Epoch: 3},
		Boot:         1,
		SecretsUntil: testNow.Add(time.Hour),
	}
	j := &fakeJournal{}
	s, err := New(Config{
		Address: netip.MustParseAddr("10.10.20.2"), Key: testKey, Proxies: []netip.Prefix{netip.MustParsePrefix("10.10.20.3/32")},
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return testNow },
	}, f, j)
	if err != nil {
		t.Fatal(err)
	}
	return s, f, j
}

func do(t testing.TB, s *Server, method, path, source, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://10.10.20.2/", strings.NewReader(body))
	r.Method, r.URL.Path, r.RemoteAddr = method, path, source+":40000"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func get(t testing.TB, s *Server, path, source string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	return do(t, s, http.MethodGet, path, source, "", header...)
}

func seedPath(f *fakeMachines, machine string) string {
	return strings.TrimSuffix(cloudinit.URL("", testKey, f.grants[machine].Owner), "nocloud/")
}

// crawl fetches path and everything in its listing, by the rules of cloud-init: name/
// is a directory, 0=key is 0/openssh-key, anything else is a leaf.
func crawl(t *testing.T, s *Server, path, source string) (leaves []string) {
	t.Helper()
	w := get(t, s, path, source)
	if w.Code != http.StatusOK {
		t.Fatalf("%s is listed and answers %d", path, w.Code)
	}
	for line := range strings.SplitSeq(w.Body.String(), "\n") {
		switch number, _, key := strings.Cut(line, "="); {
		case line == "":
			t.Errorf("%s lists an empty name", path)
		case strings.HasSuffix(line, "/"):
			leaves = append(leaves, crawl(t, s, path+line, source)...)
		case key:
			leaf := path + number + "/openssh-key"
			if w := get(t, s, leaf, source); w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), "ssh-") {
				t.Errorf("%s answers %d %s", leaf, w.Code, w.Body)
			}
			if w := get(t, s, path+number+"/", source); w.Body.String() != "openssh-key" {
				t.Errorf("%s%s/ lists %q", path, number, w.Body)
			}
			leaves = append(leaves, leaf)
		default:
			w := get(t, s, path+line, source)
			if w.Code != http.StatusOK || w.Body.Len() == 0 {
				t.Errorf("%s%s is listed and answers %d", path, line, w.Code)
			}
			if slash := get(t, s, path+line+"/", source); slash.Body.String() != w.Body.String() {
				t.Errorf("%s%s differs with a slash at its end", path, line)
			}
			leaves = append(leaves, path+line)
		}
	}
	return leaves
}

func TestNothingListedIsMissing(t *testing.T) {
	s, f, _ := newServer(t)
	bare := inventory.Machine{
		Name:       "bare",
		Labels:     map[string]string{"example.com": "a", "example.com/role": "worker", "rack": "b"},
		Interfaces: []inventory.Interface{{MAC: "52:54:00:20:01:77", Address: netip.MustParseAddr("10.10.20.77"), DisableNetboot: true}},
	}
	f.machines["bare"] = bare
	f.grants["bare"] = inventory.Grant{Owner: inventory.Owner{Machine: "bare", Run: "run-2", Epoch: 1}, SecretsUntil: testNow.Add(time.Hour)}
	for _, source := range []string{node1, node2, "10.10.20.77"} {
		for version := range strings.SplitSeq(get(t, s, "/", source).Body.String()+"\n2099-01-01", "\n") {
			leaves := crawl(t, s, "/"+version+"/", source)
			if !slices.Contains(leaves, "/"+version+"/meta-data/instance-id") ||
				slices.ContainsFunc(leaves, func(l string) bool { return strings.Contains(l, "user-data") }) {
				t.Errorf("%s: %q", version, leaves)
			}
		}
	}
	for _, name := range []string{"node1", "bare"} {
		base := seedPath(f, name)
		if leaves := crawl(t, s, base+"2009-04-04/", "192.0.2.1"); !slices.Contains(leaves, base+"2009-04-04/user-data") {
			t.Errorf("%q", leaves)
		}
		if leaves := crawl(t, s, base+"nocloud/", "192.0.2.1"); len(leaves) != 4 {
			t.Errorf("%q", leaves)
		}
	}
}

// All unauthorized clients get the same answer.
func TestS1SecretsOnlyInTheWindow(t *testing.T) {
	s, f, _ := newServer(t)
	right := seedPath(f, "node1")
	open := f.grants["node1"]
	want := get(t, s, "/nothing/here", "192.0.2.1")
	if want.Code != http.StatusNotFound {
		t.Fatal("no 404")
	}
	refused := func(name, path, source string) {
		t.Helper()
		w := get(t, s, path, source)
		if w.Code != want.Code || w.Body.String() != want.Body.String() || fmt.Sprint(w.Header()) != fmt.Sprint(want.Header()) {
			t.Errorf("%s: %d %s %v", name, w.Code, w.Body, w.Header())
		}
	}
	files := []string{
		"nocloud/user-data",
		"nocloud/vendor-data",
		"nocloud/meta-data",
		"2009-04-04/user-data",
		"2009-04-04/meta-data/instance-id",
		"metadata",
		"",
	}
	if w := get(t, s, right+"nocloud/user-data", "192.0.2.1"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), canary) {
		t.Fatalf("in the window: %d", w.Code)
	}
	if w := get(t, s, right+"latest/user-data", "192.0.2.1"); !strings.HasPrefix(w.Body.String(), "Content-Type: multipart/mixed") {
		t.Errorf("EC2 user-data lacks phone-home: %s", w.Body)
	}
	for _, file := range files {
		refused("wrong capability", "/c/node1/"+strings.Repeat("0", 64)+"/"+file, node1)
		refused("another machine's", strings.Replace(right, "node1", "node2", 1)+file, node1)
		refused("unknown machine", strings.Replace(right, "node1", "nobody", 1)+file, node1)
	}
	for name, g := range map[string]inventory.Grant{
		"window closed": {Owner: open.Owner, Boot: 1, SecretsUntil: testNow},
		"run ended":     {Owner: inventory.Owner{Machine: "node1", Epoch: 3}},
		"next epoch":    {Owner: inventory.Owner{Machine: "node1", Run: "run-2", Epoch: 4}, SecretsUntil: testNow.Add(time.Hour)},
		"never granted": {},
	} {
		f.grants["node1"] = g
		for _, file := range files {
			refused(name, right+file, node1)
		}
	}
	// The capability of a grant without an owner does not open anything either.
	f.grants["node1"] = inventory.Grant{}
	refused("zero owner", "/c/node1/"+inventory.Capability(testKey, inventory.Owner{})+"/nocloud/user-data", node1)
	f.grants["node1"] = open
	for _, path := range []string{"/", "/latest/", "/latest/meta-data/", "/metadata", "/latest/user-data"} {
		refused("unknown address", path, "192.0.2.1")
	}
	refused("user-data by address", "/latest/user-data", node1)
	refused("NoCloud by address", "/nocloud/user-data", node1)
}

func TestS4Callers(t *testing.T) {
	s, f, _ := newServer(t)
	f.machines["proxy"] = inventory.Machine{Name: "proxy", Interfaces: []inventory.Interface{{Address: netip.MustParseAddr("10.10.20.3")}}}
	const path = "/latest/meta-data/hostname"
	for _, c := range []struct{ name, source, forwarded, want string }{
		{"direct", node1, "", "node1"},
		{"spoofed header", node1, node2, "node1"},
		{"through the proxy", "10.10.20.3", node2, "node2"},
		{"right-most untrusted hop", "10.10.20.3", node1 + ", " + node2 + ", 10.10.20.3", "node2"},
		{"rubbish", "10.10.20.3", "x", ""},
		{"a hop with a port", "10.10.20.3", node1 + ":4000", ""},
		{"a rubbish hop before the proxy", "10.10.20.3", "unknown, 10.10.20.3", ""},
		{"the proxy's own request", "10.10.20.3", "", "proxy"},
		{"mapped", "[::ffff:" + node1 + "]", "", "node1"},
	} {
		var header []string
		if c.forwarded != "" {
			header = []string{"X-Forwarded-For", c.forwarded}
		}
		w := get(t, s, path, c.source, header...)
		if c.want == "" && w.Code != http.StatusNotFound || c.want != "" && w.Body.String() != c.want {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
		}
	}
}

func TestTokens(t *testing.T) {
	s, _, _ := newServer(t)
	put := func(ttl string, more ...string) *httptest.ResponseRecorder {
		t.Helper()
		return do(t, s, http.MethodPut, "/latest/api/token", node1, "", append([]string{ttlHeader, ttl}, more...)...)
	}
	for ttl, code := range map[string]int{"1": 200, "21600": 200, "0": 400, "21601": 400, "": 400, "x": 400} {
		if w := put(ttl); w.Code != code {
			t.Errorf("ttl %q: %d", ttl, w.Code)
		}
	}
	if w := put("60", "X-Forwarded-For", node2); w.Code != http.StatusForbidden {
		t.Errorf("forwarded: %d", w.Code)
	}
	token := put("60").Body.String()
	use := func(token, source string) int {
		t.Helper()
		return get(t, s, "/latest/meta-data/instance-id", source, tokenHeader, token).Code
	}
	if use(token, node1) != 200 || use("", node1) != 200 || use(token, node2) != 401 || use("00", node1) != 401 ||
		use(strings.Repeat("0", len(token)), node1) != 401 {
		t.Error("the token's checks")
	}
	s.now = func() time.Time { return testNow.Add(61 * time.Second) }
	if use(token, node1) != 401 {
		t.Error("an expired token was accepted")
	}
	if w := do(t, s, http.MethodPut, "/latest/api/token", "192.0.2.1", "", ttlHeader, "60"); w.Code != http.StatusNotFound {
		t.Errorf("unknown address: %d", w.Code)
	}
}

func TestPhoneHome(t *testing.T) {
	s, f, j := newServer(t)
	g := f.grants["node1"]
	g.SecretsUntil = time.Time{} // only the nonce counts
	f.grants["node1"] = g
	u, err := url.Parse(cloudinit.PhoneHomeURL("http://10.10.20.2:7172", testKey, g.Owner))
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{
		"instance_id": {"i-node1"},
		"hostname":    {"node1\x1b[31m<b>"},
		"fqdn":        {strings.Repeat("f", 1000)},
		"pub_key_rsa": {"x"},
	}.Encode()
	post := func(path, body string) *httptest.ResponseRecorder {
		t.Helper()
		return do(t, s, http.MethodPost, path, "192.0.2.1", body, "Content-Type", "application/x-www-form-urlencoded")
	}
	if w := post(u.Path, form); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if len(j.events) != 1 {
		t.Fatalf("%+v", j.events)
	}
	e := j.events[0]
	if e.Kind != inventory.EventPhoneHome || e.Machine != "node1" || e.Run != "run-1" || e.Epoch != 3 || e.Boot != 1 || e.Key == "" ||
		!strings.Contains(string(e.Detail), `"instance_id":"i-node1"`) ||
		strings.Contains(string(e.Detail), "\x1b") ||
		len(e.Detail) > 600 {
		t.Errorf("%+v %s", e, e.Detail)
	}
	if strings.Contains(fmt.Sprintf("%+v", e), inventory.Nonce(testKey, g.Owner)) {
		t.Error("the nonce was stored")
	}
	nonce := inventory.Nonce(testKey, g.Owner)
	for name, path := range map[string]string{
		"wrong nonce": "/phone-home/node1/" + strings.Repeat("0", 64), "another machine": "/phone-home/node2/" + nonce, "unknown": "/phone-home/nobody/" + nonce,
		"capability": "/phone-home/node1/" + inventory.Capability(testKey, g.Owner), "no nonce": "/phone-home/node1/", "zero owner": "/phone-home/node2/" + inventory.Nonce(testKey, inventory.Owner{}),
	} {
		if w := post(path, form); w.Code != http.StatusNotFound || w.Body.String() != "not found\n" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := get(t, s, u.Path, node1); w.Code != http.StatusNotFound {
		t.Errorf("GET: %d", w.Code)
	}
	if w := post(u.Path, "hostname="+strings.Repeat("x", maxPhoneHome)); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("large body: %d", w.Code)
	}
	j.err = errors.New("disk full")
	if w := post(u.Path, form); w.Code != http.StatusServiceUnavailable {
		t.Errorf("not stored, but %d", w.Code)
	}
	j.err = nil
	g.Run = ""
	f.grants["node1"] = g
	if w := post(u.Path, form); w.Code != http.StatusNotFound || len(j.events) != 1 {
		t.Errorf("after a run that wrote nothing: %d, %d events", w.Code, len(j.events))
	}
	m := f.machines["node1"]
	m.Installation = &inventory.Installation{Owner: g.Owner, Boot: 1}
	m.Installation.Run = "run-1"
	f.machines["node1"] = m
	if w := post(u.Path, form); w.Code != http.StatusOK || len(j.events) != 1 {
		t.Errorf("the answer was lost, and the run has ended: %d, %d events", w.Code, len(j.events))
	}
	f.grantErr = errors.New("database is locked")
	if w := post(u.Path, form); w.Code != http.StatusServiceUnavailable || len(j.events) != 1 {
		t.Errorf("the grant cannot be read: %d, %d events", w.Code, len(j.events))
	}
}

func TestFetchesAreRecordedRarely(t *testing.T) {
	s, _, j := newServer(t)
	for range 50 {
		get(t, s, "/latest/meta-data/", node1)
		get(t, s, "/latest/meta-data/", node2)
	}
	s.fetches.flush(t.Context())
	if len(j.events) != 2 || j.events[0].Kind != inventory.EventMetadata {
		t.Errorf("%d events", len(j.events))
	}
}

func TestHead(t *testing.T) {
	s, _, _ := newServer(t)
	g := get(t, s, "/latest/meta-data/instance-id", node1)
	h := do(t, s, http.MethodHead, "/latest/meta-data/instance-id", node1, "")
	if h.Code != 200 || h.Body.Len() != 0 || h.Header().Get("Content-Length") != g.Header().Get("Content-Length") ||
		g.Header().Get("Content-Length") != fmt.Sprint(g.Body.Len()) {
		t.Errorf("%d %v", h.Code, h.Header())
	}
}

func TestNewNamesAllProblems(t *testing.T) {
	_, err := New(Config{Key: []byte("short"), URL: "ftp://x/"}, nil, nil)
	var p inventory.Problems
	if !errors.As(err, &p) || len(p) != 2 {
		t.Errorf("%v", err)
	}
}

func TestRun(t *testing.T) {
	s, _, _ := newServer(t)
	s.cfg.Addrs = []string{"127.0.0.1:0", "127.0.0.1:0"}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	s.cfg.Addrs = []string{"192.0.2.1:1"}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "192.0.2.1:1") {
		t.Errorf("%v", err)
	}
}

// The records of requests that a stop lets finish are written.
func TestStopKeepsFetches(t *testing.T) {
	s, f, j := newServer(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	s.cfg.Addrs, s.grace = []string{addr}, time.Minute
	begun, end := make(chan struct{}), make(chan struct{})
	s.machines = slowMachines{f, begun, end}
	ctx, cancel := context.WithCancel(t.Context())
	done, answer := make(chan error, 1), make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var c net.Conn
	require.Eventually(t, func() bool { c, err = net.Dial("tcp", addr); return err == nil }, time.Minute, time.Millisecond)
	defer c.Close()
	_, err = io.WriteString(c, "GET "+seedPath(f, "node1")+"metadata HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	<-begun
	cancel()
	require.Eventually(t, func() bool { // the listener is closed
		x, err := net.Dial("tcp", addr)
		if err == nil {
			_ = x.Close()
		}
		return err != nil
	}, time.Minute, time.Millisecond)
	close(end)
	go func() { _, err := io.ReadAll(c); answer <- err }()
	require.NoError(t, <-answer)
	require.NoError(t, <-done)
	require.Len(t, j.events, 1)
}

// slowMachines is an inventory whose machines are found after end is closed.
type slowMachines struct {
	*fakeMachines
	begun, end chan struct{}
}

func (m slowMachines) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	close(m.begun)
	<-m.end
	return m.fakeMachines.Machine(ctx, name)
}

func FuzzPaths(f *testing.F) {
	s, m, _ := newServer(f)
	m.grants["node1"] = inventory.Grant{Owner: m.grants["node1"].Owner} // closed
	for _, p := range []string{"", "latest/meta-data/public-keys/0=key0", "c/node1/x/nocloud/user-data", "c///", "phone-home/node1/x", "metadata", "2009-04-04/../../x"} {
		f.Add("GET", p)
	}
	f.Add("POST", "phone-home/node1/x")
	f.Add("PUT", "latest/api/token")
	requests, err := pcap.Requests("../bootsvc/testdata/captures/*.pcap")
	require.NoError(f, err)
	for _, r := range requests {
		f.Add(r.Method, strings.TrimPrefix(r.URL.Path, "/"))
	}
	f.Fuzz(func(t *testing.T, method, p string) {
		w := do(t, s, method, "/"+p, node1, "")
		if strings.Contains(w.Body.String(), canary) || w.Code >= 500 || w.Code >= 300 && w.Code < 400 {
			t.Fatalf("%s %q: %d %s", method, p, w.Code, w.Body)
		}
	})
}

func TestWithoutKey(t *testing.T) {
	s, f, _ := newServer(t)
	s.cfg.Key = nil
	o := f.grants["node1"].Owner
	for _, path := range []string{cloudinit.URL("", nil, o) + "user-data", cloudinit.PhoneHomeURL("", nil, o)} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if w := do(t, s, method, path, node1, ""); w.Code != http.StatusNotFound {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
	if w := get(t, s, "/latest/meta-data/instance-id", node1); w.Code != http.StatusOK {
		t.Errorf("the non-secret profile: %d", w.Code)
	}
}

// TestUserDataIsDeliveredByteForByte: binary user data is the same in the NoCloud seed and in the EC2 tree of the run. Gzip that
// cloud-init takes is joined with the phone-home in the EC2 tree, and is what it was in the seed.
func TestUserDataIsDeliveredByteForByte(t *testing.T) {
	every := make([]byte, 1024)
	for i := range every {
		every[i] = byte(i)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write([]byte("#cloud-config\npackages: [htop]\n"))
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	for name, document := range map[string]string{"bytes": string(every), "gzip": packed.String()} {
		s, f, _ := newServer(t)
		f.user["node1"], f.vendor["node1"] = inventory.NewSecret(document), inventory.NewSecret(document)
		m := f.machines["node1"]
		m.UserDataByAddress = true
		f.machines["node1"] = m
		if name == "bytes" {
			delete(f.vendor, "node1")
		}
		for _, path := range []string{
			seedPath(f, "node1") + "nocloud/user-data", seedPath(f, "node1") + "latest/user-data", "/2009-04-04/user-data",
		} {
			w := get(t, s, path, node1)
			body := w.Body.String()
			joined := name == "gzip" && !strings.Contains(path, "nocloud")
			switch {
			case w.Code != http.StatusOK:
				t.Errorf("%s: %d", path, w.Code)
			case joined && !strings.HasPrefix(body, "Content-Type: multipart/mixed"):
				t.Errorf("%s is not joined", path)
			case !joined && sha256.Sum256([]byte(body)) != sha256.Sum256([]byte(document)):
				t.Errorf("%s: %s has other bytes", path, name)
			case w.Header().Get("Content-Length") != strconv.Itoa(len(body)):
				t.Errorf("%s: Content-Length %q of %d", path, w.Header().Get("Content-Length"), len(body))
			}
		}
	}
}
