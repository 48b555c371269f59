package bootsvc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/ingotmetal/ingot/inventory"
)

// fakeInstallers has a run's plan and records its spent boots.
type fakeInstallers struct {
	mu    sync.Mutex
	plan  inventory.Plan
	err   error
	fails int // number of calls of SpendBoot that fail
	spent []string
	then  func()
}

func (f *fakeInstallers) Plan(context.Context, string) (inventory.Plan, error) { return f.plan, f.err }

func (f *fakeInstallers) SpendBoot(_ context.Context, o inventory.Owner, boot int, payload string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return errors.New("disk full")
	}
	f.spent = append(f.spent, payload)
	if f.then != nil {
		f.then()
	}
	return nil
}

// imageFiles are images in memory.
type imageFiles map[string]string

func (f imageFiles) OpenImage(_ context.Context, name, sum string) (io.ReadSeekCloser, inventory.Image, error) {
	if sum == strings.Repeat("ab", 32) {
		sum = "" // the digest of all current images
	}
	text, ok := f[name+sum]
	if !ok {
		return nil, inventory.Image{}, inventory.ErrNotFound
	}
	return nopCloser{bytes.NewReader([]byte(text))}, inventory.Image{Name: name, SHA256: strings.Repeat("ab", 32)}, nil
}

type nopCloser struct{ *bytes.Reader }

func (nopCloser) Close() error { return nil }

// withInstaller returns a server whose machine is armed for an installer's boot.
func withInstaller(t *testing.T) (*Server, *fakeInstallers) {
	t.Helper()
	f := &fakeInstallers{plan: inventory.Plan{Run: "run-7", Installer: &inventory.Installer{
		Kernel: "vmlinuz-x", Initrds: []string{"initrd-x", "more-x"}, Payload: "rootfs-x", Complete: inventory.CompleteWebhook,
		Parameters: []string{"ip=dhcp", "root=live:" + inventory.RefBootURL + "rootfs-x", "config=" + inventory.RefDocumentsURL + "doc"},
	}}}
	machines := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, machines, func(c *Config) {
		c.Installers, c.MetadataURL = f, "http://10.10.20.2:7172"
		c.Images = imageFiles{"vmlinuz-x": "kernel", "initrd-x": "initrd", "more-x": "more", "rootfs-x": "squashed", "debian": "other"}
	})
	g := armed("node1")
	g.Installer = true
	machines.setGrant(g)
	f.then = func() { g.Spent = true; machines.setGrant(g) }
	return s, f
}

func TestInstallerIsBootedAndSpent(t *testing.T) {
	s, f := withInstaller(t)
	h := s.Handler()
	script := get(t, h, http.MethodGet, s.Base()+"/ipxe/script/"+testMAC+"/auto.ipxe", testAddr).Body.String()
	g := armed("node1")
	capability := inventory.Capability(testKey, g.Owner)
	base := s.Base() + "/boot/" + strings.ReplaceAll(testMAC, ":", "-") + "/" + inventory.BootToken(testKey, g.Owner, g.Boot) + "/"
	for _, want := range []string{
		"kernel " + base + "vmlinuz-x initrd=initrd-x initrd=more-x ip=dhcp root=live:" + base + "rootfs-x config=http://10.10.20.2:7172/c/" + g.Machine + "/" + capability + "/documents/doc || goto again\n",
		"initrd --name initrd-x " + base + "initrd-x || goto again\ninitrd --name more-x " + base + "more-x || goto again\nboot || goto again\n",
	} {
		if !strings.Contains(script, want) {
			t.Errorf("the script lacks %q:\n%s", want, script)
		}
	}
	for _, never := range []string{inventory.Nonce(testKey, g.Owner), inventory.Claim(testKey, g.Owner, g.Boot), "ingot."} {
		if strings.Contains(script, never) {
			t.Errorf("S44: the script holds %q", never)
		}
	}
	for name, want := range map[string]int{"vmlinuz-x": 200, "initrd-x": 200, "more-x": 200, "debian": 404, "vmlinuz": 404, "initramfs": 404} {
		if w := get(t, h, http.MethodGet, base+name, testAddr); w.Code != want {
			t.Errorf("%s: %d, want %d", name, w.Code, want)
		}
	}
	if w := get(t, h, http.MethodHead, base+"rootfs-x", testAddr); w.Code != 200 {
		t.Errorf("HEAD: %d", w.Code)
	}
	if len(f.spent) > 0 {
		t.Fatalf("spent by %v before the payload was delivered", f.spent)
	}
	if w := get(t, h, http.MethodGet, base+"rootfs-x", testAddr); w.Body.String() != "squashed" {
		t.Errorf("payload %q", w.Body)
	}
	if len(f.spent) != 1 || f.spent[0] != "rootfs-x" {
		t.Fatalf("spent by %v", f.spent)
	}
	for _, name := range []string{"vmlinuz-x", "initrd-x", "rootfs-x"} {
		if w := get(t, h, http.MethodGet, base+name, testAddr); w.Code != 404 {
			t.Errorf("%s is served after the boot was spent", name)
		}
	}
	script = get(t, h, http.MethodGet, s.Base()+"/ipxe/script/"+testMAC+"/auto.ipxe", testAddr).Body.String()
	if !strings.Contains(script, "booting from disk") || strings.Contains(script, capability) {
		t.Errorf("after the boot was spent:\n%s", script)
	}
}

