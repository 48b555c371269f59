package bmc

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// TestS27RedirectsStayAtTheBMC: whichever request of an operation is redirected, nothing is sent to another host,
// scheme or port, and the error names it.
func TestS27RedirectsStayAtTheBMC(t *testing.T) {
	statuses := []int{301, 302, 307, 308}
	for location, named := range map[string]string{
		"https://evil.example/redfish/v1/": "https://evil.example", "//evil.example:443/x/": "https://evil.example:443",
		"http://127.0.0.1/redfish/v1/": "http://127.0.0.1", "https://127.0.0.1:1/x": "https://127.0.0.1:1",
		"https://admin@127.0.0.1/x": "https://127.0.0.1",
	} {
		refused := 0
		for at := int64(0); ; at++ {
			b := newRedfishBench(t, vlab.RedfishHPE)
			h := &hostileAnswer{service: b.service, at: at, status: statuses[at%4], location: location}
			own := strings.TrimPrefix(b.server.URL, "https://")
			b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.Host != own || q.TLS == nil {
					t.Errorf("%s %s was sent to %s", q.Method, q.URL, q.Host)
				}
				h.ServeHTTP(w, q)
			})
			err := b.Set(t.Context(), b.bmc, password(), "on", nil)
			if err != nil {
				require.ErrorIs(t, err, inventory.ErrUnsupported)
				require.ErrorContains(t, err, "another host, "+named)
				refused++
			}
			if h.requests.Load() <= at { // each answer was replaced once
				break
			}
		}
		require.Greater(t, refused, 5, location)
	}
}

// TestS27LinksStayAtTheBMC: a link that is used and leads to another host is refused by the host's name. One that is
// not used stops nothing.
func TestS27LinksStayAtTheBMC(t *testing.T) {
	const system, evil = "/redfish/v1/Systems/1", "https://evil.example/x"
	link := map[string]any{"@odata.id": evil}
	for path, merge := range map[string]map[string]any{
		"/redfish/v1": {"Systems": link}, "/redfish/v1/Systems": {"Members@odata.nextLink": evil},
		system: {"Actions": map[string]any{"#ComputerSystem.Reset": map[string]any{"target": evil}}},
	} {
		b := newRedfishBench(t, vlab.RedfishHPE)
		b.service.Pretend(vlab.RedfishFault{Method: http.MethodGet, Path: path, Merge: merge})
		err := b.Set(t.Context(), b.bmc, password(), "on", nil)
		require.ErrorIs(t, err, inventory.ErrUnsupported, path)
		require.ErrorContains(t, err, "another host, https://evil.example", path)
	}
	b := newRedfishBench(t, vlab.RedfishHPE)
	b.service.Pretend(vlab.RedfishFault{Path: system, Merge: map[string]any{"Bios": link, "SecureBoot": link}})
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
	r, err := b.Check(t.Context(), b.bmc, password())
	require.NoError(t, err)
	require.Empty(t, r.SecureBoot)
}

// TestRedfishRedirects: reads follow every redirect within the service, and writes the ones that keep the method.
func TestRedfishRedirects(t *testing.T) {
	for _, x := range []struct {
		method, to string
		status     int
		followed   bool
	}{
		{http.MethodGet, "/redfish/v1/Elsewhere", 301, true},
		{http.MethodGet, "/redfish/v1/Elsewhere", 302, true},
		{http.MethodPost, "/redfish/v1/Elsewhere", 307, true},
		{http.MethodPost, "/redfish/v1/Elsewhere", 308, true},
		{http.MethodPost, "/redfish/v1/Elsewhere", 301, false},
		{http.MethodPost, "/", 301, true},
		{http.MethodGet, "", 301, false},
	} {
		b := newRedfishBench(t, vlab.RedfishHPE)
		moved := ""
		b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			system := strings.HasPrefix(q.URL.Path, "/redfish/v1/Systems/1")
			switch {
			case q.URL.Path == "/redfish/v1/Elsewhere":
				q.URL.Path = moved
			case x.to == "" && system:
				w.Header().Set("Location", q.URL.Path) // for ever
				w.WriteHeader(x.status)
				return
			case system && q.Method == x.method && !strings.HasSuffix(q.URL.Path, "/"):
				moved = q.URL.Path
				if w.Header().Set("Location", x.to); x.to == "/" {
					w.Header().Set("Location", q.URL.Path+"/")
				}
				w.WriteHeader(x.status)
				return
			}
			b.service.ServeHTTP(w, q)
		})
		err := b.Set(t.Context(), b.bmc, password(), "on", nil)
		require.Equal(t, x.followed, err == nil, "%+v: %v", x, err)
		if err != nil {
			require.ErrorContains(t, err, "HTTP 301")
		}
	}
}

