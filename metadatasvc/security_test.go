package metadatasvc

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/documents/cloudinit"
	"github.com/ingotmetal/ingot/inventory"
)

// counting records the look-ups.
type counting struct {
	*fakeMachines
	asked []string
}

func (c *counting) MachineByAddress(ctx context.Context, a netip.Addr) (inventory.Machine, inventory.Grant, error) {
	c.asked = append(c.asked, "address")
	return c.fakeMachines.MachineByAddress(ctx, a)
}

func (c *counting) Machine(ctx context.Context, name string) (inventory.Machine, error) {
	c.asked = append(c.asked, "machine")
	return c.fakeMachines.Machine(ctx, name)
}

func (c *counting) Grant(ctx context.Context, name string) (inventory.Grant, error) {
	c.asked = append(c.asked, "grant")
	g, err := c.fakeMachines.Grant(ctx, name)
	if err == nil && g.Machine == "" {
		err = fmt.Errorf("machine %q: %w", name, inventory.ErrNotFound) // like the real store
	}
	return g, err
}

func (c *counting) UserData(ctx context.Context, name string) (user, vendor inventory.Secret, err error) {
	c.asked = append(c.asked, "user data")
	return c.fakeMachines.UserData(ctx, name)
}

// TestS3UnknownClosedAndWrongAreTheSame: a client without a capability cannot find out
// whether a machine exists, whether a run owns it, or whether its window is open. The
// status, headers, body and the look-ups in the inventory are the same.
func TestS3UnknownClosedAndWrongAreTheSame(t *testing.T) {
	s, f, _ := newServer(t)
	c := &counting{fakeMachines: f}
	s.machines = c
	open := f.grants["node1"]
	closed := open
	closed.Machine, closed.SecretsUntil = "node2", testNow
	f.grants["node2"] = closed
	f.machines["node3"] = inventory.Machine{Name: "node3"} // never owned
	type seen struct {
		status       int
		header, body string
		asked        string
	}
	look := func(method, path string) seen {
		t.Helper()
		c.asked = nil
		w := do(t, s, method, path, "192.0.2.1", "hostname=x", "Content-Type", "application/x-www-form-urlencoded")
		return seen{status: w.Code, header: fmt.Sprint(w.Header()), body: w.Body.String(), asked: strings.Join(c.asked, ", ")}
	}
	wrong := strings.Repeat("0", 64)
	for _, form := range []struct{ method, path string }{
		{http.MethodGet, "/c/%s/%s/nocloud/user-data"},
		{http.MethodGet, "/c/%s/%s/latest/meta-data/hostname"},
		{http.MethodGet, "/c/%s/%s/"},
		{http.MethodHead, "/c/%s/%s/nocloud/user-data"},
		{http.MethodPost, "/phone-home/%s/%s"},
	} {
		want := look(form.method, fmt.Sprintf(form.path, "nobody", wrong))
		if want.status != http.StatusNotFound || want.asked == "" {
			t.Fatalf("%+v", want)
		}
		for name, path := range map[string]string{
			"open, wrong":      fmt.Sprintf(form.path, "node1", wrong),
			"closed, wrong":    fmt.Sprintf(form.path, "node2", wrong),
			"never owned":      fmt.Sprintf(form.path, "node3", wrong),
			"another's":        fmt.Sprintf(form.path, "node2", inventory.Capability(testKey, open.Owner)),
			"unknown, right":   fmt.Sprintf(form.path, "nobody", inventory.Capability(testKey, open.Owner)),
			"shorter":          fmt.Sprintf(form.path, "node1", "0"),
			"of another shape": fmt.Sprintf(form.path, "node1", "%2e%2e"),
		} {
			if got := look(form.method, path); got != want {
				t.Errorf("%s %s, %s:\n got %+v\nwant %+v", form.method, form.path, name, got, want)
			}
		}
	}
	// With a closed window, the secrets are not even read.
	if got := look(
		http.MethodGet,
		fmt.Sprintf("/c/node2/%s/nocloud/user-data", inventory.Capability(testKey, closed.Owner)),
	); strings.Contains(got.asked, "user data") ||
		got.status != http.StatusNotFound {
		t.Errorf("%+v", got)
	}
}

