package bootsvc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/bootsvc/tftp/tftptest"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/ingotmetal/ingot/bootsvc/dhcp"
	"github.com/ingotmetal/ingot/bootsvc/tftp"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/pcap"
)

// get sends a request to the handler, with source as the client's address.
func get(t testing.TB, h http.Handler, method, url, source string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://10.10.20.2/", nil)
	path := strings.TrimPrefix(url, "http://10.10.20.2")
	r.URL.Path, r.RemoteAddr = path, source+":40000"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var urlForm = regexp.MustCompile(`http://[^\s]+`)

// startTFTP serves s on a loopback port.
func startTFTP(t *testing.T, s *Server) string {
	t.Helper()
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	addr := free.LocalAddr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := tftp.Listen(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.tftp.Serve(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return addr
}

// Every name and URL from DHCP and the scripts resolves while the machine is armed, and
// none of them afterwards.
func TestEveryNameResolves(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) {
		m.Interfaces = append(m.Interfaces, inventory.Interface{MAC: "52:54:00:20:01:02", Address: netip.MustParseAddr("127.0.0.1")})
	})}}
	s, j := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	h := s.Handler()
	addr := startTFTP(t, s)
	served := int64(0)
	var handedOut []string // must be refused afterwards
	resolve := func(name string) string {
		t.Helper()
		if name == "" {
			t.Fatal("nothing was handed out")
		}
		if !strings.HasPrefix(name, "http://") {
			body, err := tftptest.Get(t, addr, name)
			if err != nil {
				t.Fatalf("TFTP %s: %v", name, err)
			}
			served++
			return body
		}
		handedOut = append(handedOut, name)
		w := get(t, h, http.MethodGet, name, "10.10.20.50")
		if w.Code != http.StatusOK {
			t.Fatalf("%s: %d %s", name, w.Code, w.Body)
		}
		return w.Body.String()
	}
	follow := func(script string) {
		t.Helper()
		urls := urlForm.FindAllString(script, -1)
		if len(urls) != 3 {
			t.Fatalf("the script names %q", urls)
		}
		if got := resolve(urls[0]); got != "the kernel" {
			t.Errorf("kernel is %q", got)
		}
		if got := resolve(urls[1]); got != "the initramfs" {
			t.Errorf("initramfs is %q", got)
		}
		// A client that asks again gets the same boot.
		if got := resolve(urls[2]); !slices.Equal(urlForm.FindAllString(got, -1), urls) {
			t.Errorf("asked again: %q", got)
		}
	}
	bootFile := func(mods ...dhcpv4.Modifier) string {
		t.Helper()
		r := s.dhcp.Handle(t.Context(), packet(t, dhcpv4.MessageTypeDiscover, mods...).ToBytes(), dhcp.Link{Name: "eth0"})
		if r.Route == dhcp.RouteNone {
			t.Fatal("not answered")
		}
		return r.Packet.BootFileName
	}
	loaders := map[byte]string{
		0:  "undionly.kpxe",
		7:  "snponly.efi",
		9:  "snponly.efi",
		15: "snponly.efi",
		16: "snponly.efi",
		20: "undionly.kpxe",
	}
	for arch, loader := range loaders {
		name := bootFile(pxeClient(arch))
		if got := resolve(name); !strings.HasPrefix(got, loader+"\n") {
			t.Errorf("architecture %d: %q holds %.20q", arch, name, got)
		}
		// iPXE 2.0 asks for autoexec.ipxe in the directory of its own file.
		follow(resolve(strings.TrimSuffix(name, loader) + autoexecName))
	}
	follow(resolve(bootFile(pxeClient(0), generic(77, []byte("iPXE")...))))
	follow(resolve("52-54-00-20-01-01/" + autoexecName))
	waitFor(t, func() bool { return s.Stats().TFTPServed == served })
	if kinds := j.kinds(t, s); kinds != "dhcp initrd kernel loader script" {
		t.Errorf("events %q", kinds)
	}

	f.setGrant(inventory.Grant{Owner: inventory.Owner{Machine: "node1", Epoch: 8}})
	for _, url := range handedOut {
		w := get(t, h, http.MethodGet, url, "10.10.20.50")
		if strings.HasSuffix(url, ".ipxe") {
			if w.Code != http.StatusOK || urlForm.MatchString(w.Body.String()) || !strings.Contains(w.Body.String(), "exit 1") {
				t.Errorf("not armed, %s: %d %s", url, w.Code, w.Body)
			}
			continue
		}
		if w.Code != http.StatusNotFound {
			t.Errorf("not armed, %s: %d", url, w.Code)
		}
	}
	for _, name := range []string{"undionly.kpxe", "snponly.efi", "52-54-00-20-01-01/snponly.efi"} {
		if _, err := tftptest.Get(t, addr, name); err == nil {
			t.Errorf("not armed, but TFTP served %s", name)
		}
	}
	if script, err := tftptest.Get(t, addr, autoexecName); err != nil || !strings.Contains(script, "booting from disk") {
		t.Errorf("not armed, autoexec: %q, %v", script, err)
	}
}