// TestS29BusyServiceIsAskedAgain: a service that answers 503 is asked again after the time that it names, for half a
// minute at most, and within the budget of its BMC.
func TestS29BusyServiceIsAskedAgain(t *testing.T) {
	for name, x := range map[string]struct {
		after string
		busy  int // requests that are answered by 503
		waits []time.Duration
		ok    bool
	}{
		"without a time":       {"", 3, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}, true},
		"seconds":              {"7", 2, []time.Duration{7 * time.Second, 7 * time.Second}, true},
		"a date":               {"Thu, 01 Jan 2026 00:00:09 GMT", 1, []time.Duration{9 * time.Second}, true},
		"a date in the past":   {"Thu, 01 Jan 1970 00:00:00 GMT", 1, []time.Duration{0}, true},
		"for long":             {"3600", 1, nil, false},
		"always":               {"", 100, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}, false},
		"always, at once":      {"0", 100, make([]time.Duration, maxWaits), false},
		"more than the budget": {"0", 4, []time.Duration{0, 0, 0, 0, 15 * time.Second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRedfishBench(t, vlab.RedfishHPE)
			var waits []time.Duration
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			b.cfg.busy = redfishBusyTime
			b.cfg.now = func() time.Time { return now }
			b.cfg.sleep = func(_ context.Context, d time.Duration) error { waits = append(waits, d); return nil }
			if name == "more than the budget" {
				b.cfg.PerMinute = 4
				b.cfg.sleep = func(_ context.Context, d time.Duration) error {
					waits = append(waits, d.Round(time.Second))
					now = now.Add(d)
					return nil
				}
			}
			asked := 0
			b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.URL.Path != "/redfish/v1/Systems" {
					b.service.ServeHTTP(w, q)
					return
				}
				if asked++; asked > x.busy {
					b.service.ServeHTTP(w, q)
					return
				}
				if x.after != "" {
					w.Header().Set("Retry-After", x.after)
				}
				w.WriteHeader(http.StatusServiceUnavailable)
			})
			_, err := b.State(t.Context(), b.bmc, password())
			require.Equal(t, x.waits, waits)
			require.Equal(t, x.ok, err == nil, "%v", err)
			if err != nil {
				require.ErrorIs(t, err, inventory.ErrUnreachable)
			}
		})
	}
}

// TestRedfishBusyWrite: a write that was refused as busy and then as not fitting may have been carried out. The state
// that is read decides.
func TestRedfishBusyWrite(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	busy := true
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if strings.HasSuffix(q.URL.Path, "ComputerSystem.Reset") && busy {
			busy = false
			require.NoError(t, b.machine.PowerOn(q.Context()))
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b.service.ServeHTTP(w, q)
	})
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
	require.False(t, busy)
}

// TestRedfishRematch: ETags are named as the service wants them, and a service that wants none of its own gets any.
func TestRedfishRematch(t *testing.T) {
	for _, accepted := range []string{`W/"0"`, `"0"`, "0", "", "*"} {
		b := newRedfishBench(t, vlab.RedfishHPE)
		b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			given, has := q.Header["If-Match"]
			switch {
			case q.Method != http.MethodPatch:
			case !has && accepted != "":
				w.WriteHeader(http.StatusPreconditionRequired)
				return
			case has && given[0] != accepted:
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			b.service.ServeHTTP(w, q)
		})
		_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe"}, nil)
		require.NoError(t, err, accepted)
		require.Equal(t, "Pxe Once UEFI", b.service.Override(), accepted)
	}
}

// TestRedfishWithoutToken: a service whose log-in gives no token gets the password with each request, and the session that
// it opened is deleted.
func TestRedfishWithoutToken(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	b.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		answer := httptest.NewRecorder()
		b.service.ServeHTTP(answer, q)
		answer.Header().Del("X-Auth-Token")
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes()) // the client may be gone
	})
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
	require.Equal(t, vlab.On, b.machine.PowerState())
	now, _ := b.service.Sessions()
	require.Zero(t, now)
}

