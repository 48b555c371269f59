package importfile

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// everything is a machine with all of its fields, as the API shows it.
func everything() inventory.Machine {
	a := netip.MustParseAddr
	return inventory.Machine{
		Name:   "node-1",
		Labels: map[string]string{"type": "cp", "example.com/rack": "", "version": "1.10", "on": "yes"},
		Interfaces: []inventory.Interface{{
			MAC: "02:00:00:00:00:01", Address: a("10.0.0.11"), Netmask: "255.255.255.0", Gateway: a("10.0.0.1"), Hostname: "n1.example.com",
			Domain: "example.com", Nameservers: []netip.Addr{a("10.0.0.1"), a("2001:db8::1")}, TimeServers: []netip.Addr{a("10.0.0.2")},
			LeaseTime: inventory.Lease(36 * time.Hour), VLAN: 50, Arch: "aarch64", UEFI: true, DisableDHCP: true, DisableNetboot: true,
			Loader: "snp.efi",
		}, {MAC: "02:00:00:00:00:02"}},
		Network: &inventory.SystemNetwork{
			Ethernets: []inventory.Ethernet{
				{SystemLink: inventory.SystemLink{Name: "p1", MTU: 9000}, MAC: "02:00:00:00:00:01", SetName: true},
				{SystemLink: inventory.SystemLink{Name: "p2"}, MAC: "02:00:00:00:00:02"},
				{SystemLink: inventory.SystemLink{Name: "p3"}, MAC: "02:00:00:00:00:07"},
			},
			Bonds: []inventory.Bond{{
				SystemLink: inventory.SystemLink{
					Name:        "bond0",
					Addresses:   []netip.Prefix{netip.MustParsePrefix("10.0.0.11/24")},
					Nameservers: []netip.Addr{a("10.0.0.1")},
					Routes: []inventory.SystemRoute{
						{To: netip.MustParsePrefix("0.0.0.0/0"), Via: a("10.0.0.1"), Metric: 5},
					},
					Search: []string{"x.example"},
				},
				Interfaces: []string{"p1", "p2"}, Mode: "802.3ad", LACPRate: "fast", TransmitHashPolicy: "layer3+4", MIIMonitor: 50,
			}, {
				SystemLink: inventory.SystemLink{Name: "bond1", DHCP4: true},
				Interfaces: []string{"p3"}, Mode: "active-backup", Primary: "p3", MIIMonitor: 100,
			}},
			VLANs: []inventory.VLAN{{SystemLink: inventory.SystemLink{Name: "v40", DHCP4: true}, ID: 40, Link: "bond0"}},
		},
		Disks: []inventory.DeclaredDisk{{Device: "/dev/sda"}, {Device: "/dev/sdb"}},
		DiskSelector: &inventory.DiskSelector{
			Serial: "0123", WWN: "0x5000c500a1b2c3d4", ByID: "nvme-X.Y:Z", Model: "a b", MinSize: 4e11, MaxSize: 1 << 40,
		},
		ProtectedDisks: []action.DiskID{{Serial: "S9"}, {WWN: "0x5000c500a1b2c3d5"}},
		Storage: &action.Storage{
			Disks: []action.StorageDisk{
				{Device: "/dev/sda", WipeTable: true, Partitions: []action.StoragePartition{{Label: "ROOT", Number: 3, Start: 4096, Size: 16384}}},
				{
					Device: "/dev/sdb", DiskID: action.DiskID{Serial: "S2"}, WipeTable: true,
					Partitions: []action.StoragePartition{{Label: "x", TypeGUID: "0FC63DAF-8483-4772-8E79-3D69D8477DE4"}},
				},
			},
			RAID: []action.StorageRAID{{Name: "md0", Level: "1", Devices: []string{"/dev/sda3", "/dev/sdb1"}}},
			VolumeGroups: []action.StorageVolumes{
				{
					Name:            "vg",
					PhysicalVolumes: []string{"/dev/md0"},
					Tags:            []string{"t"},
					LogicalVolumes:  []action.StorageVolume{{Name: "root", Size: 4096}},
				},
			},
			Filesystems: []action.StorageFilesystem{{Mount: action.StorageMount{
				Device: "/dev/vg/root", Format: "ext4", Point: "/", Create: action.StorageCreate{Force: true, Options: []string{"-L", "ROOT"}},
			}}},
		},
		BMC: &inventory.BMC{
			Driver: inventory.DriverAMT, Host: "10.0.9.11", Port: 16993, User: "admin", HasPassword: true,
			Fingerprint: "sha256:" + strings.Repeat("0a", 32),
		},
		Template:          "mine",
		Image:             "debian-12",
		SSHKeys:           []string{"ssh-ed25519 AAAA me # not a comment"},
		BootFromDisk:      "ipxe-exit",
		KernelArgs:        []string{"console=ttyS1,115200n8"},
		HasUserData:       true,
		HasVendorData:     true,
		Version:           7,
		UserDataByAddress: true,
		Notes:             map[string]string{"allowPXE": "true", "text": "two\n  lines: here\n"},
	}
}