func TestScripts(t *testing.T) {
	f := &fakeMachines{
		machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.KernelArgs = []string{"modprobe.blacklist=nouveau"} })},
	}
	s, j := newServer(t, f, nil)
	h := s.Handler()
	const url = "/ipxe/script/52:54:00:20:01:01/auto.ipxe"
	g := armed("node1")
	f.setGrant(g)
	first := get(t, h, http.MethodGet, url, "10.10.20.9").Body.String()
	if again := get(t, h, http.MethodGet, url, "10.10.20.9").Body.String(); again != first {
		t.Error("a second fetch differs")
	}
	claim := inventory.Claim(testKey, g.Owner, 1)
	token := inventory.BootToken(testKey, g.Owner, 1)
	for _, want := range []string{
		"#!ipxe\n", " ingot.server=https://10.10.20.2:7443 ", " ingot.pin=sha256:abab", " ingot.machine=node1 ", " ingot.mac=52:54:00:20:01:01 ",
		" ingot.claim=" + claim + " ", " ingot.plan=ed25519:kkk", " console=tty0 console=ttyS0,115200 panic=30 modprobe.blacklist=nouveau ", " rdinit=/init ", "vmlinuz initrd=initramfs ",
		"http://10.10.20.2/boot/52-54-00-20-01-01/" + token + "/initramfs", "exit 1 || exit 0\n",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("the script lacks %q:\n%s", want, first)
		}
	}
	if len(token) < 32 || strings.Contains(claim, token) {
		t.Error("the token of the URL")
	}
	compareGolden(t, "testdata/boot.ipxe", first)
	autoexec := get(t, h, http.MethodGet, "/ipxe/script/52:54:00:20:01:01/autoexec.ipxe", "10.10.20.9").Body.String()
	compareGolden(t, "testdata/autoexec.ipxe", autoexec)
	held := Decision{Machine: "node1", Interface: inventory.Interface{MAC: testMAC}}
	compareGolden(t, "testdata/hold.ipxe", s.scripts.holdScript(held, false))
	compareGolden(t, "testdata/hold-autoexec.ipxe", s.scripts.holdScript(held, true))
	f.setGrant(
		inventory.Grant{Owner: inventory.Owner{Machine: "node1", Run: "operator:ada", Epoch: 8}, Boot: 1, NetbootUntil: testNow.Add(time.Hour)},
	)
	if rescue := get(
		t,
		h,
		http.MethodGet,
		url,
		"10.10.20.9",
	).Body.String(); !strings.Contains(rescue, " ingot.rescue=1 ") ||
		!strings.Contains(rescue, " ingot.claim=") {
		t.Errorf("rescue:\n%s", rescue)
	}
	j.kinds(t, s)

	g.Spent = true
	f.setGrant(g)
	for method, want := range map[string]string{MethodDefault: "exit 1", MethodExit: "exit 1", Method404: "", MethodSanboot: "sanboot --no-describe --drive 0x80"} {
		f.machines[0].BootFromDisk = method
		for _, path := range []string{url, "/autoexec.ipxe", "/ipxe/binary/52-54-00-20-01-01/autoexec.ipxe", "//ipxe//script/525400200101/auto.ipxe", "/auto.ipxe", "/52:54:00:20:01:01/auto.ipxe"} {
			w := get(t, h, http.MethodGet, path, testAddr)
			if want == "" && w.Code != http.StatusNotFound || want != "" && (w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want)) {
				t.Errorf("method %q, %s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	if kinds := j.kinds(t, s); kinds != inventory.EventRebooted {
		t.Errorf("events %q", kinds)
	}
	for _, path := range []string{
		"/ipxe/script/52:54:00:99:99:99/auto.ipxe", "/ipxe/script/zz/auto.ipxe", "/ipxe/script/52:54:00:20:01:01/x.ipxe", "/boot", "/ipxe", "/x",
		"/52:54:00:99:99:99/auto.ipxe", "/zz/auto.ipxe", "/ipxe/auto.ipxe",
		"/boot/52:54:00:20:01:01/" + token + "/vmlinuz", "/boot/52:54:00:20:01:01/" + token + "/initramfs", "/ipxe/binary/52:54:00:20:01:01/snponly.efi", "/ipxe/binary/snponly.efi",
	} {
		if w := get(t, h, http.MethodGet, path, testAddr); w.Code != http.StatusNotFound || w.Body.String() != "not found\n" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, path := range []string{"/autoexec.ipxe", "/auto.ipxe"} {
		if w := get(t, h, http.MethodGet, path, "10.10.20.99"); w.Code != http.StatusNotFound {
			t.Errorf("%s for an unknown address: %d", path, w.Code)
		}
	}
	if w := get(t, h, http.MethodPost, url, testAddr); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", w.Code)
	}
}

// Boot tokens of other boots, epochs and machines are refused.
func TestBootURLsExpire(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, nil)
	g := armed("node1")
	f.setGrant(g)
	other := g.Owner
	other.Epoch++
	for _, token := range []string{inventory.BootToken(testKey, g.Owner, 2), inventory.BootToken(testKey, other, 1), inventory.Claim(testKey, g.Owner, 1), "", "x"} {
		if w := get(t, s.Handler(), http.MethodGet, "/boot/52-54-00-20-01-01/"+token+"/vmlinuz", testAddr); w.Code != http.StatusNotFound {
			t.Errorf("token %q: %d", token, w.Code)
		}
	}
}

