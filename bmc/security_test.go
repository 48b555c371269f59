package bmc

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
	vlab "github.com/ingotmetal/ingot/lab"
)

// TestS17OnlyConfiguredNetworksAreDialled: ipmitool is not started for a host outside
// of the configured networks, given by address or by name.
func TestS17OnlyConfiguredNetworksAreDialled(t *testing.T) {
	b := newBench(t)
	resolver := names{
		"bmc-a": {"192.0.2.3"}, "inside": {"127.0.0.1"}, "rebinding": {"192.0.2.3", "127.0.0.1"},
		"metadata": {"169.254.169.254"},
	}
	b.cfg.Resolver = resolver
	for _, host := range []string{
		"127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1%eth0", "8.8.8.8", "192.0.3.1", "inside",
		"metadata",
	} {
		x := b.bmc
		x.Host = host
		_, err := b.State(t.Context(), x, password())
		require.ErrorIs(t, err, inventory.ErrInvalid, host)
		require.ErrorContains(t, err, "bmc.networks", host)
		require.ErrorIs(t, b.Set(t.Context(), x, password(), "on", nil), inventory.ErrInvalid, host)
		if _, err := netip.ParseAddr(host); err == nil {
			require.ErrorIs(t, b.CheckHost(host), inventory.ErrInvalid, host)
		}
	}
	require.Empty(t, b.get("argv"), "nothing was dialed")

	// The checked address is the one that is dialed: ipmitool gets the address and
	// does not look up the name again.
	x := b.bmc
	x.Host = "rebinding"
	_, err := b.State(t.Context(), x, password())
	require.NoError(t, err)
	require.Contains(t, b.get("argv"), "-H 192.0.2.3 ")
	b.commands()
	_, err = b.State(t.Context(), x, password())
	require.ErrorIs(t, err, inventory.ErrInvalid, "the name points elsewhere now")
	require.Empty(t, b.get("argv"))
	require.NoError(t, b.CheckHost("a-name"))
	require.NoError(t, b.CheckHost("192.0.2.77"))
	x.Host = "nobody"
	_, err = b.State(t.Context(), x, password())
	require.ErrorIs(t, err, inventory.ErrUnreachable)
}

// TestS17DefaultNetworksArePrivate checks the default of bmc.networks.
func TestS17DefaultNetworksArePrivate(t *testing.T) {
	d := New(Config{})
	for host, ok := range map[string]bool{
		"10.1.2.3": true, "172.31.0.1": true, "192.168.7.7": true, "fd00::7": true, "::ffff:10.0.0.1": true,
		"172.32.0.1": false, "127.0.0.1": false, "::1": false, "169.254.169.254": false, "fe80::1": false, "100.64.0.1": false, "1.1.1.1": false,
		"2001:db8::1": false,
		"0.0.0.0":     false, "224.0.0.1": false, "255.255.255.255": false,
	} {
		if ok {
			require.NoError(t, d.CheckHost(host), host)
		} else {
			require.ErrorIs(t, d.CheckHost(host), inventory.ErrInvalid, host)
		}
	}
}

// TestS50NothingIsSentWithoutAPassword: nothing is sent to a BMC whose password was
// cleared because its host changed.
func TestS50NothingIsSentWithoutAPassword(t *testing.T) {
	b := newBench(t)
	_, err := b.State(t.Context(), b.bmc, inventory.Secret{})
	require.ErrorIs(t, err, inventory.ErrRefused)
	require.ErrorContains(t, err, "needs a password")
	require.ErrorIs(t, b.Set(t.Context(), b.bmc, inventory.Secret{}, "on", nil), inventory.ErrRefused)
	require.Empty(t, b.get("argv"))

	r := newRedfishBench(t, vlab.RedfishHPE)
	_, err = r.State(t.Context(), r.bmc, inventory.Secret{})
	require.ErrorContains(t, err, "needs a password")
	require.Empty(t, r.keys.known, "there was a connection")
}

// TestS29SessionsAreBudgeted: the sessions per minute with one BMC are limited, and
// further operations wait. Each BMC has its own limit.
func TestS29SessionsAreBudgeted(t *testing.T) {
	b := newBench(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var waited time.Duration
	b.cfg.PerMinute = 10
	b.cfg.now = func() time.Time { return now }
	b.cfg.sleep = func(_ context.Context, d time.Duration) error {
		waited += d
		now = now.Add(d)
		return nil
	}
	for range 10 {
		_, err := b.State(t.Context(), b.bmc, password())
		require.NoError(t, err)
	}
	require.Zero(t, waited)
	for range 20 {
		_, err := b.State(t.Context(), b.bmc, password())
		require.NoError(t, err)
	}
	require.InDelta(t, 2*time.Minute, waited, float64(time.Second), "ten a minute")
	require.Len(t, b.commands(), 30, "each has its turn")
	other := b.bmc
	other.Host = "192.0.2.4"
	before := waited
	_, err := b.State(t.Context(), other, password())
	require.NoError(t, err)
	require.Equal(t, before, waited)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	b.cfg.sleep = clock.Sleep
	_, err = b.State(gone, b.bmc, password())
	require.ErrorIs(t, err, context.Canceled)
}

// TestS29RefusedCredentialsAreNotTriedAgainAtOnce: refused credentials rest, so that
// the BMC does not lock the user; other credentials are tried at once.
func TestS29RefusedCredentialsAreNotTriedAgainAtOnce(t *testing.T) {
	b := newBench(t)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b.cfg.now = func() time.Time { return now }
	wrong := inventory.NewSecret("wrong")
	for range 5 {
		_, err := b.State(t.Context(), b.bmc, wrong)
		require.ErrorIs(t, err, inventory.ErrRefused)
		require.NotContains(t, err.Error(), "wrong")
	}
	require.Len(t, b.commands(), maxRefused, "the BMC was not asked again")
	_, err := b.State(t.Context(), b.bmc, password())
	require.NoError(t, err, "the right ones")
	b.commands()
	for range maxRefused {
		_, err = b.State(t.Context(), b.bmc, wrong)
		require.ErrorIs(t, err, inventory.ErrRefused)
	}
	for _, pause := range []time.Duration{5 * time.Minute, 20 * time.Minute, 80 * time.Minute, 320 * time.Minute, 1280 * time.Minute, maxRest, maxRest} {
		now = now.Add(pause - time.Second)
		b.commands()
		_, err = b.State(t.Context(), b.bmc, wrong)
		require.ErrorIs(t, err, inventory.ErrResting)
		require.Empty(t, b.get("argv"))
		now = now.Add(time.Second)
		_, err = b.State(t.Context(), b.bmc, wrong)
		require.ErrorIs(t, err, inventory.ErrRefused)
		require.Len(t, b.commands(), 1, "after a rest, once")
	}
}
