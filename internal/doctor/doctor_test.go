package doctor

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/images/sbat"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab/fakeloader"
)

// runChecks runs the checks of those names.
func runChecks(t *testing.T, d *host, names ...string) []Finding {
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

// TestDoctorLooksForTheWayToRelays: a server with an interface is checked too, and a default
// route alone causes a warning.
func TestDoctorLooksForTheWayToRelays(t *testing.T) {
	relay := "127.0.0.2" // the kernel has a way to it, whatever this host is connected to
	byDefault := routesHome
	bySelf := routesHome + "eth0	0000007F	0201A8C0	0003	0	0	0	000000FF	0	0	0\n"
	for name, c := range map[string]struct {
		netboot config.Netboot
		routes  string
		state   string
	}{
		"an interface":                {config.Netboot{Interfaces: []string{"eth0"}}, byDefault, StateWarn},
		"an interface, and a route":   {config.Netboot{Interfaces: []string{"eth0"}}, bySelf, StateOK},
		"relay-only":                  {config.Netboot{RelayOnly: true}, byDefault, StateWarn},
		"relay-only, and a route":     {config.Netboot{RelayOnly: true}, bySelf, StateOK},
		"behind published ports":      {config.Netboot{RelayOnly: true, Listen: "0.0.0.0"}, byDefault, StateOK},
		"an unreadable routing table": {config.Netboot{RelayOnly: true}, "", StateOK},
	} {
		c.netboot.Relays = []string{relay, "10.10.0.0/16"}
		d := &host{cfg: config.Config{Netboot: c.netboot}, routes: c.routes}
		d.runAll(t.Context(), []check{{"relay", "", checkRelayRoutes}})
		found := d.findings
		if len(found) != 1 || found[0].State != c.state || found[0].What != "relay" {
			t.Errorf("%s: %+v, want %s", name, found, c.state)
		}
		if c.state == StateWarn &&
			(len(found) == 0 || !strings.Contains(found[0].Text, "192.168.1.1") || !strings.Contains(found[0].Remedy, "Static Route")) {
			t.Errorf("%s: %+v does not say what to do", name, found)
		}
	}
}

func TestDoctorLooksAtPowerCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plug")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	argv := []string{file, "x"}
	d := &host{cfg: config.Config{Power: config.Power{Commands: map[string]config.PowerCommand{
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
	require.Equal(t, StateFail, found[0].State)
	require.Contains(t, found[0].Text, "is not executable")
	require.Equal(t, StateFail, found[1].State)
	require.Equal(t, Finding{State: StateOK, What: "power command", Text: "c can be run"}, found[2])
}

func TestDoctorReadsTheCatalog(t *testing.T) {
	require.Empty(t, runChecks(t, &host{}, "catalog"))
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	look := func() Finding {
		return runChecks(t, &host{cfg: config.Config{Images: config.Images{Catalog: file}}}, "catalog")[0]
	}
	missing := look()
	require.Equal(t, StateFail, missing.State)
	require.Contains(t, missing.Text, file)

	catalog := "images:\n- {name: a, url: 'https://e.org/a', sha256: '" + strings.Repeat("a", 64) + "'}\n"
	require.NoError(t, os.WriteFile(file, []byte(catalog), 0o600))
	require.Equal(t, StateOK, look().State)
}

// Doctor names reservations that cannot be answered, one line per subnet.
func TestDoctorLooksAtReservations(t *testing.T) {
	at := func(name, address string) apitypes.MachineView {
		i := inventory.Interface{Address: netip.MustParseAddr(address), Netmask: "255.255.255.0"}
		return apitypes.MachineView{Machine: inventory.Machine{Name: name, Interfaces: []inventory.Interface{i}}}
	}
	n := inventory.Network{
		Own: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, On: true,
	}
	found := reservationFindings(
		n,
		[]apitypes.MachineView{at("right", "10.0.0.9"), at("self", "10.0.0.2"), at("far-1", "10.0.7.1"), at("far-2", "10.0.7.2")},
	)
	require.Len(t, found, 2)
	require.Equal(t, StateWarn, found[0].State)
	require.Contains(t, found[0].Text, "self: 10.0.0.2 is this server's own address")
	require.Contains(t, found[1].Text, "far-1, far-2: no interface of this server is in 10.0.7.0/24")
}

func TestDoctorLooksAtNotices(t *testing.T) {
	found := func(url, secret string, n *apitypes.NotifyStatus) []Finding {
		d := &host{cfg: config.Config{Notify: config.Notify{URL: url, SecretFile: secret}}, status: &apitypes.Status{Notify: n}}
		found := runChecks(t, d, "notify", "notices")
		for _, f := range found {
			require.NotContains(t, f.Text, "TOKEN")
		}
		return found
	}
	f := found("", "", nil)
	require.Len(t, f, 1)
	require.Equal(t, StateWarn, f[0].State)
	require.Contains(t, f[0].Text, "no notice is sent")

	const url = "https://example.com/TOKEN"
	secret := filepath.Join(t.TempDir(), "secret")
	f = found(url, secret, &apitypes.NotifyStatus{})
	require.Equal(t, StateFail, f[0].State, "there is no secret")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"), 0o600))
	for want, n := range map[string]*apitypes.NotifyStatus{
		StateOK:   {Sent: time.Now()},
		StateWarn: {Dropped: 2},
		StateFail: {Waiting: 3, Oldest: time.Now().Add(-time.Hour), Error: "the receiver answers 503"},
	} {
		f = found(url, secret, n)
		require.Len(t, f, 2)
		require.Equal(t, Finding{State: StateOK, What: "notify", Text: "https://example.com is notified when a run needs an operator"}, f[0])
		require.Equal(t, want, f[1].State, f[1].Text)
	}
	require.Contains(
		t,
		found(url, secret, &apitypes.NotifyStatus{Waiting: 3, Oldest: time.Now(), Error: "503"})[1].Text,
		"3 notices not accepted",
	)
	require.Contains(t, found(url, secret, &apitypes.NotifyStatus{})[1].Text, "no run has needed a notice yet")
	require.Equal(t, StateWarn, found(url, secret, nil)[1].State, "the server does not know of it")
}

// TestDoctorNamesTheWayOutOfDamage: an unreadable inventory is reported with a remedy.
func TestDoctorNamesTheWayOutOfDamage(t *testing.T) {
	cfg := testConfig(t)
	require.NoError(t, os.WriteFile(server.InventoryFile(cfg), make([]byte, 8192), 0o600))
	found := runChecks(t, &host{cfg: cfg}, "inventory")
	require.Len(t, found, 1)
	require.Equal(t, StateFail, found[0].State)
	require.Contains(t, found[0].Remedy, "ingot restore")
}

// testConfig is the configuration of a server in a folder of its own.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.DataDir = filepath.Join(dir, "data")
	cfg.KeyFile = filepath.Join(dir, "etc", "keys.json")
	cfg.TokenFile = filepath.Join(dir, "etc", "token")
	cfg.Listen, cfg.MinFree = "127.0.0.1:0", 1
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	return cfg
}

// TestAllMachinesAreRead: a list of machines may have several pages.
func TestAllMachinesAreRead(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := `{"items":[{"name":"a"}],"next":"a"}`
		if r.URL.Query().Get("after") == "a" {
			answer = `{"items":[{"name":"b"}]}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	remote, err := client.New(client.Session{Server: s.URL})
	require.NoError(t, err)
	d := &host{remote: remote}
	require.Empty(t, checkMachines(t.Context(), d))
	require.Len(t, d.machines, 2)
}

// TestShimNeedsItsSecondStage: Debian's shim alone starts nothing, except the kernels of a signed iPXE.
func TestShimNeedsItsSecondStage(t *testing.T) {
	n := config.Netboot{Loaders: t.TempDir()}
	put := func(file string) {
		require.NoError(t, os.WriteFile(filepath.Join(n.Loaders, file), []byte(file), 0o600))
	}
	require.Empty(t, checkSecureBoot(config.Netboot{}))
	require.Empty(t, checkSecureBoot(n))
	put("shimx64.efi")
	found := checkSecureBoot(n)
	require.Len(t, found, 1)
	require.Equal(t, StateFail, found[0].State)
	require.Contains(t, found[0].Text, "needs its second stage, grubx64.efi")
	require.Contains(t, found[0].Remedy, "grub-efi-amd64-signed")
	n.Loader = inventory.LoaderShim
	found = checkSecureBoot(n)
	require.Len(t, found, 1)
	require.Contains(t, found[0].Text, "netboot.loaders has no grubx64.efi")

	put("snponly-shim.efi")
	put("snponly.efi")
	for _, n.Loader = range []string{"", inventory.LoaderIPXEShim} {
		require.Empty(t, checkSecureBoot(n), "a complete site of ipxe-shim: %q", n.Loader)
	}
	put("grubx64.efi")
	n.Loader = ""
	require.Contains(t, checkSecureBoot(n)[0].Text, "its second stage, grubx64.efi, are in the same directory")
}

// TestMissingBootFiles: the Debian package has all of them, so its users are not told to build anything.
func TestMissingBootFiles(t *testing.T) {
	check := func(n config.Netboot) []Finding {
		return runChecks(t, &host{cfg: config.Config{Netboot: n}}, "boot files")
	}
	found := check(config.Netboot{Loaders: "/usr/share/ingot/ipxe/", AgentOS: "/usr/share/ingot"})
	for _, f := range found {
		if f.State != StateOK { // all are OK where the package is installed
			require.Contains(t, f.Remedy, "apt install --reinstall")
			require.NotContains(t, f.Remedy, "make build")
		}
	}
	found = check(config.Netboot{AgentOS: t.TempDir()})
	require.Equal(t,
		"set netboot.loaders: /usr/share/ingot/ipxe with the package ingot; without the package: apt install ipxe, then /usr/lib/ipxe",
		found[0].Remedy)
	require.Equal(t,
		"set netboot.agent_os: /usr/share/ingot with the package ingot; without the package: make build, then the directory bin/agentos",
		found[2].Remedy)
}

// TestLoaderOfTheSiteIsThere: each file that netboot.loader needs and netboot.loaders does not have is a failure.
func TestLoaderOfTheSiteIsThere(t *testing.T) {
	dir := t.TempDir()
	d := &host{cfg: config.Config{Netboot: config.Netboot{Loaders: dir, Loader: inventory.LoaderIPXEShim}}}
	missing := func() (files []string) {
		for _, f := range checkBootFiles(t.Context(), d) {
			if file, ok := strings.CutPrefix(f.Text, "netboot.loader is ipxe-shim, but the directory netboot.loaders has no "); ok {
				require.Equal(t, StateFail, f.State)
				if file != "shimx64.efi" {
					require.Contains(t, f.Remedy, "x86_64-sb/"+file)
				}
				files = append(files, file)
			}
		}
		return files
	}
	require.Equal(t, []string{"snponly-shim.efi", "snponly.efi", "shimx64.efi"}, missing())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "snponly-shim.efi"), []byte("shim"), 0o600))
	require.Equal(t, []string{"snponly.efi", "shimx64.efi"}, missing())
	d.cfg.Netboot.Loader = ""
	require.Empty(t, missing())
}

// TestLoadersOfTheSiteAreSigned: what netboot.loader needs and Secure Boot refuses is a failure.
func TestLoadersOfTheSiteAreSigned(t *testing.T) {
	dir := t.TempDir()
	put := func(file string, signed bool) {
		b := fakeloader.Program(fakeloader.Format+fakeloader.Line("ipxe,1"), signed)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), b, 0o600))
	}
	look := func(loader string) []Finding {
		return runChecks(t, &host{cfg: config.Config{Netboot: config.Netboot{Loaders: dir, Loader: loader}}}, "loaders")
	}
	put("snponly.efi", false)
	require.Equal(t, StateOK, look("")[0].State)
	require.Equal(t, StateOK, look(inventory.LoaderShim)[0].State)
	found := look(inventory.LoaderIPXEShim)[0]
	require.Equal(t, StateFail, found.State)
	require.Contains(t, found.Text,
		"snponly.efi: ipxe 1 (1.2-3), not signed: Secure Boot refuses the file, which netboot.loader ipxe-shim needs")
	require.Contains(t, found.Remedy, "x86_64-sb/snponly.efi from the iPXE project's newest ipxeboot.tar.gz")
	put("snponly.efi", true)
	require.Equal(t, StateOK, look(inventory.LoaderIPXEShim)[0].State)
}

// TestS36DoctorShowsLoaders: a line for each loader with its generations and signature; what is below a known
// vulnerability is a warning, and what is below the operator's minimum a failure.
func TestS36DoctorShowsLoaders(t *testing.T) {
	dir := t.TempDir()
	put := func(file, lines string, signed bool) {
		b := fakeloader.Program(fakeloader.Format+lines, signed)
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), b, 0o600))
	}
	look := func(set sbat.Minimum) []Finding {
		d := &host{cfg: config.Config{Netboot: config.Netboot{Loaders: dir, MinimumSBAT: set}}}
		return runChecks(t, d, "loaders")
	}
	require.Empty(t, look(nil))
	put("shimx64.efi", fakeloader.Line("shim,4")+fakeloader.Line("shim.debian,1"), true)
	put("grubx64.efi", fakeloader.Line("grub,4"), true)
	put("snponly.efi", fakeloader.Line("ipxe,1"), false)

	found := look(nil)
	require.Len(t, found, 3)
	require.Equal(t, StateWarn, found[0].State)
	require.Contains(t, found[0].Text, "grub 4 (1.2-3), signed: grub 4 is below the minimum 5, known vulnerabilities: CVE-2024-45774")
	require.Contains(t, found[0].Remedy, "newest package grub-efi-amd64-signed")
	require.Equal(t, Finding{State: StateOK, What: "loaders", Text: "shimx64.efi: shim 4, shim.debian 1 (1.2-3), signed"}, found[1])
	require.Equal(t, Finding{State: StateOK, What: "loaders", Text: "snponly.efi: ipxe 1 (1.2-3), not signed"}, found[2])

	found = look(sbat.Minimum{"shim": 5, "grub": 4, "sihm": 1})
	require.Len(t, found, 4)
	require.Equal(t, StateOK, found[0].State, found[0].Text)
	require.Equal(t, StateFail, found[1].State)
	require.Contains(t, found[1].Text, "shim 4 is below the minimum 5 (netboot.minimum_sbat): the file is not served")
	require.Contains(t, found[1].Remedy, "shim-signed")
	require.Equal(t, StateWarn, found[3].State)
	require.Contains(t, found[3].Text, "names the component sihm, which no loader")

	put("shimx64.efi", fakeloader.Line("shim,4"), false)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "grubx64.efi"), append([]byte("MZ"), make([]byte, 100)...), 0o600))
	found = look(nil)
	require.Equal(t, []string{StateWarn, StateWarn, StateOK}, []string{found[0].State, found[1].State, found[2].State})
	require.Contains(t, found[0].Text, "grubx64.efi: reading the headers of a UEFI program")
	require.Contains(t, found[1].Text, "not signed: Secure Boot refuses the file")
	require.Equal(t, StateFail, look(sbat.Minimum{"shim": 4})[0].State, "a malformed loader is not served")
}
