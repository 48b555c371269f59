package bmc

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bmc-toolbox/bmclib/v2/providers/intelamt"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// chassis is a machine that an AMT switches.
type chassis struct {
	mu     sync.Mutex
	power  vlab.PowerState
	next   vlab.NextBoot
	booted []vlab.NextBoot // the boot device of each start
}

func (c *chassis) PowerState() vlab.PowerState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.power
}

func (c *chassis) to(s vlab.PowerState, starts bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if starts {
		c.booted = append(c.booted, c.next)
		c.next = vlab.NextDefault
	}
	c.power = s
	return nil
}

func (c *chassis) PowerOn(context.Context) error {
	return c.to(vlab.On, c.PowerState() == vlab.Off)
}
func (c *chassis) PowerOff(context.Context) error   { return c.to(vlab.Off, false) }
func (c *chassis) Reset(context.Context) error      { return c.to(vlab.On, true) }
func (c *chassis) PressPower(context.Context) error { return c.to(vlab.Off, false) }
func (c *chassis) SetNextBoot(n vlab.NextBoot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = n
}

func (c *chassis) starts() []vlab.NextBoot {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.booted
	c.booted = nil
	return out
}

// amtBench is a machine behind the lab's AMT.
type amtBench struct {
	*Driver
	bmc     inventory.BMC
	amt     *vlab.AMT
	machine *chassis
	log     *bytes.Buffer
	conns   atomic.Int64 // open now
	url     string
}

