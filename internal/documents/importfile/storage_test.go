package importfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
)

const hardwareWithStorage = `apiVersion: tinkerbell.org/v1alpha1
kind: Hardware
metadata: {name: node-1}
spec:
  disks: [{device: /dev/sda}]
  interfaces: [{dhcp: {mac: "02:00:00:00:00:01", ip: {address: 10.0.0.11, netmask: 255.255.255.0}}}]
  metadata:
    instance:
      storage:
        disks:
        - {device: /dev/sda, wipe_table: true, partitions: [{label: BIOS, number: 1, size: 4096}, {label: ROOT, number: 2, size: 0}]}
        filesystems:
        - {mount: {device: /dev/sda2, format: ext4, point: /, create: {force: true, options: [-L, ROOT]}}}
`

// The storage of a Hardware becomes the machine's. One that rootio could not make is a note, with the reason.
func TestStorageIsTakenOver(t *testing.T) {
	in, err := Read([]File{{Name: "f", Content: []byte(hardwareWithStorage)}})
	require.NoError(t, err)
	require.Empty(t, in.Ignored)
	require.Equal(t, &action.Storage{
		Disks: []action.StorageDisk{{
			Device: "/dev/sda", WipeTable: true,
			Partitions: []action.StoragePartition{{Label: "BIOS", Number: 1, Size: 4096}, {Label: "ROOT", Number: 2}},
		}},
		Filesystems: []action.StorageFilesystem{{Mount: action.StorageMount{
			Device: "/dev/sda2", Format: "ext4", Point: "/", Create: action.StorageCreate{Force: true, Options: []string{"-L", "ROOT"}},
		}}},
	}, in.Machines[0].Storage)

	for old, c := range map[string][2]string{
		"format: ext4": {"format: zfs", `filesystems[0].mount.format: unsupported format "zfs"`},
		"point: /,":    {"point: /, files: [],", `unknown field "files"`},
	} {
		in, err := Read([]File{{Name: "f", Content: []byte(strings.Replace(hardwareWithStorage, old, c[0], 1))}})
		require.NoError(t, err)
		require.Nil(t, in.Machines[0].Storage)
		require.Len(t, in.Ignored, 1)
		require.Equal(t, "spec.metadata.instance.storage", in.Ignored[0].Key)
		require.Equal(t, 9, in.Ignored[0].Line)
		require.Contains(t, in.Ignored[0].Why, c[1])
	}
}

// TestBinaryUserDataIsTakenOver: in each form of Hardware, byte for byte.
func TestBinaryUserDataIsTakenOver(t *testing.T) {
	for name, document := range map[string]string{
		"v1alpha1": "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: {name: n}\nspec:\n  userData: !!binary H4sA/w==\n" +
			"  vendorData: !!binary gA==\n  interfaces: [{dhcp: {mac: \"02:00:00:00:00:01\"}}]\n",
		"instance": "apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nmetadata: {name: n}\nspec:\n  vendorData: !!binary gA==\n" +
			"  metadata: {instance: {userdata: !!binary H4sA/w==}}\n  interfaces: [{dhcp: {mac: \"02:00:00:00:00:01\"}}]\n",
		"v1alpha2": "apiVersion: tinkerbell.org/v1alpha2\nkind: Hardware\nmetadata: {name: n}\nspec:\n" +
			"  instance: {userdata: !!binary H4sA/w==, vendordata: !!binary gA==}\n  networkInterfaces: {\"02:00:00:00:00:01\": {}}\n",
	} {
		in, err := Read([]File{{Name: "f", Content: []byte(document)}})
		require.NoError(t, err, name)
		require.Equal(t, "\x1f\x8b\x00\xff", in.Machines[0].UserData.Reveal(), name)
		require.Equal(t, "\x80", in.Machines[0].VendorData.Reveal(), name)
	}
}
