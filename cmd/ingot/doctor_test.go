package main

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/server"
	"github.com/ingotmetal/ingot/internal/site"
	"github.com/ingotmetal/ingot/inventory"
)

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
		"an interface":                 {config.Netboot{Interfaces: []string{"eth0"}}, byDefault, isWarn},
		"an interface, and a route":    {config.Netboot{Interfaces: []string{"eth0"}}, bySelf, isOK},
		"relay-only":                   {config.Netboot{RelayOnly: true}, byDefault, isWarn},
		"relay-only, and a route":      {config.Netboot{RelayOnly: true}, bySelf, isOK},
		"behind published ports":       {config.Netboot{RelayOnly: true, Listen: "0.0.0.0"}, byDefault, isOK},
		"a table that nobody can read": {config.Netboot{RelayOnly: true}, "", isOK},
	} {
		c.netboot.Relays = []string{relay, "10.10.0.0/16"}
		d := &doctor{cfg: config.Config{Netboot: c.netboot}}
		d.relays(t.Context(), c.routes)
		if len(d.findings) != 1 || d.findings[0].State != c.state || d.findings[0].What != "relay" {
			t.Errorf("%s: %+v, want %s", name, d.findings, c.state)
		}
		if c.state == isWarn && (len(d.findings) == 0 || !strings.Contains(d.findings[0].Text, "192.168.1.1") || !strings.Contains(d.findings[0].Remedy, "Static Route")) {
			t.Errorf("%s: %+v does not say what to do", name, d.findings)
		}
	}
}

// What init has written it does not ask its operator to write.
func TestInitKnowsWhatItHasWritten(t *testing.T) {
	n := config.Netboot{Interfaces: []string{"eth1"}}
	require.True(t, holds(n, []string{"eth1"}, relayOnly{}))
	require.False(t, holds(n, []string{"eth2"}, relayOnly{}))
	relay := relayOnly{on: true, relays: []string{"10.0.20.1"}, address: "192.0.2.10"}
	require.False(t, holds(n, nil, relay))
	n = config.Netboot{RelayOnly: true, Relays: []string{"10.0.20.1"}, Address: "192.0.2.10"}
	require.True(t, holds(n, nil, relay))
	relay.address = "192.0.2.11"
	require.False(t, holds(n, nil, relay))
}

// Doctor names reservations that cannot be answered, one line per subnet.
func TestDoctorLooksAtReservations(t *testing.T) {
	at := func(name, address string) inventory.Machine {
		return inventory.Machine{Name: name, Interfaces: []inventory.Interface{{Address: netip.MustParseAddr(address), Netmask: "255.255.255.0"}}}
	}
	n := inventory.Network{
		Own: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, On: true,
	}
	d := &doctor{}
	d.reservations(n, []inventory.Machine{at("right", "10.0.0.9"), at("self", "10.0.0.2"), at("far-1", "10.0.7.1"), at("far-2", "10.0.7.2")})
	require.Len(t, d.findings, 2)
	require.Equal(t, isWarn, d.findings[0].State)
	require.Contains(t, d.findings[0].Text, "self: 10.0.0.2 is this server's own address")
	require.Contains(t, d.findings[1].Text, "far-1, far-2: no interface of this server is in 10.0.7.0/24")
}

// TestDoctorNamesTheWayOutOfDamage: the inventory cannot be read.
func TestDoctorNamesTheWayOutOfDamage(t *testing.T) {
	cfg := testConfig(t)
	require.NoError(t, os.WriteFile(server.InventoryFile(cfg), make([]byte, 8192), 0o600))
	d := &doctor{cfg: cfg}
	d.inventory(t.Context())
	require.Len(t, d.findings, 1)
	require.Equal(t, isFail, d.findings[0].State)
	require.Contains(t, d.findings[0].Remedy, "ingot restore")
}

// A host where parts of its site are missing says what an operator can do.
func TestSiteNamesTheWayOutOfMissingParts(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, printSite(&out, api.SiteStatus{Role: site.Active, Prepared: "h1", Silent: "inventory.db is missing"}))
	require.Contains(t, out.String(), "put the file back")
}

