package api

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/httpapi"
	"github.com/ingotmetal/ingot/inventory"
)

// Ten thousand machines are one request, and one transaction.
func TestPushOfTenThousandMachines(t *testing.T) {
	s := newSite(t)
	ms := make([]inventory.Machine, 10_000)
	for n := range ms {
		ms[n] = machine(fmt.Sprintf("node-%d", n), fmt.Sprintf("02:00:00:00:%02x:%02x", n>>8, n&255))
		ms[n].Labels = map[string]string{"rack": fmt.Sprint(n / 40), "row": "between-the-second-and-the-third", "site": "example"}
	}
	rec := s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": ms})
	require.Equal(t, http.StatusCreated, rec.Code, rec.Body.String()[:min(rec.Body.Len(), 200)])
	stored, err := s.Store.Machines.Machines(t.Context())
	require.NoError(t, err)
	require.Len(t, stored, len(ms))

	// All problems are returned at once.
	for n := range ms {
		ms[n].Name, ms[n].Interfaces[0].MAC = ms[n].Name+"-new", fmt.Sprintf("02:00:00:01:%02x:%02x", n>>8, n&255)
	}
	ms[7].Interfaces[0].MAC, ms[9_999].Image = "zz", "a/b"
	e := decode[answer](t, s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": ms}), http.StatusBadRequest)
	require.Len(t, e.Problems, 2)
}

// The error for a body that is too large names the limit.
// A value that cannot be read is a problem of its field, beside all others that cannot.
func TestPushNamesEachFieldThatCannotBeRead(t *testing.T) {
	s := newSite(t)
	wrong := map[string]any{
		"interfaces": []any{map[string]any{"mac": "02:00:00:00:00:01", "address": "10.0.0.300", "vlan": "x"}},
		"image":      7,
		"colour":     "red",
	}
	for prefix, body := range map[string]any{
		"":      map[string]any{"machines": []any{wrong}},
		"m-1: ": map[string]any{"machines": []any{machine("m-2", "02:00:00:00:00:02"), map[string]any{"name": "m-1", "interfaces": wrong["interfaces"], "colour": "red"}}},
	} {
		e := decode[answer](t, s.do(http.MethodPost, "/v1/machines", body), http.StatusBadRequest)
		var fields []string
		for _, p := range e.Problems {
			fields = append(fields, p.Field)
		}
		require.Subset(t, fields, []string{prefix + "interfaces[0].address", prefix + "interfaces[0].vlan", prefix + "colour"})
	}
	e := decode[answer](
		t,
		s.do(http.MethodPost, "/v1/seen/02:00:00:00:00:03/accept", map[string]any{"name": "m-3", "address": "x", "colour": "red"}),
		http.StatusBadRequest,
	)
	require.Len(t, e.Problems, 2)
}

func TestTooLargeABodyNamesItsLimit(t *testing.T) {
	s := newSite(t)
	e := decode[answer](
		t,
		s.do(http.MethodPost, "/v1/templates", `{"name":"x","source":"`+strings.Repeat("x", int(httpapi.JSON.Limit))+`"}`),
		http.StatusRequestEntityTooLarge,
	)
	require.Contains(t, e.Error, "larger than 1 MiB")
}

// An address that another machine has is a conflict.
func TestAddressOfAnotherMachineIsAConflict(t *testing.T) {
	s := newSite(t)
	in := func(name, mac string) map[string]any {
		return map[string]any{
			"machines": []any{
				map[string]any{"name": name, "interfaces": []any{map[string]any{"mac": mac, "address": "192.0.2.9", "netmask": "255.255.255.0"}}},
			},
		}
	}
	require.Equal(t, http.StatusCreated, s.do(http.MethodPost, "/v1/machines", in("a", "02:00:00:00:00:01")).Code)
	e := decode[answer](t, s.do(http.MethodPost, "/v1/machines", in("b", "02:00:00:00:00:02")), http.StatusConflict)
	require.Equal(t, httpapi.CodeConflict, e.Code)
	require.Equal(t, "interfaces[0].address", e.Problems[0].Field)
}

// A router comes with the machines that use it, and is told of.
func TestPushWarnsOfAGateway(t *testing.T) {
	s := newSite(t)
	nic := func(mac, address, gateway string) []any {
		return []any{map[string]any{"mac": mac, "address": address, "netmask": "255.255.255.0", "gateway": gateway}}
	}
	router := map[string]any{"name": "router", "interfaces": nic("02:00:00:00:00:01", "192.0.2.254", "")}
	node := map[string]any{"name": "node", "interfaces": nic("02:00:00:00:00:02", "192.0.2.5", "192.0.2.254")}
	a := decode[struct{ Warnings []string }](
		t,
		s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{router, node}}),
		http.StatusCreated,
	)
	require.Equal(t, []string{"router: 192.0.2.254 is the gateway of node: give it another address, unless it is their router"}, a.Warnings)
}