// TestS4AddressesOpenNoSecret (S5): secrets are served only for a run's capability, not for
// an address or a header with an address. The header is trusted only from listed
// proxies.
func TestS4AddressesOpenNoSecret(t *testing.T) {
	s, f, _ := newServer(t)
	// The user data is encoded in the document of EC2, so it is compared.
	encoded := get(t, s, seedPath(f, "node1")+"latest/user-data", "192.0.2.1")
	if encoded.Code != http.StatusOK {
		t.Fatalf("the window of node1 is closed: %d", encoded.Code)
	}
	paths := []string{"/latest/user-data", "/2009-04-04/user-data", "/nocloud/user-data", "/latest/", "/metadata", "/"}
	header := []string{"X-Forwarded-For", "Forwarded", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "X-Forwarded-Host"}
	for _, path := range paths {
		for _, source := range []string{node1, node2, "192.0.2.1", "10.10.20.3"} {
			own := get(t, s, path, source)
			if strings.Contains(own.Body.String(), canary) || own.Body.String() == encoded.Body.String() {
				t.Fatalf("%s gives %s its secrets for its address", path, source)
			}
			for _, h := range header {
				if source == "10.10.20.3" && h == "X-Forwarded-For" {
					continue // the listed proxy: TestS4Callers
				}
				for _, value := range []string{node1, "127.0.0.1", node1 + ", 10.10.20.3", "for=" + node1} {
					w := get(t, s, path, source, h, value)
					if w.Code != own.Code || w.Body.String() != own.Body.String() {
						t.Errorf("%s from %s with %s: %s is answered otherwise: %d %s", path, source, h, value, w.Code, w.Body)
					}
				}
			}
			// Through the proxy, the address does not open secrets either.
			if w := get(t, s, path, "10.10.20.3", "X-Forwarded-For", node1); strings.Contains(w.Body.String(), canary) {
				t.Errorf("%s through the proxy", path)
			}
		}
	}
	// Several header lines form one list, whose right-most address counts.
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://10.10.20.2/latest/meta-data/hostname", nil)
	r.RemoteAddr = "10.10.20.3:40000"
	r.Header["X-Forwarded-For"] = []string{node1, node2}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Body.String() != "node2" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	// Without a configured proxy, the header is never trusted.
	s.cfg.Proxies = nil
	if w := get(t, s, "/latest/meta-data/hostname", "10.10.20.3", "X-Forwarded-For", node1); w.Code != http.StatusNotFound {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestS48FetchesWriteBoundedRows: repeated fetches of metadata, by address, by
// capability and invalid ones, write one row per run and minute.
func TestS48FetchesWriteBoundedRows(t *testing.T) {
	s, f, j := newServer(t)
	path := cloudinit.URL("", testKey, f.grants["node1"].Owner) + "user-data"
	for n := range 2000 {
		get(t, s, "/latest/meta-data/", node1)
		get(t, s, path, "192.0.2.1")
		get(t, s, fmt.Sprintf("/c/node1/%064d/nocloud/user-data", n), node1)
		get(t, s, fmt.Sprintf("/c/nobody%d/x/", n), "192.0.2.1")
		do(
			t,
			s,
			http.MethodPost,
			fmt.Sprintf("/phone-home/node1/%064d", n),
			node1,
			"hostname=x",
			"Content-Type",
			"application/x-www-form-urlencoded",
		)
	}
	s.fetches.flush(t.Context())
	if len(j.events) != 1 {
		t.Errorf("%d events", len(j.events))
	}
	s.now = func() time.Time { return testNow.Add(2 * recordEvery) }
	s.fetches.now = s.now
	get(t, s, "/latest/meta-data/", node1)
	s.fetches.flush(t.Context())
	if len(j.events) != 2 {
		t.Errorf("%d events", len(j.events))
	}
}

// TestS4UserDataByAddress: the opt-in gives the user data to the machine's address, of one machine, in
// the EC2 tree alone, and while the secrets window is open.
func TestS4UserDataByAddress(t *testing.T) {
	s, f, _ := newServer(t)
	m, g := f.machines["node1"], f.grants["node1"]
	m.UserDataByAddress = true
	m.Labels = map[string]string{"rack": "a1", "example.com/role": "worker"}
	f.machines["node1"] = m
	g.SecretsUntil = testNow.Add(time.Minute)
	f.grants["node1"] = g
	want := get(t, s, seedPath(f, "node1")+"latest/user-data", "192.0.2.1").Body.String()
	asks := func(path, source string) (int, bool) { // the user data is encoded in the document of EC2
		w := get(t, s, path, source)
		return w.Code, w.Body.Len() > 0 && (w.Body.String() == want || strings.Contains(w.Body.String(), canary))
	}
	code, secret := asks("/latest/user-data", node1)
	if code != http.StatusOK || !secret {
		t.Errorf("the open window: %d", code)
	}
	for _, path := range []string{"/latest/", "/metadata", "/nocloud/user-data", "/nocloud/vendor-data", "/documents/x", "/latest/meta-data/"} {
		if _, secret := asks(path, node1); secret {
			t.Errorf("%s gives secrets for an address", path)
		}
	}
	for _, source := range []string{node2, "192.0.2.1"} {
		if _, secret := asks("/latest/user-data", source); secret {
			t.Errorf("another address gets the secrets of node1")
		}
	}
	for label, value := range m.Labels {
		if w := get(t, s, "/latest/meta-data/tags/instance/"+label, node1); w.Body.String() != value {
			t.Errorf("label %s: %d %s", label, w.Code, w.Body)
		}
	}

	f.userErr = inventory.ErrSealed
	if w := get(t, s, "/latest/meta-data/hostname", node1); w.Code != http.StatusOK || w.Body.String() != "node1" {
		t.Errorf("with unreadable user data: %d %s", w.Code, w.Body)
	}
	if code, secret := asks("/latest/user-data", node1); code != http.StatusNotFound || secret {
		t.Errorf("unreadable user data: %d", code)
	}
	f.userErr = nil
	for name, change := range map[string]func(*inventory.Grant){
		"closed":                         func(g *inventory.Grant) { g.SecretsUntil = time.Time{} },
		"expired":                        func(g *inventory.Grant) { g.SecretsUntil = testNow.Add(-time.Second) },
		"no run":                         func(g *inventory.Grant) { *g = inventory.Grant{} },
		"a container of the run may ask": func(g *inventory.Grant) { g.AddressClosed = true },
	} {
		x := g
		change(&x)
		f.grants["node1"] = x
		if code, secret := asks("/latest/user-data", node1); code != http.StatusNotFound || secret {
			t.Errorf("%s: %d", name, code)
		}
	}
}