func newAMTBench(t *testing.T) *amtBench {
	t.Helper()
	b := &amtBench{machine: &chassis{power: vlab.Off, next: vlab.NextDefault}, log: &bytes.Buffer{}}
	b.amt = vlab.NewAMT(b.machine, "admin", canary)
	s := httptest.NewUnstartedServer(b.amt)
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		switch st {
		case http.StateNew:
			b.conns.Add(1)
		case http.StateClosed:
			b.conns.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	b.url = s.URL
	b.bmc = at(t, s.URL)
	b.Driver = New(Config{
		Log:  slog.New(slog.NewTextHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Step: 2 * time.Millisecond, Hard: 50 * time.Millisecond, Soft: 50 * time.Millisecond,
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, PerMinute: 100_000,
	})
	return b
}

// at returns the BMC of an AMT that listens at a URL.
func at(t testing.TB, where string) inventory.BMC {
	t.Helper()
	u, err := url.Parse(where)
	require.NoError(t, err)
	p, err := strconv.Atoi(u.Port())
	require.NoError(t, err)
	return inventory.BMC{Driver: inventory.DriverAMT, Host: u.Hostname(), Port: p, User: "admin"}
}

var pxeOnce = inventory.BootDevice{Device: "pxe", EFI: true}

func TestAMTPower(t *testing.T) {
	b := newAMTBench(t)
	ctx, asked := t.Context(), 0
	fence := func(context.Context) error { asked++; return nil }
	state := func() string {
		s, err := b.State(ctx, b.bmc, password())
		require.NoError(t, err)
		return s
	}
	require.Equal(t, Off, state())
	require.NoError(t, b.Set(ctx, b.bmc, password(), "off", fence))
	require.Zero(t, asked, "off on a machine that is off writes nothing")
	require.ErrorIs(t, b.Set(ctx, b.bmc, password(), "reset", fence), inventory.ErrUnsupported, "only what is on")
	require.NoError(t, b.Set(ctx, b.bmc, password(), "on", fence))
	require.Equal(t, On, state())
	b.amt.Calls()
	require.NoError(t, b.Set(ctx, b.bmc, password(), "reset", fence))
	require.Contains(t, b.amt.Calls(), "RequestPowerStateChange 10")
	require.NoError(t, b.Set(ctx, b.bmc, password(), "cycle", fence))
	calls := b.amt.Calls()
	require.Contains(t, calls, "RequestPowerStateChange 8", "off and on, not AMT's own power cycle")
	require.Contains(t, calls, "RequestPowerStateChange 2")
	require.Len(t, b.machine.starts(), 3)
	require.Equal(t, 4, asked)

	b.amt.Pretend(vlab.AMTFaults{Graceful: true})
	require.NoError(t, b.Set(ctx, b.bmc, password(), "off", nil), "off does not ask the operating system, although AMT offers that")
	require.NoError(t, b.Set(ctx, b.bmc, password(), "on", nil))
	require.ErrorIs(t, b.Set(ctx, b.bmc, password(), "soft", nil), inventory.ErrUnreachable, "the operating system ignores it")
	b.amt.Pretend(vlab.AMTFaults{})
	require.ErrorIs(t, b.Set(ctx, b.bmc, password(), "soft", nil), inventory.ErrUnsupported, "AMT does not offer a graceful state")

	err := b.ResetBMC(ctx, b.bmc, password(), nil)
	require.ErrorIs(t, err, inventory.ErrUnsupported)
	require.ErrorContains(t, err, "cannot restart the BMC")
	require.Eventually(t, func() bool { return b.conns.Load() == 0 }, 10*time.Second, time.Millisecond, "no connection is left behind")
	require.NotContains(t, b.log.String(), canary)
}

func TestAMTBootDevice(t *testing.T) {
	b := newAMTBench(t)
	ctx := t.Context()
	set := func(d inventory.BootDevice) (string, error) { return b.SetBootDevice(ctx, b.bmc, password(), d, nil) }
	boots := func() string {
		r, err := b.Check(ctx, b.bmc, password())
		require.NoError(t, err)
		return r.Boot
	}
	require.Equal(t, "none", boots())
	for device, want := range map[string]vlab.NextBoot{"pxe": vlab.NextNetwork, "disk": vlab.NextDisk} {
		b.amt.Calls()
		warning, err := set(inventory.BootDevice{Device: device, EFI: true})
		require.NoError(t, err)
		require.Empty(t, warning)
		require.Equal(t, device+" once", boots())
		require.NoError(t, b.Set(ctx, b.bmc, password(), "on", nil))
		require.Equal(t, []vlab.NextBoot{want}, b.machine.starts())
		require.Equal(t, "none", boots(), "used up")
		require.NoError(t, b.Set(ctx, b.bmc, password(), "off", nil))
	}
	require.Equal(t, "false", b.amt.Settings()["BIOSSetup"], "an old setting is cleared")

	_, err := set(pxeOnce)
	require.NoError(t, err)
	warning, err := set(inventory.BootDevice{Device: "none"})
	require.NoError(t, err)
	require.Empty(t, warning)
	require.Equal(t, "none", boots())

	for _, d := range []inventory.BootDevice{{Device: "bios"}, {Device: "pxe", Persistent: true}} {
		_, err := set(d)
		require.ErrorIs(t, err, inventory.ErrUnsupported, "%+v", d)
	}
	_, err = b.SetBootDevice(ctx, b.bmc, password(), pxeOnce, func(context.Context) error { return inventory.ErrFenced })
	require.ErrorIs(t, err, inventory.ErrFenced)
	require.Equal(t, "none", boots())

	b.amt.Pretend(vlab.AMTFaults{Blind: true})
	warning, err = set(pxeOnce)
	require.NoError(t, err, "an older version")
	require.Equal(t, "boot device pxe was set, but cannot be read back: this version of AMT does not report the next boot device", warning)
	require.Equal(t, Unknown, boots())
	b.amt.Pretend(vlab.AMTFaults{ListsAll: true})
	warning, err = set(pxeOnce)
	require.NoError(t, err)
	require.Contains(t, warning, "lists several boot sources")
	b.amt.Pretend(vlab.AMTFaults{NoEmptyOrder: true})
	_, err = set(inventory.BootDevice{Device: "disk"})
	require.NoError(t, err, "the new order replaces the old one")
	require.Equal(t, "disk once", boots())
	_, err = set(inventory.BootDevice{Device: "none"})
	require.ErrorIs(t, err, inventory.ErrUnsupported)
}

// TestAMTNoFalseSuccess: with a fault, no operation succeeds falsely.
func TestAMTNoFalseSuccess(t *testing.T) {
	for name, c := range map[string]struct {
		faults     vlab.AMTFaults
		power, pxe error // nil: success
	}{
		"nothing":               {},
		"nonces that grow old":  {faults: vlab.AMTFaults{ShortNonce: true}},
		"another password":      {vlab.AMTFaults{OtherPassword: true}, inventory.ErrRefused, inventory.ErrRefused},
		"refusing":              {vlab.AMTFaults{Refuse: true}, inventory.ErrUnreachable, nil},
		"idle":                  {vlab.AMTFaults{Idle: true}, inventory.ErrUnreachable, nil},
		"forgetting":            {vlab.AMTFaults{Forget: true}, nil, inventory.ErrUnsupported},
		"client control":        {vlab.AMTFaults{ClientControl: true}, nil, inventory.ErrUnsupported},
		"gone":                  {vlab.AMTFaults{Drop: true}, inventory.ErrUnreachable, inventory.ErrUnreachable},
		"saying that it is off": {vlab.AMTFaults{Lie: vlab.Off}, inventory.ErrUnreachable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newAMTBench(t)
			b.amt.Pretend(c.faults)
			err := b.Set(t.Context(), b.bmc, password(), "on", nil)
			require.ErrorIs(t, err, c.power)
			_, err = b.SetBootDevice(t.Context(), b.bmc, password(), pxeOnce, nil)
			require.ErrorIs(t, err, c.pxe)
			if c.faults.ClientControl {
				_, err = b.Check(t.Context(), b.bmc, password())
				require.ErrorContains(t, err, "client control mode", "Check reports it")
			}
			if err != nil {
				require.NotContains(t, err.Error(), canary)
			}
			require.NotContains(t, b.log.String(), canary)
		})
	}
}

// TestS29AMTRefusedCredentialsAreSentOnce: one log-in per operation, and none
// after three in a row.
func TestS29AMTRefusedCredentialsAreSentOnce(t *testing.T) {
	b := newAMTBench(t)
	b.amt.Pretend(vlab.AMTFaults{OtherPassword: true})
	for n := range 5 {
		err := b.Set(t.Context(), b.bmc, password(), "off", nil)
		require.ErrorIs(t, err, inventory.ErrRefused)
		require.Equal(t, min(n+1, maxRefused), min(n, maxRefused)+b.amt.Refused())
	}
}

// TestS50AMTNothingIsSentWithoutAPassword is TestS50NothingIsSentWithoutAPassword for
// AMT.
func TestS50AMTNothingIsSentWithoutAPassword(t *testing.T) {
	b := newAMTBench(t)
	_, err := b.State(t.Context(), b.bmc, inventory.Secret{})
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.Empty(t, b.amt.Calls())
	require.Zero(t, b.conns.Load())
}

// TestS17AMTFollowsNoRedirect: a redirect is not followed, a host outside the networks
// is not dialed, and a server that does not ask for a digest gets no credentials.
func TestS17AMTFollowsNoRedirect(t *testing.T) {
	b := newAMTBench(t)
	var got atomic.Int64
	inside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got.Add(1) }))
	t.Cleanup(inside.Close)
	for name, h := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, inside.URL+"/wsman", http.StatusTemporaryRedirect)
		},
		"basic": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"open":    func(http.ResponseWriter, *http.Request) {},
		"endless": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 4<<20)) },
	} {
		var authorized atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" {
				authorized.Add(1)
			}
			h(w, r)
		}))
		t.Cleanup(s.Close)
		_, err := b.State(t.Context(), at(t, s.URL), password())
		require.ErrorIs(t, err, inventory.ErrUnsupported, name)
		require.Zero(t, authorized.Load(), name)
	}
	require.Zero(t, got.Load())

	b.cfg.Networks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	_, err := b.State(t.Context(), b.bmc, password())
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "bmc.networks")
	require.Zero(t, b.conns.Load())
}