// The server's own address, its gateway, and a subnet of no listed relay are refused; a
// subnet that a relay might serve causes a warning.
func TestPushChecksTheNetwork(t *testing.T) {
	s := newSite(t)
	n := inventory.Network{
		Own: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Gateways: []netip.Addr{netip.MustParseAddr("192.0.2.254")},
		Subnets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, On: true,
	}
	s.restart(func(c *siteConfig) { c.Network = func() inventory.Network { return n } })
	push := func(name, mac, address string, replace bool) *httptest.ResponseRecorder {
		return s.do(http.MethodPost, "/v1/machines", map[string]any{"replace": replace, "machines": []any{
			map[string]any{"name": name, "interfaces": []any{map[string]any{"mac": mac, "address": address, "netmask": "255.255.255.0"}}},
		}})
	}
	e := decode[answer](t, push("a", "02:00:00:00:00:01", "192.0.2.1", false), http.StatusBadRequest)
	require.Equal(t, "interfaces[0].address", e.Problems[0].Field)
	require.Contains(t, e.Error, "192.0.2.1 is this server's own address")
	e = decode[answer](t, push("a", "02:00:00:00:00:01", "192.0.2.254", false), http.StatusBadRequest)
	require.Contains(t, e.Error, "192.0.2.254 is this server's gateway")
	e = decode[answer](
		t,
		s.do(
			http.MethodPost,
			"/v1/seen/02:00:00:00:00:01/accept",
			map[string]any{"name": "a", "address": "192.0.2.1", "netmask": "255.255.255.0"},
		),
		http.StatusBadRequest,
	)
	require.Contains(t, e.Error, "own address")

	type pushed struct {
		Warnings []string `json:"warnings"`
	}
	require.Empty(t, decode[pushed](t, push("a", "02:00:00:00:00:01", "192.0.2.7", false), http.StatusCreated).Warnings)
	far := decode[pushed](t, push("b", "02:00:00:00:00:02", "198.51.100.7", false), http.StatusCreated)
	require.Len(t, far.Warnings, 1)
	require.Contains(t, far.Warnings[0], "b: no interface of this server is in 198.51.100.0/24")

	n.Relays = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	e = decode[answer](t, push("c", "02:00:00:00:00:03", "198.51.100.8", false), http.StatusBadRequest)
	require.Contains(t, e.Error, "nor is any relay of netboot.relays")
	require.Equal(t, http.StatusCreated, push("c", "02:00:00:00:00:03", "203.0.113.8", false).Code)

	// The server has moved to a machine that it had installed.
	n.Own = append(n.Own, netip.MustParseAddr("192.0.2.7"))
	require.Equal(t, http.StatusCreated, push("a", "02:00:00:00:00:01", "192.0.2.7", true).Code)
}