// notExported are the fields of a machine that a file does not have.
var notExported = []string{"UserData", "VendorData", "Standing", "Installation", "Created", "Updated"}

func TestExport(t *testing.T) {
	m := everything()
	for i := range reflect.TypeFor[inventory.Machine]().NumField() {
		name := reflect.TypeFor[inventory.Machine]().Field(i).Name
		zero := reflect.ValueOf(m).Field(i).IsZero()
		require.Equal(t, strings.Contains(strings.Join(notExported, " "), name), zero, "%s is not part of this test", name)
	}
	want := []inventory.Machine{m, {Name: "node-2", Interfaces: []inventory.Interface{{MAC: "02:00:00:00:00:03"}}}}

	// What the server adds, and secrets that should never be here.
	m.Standing = &inventory.Standing{State: inventory.StandingAvailable}
	m.Created, m.Updated = time.Now(), time.Now()
	m.UserData, m.VendorData = inventory.NewSecret("canary"), inventory.NewSecret("canary")
	bmc := *m.BMC
	bmc.Password, m.BMC = inventory.NewSecret("canary"), &bmc

	b, err := Export([]inventory.Machine{m, want[1]}, nil)
	require.NoError(t, err)
	require.NotContains(t, string(b), "canary")
	require.NotContains(t, string(b), "redacted")

	docs, err := strictyaml.Documents("f", b)
	require.NoError(t, err)
	got, notes, err := machinefile.Read("f", docs)
	require.NoError(t, err, "%s", b)
	require.Empty(t, notes)
	require.Equal(t, want, got)

	again, err := Export(got, nil)
	require.NoError(t, err)
	require.Equal(t, string(b), string(again))
}

func TestExportTemplates(t *testing.T) {
	sources := []string{
		"version: \"0.1\"\nname: a\nglobal_timeout: 600\ntasks: []\n",
		"\ufeffname: tabs\tand\r\nends  \n\n\n", "  indented: {{ .device_1 }}\n", "# no line end", "\n\n", "---\na: 1\n...\n",
	}
	ts := []inventory.Template{{Name: "builtin", Source: "canary", Builtin: true}}
	for _, s := range sources {
		ts = append(ts, inventory.Template{Name: "Any_name.1", Source: s, Created: time.Now()})
	}
	b, err := Export(nil, ts)
	require.NoError(t, err)
	require.NotContains(t, string(b), "canary")

	docs, err := strictyaml.Documents("f", b)
	require.NoError(t, err)
	require.Len(t, docs, len(sources))
	for n, d := range docs {
		var got templateDocument
		require.NoError(t, d.Decode(&got))
		require.Equal(t, "tinkerbell.org/v1alpha1 Template Any_name.1", got.APIVersion+" "+got.Kind+" "+got.Metadata.Name)
		require.Equal(t, sources[n], got.Spec.Data)
	}

	empty, err := Export(nil, nil)
	require.NoError(t, err)
	require.Equal(t, exportHead, string(empty))
}