// testConfig is the configuration of a server in a folder of its own.
func testConfig(t *testing.T) config.Config {
	t.Helper()
	dir := t.TempDir()
	cfg := config.Default()
	cfg.DataDir, cfg.KeyFile, cfg.TokenFile = filepath.Join(dir, "data"), filepath.Join(dir, "etc", "keys.json"), filepath.Join(dir, "etc", "token")
	cfg.Listen, cfg.MinFree = "127.0.0.1:0", 1
	require.NoError(t, os.MkdirAll(cfg.DataDir, 0o700))
	return cfg
}

func TestNoticesInWords(t *testing.T) {
	require.Equal(t, "https://example.com", noticeText(api.NotifyStatus{Receiver: "https://example.com"}))
	text := noticeText(api.NotifyStatus{Receiver: "https://example.com", Error: "the receiver\x1b[2J answers 503", Dropped: 3})
	require.Contains(t, text, "3 were given up")
	require.NotContains(t, text, "\x1b")
}

func TestDoctorLooksAtNotices(t *testing.T) {
	found := func(url, secret string, n *api.NotifyStatus) []finding {
		d := &doctor{cfg: config.Config{Notify: config.Notify{URL: url, SecretFile: secret}}}
		d.notify()
		d.notices(n)
		for _, f := range d.findings {
			require.NotContains(t, f.Text, "TOKEN")
		}
		return d.findings
	}
	f := found("", "", nil)
	require.Len(t, f, 1)
	require.Equal(t, isWarn, f[0].State)
	require.Contains(t, f[0].Text, "nobody is told")

	const url = "https://example.com/TOKEN"
	secret := filepath.Join(t.TempDir(), "secret")
	f = found(url, secret, &api.NotifyStatus{})
	require.Equal(t, isFail, f[0].State, "there is no secret")
	require.NoError(t, os.WriteFile(secret, []byte("0123456789abcdef0123456789abcdef"), 0o600))
	for want, n := range map[string]*api.NotifyStatus{
		isOK:   {Sent: time.Now()},
		isWarn: {Dropped: 2},
		isFail: {Waiting: 3, Oldest: time.Now().Add(-time.Hour), Error: "the receiver answers 503"},
	} {
		f = found(url, secret, n)
		require.Len(t, f, 2)
		require.Equal(t, finding{State: isOK, What: "notify", Text: "https://example.com is told when a person is needed"}, f[0])
		require.Equal(t, want, f[1].State, f[1].Text)
	}
	require.Contains(t, found(url, secret, &api.NotifyStatus{Waiting: 3, Oldest: time.Now(), Error: "503"})[1].Text, "3 notices not taken")
	require.Contains(t, found(url, secret, &api.NotifyStatus{})[1].Text, "none was taken yet")
	require.Equal(t, isWarn, found(url, secret, nil)[1].State, "the server does not know of it")
}

// TestS25NoFlagTakesAPassword: what stands on a command line, every user of
// the host can read.
func TestS25NoFlagTakesAPassword(t *testing.T) {
	n := 0
	every(rootCmd(), func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			for _, word := range []string{"password", "passwd", "secret", "token", "user-data", "vendor-data", "key"} {
				if strings.Contains(f.Name, word) && !strings.HasSuffix(f.Name, "-file") && f.Value.Type() == "string" {
					t.Errorf("%s --%s takes a secret", c.CommandPath(), f.Name)
				}
			}
		})
	})
	require.Greater(t, n, 80)
	root := rootCmd()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs([]string{"machine", "add", "m1", "--mac", "52:54:00:00:00:01", "--bmc", "ipmi://admin:hunter2@10.0.9.1"})
	err := root.ExecuteContext(t.Context())
	require.Error(t, err)
	require.NotContains(t, err.Error()+out.String(), "hunter2", "it is not repeated, either")
}