func TestScriptRefusesInjection(t *testing.T) {
	bad := []string{
		"a b",
		"a\nshell",
		"a\r",
		";",
		"&&",
		"||",
		"#!ipxe",
		"${net0/mac}",
		`a"b`,
		"a'b",
		"",
		"ingot.claim=0",
		"ingot.server=https://evil",
		"rdinit=/bin/sh",
		"init=/bin/sh",
		"initrd=x",
		"--",
		"#x",
		strings.Repeat("x", 2000),
	}
	for _, arg := range bad {
		f := &fakeMachines{machines: []inventory.Machine{machine(func(m *inventory.Machine) { m.KernelArgs = []string{arg} })}}
		s, _ := newServer(t, f, nil)
		f.setGrant(armed("node1"))
		if w := get(
			t,
			s.Handler(),
			http.MethodGet,
			"/ipxe/script/525400200101/auto.ipxe",
			testAddr,
		); w.Code != http.StatusInternalServerError ||
			strings.Contains(w.Body.String(), "claim") {
			t.Errorf("argument %.20q: %d %s", arg, w.Code, w.Body)
		}
	}
}

// changedImages is an image server whose file was changed after it was added.
type changedImages struct{}

func (changedImages) OpenImage(context.Context, string, string) (io.ReadSeekCloser, inventory.Image, error) {
	return nil, inventory.Image{}, fmt.Errorf("image %q: /mnt/images/a.raw has changed: %w", "a.raw", inventory.ErrConflict)
}

// A file in place that has changed is refused permanently: with a 5xx or a 404 the agent would ask again, or say that it
// is gone. The path on the server is not disclosed.
func TestChangedImageIsRefused(t *testing.T) {
	w := httptest.NewRecorder()
	h := imageHandler(changedImages{}, slog.New(slog.DiscardHandler))
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/images/a.raw", nil))
	if w.Code != http.StatusConflict || strings.Contains(w.Body.String(), "/mnt") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestImages(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // 3.2 MB: more than one chunk
	file := filepath.Join(t.TempDir(), "debian.raw")
	write(t, file, string(content))
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	images := fakeImages{file, inventory.Image{Name: "debian-12.raw", SHA256: digest, Size: int64(len(content))}}
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) { c.Images = images })
	srv := httptest.NewServer(s.Handler()) // a real connection: sendfile and deadlines
	defer srv.Close()
	do := func(method, name string, header ...string) (*http.Response, []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, srv.URL+"/images/"+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		return resp, b
	}
	etag := `"` + digest + `"`
	for _, c := range []struct {
		name   string
		header []string
		status int
		body   []byte
	}{
		{"whole", nil, 200, content},
		{"range", []string{"Range", "bytes=1048570-1048600"}, 206, content[1048570:1048601]},
		{"rest", []string{"Range", "bytes=3000000-", "If-Range", etag}, 206, content[3000000:]},
		{"replaced since", []string{"Range", "bytes=3000000-", "If-Range", `"0000"`}, 200, content},
		{"many ranges", []string{"Range", "bytes=0-0,2-2,4-4"}, 200, content},
		{"beyond the end", []string{"Range", "bytes=9999999-"}, 416, nil},
		{"unchanged", []string{"If-None-Match", etag}, 304, []byte{}},
	} {
		resp, b := do(http.MethodGet, "debian-12.raw", c.header...)
		if resp.StatusCode != c.status || c.body != nil && !bytes.Equal(b, c.body) {
			t.Errorf("%s: %d, %d bytes", c.name, resp.StatusCode, len(b))
		}
		if resp.StatusCode < 300 && (resp.Header.Get("ETag") != etag || resp.Header.Get("X-Content-Type-Options") != "nosniff") {
			t.Errorf("%s: header %v", c.name, resp.Header)
		}
	}
	if resp, b := do(http.MethodHead, "debian-12.raw"); resp.StatusCode != 200 || resp.ContentLength != int64(len(content)) || len(b) != 0 {
		t.Errorf("HEAD: %d, length %d", resp.StatusCode, resp.ContentLength)
	}
	for name, status := range map[string]int{"ubuntu.raw": 404, "..%2f..%2fetc%2fhostname": 404, ".hidden": 404} {
		if resp, _ := do(http.MethodGet, name); resp.StatusCode != status {
			t.Errorf("%s: %d", name, resp.StatusCode)
		}
	}
	if resp, _ := do(http.MethodPut, "debian-12.raw"); resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d", resp.StatusCode)
	}
}

