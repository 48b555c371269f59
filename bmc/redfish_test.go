package bmc

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keypin"

	bmclibredfish "github.com/bmc-toolbox/bmclib/v2/providers/redfish"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// redfishBench is a machine behind the lab's Redfish service.
type redfishBench struct {
	*Driver
	bmc     inventory.BMC
	service *vlab.Redfish
	machine *chassis
	keys    *keys
	server  *httptest.Server
	conns   atomic.Int32 // open connections of the server; one is closed after its last request was answered
	warned  bool         // the last boot device was set with a warning of another one that is pending
}

// keys is a KeyStore in memory.
type keys struct {
	mu    sync.Mutex // a request that was given up may still be checking its certificate
	known map[string]string
}

func (k *keys) KnownBMCKey(_ context.Context, address, fingerprint string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.known[address]; !ok {
		k.known[address] = fingerprint
	}
	return k.known[address], nil
}

func (k *keys) HasBMCKey(_ context.Context, address string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[address] != "", nil
}

func newRedfishBench(t testing.TB, shape vlab.RedfishShape) *redfishBench {
	t.Helper()
	b := &redfishBench{machine: &chassis{power: vlab.Off, next: vlab.NextDefault}, keys: &keys{known: map[string]string{}}}
	b.service = vlab.NewRedfish(b.machine, shape, "admin", canary)
	b.server = httptest.NewUnstartedServer(b.service)
	b.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	b.server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			b.conns.Add(1)
		case http.StateClosed:
			b.conns.Add(-1)
		}
	}
	// Log-ins are most of what tests of a BMC compute: this certificate and this exchange of keys are the fastest.
	shown, err := issue(nil)
	require.NoError(t, err)
	b.server.TLS = &tls.Config{Certificates: []tls.Certificate{shown}, CurvePreferences: []tls.CurveID{tls.X25519}}
	b.server.StartTLS()
	t.Cleanup(b.server.Close)
	b.bmc = at(t, b.server.URL)
	b.bmc.Driver, b.bmc.User = inventory.DriverRedfish, "admin"
	if shape == vlab.RedfishPages {
		b.bmc.SystemName = "1" // it has two
	}
	b.Driver = New(Config{
		Step: 5 * time.Millisecond, Hard: 100 * time.Millisecond, Soft: 100 * time.Millisecond, Settle: 100 * time.Millisecond,
		Back: 30 * time.Second, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, PerMinute: 100_000, Keys: b.keys,
	})
	b.cfg.busy = 0 // a service that is busy for ever ends a test soon
	return b
}

var shapes = []vlab.RedfishShape{vlab.RedfishDell, vlab.RedfishDell13, vlab.RedfishHPE, vlab.RedfishSupermicro}

// oddities are what a check of each shape names, or a part of it.
var oddities = map[vlab.RedfishShape][]string{
	vlab.RedfishTypes: {
		"/redfish/v1/Systems/1: AssetTag has a value of type number instead of string",
		"/redfish/v1/Systems/1: OperatingSystem has a value of type object instead of string",
		"/redfish/v1/Systems/1: ProcessorSummary has a value of type string instead of int",
		"/redfish/v1/Managers/1: Redundancy",
	},
	vlab.RedfishNoLocation: {"the BMC answers a log-in without the session's Location"},
	vlab.RedfishSlash:      {"the BMC redirects POST /redfish/v1/SessionService/Sessions to /redfish/v1/SessionService/Sessions/"},
	vlab.RedfishBodyTag:    {"the ETag of /redfish/v1/Systems/1 is only in the body, not in the header"},
	vlab.RedfishAbsolute:   {"the BMC returns links that are not absolute paths, such as https://127.0.0.1:"},
	vlab.RedfishBusy:       {"the BMC answers that it is busy, so Ingot repeats the request"},
	vlab.RedfishSettings:   {"the settings object /redfish/v1/Systems/1/SD has boot device pxe, but the system has none"},
}