// A broken stream does not spend the boot. A stream that was resumed to its end does.
func TestPayloadInPieces(t *testing.T) {
	s, f := withInstaller(t)
	g := armed("node1")
	url := "/boot/" + testMAC + "/" + inventory.BootToken(testKey, g.Owner, g.Boot) + "/rootfs-x"
	part := func(bytes string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		r.Header.Set("Range", bytes)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	if w := part("bytes=0-3"); w.Body.String() != "squa" || len(f.spent) != 0 {
		t.Fatalf("%q, spent by %v", w.Body, f.spent)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	s.Handler().ServeHTTP(&brokenPipe{ResponseRecorder: httptest.NewRecorder(), left: 3}, r)
	if len(f.spent) != 0 {
		t.Fatal("a broken stream has spent the boot")
	}
	if w := part("bytes=3-"); w.Body.String() != "ashed" || len(f.spent) != 1 {
		t.Fatalf("%q, spent by %v", w.Body, f.spent)
	}
}

// If a delivery cannot be recorded, the request does not wait, because the machine may
// disconnect. The record is retried until the server stops.
func TestDeliveryThatIsRecordedLate(t *testing.T) {
	s, f := withInstaller(t)
	spent := make(chan struct{})
	f.fails, f.then = 2, func() { close(spent) }
	ctx, hangUp := context.WithCancel(t.Context())
	g := armed("node1")
	url := "/boot/" + testMAC + "/" + inventory.BootToken(testKey, g.Owner, g.Boot) + "/rootfs-x"
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	s.Handler().ServeHTTP(httptest.NewRecorder(), r)
	hangUp()
	f.mu.Lock()
	if len(f.spent) > 0 || f.fails != 1 {
		t.Errorf("spent by %v, %d failures to come: the request waited", f.spent, f.fails)
	}
	f.mu.Unlock()
	serving, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- s.web.spender.spendLate(serving) }()
	<-spent
	f.mu.Lock()
	f.fails = 1 << 30
	f.mu.Unlock()
	s.web.spender.unspent <- unspent{Decision{Machine: "node1", Owner: g.Owner, Boot: g.Boot}, "rootfs-x"}
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A stop tries once more what could not be recorded.
func TestDeliveryIsRecordedOnStop(t *testing.T) {
	s, f := withInstaller(t)
	g := armed("node1")
	s.web.spender.unspent <- unspent{Decision{Machine: "node1", Owner: g.Owner, Boot: g.Boot}, "rootfs-x"}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.web.spender.spendLate(ctx); err != nil {
		t.Error(err)
	}
	if len(f.spent) != 1 {
		t.Errorf("spent by %v", f.spent)
	}
}

// The boot's URLs serve the images by the digests in the plan, even if an image was
// replaced since.
func TestInstallerImagesArePinned(t *testing.T) {
	s, f := withInstaller(t)
	g := armed("node1")
	base := s.Base() + "/boot/" + testMAC + "/" + inventory.BootToken(testKey, g.Owner, g.Boot) + "/"
	pins := map[string]string{}
	for _, name := range f.plan.Installer.Images() {
		pins[name] = strings.Repeat("ab", 32)
	}
	f.plan.Installer.Digests = pins
	s.cfg.Images.(imageFiles)["initrd-x"+strings.Repeat("cd", 32)] = "the planned initrd"
	script := s.Base() + "/ipxe/script/" + testMAC + "/auto.ipxe"
	if w := get(t, s.Handler(), http.MethodGet, script, testAddr); w.Code != 200 {
		t.Fatalf("as planned: %d %s", w.Code, w.Body)
	}
	pins["initrd-x"] = strings.Repeat("cd", 32)
	if w := get(t, s.Handler(), http.MethodGet, script, testAddr); w.Code != 200 {
		t.Fatalf("replaced since: %d %s", w.Code, w.Body)
	}
	if w := get(t, s.Handler(), http.MethodGet, base+"initrd-x", testAddr); w.Body.String() != "the planned initrd" {
		t.Errorf("another initrd is served: %d %s", w.Code, w.Body)
	}
	pins["more-x"] = strings.Repeat("ef", 32) // its file is gone
	w := get(t, s.Handler(), http.MethodGet, script, testAddr)
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "kernel ") {
		t.Errorf("the script: %d %s", w.Code, w.Body)
	}
	for name, want := range map[string]int{"vmlinuz-x": 200, "initrd-x": 200, "more-x": 404} {
		if w := get(t, s.Handler(), http.MethodGet, base+name, testAddr); w.Code != want {
			t.Errorf("%s: %d, want %d", name, w.Code, want)
		}
	}
	e, err := s.Why(t.Context(), testMAC)
	if all := strings.Join(e.Reasons, "\n"); err != nil || !strings.Contains(all, "but image more-x cannot be served") {
		t.Errorf("%v:\n%s", err, all)
	}
	delete(pins, "vmlinuz-x")
	if w := get(t, s.Handler(), http.MethodGet, base+"vmlinuz-x", testAddr); w.Code != 404 {
		t.Errorf("an image without a digest: %d", w.Code)
	}
}

// brokenPipe accepts some bytes and then fails.
type brokenPipe struct {
	*httptest.ResponseRecorder
	left int
}

func (b *brokenPipe) Write(p []byte) (int, error) {
	n := min(b.left, len(p))
	b.left -= n
	if n < len(p) {
		return n, errors.New("broken pipe")
	}
	return n, nil
}

// S44: among them one whose kernel line refers to a secret.
func TestInstallerThatCannotBeBooted(t *testing.T) {
	for name, edit := range map[string]func(p *inventory.Plan, err *error){
		"no plan":             func(_ *inventory.Plan, err *error) { *err = inventory.ErrSealed },
		"no installer":        func(p *inventory.Plan, _ *error) { p.Installer = nil },
		"a secret":            func(p *inventory.Plan, _ *error) { p.Installer.Parameters = []string{"n=" + inventory.RefNonce} },
		"script in parameter": func(p *inventory.Plan, _ *error) { p.Installer.Parameters = []string{"a\nshell"} },
		"script in a name":    func(p *inventory.Plan, _ *error) { p.Installer.Kernel = "x || shell" },
		"too long":            func(p *inventory.Plan, _ *error) { p.Installer.Parameters = []string{strings.Repeat("x", 2048)} },
	} {
		t.Run(name, func(t *testing.T) {
			s, f := withInstaller(t)
			edit(&f.plan, &f.err)
			w := get(t, s.Handler(), http.MethodGet, s.Base()+"/ipxe/script/"+testMAC+"/auto.ipxe", testAddr)
			if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "kernel ") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

func TestWhyTellsOfTheInstaller(t *testing.T) {
	s, f := withInstaller(t)
	e, err := s.Why(t.Context(), testMAC)
	if err != nil || e.Verdict != string(Installer) {
		t.Fatalf("%q %v", e.Verdict, err)
	}
	all := strings.Join(e.Reasons, "\n")
	for _, want := range []string{"which starts the installer, until", "kernel vmlinuz-x, initramfs initrd-x and more-x; the boot is spent once rootfs-x was delivered completely"} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is not in:\n%s", want, all)
		}
	}
	delete(s.cfg.Images.(imageFiles), "rootfs-x")
	if e, _ = s.Why(t.Context(), testMAC); !strings.Contains(strings.Join(e.Reasons, "\n"), "but image rootfs-x cannot be served") {
		t.Errorf("%v", e.Reasons)
	}
	f.err = inventory.ErrSealed
	if e, _ = s.Why(t.Context(), testMAC); !strings.Contains(strings.Join(e.Reasons, "\n"), "but the installer cannot be booted") {
		t.Errorf("%v", e.Reasons)
	}
}