// TestRedfishUnreadableSettings: a settings object that the user may not read, or that the service cannot show, stops
// nothing that does not need it.
func TestRedfishUnreadableSettings(t *testing.T) {
	for _, status := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		fault := vlab.RedfishFault{Path: settingsOfLab, Status: status}
		none := inventory.BootDevice{Device: "none", EFI: true}
		b := newRedfishBench(t, vlab.RedfishSettings)
		_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe"}, nil)
		require.NoError(t, err)
		b.service.Pretend(fault)
		require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
		for _, device := range []inventory.BootDevice{{Device: "disk"}, none} { // the override stays
			_, err = b.SetBootDevice(t.Context(), b.bmc, password(), device, nil)
			require.ErrorIs(t, err, inventory.ErrUnsupported, device.Device)
			require.ErrorContains(t, err, "Boot properties are changed in "+settingsOfLab)
		}

		b = newRedfishBench(t, vlab.RedfishStaleSettings)
		b.service.Pretend(fault)
		for _, device := range []inventory.BootDevice{{Device: "disk", EFI: true}, none} {
			_, err = b.SetBootDevice(t.Context(), b.bmc, password(), device, nil)
			require.NoError(t, err, device.Device)
		}
		r, err := b.Check(t.Context(), b.bmc, password())
		require.NoError(t, err)
		require.Equal(t, []string{"the settings object " + settingsOfLab + " cannot be read"}, r.Odd)
	}
}

// settingsOfLab is the path of the settings object in the lab's services.
const settingsOfLab = "/redfish/v1/Systems/1/SD"

// TestRedfishStaleSettings: a boot device that only a settings object holds, of an earlier start or of an earlier
// session, does not count as set, and does not stop its removal. It is shown.
func TestRedfishStaleSettings(t *testing.T) {
	ignored := vlab.RedfishFault{Method: http.MethodPatch, Path: "/redfish/v1/Systems/1", Lie: true}
	pxe, none := inventory.BootDevice{Device: "pxe", EFI: true}, inventory.BootDevice{Device: "none", EFI: true}
	const pending = "boot device none was read back, but the BMC may use pxe at a later start, " +
		"because the settings object " + settingsOfLab + " names this device"

	b := newRedfishBench(t, vlab.RedfishStaleSettings)
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
	require.NotContains(t, b.service.Calls(), "GET "+settingsOfLab, "power needs no boot device")
	r, err := b.Check(t.Context(), b.bmc, password())
	require.NoError(t, err)
	require.Equal(t, "none", r.Boot)
	require.Equal(t, []string{"the settings object " + settingsOfLab + " has boot device pxe, but the system has none"}, r.Odd)
	warning, err := b.SetBootDevice(t.Context(), b.bmc, password(), none, nil)
	require.NoError(t, err)
	require.Equal(t, pending, warning)
	b.service.Pretend(ignored)
	_, err = b.SetBootDevice(t.Context(), b.bmc, password(), pxe, nil)
	require.ErrorContains(t, err, "boot device was set to pxe but reads back as none")
	require.Equal(t, "None Disabled UEFI", b.service.Override())
	require.NotContains(t, b.service.Calls(), "PATCH "+settingsOfLab)

	b = newRedfishBench(t, vlab.RedfishSettings)
	_, err = b.SetBootDevice(t.Context(), b.bmc, password(), pxe, nil)
	require.NoError(t, err)
	b.service.Pretend(ignored)
	_, err = b.SetBootDevice(t.Context(), b.bmc, password(), pxe, nil)
	require.ErrorContains(t, err, "boot device was set to pxe but reads back as none")
	warning, err = b.SetBootDevice(t.Context(), b.bmc, password(), none, nil)
	require.NoError(t, err)
	require.Equal(t, pending, warning)
	b.service.Pretend()
	warning, err = b.SetBootDevice(t.Context(), b.bmc, password(), none, nil)
	require.NoError(t, err)
	require.Empty(t, warning)
	require.Equal(t, "None Disabled UEFI", b.service.Override())
}