// TestRedfish carries out every operation on each manufacturer's shape, and on those that stray from the specification.
func TestRedfish(t *testing.T) {
	for _, shape := range append(shapes, vlab.RedfishOddities()...) {
		t.Run(string(shape), func(t *testing.T) {
			b := newRedfishBench(t, shape)
			b.cfg.Hard, b.cfg.Soft = time.Minute, time.Minute // nothing here is too slow, however slow this host is
			ctx := t.Context()
			for _, x := range []struct{ power, state string }{
				{"on", On}, {"on", On}, {"reset", On}, {"cycle", On}, {"soft", Off}, {"off", Off}, {"cycle", On}, {"off", Off},
			} {
				require.NoError(t, b.Set(ctx, b.bmc, password(), x.power, nil), x.power)
				require.EqualValues(t, x.state, b.machine.PowerState(), x.power)
			}
			b.machine.starts()

			for device, next := range map[string]vlab.NextBoot{
				"pxe": vlab.NextNetwork, "http": vlab.NextNetwork, "disk": vlab.NextDisk, "cdrom": vlab.NextCD,
			} {
				once := inventory.BootDevice{Device: device, EFI: true}
				warning, err := b.SetBootDevice(ctx, b.bmc, password(), once, nil)
				if shape == vlab.RedfishDell13 {
					require.ErrorIs(t, err, inventory.ErrUnsupported)
					require.ErrorContains(t, err, "BootSourceOverrideEnabled")
					continue
				}
				require.NoError(t, err, device)
				switch {
				case shape == vlab.RedfishHPE:
					require.Equal(t, "boot device "+device+" was read back, but without these flags: EFI", warning, "HPE has no mode")
				case shape == vlab.RedfishStaleSettings && device != "pxe":
					require.Equal(t, "boot device "+device+" was read back, but the BMC may use pxe at a later start, because "+
						"the settings object /redfish/v1/Systems/1/SD names this device", warning)
				default:
					require.Empty(t, warning)
				}
				require.NoError(t, b.Set(ctx, b.bmc, password(), "cycle", nil))
				require.NoError(t, b.Set(ctx, b.bmc, password(), "cycle", nil))
				require.Equal(t, []vlab.NextBoot{next, vlab.NextDefault}, b.machine.starts(), device)
			}

			_, err := b.SetBootDevice(ctx, b.bmc, password(), inventory.BootDevice{Device: "pxe", Persistent: true, EFI: true}, nil)
			require.NoError(t, err)
			r, err := b.Check(ctx, b.bmc, password())
			require.NoError(t, err)
			if shape == vlab.RedfishSettings {
				require.Equal(t, "none", r.Boot, "the system's own")
			} else {
				require.True(t, strings.HasPrefix(r.Boot, "pxe persistent"), r.Boot)
			}
			require.Equal(t, "enabled", r.SecureBoot)
			require.Equal(t, []inventory.BMCReading{
				{Name: "Inlet Temp", Value: 24, Unit: "Cel", Health: "ok"}, {Name: "Fan 1", Value: 4200, Unit: "RPM", Health: "ok"},
			}, r.Sensors)
			require.Equal(t, "1.2.3", r.Controller)
			require.NotEmpty(t, r.Model)
			for _, text := range oddities[shape] {
				require.Contains(t, strings.Join(r.Odd, "\n"), text)
			}
			if len(oddities[shape]) == 0 {
				require.Empty(t, r.Odd)
			}
			_, err = b.SetBootDevice(ctx, b.bmc, password(), inventory.BootDevice{Device: "none"}, nil)
			require.NoError(t, err)
			require.Contains(t, b.service.Override(), "Disabled UEFI", "the mode stays")

			for _, url := range []string{"http://10.0.0.1/a.iso", "http://10.0.0.1/a.iso", "http://10.0.0.1/b.iso", "", ""} {
				require.NoError(t, b.SetMedia(ctx, b.bmc, password(), url, nil))
				require.Equal(t, url, b.service.Media())
			}

			require.NoError(t, b.ResetBMC(ctx, b.bmc, password(), nil))
			require.Equal(t, 1, b.service.Resets())
			now, most := b.service.Sessions()
			require.Zero(t, now, "every session was deleted")
			require.Equal(t, 1, most, "one session at a time")
		})
	}
}

// TestRedfishLostLogIn: a session whose log-in was not answered is found and deleted.
func TestRedfishLostLogIn(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishSupermicro)
	for range 3 { // it has four sessions
		b.service.Pretend(vlab.RedfishFault{Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Count: 1, Lose: true})
		_, err := b.State(t.Context(), b.bmc, password())
		require.NoError(t, err)
		now, _ := b.service.Sessions()
		require.Zero(t, now)
	}
}