// TestS47TerminalCapture: what machines say of themselves reaches a terminal
// as text, in each form of output.
func TestS47TerminalCapture(t *testing.T) {
	hostile := []string{
		"\x1b[2J\x1b[1;1Hroot#", "\x1b]0;title\x07", "\x1b]52;c;cm0gLXJmIC8=\x07", "\x9b31m", "\u009b31m", "\x1bP+q544e\x1b\\", "\x1b]8;;http://evil\x1b\\link", "a\rb", "a\bb", "\x00",
		"\u202egpj.exe", "\u2066x\u2069", "\x7f", "line\nforged: line", "\x0e\x0f", "\x05",
	}
	for _, form := range []string{"table", "json", "yaml"} {
		out := filepath.Join(t.TempDir(), "tty")
		f, err := os.Create(out)
		require.NoError(t, err)
		o := &options{output: form}
		for _, text := range hostile {
			cmd := &cobra.Command{}
			cmd.SetOut(&terminal{file: f})
			require.NoError(t, showValue(cmd, o, map[string]string{"serial": text}, func(w io.Writer) error {
				tab := newTable(w, "SERIAL", "MODEL")
				tab.row(text, text)
				return tab.flush()
			}))
			_, err := fmt.Fprintln(cmd.OutOrStdout(), text) // a log is printed as it is
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
		b, err := os.ReadFile(out)
		require.NoError(t, err)
		require.NotEmpty(t, b)
		for _, r := range string(b) {
			if r != '\n' && r != '\t' && dangerous(r) {
				t.Fatalf("%s: %U reaches the terminal: %q", form, r, b)
			}
		}
	}
}

// TestS25MistakesInAFileRepeatNoSecret: what is said of a document that cannot
// be read names lines and fields, never what stands there.
func TestS25MistakesInAFileRepeatNoSecret(t *testing.T) {
	t.Setenv("INGOT_TOKEN", strings.Repeat("x", 40))
	for n, doc := range []string{
		"name: n1\nbmc: {driver: ipmi, host: 10.0.0.1, password: [canary, canary]}\n",
		"name: n1\nuserData: {a: canary}\nvendorData: [canary]\n",
		"name: n1\nuserData: |\n  x\n canary\n",
		"name: n1\nbmc: {password: \"canary\n",
		"name: n1\nbmc:\n  password: canary\n  password: canary2\n  passwort: canary\n",
		`{"name":"n1","bmc":{"password":"canary"}`,
		`{"name":"n1","bmc":{"driver":"ipmi","host":"h","password":"canary-that-is-longer-than-twenty"}}`,
		"name: n1\nbmc: {driver: ipmi, host: h, password: \"canary\\nx\"}\n",
		"name: n1\nbmc: canary\n",
		"name: n1\nuserData: !!binary canary!\n",
	} {
		file := filepath.Join(t.TempDir(), "machine.yaml")
		require.NoError(t, os.WriteFile(file, []byte(doc), 0o600))
		root := rootCmd()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&out)
		root.SetArgs([]string{"machine", "push", "--server", "http://127.0.0.1:1", "--file", file})
		err := root.ExecuteContext(t.Context())
		require.ErrorIs(t, err, inventory.ErrInvalid, "document %d", n)
		require.NotContains(t, err.Error()+out.String(), "canary", "document %d", n)
	}
}

// TestTemporalEnvOfAnotherCluster: what the configuration says of a cluster by
// address, in words that a shell leaves as they are.
func TestTemporalEnvOfAnotherCluster(t *testing.T) {
	cfg := testConfig(t)
	env, err := server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{"TEMPORAL_ADDRESS": "127.0.0.1:7233", "TEMPORAL_NAMESPACE": "default"}, env)

	ca := filepath.Join(t.TempDir(), "it's a CA.pem")
	require.NoError(t, os.WriteFile(ca, []byte("CA"), 0o600))
	cfg.Temporal.Address, cfg.Temporal.TLSCA = "temporal.example:7233", ca
	env, err = server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"TEMPORAL_ADDRESS": "temporal.example:7233", "TEMPORAL_NAMESPACE": "default", "TEMPORAL_TLS": "true", "TEMPORAL_TLS_SERVER_CA_CERT_PATH": ca,
	}, env)
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "X="+shellWord(ca)+"; printf %s \"$X\"").Output()
	require.NoError(t, err)
	require.Equal(t, ca, string(out))

	cfg.Temporal.Address, cfg.Temporal.MutualTLS = "", true
	_, err = server.TemporalEnv(cfg, "")
	require.ErrorContains(t, err, "no such file")
	_, err = identity.LoadCertificate(cfg.TemporalIdentity())
	require.NoError(t, err)
	env, err = server.TemporalEnv(cfg, "")
	require.NoError(t, err)
	require.Equal(t, cfg.TemporalIdentity(), env["TEMPORAL_TLS_CLIENT_KEY_PATH"])
}