// TestAMTOverTLS (S27): the key is checked before anything is sent.
func TestAMTOverTLS(t *testing.T) {
	b := newAMTBench(t)
	s := httptest.NewTLSServer(b.amt)
	t.Cleanup(s.Close)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	sum := sha256.Sum256(s.Certificate().RawSubjectPublicKeyInfo)
	x := at(t, s.URL)
	x.Fingerprint = "sha256:" + hex.EncodeToString(sum[:])
	state, err := b.State(t.Context(), x, password())
	require.NoError(t, err)
	require.Equal(t, Off, state)
	b.amt.Calls()

	x.Fingerprint = "sha256:" + hex.EncodeToString(make([]byte, 32))
	_, err = b.State(t.Context(), x, password())
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.ErrorContains(t, err, "its key differs from the stored one")
	c := b.tlsConfig("amt-1", inventory.BMC{Driver: inventory.DriverAMT, Port: vlab.AMTTLSPort})
	require.Equal(t, "amt-1", c.ServerName)
	require.Error(t, c.VerifyConnection(tls.ConnectionState{PeerCertificates: []*x509.Certificate{s.Certificate()}}),
		"without a fingerprint, the system's authorities decide")
	require.Empty(t, b.amt.Calls())
	require.Zero(t, b.amt.Refused())
}

