package cloudinit

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// bonded is a machine with a bond, a VLAN on it, and a card that is renamed.
func bonded() inventory.Machine {
	return inventory.Canonical(inventory.Machine{
		Name: "node-1",
		Interfaces: []inventory.Interface{
			{MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("10.0.0.11"), Netmask: "255.255.255.0"}, {MAC: "02:00:00:00:00:02"},
		},
		Network: &inventory.SystemNetwork{
			Ethernets: []inventory.Ethernet{
				{SystemLink: inventory.SystemLink{Name: "port1"}, MAC: "02-00-00-00-00-01"},
				{SystemLink: inventory.SystemLink{Name: "port2"}, MAC: "02:00:00:00:00:02"},
				{SystemLink: inventory.SystemLink{Name: "san0", MTU: 9000, DHCP4: true}, MAC: "02:00:00:00:00:03", SetName: true},
			},
			Bonds: []inventory.Bond{{
				SystemLink: inventory.SystemLink{
					Name: "bond0", MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.11/24")},
					Routes:      []inventory.SystemRoute{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.0.0.1")}},
					Nameservers: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Search: []string{"example.com"},
				},
				Interfaces: []string{"port1", "port2"}, Primary: "port1",
			}},
			VLANs: []inventory.VLAN{{
				SystemLink: inventory.SystemLink{
					Name: "storage", MTU: 1400, Addresses: []netip.Prefix{netip.MustParsePrefix("10.40.0.11/24")},
					Routes: []inventory.SystemRoute{{To: netip.MustParsePrefix("10.41.0.0/16"), Via: netip.MustParseAddr("10.40.0.1"), Metric: 50}},
				}, ID: 40, Link: "bond0",
			}},
		},
	})
}

func TestNetworkConfigOfASystemNetwork(t *testing.T) {
	m := bonded()
	require.Empty(t, inventory.Validate(m))
	require.JSONEq(t, `{"version": 2,
		"ethernets": {
			"port1": {"match": {"macaddress": "02:00:00:00:00:01"}, "set-name": "port1", "dhcp4": false},
			"port2": {"match": {"macaddress": "02:00:00:00:00:02"}, "set-name": "port2", "dhcp4": false},
			"san0": {"match": {"macaddress": "02:00:00:00:00:03"}, "set-name": "san0", "mtu": 9000, "dhcp4": true}},
		"bonds": {"bond0": {
			"macaddress": "02:00:00:00:00:01", "interfaces": ["port1", "port2"], "mtu": 1500, "dhcp4": false, "addresses": ["10.0.0.11/24"],
			"parameters": {"mode": "active-backup", "primary": "port1", "mii-monitor-interval": 100},
			"routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}],
			"nameservers": {"addresses": ["10.0.0.1"], "search": ["example.com"]}}},
		"vlans": {"storage": {
			"id": 40, "link": "bond0", "mtu": 1400, "dhcp4": false, "addresses": ["10.40.0.11/24"],
			"routes": [{"to": "10.41.0.0/16", "via": "10.40.0.1", "metric": 50}]}}}`, string(NetworkConfig(m)))
	var plan map[string]any
	require.NoError(t, json.Unmarshal(Netplan(m), &plan))
	require.Equal(t, []string{"network"}, slices.Collect(maps.Keys(plan)))
	require.NotContains(t, string(Netplan(m)), `"set-name": "port`)
}

// TestNetworkConfigRenamesOnlyWhereItMust: bonds and VLANs refer to cards by name in all of cloud-init's
// renderers; no other card is renamed unless the inventory says so.
func TestNetworkConfigRenamesOnlyWhereItMust(t *testing.T) {
	m := bonded()
	m.Network.Ethernets[2].SetName = false
	require.NotContains(t, string(NetworkConfig(m)), `"set-name": "san0"`)
	m.Network.VLANs[0].Link = "san0"
	require.Contains(t, string(NetworkConfig(m)), `"set-name": "san0"`)
	require.NotContains(t, string(Netplan(m)), "set-name")
}

func TestNetworkd(t *testing.T) {
	require.Equal(t, map[string]string{
		"10-san0.link":      "[Match]\nPermanentMACAddress=02:00:00:00:00:03\n\n[Link]\nName=san0\n",
		"20-bond0.netdev":   "[NetDev]\nName=bond0\nKind=bond\nMACAddress=02:00:00:00:00:01\n\n[Bond]\nMode=active-backup\nMIIMonitorSec=100ms\n",
		"20-storage.netdev": "[NetDev]\nName=storage\nKind=vlan\n\n[VLAN]\nId=40\n",
		"30-port1.network":  "[Match]\nPermanentMACAddress=02:00:00:00:00:01\n\n[Network]\nBond=bond0\nPrimarySlave=true\n",
		"30-port2.network":  "[Match]\nPermanentMACAddress=02:00:00:00:00:02\n\n[Network]\nBond=bond0\n",
		"30-san0.network":   "[Match]\nPermanentMACAddress=02:00:00:00:00:03\n\n[Link]\nMTUBytes=9000\n\n[Network]\nDHCP=ipv4\n",
		"30-bond0.network": "[Match]\nName=bond0\n\n[Link]\nMTUBytes=1500\n\n[Network]\nVLAN=storage\nAddress=10.0.0.11/24\nDNS=10.0.0.1\n" +
			"Domains=example.com\n\n[Route]\nDestination=0.0.0.0/0\nGateway=10.0.0.1\n",
		"30-storage.network": "[Match]\nName=storage\n\n[Link]\nMTUBytes=1400\n\n[Network]\nAddress=10.40.0.11/24\n\n" +
			"[Route]\nDestination=10.41.0.0/16\nGateway=10.40.0.1\nMetric=50\n",
	}, trimmed(Networkd(bonded())))

	plain := bonded()
	plain.Network = nil
	files := Networkd(plain)
	require.Equal(t, "[Match]\nPermanentMACAddress=02:00:00:00:00:01\n\n[Network]\nAddress=10.0.0.11/24\n", trimmed(files)["30-eth0.network"])
}

// leased returns machines with routers outside of all their networks: of a reservation, of a network, and link-local.
func leased() []inventory.Machine {
	nic := inventory.Interface{
		MAC: "02:00:00:00:03:01", Address: netip.MustParseAddr("192.0.2.77"), Netmask: "255.255.255.255",
		Gateway: netip.MustParseAddr("192.0.2.65"),
	}
	reserved := inventory.Machine{Name: "leased-1", Interfaces: []inventory.Interface{nic}}
	via := func(to, router string, said bool) inventory.SystemRoute {
		return inventory.SystemRoute{To: netip.MustParsePrefix(to), Via: netip.MustParseAddr(router), OnLink: said}
	}
	link := inventory.SystemLink{
		Name:      "eno1",
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.78/29"), netip.MustParsePrefix("2001:db8:7::2/64")},
		Routes: []inventory.SystemRoute{
			via("0.0.0.0/0", "192.0.2.65", true),
			via("::/0", "fe80::1", false),
			via("10.0.0.0/8", "192.0.2.73", false),
		},
	}
	described := reserved
	described.Name, described.Network = "leased-2", &inventory.SystemNetwork{
		Ethernets: []inventory.Ethernet{{SystemLink: link, MAC: nic.MAC, SetName: true}},
	}
	return []inventory.Machine{reserved, described}
}

// TestRoutersOnLink: all forms of a network say that a router is on the link, and only of a router that is.
func TestRoutersOnLink(t *testing.T) {
	const reserved = `[{"to": "0.0.0.0/0", "via": "192.0.2.65", "on-link": true}]`
	const described = `[{"to": "0.0.0.0/0", "via": "192.0.2.65", "on-link": true}, {"to": "::/0", "via": "fe80::1", "on-link": true},
		{"to": "10.0.0.0/8", "via": "192.0.2.73"}]`
	type document struct {
		Ethernets map[string]struct{ Routes json.RawMessage }
	}
	for n, routes := range map[int]string{0: reserved, 1: described} {
		m := leased()[n]
		require.Empty(t, inventory.Validate(m))
		name := []string{"eth0", "eno1"}[n]
		var config document
		require.NoError(t, json.Unmarshal(NetworkConfig(m), &config))
		require.JSONEq(t, routes, string(config.Ethernets[name].Routes))
		var plan struct{ Network document }
		require.NoError(t, json.Unmarshal(Netplan(m), &plan))
		require.JSONEq(t, routes, string(plan.Network.Ethernets[name].Routes))
	}
	require.Equal(t, "[Match]\nPermanentMACAddress=02:00:00:00:03:01\n\n[Network]\nAddress=192.0.2.77/32\n\n"+
		"[Route]\nDestination=0.0.0.0/0\nGateway=192.0.2.65\nGatewayOnLink=true\n", trimmed(Networkd(leased()[0]))["30-eth0.network"])
	require.Equal(t, "[Match]\nPermanentMACAddress=02:00:00:00:03:01\n\n[Network]\nAddress=192.0.2.78/29\nAddress=2001:db8:7::2/64\n\n"+
		"[Route]\nDestination=0.0.0.0/0\nGateway=192.0.2.65\nGatewayOnLink=true\n\n"+
		"[Route]\nDestination=::/0\nGateway=fe80::1\nGatewayOnLink=true\n\n"+
		"[Route]\nDestination=10.0.0.0/8\nGateway=192.0.2.73\n", trimmed(Networkd(leased()[1]))["30-eno1.network"])
}

// TestCloudInitWritesRoutersOnLink: cloud-init's own code reads the network-config, and hands all of it on to netplan. Its other
// renderers have no on-link (docs/configuration.md): a version that has it makes this test fail.
func TestCloudInitWritesRoutersOnLink(t *testing.T) {
	for _, m := range append(leased(), bonded()) {
		var written struct {
			Netplan       json.RawMessage
			ENI, Networkd string
		}
		require.NoError(t, json.Unmarshal(askCloudInit(t, "renderers.py", NetworkConfig(m)), &written))
		require.JSONEq(t, string(NetworkConfig(m)), string(written.Netplan), m.Name)
		require.NotContains(t, strings.ToLower(written.ENI+written.Networkd), "onlink", m.Name)
	}
}

// TestNetplanAccepts: netplan itself reads the file, and makes the same of it for systemd-networkd.
func TestNetplanAccepts(t *testing.T) {
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	packages := filepath.Join(cache, "ingot-lab", "pkg")
	if _, err := os.Stat(filepath.Join(packages, "netplan", ".stamp")); err != nil { // written when all is unpacked (deploy/deps.sh)
		t.Skip("needs netplan: make deps")
	}
	root := filepath.Join(packages, "netplan", "usr")
	libraries, err := filepath.Glob(filepath.Join(root, "lib", "*-linux-gnu"))
	require.NoError(t, err)
	require.NotEmpty(t, libraries, "netplan is missing: make deps")

	plain := bonded()
	plain.Network = nil
	plain.Interfaces[0].Gateway, plain.Interfaces[0].Domain = netip.MustParseAddr("10.0.0.1"), "example.com"
	plain.Interfaces[1].VLAN = 20
	for _, m := range append(leased(), bonded(), plain) {
		dir := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "etc", "netplan"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "etc", "netplan", "ingot.yaml"), Netplan(m), 0o600))
		// "netplan generate" of netplan.io starts this program.
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, "libexec", "netplan", "generate"), "--root-dir", dir)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		for name, text := range Networkd(m) {
			_, link, _ := strings.Cut(name, "-")
			b, err := os.ReadFile(filepath.Join(dir, "run", "systemd", "network", "10-netplan-"+link))
			require.NoError(t, err, name)
			for line := range strings.Lines(text) {
				if line == "LinkLocalAddressing=no\n" {
					continue // of a card that only carries VLANs; netplan leaves it the default
				}
				require.Contains(t, string(b), strings.TrimSpace(line), name)
			}
		}
	}
}

