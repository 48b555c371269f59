package inventory

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

func TestParseMAC(t *testing.T) {
	for _, s := range []string{"52:54:00:AB:cd:0e", "52-54-00-ab-cd-0e", "5254.00AB.cd0e", "525400abcd0e"} {
		got, err := ParseMAC(s)
		require.NoError(t, err)
		require.Equal(t, "52:54:00:ab:cd:0e", got)
	}
	for _, s := range []string{
		"", "52:54:00:ab:cd", "52:54:00:ab:cd:0e:11", "52:54:00:ab:cd-0e", "5:54:0:ab:cd:e", "52:54:00:ab:cd:0g", " 525400abcd0e",
		"525400abcd0e\n",
		"52:54:00:ab:cd:0e:00:01", "5254:00ab:cd0e", "52.54.00.ab.cd.0e", "525400ab.cd0e", "ſ25400abcd0e",
	} {
		_, err := ParseMAC(s)
		require.ErrorIs(t, err, ErrInvalid, "%q", s)
	}
}

func FuzzParseMAC(f *testing.F) {
	for _, s := range []string{"52:54:00:AB:cd:0e", "5254.00ab.cd0e", "525400abcd0e", "", "52-54-00-ab-cd-0e\x00"} {
		f.Add(s)
	}
	canonical := regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){5}$`)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseMAC(s)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalid)
			return
		}
		require.Regexp(t, canonical, got)
		again, err := ParseMAC(got)
		require.NoError(t, err)
		require.Equal(t, got, again)
		digits := func(s string) string {
			return strings.Map(func(r rune) rune {
				if strings.ContainsRune(":-.", r) {
					return -1
				}
				return r
			}, strings.ToLower(s))
		}
		require.Equal(t, digits(s), digits(got))
	})
}

func good() Machine {
	return Machine{
		Name: "ms-02-a", Labels: map[string]string{"rack": "a1", "example.org/zone": ""},
		Interfaces: []Interface{{
			MAC: "52-54-00-AB-CD-0E", Address: netip.MustParseAddr("10.0.0.5"), Netmask: "255.255.255.0", Gateway: netip.MustParseAddr("10.0.0.1"),
			Hostname: "MS-02-a.", Domain: "example.org", Nameservers: []netip.Addr{netip.MustParseAddr("2001:db8::1")},
			LeaseTime: Lease(4294967294 * time.Second),
			VLAN:      4094, Arch: "arm64", Loader: "snp-arm64.efi",
		}, {MAC: "525400abcd0f", Address: netip.MustParseAddr("10.0.1.0"), Netmask: "255.255.255.254", Gateway: netip.MustParseAddr("10.0.1.1")}},
		Disks:        []DeclaredDisk{{Device: "/dev/disk/by-id/nvme-X.Y:Z"}},
		DiskSelector: &DiskSelector{ByID: "/dev/disk/by-id/ata-1", MinSize: 5, MaxSize: 5},
		BMC: &BMC{
			Driver: "IPMI", Host: "BMC-1.example.org", Port: 623, User: "admin", Password: NewSecret(strings.Repeat("x", 20)), CipherSuite: "17",
			SystemName: "1",
		},
		Template: "image", Image: "debian-12", SSHKeys: []string{"ssh-ed25519 AAAA me"}, BootFromDisk: "http-404",
		KernelArgs: []string{"console=ttyS0,115200n8", "ip=dhcp"}, Notes: map[string]string{"allowPXE": "true"},
	}
}

func TestCanonical(t *testing.T) {
	in := good()
	got := Canonical(in)
	require.Equal(t, "52:54:00:ab:cd:0e", got.Interfaces[0].MAC)
	require.Equal(t, "52:54:00:ab:cd:0f", got.Interfaces[1].MAC)
	require.Equal(t, "aarch64", got.Interfaces[0].Arch)
	require.Equal(t, "ms-02-a", got.Interfaces[0].Hostname)
	require.Equal(t, "ata-1", got.DiskSelector.ByID)
	require.Equal(t, "ipmi", got.BMC.Driver)
	require.Equal(t, "bmc-1.example.org", got.BMC.Host)
	require.Equal(t, got, Canonical(got))
	require.Equal(t, good(), in, "what was given is left alone")
	in.BMC = &BMC{Driver: "redfish", Host: "[2001:DB8::1]"}
	require.Equal(t, "2001:db8::1", Canonical(in).BMC.Host)
}

func TestValidate(t *testing.T) {
	require.Empty(t, Validate(good()))
	require.Empty(t, Validate(Machine{Name: "a", Interfaces: []Interface{{MAC: "52:54:00:00:00:01"}}}))
	addr := netip.MustParseAddr
	i := func(change func(i *Interface)) func(m *Machine) {
		return func(m *Machine) { change(&m.Interfaces[0]) }
	}
	arg := func(a string) func(m *Machine) { return func(m *Machine) { m.KernelArgs = []string{"quiet", a} } }
	bmc := func(change func(b *BMC)) func(m *Machine) { return func(m *Machine) { change(m.BMC) } }
	wol := func(change func(b *BMC)) func(m *Machine) {
		return func(m *Machine) {
			m.BMC = &BMC{Driver: DriverWOL}
			change(m.BMC)
		}
	}
	key := "sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct {
		field  string
		change func(m *Machine)
	}{
		{"name", func(m *Machine) { m.Name = "" }},
		{"name", func(m *Machine) { m.Name = "Upper" }},
		{"name", func(m *Machine) { m.Name = "-a" }},
		{"name", func(m *Machine) { m.Name = "a.b" }},
		{"name", func(m *Machine) { m.Name = "a\n" }},
		{"name", func(m *Machine) { m.Name = strings.Repeat("a", 64) }},
		{"labels[bad key]", func(m *Machine) { m.Labels["bad key"] = "" }},
		{"labels[rack]", func(m *Machine) { m.Labels["rack"] = "a/b" }},
		{"interfaces", func(m *Machine) { m.Interfaces = nil }},
		{"interfaces[1].mac", func(m *Machine) { m.Interfaces[1].MAC = m.Interfaces[0].MAC }},
		{"interfaces[1].address", func(m *Machine) {
			m.Interfaces[1].Address, m.Interfaces[1].Netmask, m.Interfaces[1].Gateway = m.Interfaces[0].Address, "255.255.255.0", netip.Addr{}
		}},
		{"interfaces[0].mac", i(func(i *Interface) { i.MAC = "52:54" })},
		{"interfaces[0].mac", i(func(i *Interface) { i.MAC = "" })},
		{"interfaces[0].mac", i(func(i *Interface) { i.MAC = "01:00:5e:00:00:01" })},
		{"interfaces[0].mac", i(func(i *Interface) { i.MAC = "000000000000" })},
		{"interfaces[0].address", i(func(i *Interface) { i.Address = addr("2001:db8::5") })},
		{"interfaces[0].address", i(func(i *Interface) { i.Address = addr("10.0.0.255") })},
		{"interfaces[0].address", i(func(i *Interface) { i.Address = addr("10.0.0.0") })},
		{"interfaces[0].address", i(func(i *Interface) { i.Address, i.Gateway = addr("127.0.0.1"), netip.Addr{} })},
		{"interfaces[0].netmask", i(func(i *Interface) { i.Netmask = "255.0.255.0" })},
		{"interfaces[0].netmask", i(func(i *Interface) { i.Netmask = "0.0.0.0" })},
		{"interfaces[0].netmask", i(func(i *Interface) { i.Netmask = "24" })},
		{"interfaces[0].netmask", i(func(i *Interface) { i.Netmask = "" })},
		{"interfaces[0].netmask", i(func(i *Interface) { i.Address, i.Gateway = netip.Addr{}, netip.Addr{} })},
		{"interfaces[0].gateway", i(func(i *Interface) { i.Gateway = addr("10.0.1.1") })},
		{"interfaces[0].gateway", i(func(i *Interface) { i.Gateway = i.Address })},
		{"interfaces[0].gateway", i(func(i *Interface) { i.Gateway = addr("fe80::1") })},
		{"interfaces[0].gateway", i(func(i *Interface) { i.Gateway, i.OnLink = addr("2001:db8::1"), true })},
		{"interfaces[0].gateway", i(func(i *Interface) { i.Gateway, i.OnLink = addr("0.0.0.0"), true })},
		{"interfaces[0].gateway", i(func(i *Interface) { i.Gateway, i.Netmask = i.Address, "255.255.255.255" })},
		{"interfaces[0].onLink", i(func(i *Interface) { i.Gateway, i.OnLink = netip.Addr{}, true })},
		{"interfaces[0].hostname", i(func(i *Interface) { i.Hostname = "a_b" })},
		{"interfaces[0].hostname", i(func(i *Interface) { i.Hostname = "a;reboot" })},
		{"interfaces[0].hostname", i(func(i *Interface) { i.Hostname = strings.Repeat("a", 53) + ".example.com" })}, // 65
		{"interfaces[0].domain", i(func(i *Interface) { i.Domain = "a..b" })},
		{"interfaces[0].nameservers[1]", i(func(i *Interface) { i.Nameservers = append(i.Nameservers, netip.Addr{}) })},
		{"interfaces[0].timeServers[0]", i(func(i *Interface) { i.TimeServers = []netip.Addr{addr("0.0.0.0")} })},
		{"interfaces[0].leaseTime", i(func(i *Interface) { i.LeaseTime = -1 })},
		{"interfaces[0].leaseTime", i(func(i *Interface) { i.LeaseTime = 86400 })},
		{"interfaces[0].vlan", i(func(i *Interface) { i.VLAN = 4095 })},
		{"interfaces[0].vlan", i(func(i *Interface) { i.VLAN = -1 })},
		{"interfaces[0].arch", i(func(i *Interface) { i.Arch = "mips" })},
		{"interfaces[0].loader", i(func(i *Interface) { i.Loader = "../etc/shadow" })},
		{"interfaces[0].loader", i(func(i *Interface) { i.Loader = "a b" })},
		{"interfaces[0].loader", i(func(i *Interface) { i.Loader = ".hidden" })},
		{"disks[0].device", func(m *Machine) { m.Disks[0].Device = "sda" }},
		{"disks[0].device", func(m *Machine) { m.Disks[0].Device = "/dev/../etc/passwd" }},
		{"diskSelector", func(m *Machine) { m.DiskSelector = &DiskSelector{} }},
		{"diskSelector.byID", func(m *Machine) { m.DiskSelector.ByID = "a/b" }},
		{"diskSelector.serial", func(m *Machine) { m.DiskSelector.Serial = "a\x1b[0m" }},
		{"diskSelector.minSize", func(m *Machine) { m.DiskSelector.MinSize = -1 }},
		{"disks[1].serial", func(m *Machine) { m.Disks = append(m.Disks, DeclaredDisk{"/dev/sdb", action.DiskID{Serial: "a\nb"}}) }},
		{"disks[1]", func(m *Machine) { m.Disks = append(m.Disks, m.Disks[0]) }},
		{"disks[2]", func(m *Machine) {
			m.Disks = append(m.Disks, DeclaredDisk{"/dev/sdb", action.DiskID{WWN: "0xAB"}}, DeclaredDisk{"/dev/sdc", action.DiskID{WWN: "0xab"}})
		}},
		{"protectedDisks[0]", func(m *Machine) { m.ProtectedDisks = []action.DiskID{{}} }},
		{"protectedDisks[0].wwn", func(m *Machine) { m.ProtectedDisks = []action.DiskID{{WWN: "a\nb"}} }},
		{"diskSelector", func(m *Machine) {
			m.DiskSelector, m.ProtectedDisks = &DiskSelector{WWN: "0xAB"}, []action.DiskID{{Serial: "S1"}, {WWN: "0xab"}}
		}},
		{"diskSelector.maxSize", func(m *Machine) { m.DiskSelector.MaxSize = 4 }},
		{"interfaces[0].mac", i(func(i *Interface) { i.MAC = "00:02:c9:03:00:ab:cd:ef" })},
		{"bmc.driver", bmc(func(b *BMC) { b.Driver = "ilo" })},
		{"bmc.host", bmc(func(b *BMC) { b.Driver, b.Host = DriverAMT, "" })},
		{"bmc.user", bmc(func(b *BMC) { b.Driver, b.User = DriverAMT, "" })},
		{"bmc.user", bmc(func(b *BMC) { b.Driver, b.User = DriverAMT, strings.Repeat("u", 17) })},
		{"bmc.password", bmc(func(b *BMC) { b.Driver, b.Password = DriverAMT, NewSecret(strings.Repeat("x", 33)) })},
		{"bmc.fingerprint", bmc(func(b *BMC) { b.Driver, b.Fingerprint = DriverAMT, "sha256:12" })},
		{"bmc.insecureTLS", bmc(func(b *BMC) { b.Driver, b.Fingerprint, b.InsecureTLS = DriverAMT, key, true })},
		{"bmc.fingerprint", bmc(func(b *BMC) { b.Fingerprint = key })},
		{"bmc.command", bmc(func(b *BMC) { b.Driver = DriverExec })},
		{"bmc.command", bmc(func(b *BMC) { b.Driver, b.Command = DriverExec, "/bin/sh -c x" })},
		{"bmc.command", bmc(func(b *BMC) { b.Driver, b.Command = DriverExec, "../x" })},
		{"bmc.command", bmc(func(b *BMC) { b.Command = "plug" })},
		{"bmc.user", wol(func(b *BMC) { b.User = "admin" })},
		{"bmc.user", wol(func(b *BMC) { b.Password = NewSecret("x") })},
		{"bmc.mac", wol(func(b *BMC) { b.MAC = "ff:ff:ff:ff:ff:ff" })},
		{"bmc.host", wol(func(b *BMC) { b.Host = "switch" })},
		{"bmc.mac", bmc(func(b *BMC) { b.MAC = "52:54:00:00:00:01" })},
		{"bmc.driver", bmc(func(b *BMC) { b.Driver = "" })},
		{"bmc.host", bmc(func(b *BMC) { b.Host = "" })},
		{"bmc.host", bmc(func(b *BMC) { b.Host = "-oProxyCommand=x" })},
		{"bmc.host", bmc(func(b *BMC) { b.Host = "10.0.0.1:623" })},
		{"bmc.host", bmc(func(b *BMC) { b.Host = "http://10.0.0.1" })},
		{"bmc.host", bmc(func(b *BMC) { b.Host = "fe80::1%eth0;x" })},
		{"bmc.port", bmc(func(b *BMC) { b.Port = 65536 })},
		{"bmc.user", bmc(func(b *BMC) { b.User = "-U" })},
		{"bmc.user", bmc(func(b *BMC) { b.User = strings.Repeat("u", 17) })},
		{"bmc.user", bmc(func(b *BMC) { b.User = "a\nb" })},
		{"bmc.password", bmc(func(b *BMC) { b.Password = NewSecret("a\nb") })},
		{"bmc.password", bmc(func(b *BMC) { b.Password = NewSecret(strings.Repeat("x", 21)) })},
		{"bmc.cipherSuite", bmc(func(b *BMC) { b.CipherSuite = "0" })},
		{"bmc.cipherSuite", bmc(func(b *BMC) { b.CipherSuite = "3 -v" })},
		{"bmc.systemName", bmc(func(b *BMC) { b.SystemName = "../1" })},
		{"template", func(m *Machine) { m.Template = "../t" }},
		{"image", func(m *Machine) { m.Image = "a/b" }},
		{"sshKeys[0]", func(m *Machine) { m.SSHKeys = []string{"ssh-rsa A\nssh-rsa B"} }},
		{"bootFromDisk", func(m *Machine) { m.BootFromDisk = "reboot" }},
		{"userData", func(m *Machine) { m.UserData = NewSecret(strings.Repeat("x", maxSecret+1)) }},
		{"userData", func(m *Machine) { m.UserData = NewSecret("\ufeff#cloud-config\n") }},
		{"vendorData", func(m *Machine) { m.VendorData = NewSecret("\ufeff\nContent-Type: multipart/mixed") }},
		{"userData", func(m *Machine) { m.UserData = NewSecret("\xff\xfe#\x00!\x00") }},
		{"userData", func(m *Machine) { m.UserData = NewSecret("\xfe\xff\x00#\x00!") }},
		{"notes", func(m *Machine) { m.Notes = map[string]string{"a\x1b": ""} }},
		{"kernelArgs[1]", arg("")},
		{"kernelArgs[1]", arg("a\nchain http://evil")},
		{"kernelArgs[1]", arg("a\rb")},
		{"kernelArgs[1]", arg(";")},
		{"kernelArgs[1]", arg("&&")},
		{"kernelArgs[1]", arg("||")},
		{"kernelArgs[1]", arg("#")},
		{"kernelArgs[1]", arg("a${b")},
		{"kernelArgs[1]", arg(`a\b`)},
		{"kernelArgs[1]", arg("--")},
		{"kernelArgs[1]", arg("#!ipxe")},
		{"kernelArgs[1]", arg("${net0/mac}")},
		{"kernelArgs[1]", arg(`a="b"`)},
		{"kernelArgs[1]", arg("a='b'")},
		{"kernelArgs[1]", arg("two words")},
	} {
		m := good()
		c.change(&m)
		ps := Validate(m)
		require.NotEmpty(t, ps, c.field)
		require.Equal(t, c.field, ps[0].Field, "%v", ps)
		require.Len(t, ps, 1, "%v", ps)
		require.NotEmpty(t, ps[0].Remedy)
		require.ErrorIs(t, ps.Err(), ErrInvalid)
	}
}

func TestValidateReportsAllAtOnce(t *testing.T) {
	m := good()
	m.Name, m.Interfaces[0].MAC, m.Interfaces[1].VLAN, m.BMC.Port, m.KernelArgs = "No", "x", 9999, -1, []string{";"}
	m.BMC.Password = NewSecret("canary\n")
	ps := Validate(m)
	var fields []string
	for _, p := range ps {
		fields = append(fields, p.Field)
	}
	require.Equal(t, []string{"bmc.password", "bmc.port", "interfaces[0].mac", "interfaces[1].vlan", "kernelArgs[0]", "name"}, fields)
	require.True(t, slices.IsSorted(fields))
	require.NotContains(t, ps.Error(), "canary")
}

func TestValidateImageName(t *testing.T) {
	for _, name := range []string{"a", "debian-12", "harvester-v1.4.0-amd64.iso", "a_b.raw", strings.Repeat("a", 63)} {
		require.Empty(t, ValidateImageName(name), name)
	}
	for _, name := range []string{
		"", "..", "a/b", "a..b", "-a", "a-", ".a", "Debian-12", "a+b", "a b", "ä", strings.Repeat("a", 64),
		strings.Repeat("x", 129),
	} {
		require.Len(t, ValidateImageName(name), 1, name)
	}
	require.Empty(t, ValidateImageUse(UseInstaller))
	require.Len(t, ValidateImageUse("disk"), 1)
}

// TestController is what drivers are told of the machine.
func TestController(t *testing.T) {
	m := Canonical(good())
	b := m.Controller()
	require.Equal(t, m.Name, b.Machine)
	require.Empty(t, b.MAC)
	require.False(t, b.Manual())

	m.BMC = &BMC{Driver: DriverWOL}
	require.Empty(t, Validate(m))
	b = m.Controller()
	require.True(t, b.Manual() && b.Wakes(), "an operator is needed to switch it off")
	require.Empty(t, b.Address())
	require.Equal(t, "52:54:00:ab:cd:0e", b.MAC)
	require.Equal(t, "10.0.0.255", b.Broadcast.String())
	require.Equal(t, &BMC{Driver: DriverWOL}, m.BMC, "the machine is as it was")
	m.Interfaces[0].Address, m.Interfaces[0].Netmask = netip.MustParseAddr("10.9.20.7"), "255.255.252.0"
	require.Equal(t, "10.9.23.255", m.Controller().Broadcast.String())
	m.Interfaces[0].Address = netip.Addr{}
	require.Equal(t, "255.255.255.255", m.Controller().Broadcast.String(), "no reservation")
	m.BMC = &BMC{Driver: DriverWOL, MAC: m.Interfaces[1].MAC, Host: "10.0.9.255"}
	require.Equal(t, "52:54:00:ab:cd:0f 10.0.9.255", m.Controller().MAC+" "+m.Controller().Host)
	m.BMC = nil
	b = m.Controller()
	require.True(t, b.Manual())
	require.False(t, b.Wakes())

	m = good()
	m.BMC = &BMC{Driver: DriverExec, Command: "plug", Password: NewSecret("x")}
	require.Empty(t, Validate(m))
	m.BMC = &BMC{Driver: "AMT", Host: "10.0.0.7", User: "admin", Fingerprint: "sha256:" + strings.Repeat("0A", 32)}
	require.Empty(t, Validate(m))
}

// The address of an InfiniBand port (8 bytes) or interface (20 bytes) is refused as such, whatever its form.
func TestInfiniBandAddressesAreNamed(t *testing.T) {
	const interfaces = "80:00:00:48:fe:80:00:00:00:00:00:00:00:02:c9:03:00:ab:cd:ef"
	for mac, want := range map[string]bool{
		interfaces: true, "00:02:c9:03:00:ab:cd:ef": true, "0002.c903.00ab.cdef": true, "0002C90300ABCDEF": true,
		"00:02:c9:03:00": false, "no address": false, "": false,
	} {
		m := Machine{
			Name: "m", Interfaces: []Interface{{MAC: mac}}, BMC: &BMC{Driver: DriverWOL, MAC: mac},
			Network: &SystemNetwork{Ethernets: []Ethernet{{MAC: mac}}},
		}
		for _, p := range Validate(m) {
			if strings.HasSuffix(p.Field, "mac") && strings.Contains(p.Remedy, "InfiniBand is not supported") != want {
				t.Errorf("%s: %q", p, mac)
			}
		}
	}
}