// TestAMTSimulatorServesBmclibsOwnClient checks the simulator, which the other tests
// rely on, against bmclib's client.
func TestAMTSimulatorServesBmclibsOwnClient(t *testing.T) {
	b := newAMTBench(t)
	ctx := t.Context()
	c := intelamt.New(b.bmc.Host, "admin", canary, intelamt.WithPort(uint32(b.bmc.Port)))
	require.NoError(t, c.Open(ctx))
	ok, err := c.BootDeviceSet(ctx, "pxe", false, true)
	require.NoError(t, err)
	require.True(t, ok)
	r, err := b.Check(ctx, b.bmc, password())
	require.NoError(t, err)
	require.Equal(t, "pxe once", r.Boot, "our client reads what bmclib's wrote")
	ok, err = c.PowerSet(ctx, "on")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, []vlab.NextBoot{vlab.NextNetwork}, b.machine.starts())
	state, err := c.PowerStateGet(ctx)
	require.NoError(t, err)
	require.Equal(t, "on", state)
	ok, err = c.PowerSet(ctx, "off")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, vlab.Off, b.machine.PowerState())
	require.NoError(t, c.Close(ctx))
}

// TestLabAMT drives a machine of the lab.
func TestLabAMT(t *testing.T) {
	if !*lab {
		t.Skip("needs root and what make deps provides: go test ./bmc -run TestLabAMT -args -lab")
	}
	l, err := vlab.New(t.Context(), vlab.Options{NoRelay: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	m, err := l.Machine(t.Context(), vlab.Spec{Name: "amt", Firmware: vlab.Simulated, Agent: "/bin/true", Controller: vlab.ControllerAMT})
	require.NoError(t, err)
	d := New(Config{
		Step: 20 * time.Millisecond, Hard: 20 * time.Second, Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
		PerMinute: 100_000,
	})
	pw := inventory.NewSecret(m.AMT().Password)
	for _, p := range []int{vlab.AMTPort, vlab.AMTTLSPort} {
		listens, err := l.Forward(t.Context(), vlab.Host, "127.0.0.1:0", vlab.BMCs, net.JoinHostPort(m.AMT().Address, strconv.Itoa(p)))
		require.NoError(t, err)
		b := at(t, "http://"+listens)
		if p == vlab.AMTTLSPort {
			b.Fingerprint = m.AMT().Fingerprint
		}
		warning, err := d.SetBootDevice(t.Context(), b, pw, pxeOnce, nil)
		require.NoError(t, err)
		require.Empty(t, warning)
		require.Equal(t, vlab.NextDefault, m.NextBoot(), "the boot device is used at the next start")
		for _, power := range []string{"on", "on", "reset", "cycle", "off", "off"} {
			require.NoError(t, d.Set(t.Context(), b, pw, power, nil), power)
		}
		require.Equal(t, vlab.Off, m.PowerState())
	}
	require.Equal(t, 4, m.PowerOns())
	require.Equal(t, 2, m.Resets())
}