// TestRedfishWithoutAnswerToLogIns: where no log-in is answered, HTTP Basic authentication carries out the operation and
// deletes the sessions, which else fill the BMC up. A service that refuses Basic is not asked so again.
func TestRedfishWithoutAnswerToLogIns(t *testing.T) {
	lost := vlab.RedfishFault{Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Lose: true}
	b := newRedfishBench(t, vlab.RedfishSupermicro)
	b.service.Pretend(lost)
	for range 3 {
		require.NoError(t, b.Set(t.Context(), b.bmc, password(), "cycle", nil))
		now, most := b.service.Sessions()
		require.Zero(t, now)
		require.LessOrEqual(t, most, 2)
	}

	b = newRedfishBench(t, vlab.RedfishSupermicro)
	b.service.SessionsOnly = true
	b.service.Pretend(lost)
	for range 3 {
		_, err := b.State(t.Context(), b.bmc, password())
		require.ErrorIs(t, err, inventory.ErrUnreachable, "nothing says that the password is wrong")
		require.Equal(t, 1, b.service.Refused())
	}
	b.service.Pretend()
	_, err := b.State(t.Context(), b.bmc, password())
	require.ErrorContains(t, err, "no free session: end sessions at the BMC, or wait until they expire (SessionTimeout")
	require.Equal(t, 1, b.service.Refused())
}

// TestRedfishNoSessionLeft: whatever status comes with it, the text of a full service is not taken for a wrong password.
func TestRedfishNoSessionLeft(t *testing.T) {
	q := httptest.NewRequest(http.MethodPost, "https://bmc/redfish/v1/SessionService/Sessions", http.NoBody)
	for text, full := range map[string]bool{
		"The session establishment failed due to the number of simultaneous sessions exceeding the limit of the implementation.": true,
		"The maximum number of user sessions is reached.":                                                                        true, // Dell, RAC0218, with 503
		"While attempting to establish a connection, the service was denied access.":                                             false,
		"The maximum number of failed log-ins is reached.":                                                                       false,
		"There is no valid session established with the implementation.":                                                         false,
	} {
		body, err := json.Marshal(map[string]any{"error": map[string]any{"@Message.ExtendedInfo": []any{map[string]string{"Message": text}}}})
		require.NoError(t, err)
		require.Equal(t, full, noSessionLeft(body), text)
		if err := judgeStatus(q, http.StatusUnauthorized, body, true); full {
			require.ErrorIs(t, err, inventory.ErrUnreachable, text)
			require.ErrorContains(t, err, "no free session")
		} else {
			require.ErrorIs(t, err, inventory.ErrRefused, text)
		}
	}
}

// TestRedfishLeftovers: a new process deletes what a killed one left, but not the sessions of others.
func TestRedfishLeftovers(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	killed := bmclibredfish.New("127.0.0.1", "admin", canary, logr.Discard(), bmclibredfish.WithPort(fmt.Sprint(b.bmc.Port)))
	require.NoError(t, killed.Open(t.Context()))
	now, _ := b.service.Sessions()
	require.Equal(t, 1, now)
	_, err := b.State(t.Context(), b.bmc, password())
	require.NoError(t, err)
	now, _ = b.service.Sessions()
	require.Zero(t, now)

	full := newRedfishBench(t, vlab.RedfishSupermicro) // it has four sessions
	for range 4 {
		killed := bmclibredfish.New("127.0.0.1", "admin", canary, logr.Discard(), bmclibredfish.WithPort(fmt.Sprint(full.bmc.Port)))
		require.NoError(t, killed.Open(t.Context()))
	}
	for range 2 {
		_, err = full.State(t.Context(), full.bmc, password())
		require.NoError(t, err)
		now, _ = full.service.Sessions()
		require.Zero(t, now)
	}

	require.NoError(t, killed.Open(t.Context())) // now it belongs to another running program
	_, err = b.State(t.Context(), b.bmc, password())
	require.NoError(t, err)
	now, _ = b.service.Sessions()
	require.Equal(t, 1, now)
}

// TestRedfishLeftoversAreBounded: of the sessions that a BMC does not delete, the newest are remembered and
// deleted later.
func TestRedfishLeftoversAreBounded(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	b.service.Pretend(vlab.RedfishFault{Method: "DELETE", Path: "/redfish/v1/SessionService/Sessions/*", Status: 503})
	for range maxLeft + 3 {
		_, err := b.State(t.Context(), b.bmc, password())
		require.NoError(t, err)
	}
	require.Len(t, b.targets, 1)
	for _, target := range b.targets {
		require.Len(t, target.left.sessions, maxLeft)
	}
	before, _ := b.service.Sessions()
	b.service.Pretend()
	_, err := b.State(t.Context(), b.bmc, password())
	require.NoError(t, err)
	now, _ := b.service.Sessions()
	require.Equal(t, before-maxLeft, now)
	for _, target := range b.targets {
		require.Empty(t, target.left.sessions)
	}
}

