package cli

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/stretchr/testify/require"
)

// runChecks runs the checks of those names.
func runChecks(t *testing.T, d *doctor, names ...string) []finding {
	t.Helper()
	for _, c := range slices.Concat(siteChecks, fileChecks, networkChecks, connectionChecks, serverChecks) {
		if slices.Contains(names, c.name) {
			d.runAll(t.Context(), []check{c})
		}
	}
	return d.findings
}

// The tables of a NAS at 192.168.1.10, as /proc/net/route has them on x86-64: without a route to 10.10.20.0/24, and with one by 192.168.1.2.
const (
	routesHome = `Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0101A8C0	0003	0	0	0	00000000	0	0	0
eth0	0001A8C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
`
	routesLab = routesHome + "eth0	00140A0A	0201A8C0	0003	0	0	0	00FFFFFF	0	0	0\n"
)

// TestDoctorLooksForTheWayToRelays, of servers with an interface, too: a
// default route alone is worth a word.
func TestDoctorLooksForTheWayToRelays(t *testing.T) {
	relay := "127.0.0.2" // the kernel has a way to it, whatever this host is connected to
	byDefault := routesHome
	bySelf := routesHome + "eth0	0000007F	0201A8C0	0003	0	0	0	000000FF	0	0	0\n"
	for name, c := range map[string]struct {
		netboot config.Netboot
		routes  string
		state   string
	}{
		"an interface":                {config.Netboot{Interfaces: []string{"eth0"}}, byDefault, stateWarn},
		"an interface, and a route":   {config.Netboot{Interfaces: []string{"eth0"}}, bySelf, stateOK},
		"relay-only":                  {config.Netboot{RelayOnly: true}, byDefault, stateWarn},
		"relay-only, and a route":     {config.Netboot{RelayOnly: true}, bySelf, stateOK},
		"behind published ports":      {config.Netboot{RelayOnly: true, Listen: "0.0.0.0"}, byDefault, stateOK},
		"an unreadable routing table": {config.Netboot{RelayOnly: true}, "", stateOK},
	} {
		c.netboot.Relays = []string{relay, "10.10.0.0/16"}
		d := &doctor{cfg: config.Config{Netboot: c.netboot}, routes: c.routes}
		d.runAll(t.Context(), []check{{"relay", "", checkRelayRoutes}})
		found := d.findings
		if len(found) != 1 || found[0].State != c.state || found[0].What != "relay" {
			t.Errorf("%s: %+v, want %s", name, found, c.state)
		}
		if c.state == stateWarn &&
			(len(found) == 0 || !strings.Contains(found[0].Text, "192.168.1.1") || !strings.Contains(found[0].Remedy, "Static Route")) {
			t.Errorf("%s: %+v does not say what to do", name, found)
		}
	}
}

func TestDoctorLooksAtPowerCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plug")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	argv := []string{file, "x"}
	d := &doctor{cfg: config.Config{Power: config.Power{Commands: map[string]config.PowerCommand{
		"a": {
			On:     argv,
			Off:    argv,
			Status: argv,
		},
		"b": {On: []string{"/bin/sh"}, Off: []string{"/nonexistent"}, Status: argv},
		"c": {On: []string{"/bin/sh"}, Off: []string{"/bin/sh"}, Status: []string{"/bin/sh"}},
	}}}}
	found := runChecks(t, d, "power command")
	require.Len(t, found, 3)
	require.Equal(t, stateFail, found[0].State)
	require.Contains(t, found[0].Text, "cannot be run")
	require.Equal(t, stateFail, found[1].State)
	require.Equal(t, finding{State: stateOK, What: "power command", Text: "c can be run"}, found[2])
}

// Doctor names reservations that cannot be answered, one line per subnet.
func TestDoctorLooksAtReservations(t *testing.T) {
	at := func(name, address string) api.MachineView {
		i := inventory.Interface{Address: netip.MustParseAddr(address), Netmask: "255.255.255.0"}
		return api.MachineView{Machine: inventory.Machine{Name: name, Interfaces: []inventory.Interface{i}}}
	}
	n := inventory.Network{
		Own: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, On: true,
	}
	found := reservationFindings(
		n,
		[]api.MachineView{at("right", "10.0.0.9"), at("self", "10.0.0.2"), at("far-1", "10.0.7.1"), at("far-2", "10.0.7.2")},
	)
	require.Len(t, found, 2)
	require.Equal(t, stateWarn, found[0].State)
	require.Contains(t, found[0].Text, "self: 10.0.0.2 is this server's own address")
	require.Contains(t, found[1].Text, "far-1, far-2: no interface of this server is in 10.0.7.0/24")
}

func TestDoctorLooksAtNotices(t *testing.T) {
	found := func(url, secret string, n *api.NotifyStatus) []finding {
		d := &doctor{cfg: config.Config{Notify: config.Notify{URL: url, SecretFile: secret}}, status: &api.Status{Notify: n}}
		found := runChecks(t, d, "notify", "notices")
		for _, f := range found {
			require.NotContains(t, f.Text, "TOKEN")
		}
		return found
	}
	f := found("", "", nil)
	require.Len(t, f, 1)
	require.Equal(t, stateWarn, f[0].State)
	require.Contains(t, f[0].Text, "no notices are sent")

	const url = "https://example.com/TOKEN"
	secret := filepath.Join(t.TempDir(), "secret")
	f = found(url, secret, &api.NotifyStatus{})
	require.Equal(t, stateFail, f[0].State, "there is no secret")
	require.NoError(t, os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef"), 0o600))
	for want, n := range map[string]*api.NotifyStatus{
		stateOK:   {Sent: time.Now()},
		stateWarn: {Dropped: 2},
		stateFail: {Waiting: 3, Oldest: time.Now().Add(-time.Hour), Error: "the receiver answers 503"},
	} {
		f = found(url, secret, n)
		require.Len(t, f, 2)
		require.Equal(t, finding{State: stateOK, What: "notify", Text: "https://example.com is notified when an operator is needed"}, f[0])
		require.Equal(t, want, f[1].State, f[1].Text)
	}
	require.Contains(t, found(url, secret, &api.NotifyStatus{Waiting: 3, Oldest: time.Now(), Error: "503"})[1].Text, "3 notices not accepted")
	require.Contains(t, found(url, secret, &api.NotifyStatus{})[1].Text, "none was accepted yet")
	require.Equal(t, stateWarn, found(url, secret, nil)[1].State, "the server does not know of it")
}

// TestDoctorNamesTheWayOutOfDamage: the inventory cannot be read.
func TestDoctorNamesTheWayOutOfDamage(t *testing.T) {
	cfg := testConfig(t)
	require.NoError(t, os.WriteFile(server.InventoryFile(cfg), make([]byte, 8192), 0o600))
	found := runChecks(t, &doctor{cfg: cfg}, "inventory")
	require.Len(t, found, 1)
	require.Equal(t, stateFail, found[0].State)
	require.Contains(t, found[0].Remedy, "ingot restore")
}

// testConfig is the configuration of a server in a folder of its own.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.DataDir, cfg.KeyFile, cfg.TokenFile = filepath.Join(
		dir,
		"data",
	), filepath.Join(
		dir,
		"etc",
		"keys.json",
	), filepath.Join(
		dir,
		"etc",
		"token",
	)
	cfg.Listen, cfg.MinFree = "127.0.0.1:0", 1
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	return cfg
}