// trimmed removes the empty lines at the ends of files.
func trimmed(files map[string]string) map[string]string {
	for name, text := range files {
		for len(text) > 1 && text[len(text)-2:] == "\n\n" {
			text = text[:len(text)-1]
		}
		files[name] = text
	}
	return files
}

func TestBottlerocket(t *testing.T) {
	m := inventory.Machine{Name: "node-1", Interfaces: []inventory.Interface{
		{
			MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("192.0.2.11"), Netmask: "255.255.255.0",
			Gateway: netip.MustParseAddr("192.0.2.1"), Domain: "example.com",
			Nameservers: []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("192.0.2.1")},
		},
		{MAC: "02:00:00:00:00:02"},
		{MAC: "02:00:00:00:00:03", DisableDHCP: true},
	}}
	network, settings, err := Bottlerocket(m)
	require.NoError(t, err)
	require.Equal(t, `version = 3

["02:00:00:00:00:01"]
primary = true

["02:00:00:00:00:01".static4]
addresses = ["192.0.2.11/24"]

[["02:00:00:00:00:01".route]]
to = "default"
via = "192.0.2.1"

["02:00:00:00:00:02"]
dhcp4 = true
`, network)
	require.Equal(t, "[settings.dns]\nname-servers = [\"192.0.2.53\", \"192.0.2.1\"]\nsearch-list = [\"example.com\"]\n", settings)

	m.Interfaces = m.Interfaces[1:2]
	network, settings, err = Bottlerocket(m)
	require.NoError(t, err)
	require.Equal(t, "version = 3\n\n[\"02:00:00:00:00:02\"]\nprimary = true\ndhcp4 = true\n", network)
	require.Empty(t, settings)

	for want, change := range map[string]func(*inventory.Machine){
		"has no interface with an address or DHCP": func(m *inventory.Machine) { m.Interfaces[0].DisableDHCP = true },
		"has a bond or a VLAN":                     func(m *inventory.Machine) { m.Interfaces[0].VLAN = 7 },
		"has an MTU": func(m *inventory.Machine) {
			m.Network = &inventory.SystemNetwork{Ethernets: []inventory.Ethernet{{SystemLink: inventory.SystemLink{Name: "a", MTU: 9000}}}}
		},
	} {
		wrong := m
		wrong.Interfaces = slices.Clone(m.Interfaces)
		change(&wrong)
		_, _, err = Bottlerocket(wrong)
		require.ErrorContains(t, err, want)
	}
}