// TestPushWarnsOfAPhoneHomeThatDoesNotCome: also where the user data is stored already, and where nothing is stored.
func TestPushWarnsOfAPhoneHomeThatDoesNotCome(t *testing.T) {
	s := newSite(t)
	send := func(route string, status int, fields, body map[string]any) []string {
		t.Helper()
		m := map[string]any{"name": "m1", "interfaces": []any{map[string]any{"mac": "02:00:00:00:00:01"}}}
		maps.Copy(m, fields)
		body["machines"] = []any{m}
		return decode[struct{ Warnings []string }](t, s.do(http.MethodPost, route, body), status).Warnings
	}
	push := func(fields map[string]any) []string {
		return send("/v1/machines", http.StatusCreated, fields, map[string]any{"replace": true})
	}
	check := func(fields map[string]any) []string {
		return send("/v1/apply", http.StatusOK, fields, map[string]any{"replace": []string{"machine"}, "dryRun": true})
	}
	talos := map[string]any{"userData": "version: v1alpha1\n", "userDataByAddress": true}
	for _, got := range [][]string{
		check(talos),
		push(talos),
		push(map[string]any{"hasUserData": true, "userDataByAddress": true}),
		check(map[string]any{"hasUserData": true, "userDataByAddress": true, "image": "debian-12"}),
	} {
		require.Len(t, got, 1)
		require.Contains(t, got[0], "m1: cloud-init 22.4.2 does not recognise userData")
		require.Contains(t, got[0], "waits until its timeout")
		require.NotContains(t, got[0], "v1alpha1", "user data is secret")
	}
	require.Empty(t, push(map[string]any{"hasUserData": true}), "NoCloud has the phone-home apart")
	require.Empty(t, push(map[string]any{"userData": "\n #Cloud-Config\n", "userDataByAddress": true}))
	refused := s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{map[string]any{
		"name": "m2", "interfaces": []any{map[string]any{"mac": "02:00:00:00:00:02"}}, "userData": "\ufeff#cloud-config\n",
	}}})
	e := decode[answer](t, refused, http.StatusBadRequest)
	require.Equal(t, "userData", e.Problems[0].Field)
	require.Contains(t, e.Error, "byte order mark")
}

// TestPushKeepsBytes: binary user data is stored byte for byte; text that JSON would spoil is refused.
func TestPushKeepsBytes(t *testing.T) {
	s := newSite(t)
	push := func(name string, fields map[string]any) *httptest.ResponseRecorder {
		m := map[string]any{"name": name, "interfaces": []any{map[string]any{"mac": "02:00:00:00:00:0" + name[1:]}}}
		maps.Copy(m, fields)
		return s.do(http.MethodPost, "/v1/machines", map[string]any{"machines": []any{m}})
	}
	bytes := []byte{0x1f, 0x8b, 0, 0xff}
	rec := push("m1", map[string]any{"userData": map[string]any{"base64": bytes}, "vendorData": map[string]any{"base64": []byte("text")}})
	require.Equal(t, http.StatusCreated, rec.Code, rec.Body.String())
	require.NotContains(t, rec.Body.String(), "H4sA/w", "it is secret in each form")
	user, vendor, err := s.Store.Machines.UserData(t.Context(), "m1")
	require.NoError(t, err)
	require.Equal(t, string(bytes), user.Reveal())
	require.Equal(t, "text", vendor.Reveal())

	for field, value := range map[string]any{
		"userData":   map[string]any{"base64": "secret?"},
		"vendorData": map[string]any{"text": "secret"},
		"bmc":        map[string]any{"driver": "ipmi", "host": "10.0.9.1", "user": "a", "password": map[string]any{"base64": bytes}},
	} {
		e := decode[answer](t, push("m2", map[string]any{field: value}), http.StatusBadRequest)
		require.NotContains(t, e.Error, "secret", field)
	}
	raw := `{"machines":[{"name":"m3","interfaces":[{"mac":"02:00:00:00:00:03"}],"userData":"` + "\xff" + `"}]}`
	e := decode[answer](t, s.do(http.MethodPost, "/v1/machines", raw), http.StatusBadRequest)
	require.Contains(t, e.Error, "must be UTF-8")
}
