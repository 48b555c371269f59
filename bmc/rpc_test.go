package bmc

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	stdhash "hash"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// consumer is a service as Tinkerbell's documentation describes it. It checks the signatures itself.
type consumer struct {
	chassis
	mu     sync.Mutex
	device string
	asked  []string
	answer func(w http.ResponseWriter, method string) bool // true: it has answered
}

func (c *consumer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	signed := string(body) + q.Header.Get("X-Rufio-Timestamp")
	sent, err := time.Parse(time.RFC3339, q.Header.Get("X-Rufio-Timestamp"))
	for suffix, x := range map[string]struct {
		name string
		make func() stdhash.Hash
	}{"-256": {"sha256=", sha256.New}, "-512": {"sha512=", sha512.New}} {
		mac := hmac.New(x.make, []byte(canary))
		mac.Write([]byte(signed))
		if err != nil || time.Since(sent) > time.Minute || q.Header.Get("X-Rufio-Signature"+suffix) != x.name+hex.EncodeToString(mac.Sum(nil)) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
	}

	var r struct {
		ID     int64
		Host   string
		Method string
		Params struct {
			State, Device       string
			Persistent, EFIBoot bool
		}
	}
	_ = json.Unmarshal(body, &r) // an unknown method is answered as such
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, r.Host+" "+r.Method)
	if c.answer != nil && c.answer(w, r.Method) {
		return
	}
	result := map[string]any{"id": r.ID, "host": r.Host}
	switch r.Method {
	case "ping":
	case "getPowerState":
		result["result"] = string(c.PowerState())
	case "setPowerState":
		_ = map[string]func(context.Context) error{"on": c.PowerOn, "off": c.PowerOff, "soft": c.PressPower}[r.Params.State](q.Context())
	case "setBootDevice":
		c.device = r.Params.Device
	default:
		result["error"] = map[string]any{"code": 404, "message": "unknown method"}
	}
	_ = json.NewEncoder(w).Encode(result) // the client may be gone
}

func newConsumer(t *testing.T) (*Driver, *consumer, inventory.BMC) {
	t.Helper()
	c := &consumer{chassis: chassis{power: vlab.Off, next: vlab.NextDefault}}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	d := New(Config{
		Step: 5 * time.Millisecond, Hard: 50 * time.Millisecond, Soft: 50 * time.Millisecond, PerMinute: 100_000,
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	})
	return d, c, inventory.BMC{Driver: inventory.DriverRPC, Host: "rack1-node7", ConsumerURL: s.URL + "/rpc"}
}

// TestRPC: a service switches the machine by signed requests in Tinkerbell's form.
func TestRPC(t *testing.T) {
	d, c, b := newConsumer(t)
	for _, x := range []struct{ power, state string }{
		{"on", On}, {"on", On}, {"reset", On}, {"soft", Off}, {"cycle", On}, {"off", Off},
	} {
		require.NoError(t, d.Set(t.Context(), b, password(), x.power, nil), x.power)
		require.EqualValues(t, x.state, c.PowerState(), x.power)
	}
	warning, err := d.SetBootDevice(t.Context(), b, password(), inventory.BootDevice{Device: "pxe", EFI: true}, nil)
	require.NoError(t, err)
	require.Contains(t, warning, "cannot be read back")
	require.Equal(t, "pxe", c.device)
	report, err := d.Check(t.Context(), b, password())
	require.NoError(t, err)
	require.Equal(t, Off, report.Power)
	for _, asked := range c.asked {
		require.True(t, strings.HasPrefix(asked, "rack1-node7 "), asked)
	}
}

// TestRPCFalseSuccess: nothing that the service answers makes a power operation succeed without its effect.
func TestRPCFalseSuccess(t *testing.T) {
	says := func(status int, text string) func(http.ResponseWriter, string) bool {
		return func(w http.ResponseWriter, method string) bool {
			if method != "setPowerState" {
				return false
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text) // the client may be gone
			return true
		}
	}
	for name, x := range map[string]struct {
		answer func(http.ResponseWriter, string) bool
		want   error
	}{
		"success without effect": {says(200, `{"result":"ok"}`), inventory.ErrUnreachable},
		"refused":                {says(403, ``), inventory.ErrRefused},
		"unknown":                {says(200, `{"error":{"code":405,"message":"no\nsuch method"}}`), inventory.ErrUnsupported},
		"broken":                 {says(500, `{"error":{"code":0}}`), inventory.ErrUnreachable},
		"no JSON":                {says(200, `<html>`), inventory.ErrUnsupported},
		"redirected":             {says(302, `{}`), inventory.ErrUnreachable},
		"too long":               {says(200, strings.Repeat("x", 2<<20)), inventory.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			d, c, b := newConsumer(t)
			c.answer = x.answer
			err := d.Set(t.Context(), b, password(), "on", nil)
			require.ErrorIs(t, err, x.want)
			require.EqualValues(t, Off, c.PowerState())
		})
	}
}

// TestRPCKey: without the right key nothing happens, and the key is in no error.
func TestRPCKey(t *testing.T) {
	d, c, b := newConsumer(t)
	require.ErrorIs(t, d.Set(t.Context(), b, inventory.Secret{}, "on", nil), inventory.ErrRefused)
	err := d.Set(t.Context(), b, inventory.NewSecret("wrong-"+canary), "on", nil)
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.NotContains(t, err.Error(), canary)
	require.EqualValues(t, Off, c.PowerState())
	require.Empty(t, c.asked)

	d.cfg.Networks = DefaultNetworks()
	err = d.Set(t.Context(), b, password(), "on", nil)
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(t, err, "bmc.networks")
	require.Empty(t, c.asked, "a service outside of the BMCs' networks is not asked")
}