// A symbolic link out of the loader directory is not followed.
func TestLoadersAreConfined(t *testing.T) {
	f := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(t, f, nil)
	f.setGrant(armed("node1"))
	for _, name := range []string{"../vmlinuz", "..", ".", "", "/etc/passwd", "a/b", "snponly.efi\x00", strings.Repeat("a", 200)} {
		if s.loaders.whyUnserved(name) == "" {
			t.Errorf("%q was opened", name)
		}
	}
	if s.loaders.whyUnserved("snponly.efi") != "" {
		t.Error("a loader was not opened")
	}
	if s.loaders.whyUnserved("link.efi") == "" {
		t.Error("there is no link yet")
	}
	symlink(t, "/etc/hostname", filepath.Join(s.cfg.LoaderDir, "link.efi"))
	if s.loaders.whyUnserved("link.efi") == "" {
		t.Error("a link out of the directory was followed")
	}
}

func TestRunNeedsOneHTTPPort(t *testing.T) {
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) {
		c.Address, c.HTTPAddr = netip.MustParseAddr("127.0.0.1"), []string{taken.Addr().String()}
	})
	if _, err := s.web.listen(
		t.Context(),
	); err == nil || !strings.Contains(err.Error(), taken.Addr().String()) ||
		!strings.Contains(err.Error(), "another program uses the port") {
		t.Errorf("all ports taken: %v", err)
	}
	s, _ = newServer(t, &fakeMachines{}, func(c *Config) {
		c.Address, c.HTTPAddr = netip.MustParseAddr("127.0.0.1"), []string{taken.Addr().String(), ":0"}
	})
	ls, err := s.web.listen(t.Context())
	if err != nil || len(ls) != 1 {
		t.Fatalf("one port free: %v", err)
	}
	if want := "http://" + ls[0].Addr().String(); s.Base() != want {
		t.Errorf("URLs begin with %s, want %s", s.Base(), want)
	}
	closeAll(ls)
}

func TestRunIsOffWithoutInterfaces(t *testing.T) {
	s, err := New(Config{}, &fakeMachines{}, &fakeJournal{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestServeHTTPEndsWithItsContext(t *testing.T) {
	s, _ := newServer(t, &fakeMachines{}, func(c *Config) {
		c.Address, c.HTTPAddr = netip.MustParseAddr("127.0.0.1"), []string{":0"}
		c.Fallback = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "metadata") })
	})
	ls, err := s.web.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.web.serve(ctx, ls[0]) }()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Base()+"/2009-04-04/meta-data/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || string(b) != "metadata" {
		t.Errorf("fallback: %q, %v", b, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func FuzzHTTP(f *testing.F) {
	m := &fakeMachines{machines: []inventory.Machine{machine(nil)}}
	s, _ := newServer(f, m, nil)
	h := s.Handler()
	for _, p := range []string{"/ipxe/script/52:54:00:20:01:01/auto.ipxe", "/ipxe/binary/525400200101/snponly.efi", "/autoexec.ipxe", "/boot/52-54-00-20-01-01/x/vmlinuz", "/images/x", "//..//ipxe\\binary/../../etc/passwd", "/%2e%2e/"} {
		f.Add(p)
	}
	requests, err := pcap.Requests(captures)
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range requests {
		f.Add(r.URL.Path)
	}
	f.Fuzz(func(t *testing.T, p string) {
		w := get(t, h, http.MethodGet, "/"+p, testAddr)
		// The machine is not armed: only its disk script is served.
		if w.Code == http.StatusOK && w.Body.String() != "#!ipxe\necho Ingot: not armed, booting from disk\n"+exitLines {
			t.Fatalf("%q: %s", p, w.Body)
		}
		if w.Code >= 300 && w.Code < 400 || w.Code >= 500 {
			t.Fatalf("%q: %d", p, w.Code)
		}
	})
}