// TestRedfishMedia: what others have inserted is ejected from every drive before an insertion, and stays when one medium
// is ejected. URLs may be long.
func TestRedfishMedia(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishSupermicro)
	ctx := t.Context()
	const theirs = "http://10.0.0.9/theirs.iso"
	ours := "http://10.0.0.1/" + strings.Repeat("long/", 100) + "a.iso"
	for range 10 { // bmclib takes the drives in random order
		b.service.Insert(0, theirs)
		b.service.Insert(1, theirs)
		require.NoError(t, b.SetMedia(ctx, b.bmc, password(), ours, nil))
		require.Equal(t, ours, b.service.Media())
		require.NoError(t, b.SetMedia(ctx, b.bmc, password(), "", nil))
	}
	b.service.Insert(0, theirs)
	ejected, err := b.EjectMedia(ctx, b.bmc, password(), ours, nil)
	require.NoError(t, err)
	require.False(t, ejected)
	b.service.Insert(1, ours)
	ejected, err = b.EjectMedia(ctx, b.bmc, password(), ours, nil)
	require.NoError(t, err)
	require.True(t, ejected)
	require.Equal(t, theirs, b.service.Media())
	stop := errors.New("superseded")
	err = b.SetMedia(ctx, b.bmc, password(), ours, func(context.Context) error { return stop })
	require.ErrorIs(t, err, stop)
	require.Equal(t, theirs, b.service.Media())
}

// TestRedfishRequestsAreLimited: a service that lists ever more systems ends the command, not the server.
func TestRedfishRequestsAreLimited(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	members := make([]any, 10*maxRequests)
	for i := range members {
		members[i] = map[string]any{"@odata.id": fmt.Sprintf("/redfish/v1/Systems/%d", i)}
	}
	b.service.Pretend(vlab.RedfishFault{Path: "/redfish/v1/Systems", Merge: map[string]any{"Members": members}})
	_, err := b.State(t.Context(), b.bmc, password())
	require.ErrorIs(t, err, inventory.ErrUnsupported)
	require.ErrorContains(t, err, "300 requests")
	require.LessOrEqual(t, len(b.service.Calls()), maxRequests+10)
	now, _ := b.service.Sessions()
	require.Zero(t, now)
}

// TestRedfishErrors (S27): errors for refused log-ins, exhausted sessions and lies are of the right kind.
func TestRedfishErrors(t *testing.T) {
	const system = "/redfish/v1/Systems/1"
	wrong := inventory.NewSecret("wrong-" + canary)
	b := newRedfishBench(t, vlab.RedfishHPE)
	_, err := b.State(t.Context(), b.bmc, wrong)
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), canary)

	for want, f := range map[error]vlab.RedfishFault{
		inventory.ErrUnreachable: {Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Status: 503},
		inventory.ErrUnsupported: {Path: "/redfish/v1", Status: 404},
	} {
		b.service.Pretend(f)
		_, err = b.State(t.Context(), b.bmc, password())
		require.ErrorIs(t, err, want)
	}

	for _, at := range []string{"@evil.example/x", "http://evil.example/x", "//evil.example/x"} {
		b.service.Pretend(vlab.RedfishFault{Path: "/redfish/v1/Systems", Merge: map[string]any{
			"Members": []any{map[string]any{"@odata.id": at}}, "Members@odata.count": 1,
		}})
		_, err = b.State(t.Context(), b.bmc, password())
		require.Error(t, err, at)
	}

	b.service.Pretend(vlab.RedfishFault{Path: "/redfish/v1/Systems", Merge: map[string]any{
		"Members": []any{map[string]any{"@odata.id": system}, map[string]any{"@odata.id": "/redfish/v1/Managers/1"}}, "Members@odata.count": 2,
	}})
	_, err = b.Check(t.Context(), b.bmc, password())
	require.Error(t, err)
	one := b.bmc
	one.SystemName = "1"
	b.service.Pretend(vlab.RedfishFault{Path: "/redfish/v1/Systems", Merge: map[string]any{
		"Members": []any{map[string]any{"@odata.id": system}, map[string]any{"@odata.id": "/redfish/v1/Systems/2"}}, "Members@odata.count": 2,
	}})
	_, err = b.Check(t.Context(), one, password())
	require.NoError(t, err)

	b.service.Pretend(vlab.RedfishFault{Path: system, Merge: map[string]any{"PowerState": "On"}})
	require.Error(t, b.Set(t.Context(), b.bmc, password(), "off", nil), "it says that it is on for ever")
	now, _ := b.service.Sessions()
	require.Zero(t, now)
}

