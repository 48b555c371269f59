package main

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVyOSConfiguration reads the example's config.boot, changes it as the API does, and reads again what it writes.
func TestVyOSConfiguration(t *testing.T) {
	root, footer, err := parseVyOS(string(read(t, "../../deploy/genesis/config.boot")))
	if err != nil {
		t.Fatal(err)
	}
	if got := root.value("", "system", "host-name"); got != "vp6630" {
		t.Errorf("host-name %q", got)
	}
	if got := root.value("", "interfaces", "ethernet", "eth1", "vif", "20", "address"); got != "10.10.20.1/24" {
		t.Errorf("address of eth1.20: %q", got)
	}
	if !strings.Contains(footer, "vyos-config-version:") {
		t.Errorf("footer %q", footer)
	}
	relay := []string{"service", "dhcp-relay", "server"}
	for range 2 { // the second changes nothing
		if err := root.set(append(slices.Clone(relay), "10.10.20.11")); err != nil {
			t.Fatal(err)
		}
	}
	for _, wrong := range []string{"service dhcp-relay nonsense 1", "service dhcp-relay server a b", "system host-name", "nonsense"} {
		if err := root.clone().set(strings.Fields(wrong)); err == nil {
			t.Errorf("set %s: no error", wrong)
		}
	}
	var b strings.Builder
	root.write(&b, "")
	again, _, err := parseVyOS(b.String())
	if err != nil {
		t.Fatal(err)
	}
	var c strings.Builder
	again.write(&c, "")
	if b.String() != c.String() {
		t.Errorf("written and read again:\n%s\nbefore:\n%s", c.String(), b.String())
	}
	if got := again.all(relay...); !slices.Equal(got, []string{"192.168.1.10", "10.10.20.11"}) {
		t.Errorf("servers %q", got)
	}
	again.remove(append(slices.Clone(relay), "192.168.1.10"))
	again.remove([]string{"service", "nothing", "there"})
	if got := again.at("service", "dhcp-relay").json().(object)["server"]; got != "10.10.20.11" {
		t.Errorf("one server left: %v", got)
	}
	again.remove(relay)
	if err := again.verify(); err == nil {
		t.Error("a relay without servers is committed")
	}
	for _, broken := range []string{"a {\n", "}\n", "a b c\n", "a \"b\n"} {
		if _, _, err := parseVyOS(broken); err == nil {
			t.Errorf("%q is read", broken)
		}
	}
}

// TestDocuments: the guests read the documents of the example lab and refuse unknown keys.
func TestDocuments(t *testing.T) {
	text := read(t, "../../deploy/genesis/talos.yaml")
	c, err := parseTalos(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []keyPair{c.Machine.CA, c.Cluster.CA} {
		if _, err := newAuthority(p); err != nil {
			t.Error(err)
		}
	}
	if _, err := parseTalos(
		bytes.Replace(text, []byte("\nmachine:"), []byte("\nnonsense: 1\nmachine:"), 1),
	); err == nil ||
		!strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown key of Talos: %v", err)
	}
	for _, name := range []string{"harvester-create.yaml", "harvester-join.yaml"} {
		text := read(t, filepath.Join("../../deploy/genesis", name))
		if _, err := parseHarvester(text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := parseHarvester(append(text, "nonsense: 1\n"...)); err == nil {
			t.Errorf("%s with an unknown key is read", name)
		}
	}
	if _, err := parseHarvester(
		[]byte("scheme_version: 1\ninstall: {mode: join}\n"),
	); err == nil ||
		!strings.Contains(err.Error(), "server_url") {
		t.Errorf("a node that joins nothing: %v", err)
	}
}

// TestDisk partitions a disk and reads it back as an installed system does.
func TestDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 64*mib); err != nil {
		t.Fatal(err)
	}
	d, err := parseDisk("/dev/vda=" + path + ",serial=S1")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{product: "talos", out: io.Discard, disks: []*disk{d}}
	c := &talosConfig{}
	c.Machine.Install.Image = "registry/installer:v1"
	c.Machine.Install.DiskSelector = map[string]any{"serial": "S*", "size": ">= 60MB"}
	if err := h.talosInstall(t.Context(), c, []byte("the document")); err != nil {
		t.Fatal(err)
	}
	on, p := h.installed("STATE")
	if on != d {
		t.Fatal("STATE is not there")
	}
	if b, err := d.getFile(p, "config.yaml"); err != nil || string(b) != "the document" {
		t.Errorf("config.yaml: %q, %v", b, err)
	}
	if _, err := h.disk("/dev/disk/by-id/virtio-S1"); err != nil {
		t.Error(err)
	}
	if _, err := h.disk("/dev/disk/by-id/virtio-XS1"); err == nil {
		t.Error("a disk by the end of a serial number")
	}
	c.Machine.Install.DiskSelector = map[string]any{"serial": "other"}
	if _, err := h.talosDisk(c); err == nil {
		t.Error("a disk that nothing selects")
	}
	if err := d.clear(p); err != nil {
		t.Fatal(err)
	}
	if _, err := d.getFile(p, "config.yaml"); err == nil {
		t.Error("a wiped STATE is read")
	}
}

// TestStore: the newer value counts; the older one if the newer is incomplete.
func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 2*slotSize), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &disk{path: path, size: 2 * slotSize}
	s := &store{d: d, p: part{size: 2 * slotSize}}
	for _, v := range []string{"one", "two", "three"} {
		if err := s.save(v); err != nil {
			t.Fatal(err)
		}
	}
	var got string
	(&store{d: d, p: s.p}).load(&got)
	if got != "three" {
		t.Errorf("loaded %q", got)
	}
	b := read(t, path)
	b[slotSize+60] ^= 1 // of number 3
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	(&store{d: d, p: s.p}).load(&got)
	if got != "two" {
		t.Errorf("loaded %q when the last was damaged", got)
	}
}

// TestCurl runs curl with the arguments of boot scripts.
func TestCurl(t *testing.T) {
	calls := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		if calls == 1 {
			http.Error(w, "no", http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, r.Method+" "+r.Header.Get("X-A")+" "+r.FormValue("a"))
	}))
	defer s.Close()
	var out, errs strings.Builder
	if code := curl([]string{"-fsS", "--retry-delay", "0", "--max-time", "10", "-X", "POST", s.URL}, &out,
		&errs); code != 22 ||
		errs.Len() == 0 {
		t.Errorf("an error of the server: %d %q", code, errs.String())
	}
	if code := curl([]string{"-s", "-HX-A: b", "-d", "a=c", s.URL}, &out, &errs); code != 0 || out.String() != "POST b c" {
		t.Errorf("%d %q %q", code, out.String(), errs.String())
	}
	if code := curl([]string{"--nonsense"}, &out, &errs); code != 2 {
		t.Errorf("an unknown option: %d", code)
	}
}