// TestRedfishBasic: a service without sessions gets the password with each request.
func TestRedfishBasic(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	b.service.Pretend(vlab.RedfishFault{Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Status: 405})
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "on", nil))
	require.Equal(t, vlab.On, b.machine.PowerState())

	b.service.Pretend(vlab.RedfishFault{Path: "/redfish/v1", Merge: map[string]any{"Links": map[string]any{}}})
	require.NoError(t, b.Set(t.Context(), b.bmc, password(), "off", nil), "the service root lists no sessions")
	require.Equal(t, vlab.Off, b.machine.PowerState())
}

// TestRedfishUnauthorized: a BMC that refuses one command in every session is asked twice, and both
// sessions are deleted.
func TestRedfishUnauthorized(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishSupermicro)
	b.service.Pretend(vlab.RedfishFault{Path: "/redfish/v1/Systems", Status: 401})
	_, err := b.State(t.Context(), b.bmc, password())
	require.ErrorIs(t, err, inventory.ErrRefused)
	now, most := b.service.Sessions()
	require.Zero(t, now)
	require.Equal(t, 1, most)
}

// TestRedfishFence: the fence is called right before every write, and stops it.
func TestRedfishFence(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	stop := errors.New("superseded")
	calls := 0
	fence := func(context.Context) error {
		if calls++; calls > 1 {
			return stop
		}
		return nil
	}
	// HPE refuses the first write, because of the mode; bmclib writes again.
	_, err := b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, fence)
	require.ErrorIs(t, err, stop)
	require.Equal(t, "None Disabled UEFI", b.service.Override())

	// A service that rejects its own ETag gets the request a second time, without If-Match.
	b, calls = newRedfishBench(t, vlab.RedfishSupermicro), 0
	b.service.Pretend(vlab.RedfishFault{Method: "PATCH", Path: "/redfish/v1/Systems/1", Count: 1, Status: 412})
	_, err = b.SetBootDevice(t.Context(), b.bmc, password(), inventory.BootDevice{Device: "pxe", EFI: true}, fence)
	require.ErrorIs(t, err, stop)
	require.Equal(t, "None Disabled UEFI", b.service.Override())
}

// TestS27Certificates: no password is sent to a BMC whose key is not the known one.
func TestS27Certificates(t *testing.T) {
	b := newRedfishBench(t, vlab.RedfishHPE)
	ctx := t.Context()
	_, err := b.State(ctx, b.bmc, password())
	require.NoError(t, err)
	require.Len(t, b.keys.known, 1, "the key is remembered at the first use")
	key := keypin.Of(b.server.Certificate())
	b.service.Calls()

	for address := range b.keys.known {
		require.Equal(t, key, b.keys.known[address])
		b.keys.known[address] = "sha256:" + strings.Repeat("0", 64)
	}
	wrong := b.bmc
	wrong.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	right := b.bmc
	right.Fingerprint = key
	for name, x := range map[string]struct {
		bmc inventory.BMC
		ok  bool
	}{
		"another key than at first": {b.bmc, false}, "another key than pinned": {wrong, false}, "the pinned key": {right, true},
	} {
		b.service.Calls()
		_, err := b.State(ctx, x.bmc, password())
		require.Equal(t, x.ok, err == nil, "%s: %v", name, err)
		if !x.ok {
			require.ErrorIs(t, err, inventory.ErrRefused, name)
			require.ErrorContains(t, err, "no password was sent")
			require.Empty(t, b.service.Calls(), name)
		}
	}

	b.cfg.Keys = nil
	_, err = b.State(ctx, b.bmc, password())
	require.ErrorIs(t, err, inventory.ErrRefused, "without a memory for keys, an authority must have signed it")
	insecure := b.bmc
	insecure.InsecureTLS = true
	_, err = b.State(ctx, insecure, password())
	require.NoError(t, err)
}
