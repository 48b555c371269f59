package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestStorage: rootio makes a mirror with LVM on two disks of a QEMU machine. The disks are read on the host afterwards: both
// halves of the mirror hold the same file systems.
func TestStorage(t *testing.T) {
	runInTurn(t, 40, 9)
	ctx := needLab(t)
	s := site(ctx, t)
	s.template(ctx, t, "storage", `version: "0.1"
name: storage
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: partition, image: quay.io/tinkerbell/actions/rootio:latest, command: [partition], timeout: 120}
  - {name: format, image: quay.io/tinkerbell/actions/rootio:latest, command: [format], timeout: 120}
  - {name: mount, image: quay.io/tinkerbell/actions/rootio:latest, command: [mount], timeout: 120}
  - {name: again, image: quay.io/tinkerbell/actions/rootio:latest, command: [mount], timeout: 120}
  - {name: "off", image: poweroff, timeout: 60}
`)

	partitions := []any{
		map[string]any{"label": "EFI", "size": 131072},
		map[string]any{"label": "MIRROR", "size": 2097152},
		map[string]any{"label": "SWAP"},
	}
	mount := func(device, format, point string, options ...string) any {
		return map[string]any{"mount": map[string]any{
			"device": device, "format": format, "point": point, "create": map[string]any{"options": options},
		}}
	}
	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.UEFI, DiskSize: 2 << 30, Decoys: []string{"SECOND", "THIRD"}},
		func(doc map[string]any) {
			doc["diskSelector"] = map[string]any{"serial": "DISK-guest"}
			doc["storage"] = map[string]any{
				"disks": []any{
					map[string]any{"device": "/dev/vda", "wipe_table": true, "partitions": partitions},
					map[string]any{"device": "/dev/vdx", "serial": "SECOND", "wipe_table": true, "partitions": partitions},
				},
				"raid": []any{map[string]any{"name": "md1", "level": "1", "devices": []any{"/dev/vda2", "/dev/vdx2"}}},
				"volume_groups": []any{map[string]any{
					"name": "vg-0", "physical_volumes": []any{"/dev/md1"}, "tags": []any{"ingot"},
					"logical_volumes": []any{
						map[string]any{"name": "root", "size": 512 << 20}, map[string]any{"name": "srv"},
					},
				}},
				"filesystems": []any{
					mount("/dev/vda1", "vfat", "/boot/efi", "-n", "ESP0"), mount("/dev/vda3", "swap", "", "-L swap0"),
					mount("/dev/vg-0/root", "ext4", "/", "-L ROOT"), mount("/dev/vg-0/srv", "xfs", "/srv", "-L", "SRV"),
				},
			}
		})
	require.NoError(t, err)
	before, err := DigestOf(m.DiskPathOf("THIRD"), 2<<30)
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: "storage"})
	require.NoError(t, err)
	s.ended(ctx, t, "guest", inventory.StateSuccess)
	require.NoError(t, m.WaitPower(ctx, lab.Off))

	after, err := DigestOf(m.DiskPathOf("THIRD"), 2<<30)
	require.NoError(t, err)
	require.Equal(t, before, after, "a disk that the storage does not have is untouched")

	for _, serial := range []string{"DISK-guest", "SECOND"} {
		disk := m.DiskPathOf(serial)
		require.Equal(t, "EFI 131072\nMIRROR 2097152\nSWAP 1961984\n", partx(ctx, t, disk, "NAME,SECTORS"))
		member := startOf(ctx, t, disk, 2)
		root := findVolume(t, disk, member, "root")
		out, err := exec.CommandContext(ctx, "dumpe2fs", "-h", fmt.Sprintf("%s?offset=%d", disk, root)).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, `Filesystem volume name: +ROOT`, string(out))
		require.Regexp(t, `Filesystem state: +clean`, string(out))
		require.Regexp(t, `Block count: +131072\n`, string(out))
		out, err = exec.CommandContext(ctx, "debugfs", "-R", "ls -p /", fmt.Sprintf("%s?offset=%d", disk, root)).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), "/040755/0/0/boot/")
		require.Contains(t, string(out), "/040755/0/0/srv/")
		require.Equal(t, "XFSB", string(readAt(t, disk, findVolume(t, disk, member, "srv"), 4)))
	}
	require.Equal(t, "ESP0", string(readAt(t, m.DiskPath(), startOf(ctx, t, m.DiskPath(), 1)+43, 4)))
	require.Equal(t, "SWAPSPACE2", string(readAt(t, m.DiskPath(), startOf(ctx, t, m.DiskPath(), 3)+4086, 10)))
}

// TestMirror: a Debian is installed on a mirror of two disks by archive2disk, cexec and grub2disk. It boots from the second
// disk when the first one is missing.
func TestMirror(t *testing.T) {
	runInTurn(t, 200, 9)
	ctx := needLab(t)
	system, err := lab.DebianSystem(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "system", system)
	s.template(ctx, t, "mirror", fmt.Sprintf(`version: "0.1"
name: mirror
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: partition, image: rootio, command: [partition], timeout: 120}
  - {name: format, image: rootio, command: [format], timeout: 120}
  - {name: unpack, image: archive2disk, timeout: 1200, environment: {ARCHIVE_URL: "http://%s/images/system", DEST_DISK: /dev/md1}}
  - {name: command, image: cexec, timeout: 120, environment: {BLOCK_DEVICE: /dev/md1, CMD_LINE: "passwd -l root"}}
  - {name: boot, image: grub2disk, timeout: 600, environment: {GRUB_INSTALL_PATH: /dev/md1, GRUB_DISK: "/dev/vda /dev/vdx"}}
  - {name: "off", image: poweroff, timeout: 60}
`, s.Address))

	partitions := []any{map[string]any{"label": "BIOS", "size": 2048}, map[string]any{"label": "ROOT"}}
	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.BIOS, DiskSize: 2 << 30, Decoys: []string{"SECOND"}}, func(doc map[string]any) {
		doc["diskSelector"] = map[string]any{"serial": "DISK-guest"}
		doc["storage"] = map[string]any{
			"disks": []any{
				map[string]any{"device": "/dev/vda", "wipe_table": true, "partitions": partitions},
				map[string]any{"device": "/dev/vdx", "serial": "SECOND", "wipe_table": true, "partitions": partitions},
			},
			"raid": []any{map[string]any{"name": "md1", "level": "1", "devices": []any{"/dev/vda2", "/dev/vdx2"}}},
			"filesystems": []any{map[string]any{"mount": map[string]any{
				"device": "/dev/md1", "format": "ext4", "point": "/", "create": map[string]any{"options": []any{"-L ROOT"}},
			}}},
		}
	})
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: "mirror"})
	require.NoError(t, err)
	s.ended(ctx, t, "guest", inventory.StateSuccess)
	require.NoError(t, m.WaitPower(ctx, lab.Off))

	m.RemoveDisk("DISK-guest")
	m.SetOrder(lab.DiskFirst)
	require.NoError(t, m.PowerOn(ctx))
	line, err := m.WaitSerial(ctx, "LAB-SYSTEM-BOOTED")
	require.NoError(t, err)
	require.Regexp(t, `root=/dev/md\S+ disks=\[2/1\]`, line)
}

// findVolume returns where a logical volume begins on a disk whose partition at byte member is half of a mirror. It reads the
// superblock of md (version 1.2, linux/raid/md_p.h) and the text of LVM's metadata.
func findVolume(t *testing.T, disk string, member int64, name string) int64 {
	t.Helper()
	super := readAt(t, disk, member+4096, 256)
	le := binary.LittleEndian
	require.Equal(t, uint32(0xa92b4efc), le.Uint32(super))
	require.Equal(t, uint32(1), le.Uint32(super[72:]), "level")
	require.Equal(t, uint32(2), le.Uint32(super[92:]), "disks")
	data := member + int64(le.Uint64(super[128:]))*512

	label := readAt(t, disk, data+512, 32)
	require.Equal(t, "LABELONE", string(label[:8]))
	text := string(readAt(t, disk, data, 1<<20))
	text = text[strings.LastIndex(text, "vg-0 {"):]
	require.Contains(t, text, `tags = ["ingot"]`)
	number := func(text, key string) int64 {
		_, rest, found := strings.Cut(text, key)
		require.True(t, found, "%s: %s", key, text)
		n, err := strconv.ParseInt(strings.FieldsFunc(rest, func(r rune) bool { return r < '0' || r > '9' })[0], 10, 64)
		require.NoError(t, err)
		return n
	}
	_, volume, found := strings.Cut(text, "\n"+name+" {")
	require.True(t, found, text)
	extent := number(text, "extent_size = ") * 512
	return data + number(text, "pe_start = ")*512 + number(volume, `"pv0", `)*extent
}

func partx(ctx context.Context, t *testing.T, disk, columns string, flags ...string) string {
	t.Helper()
	out, err := exec.CommandContext(ctx, "partx", append(flags, "-rgo", columns, disk)...).Output()
	require.NoError(t, err)
	return string(out)
}

// startOf returns where partition n of a disk begins, in bytes.
func startOf(ctx context.Context, t *testing.T, disk string, n int) int64 {
	t.Helper()
	sector, err := strconv.ParseInt(strings.TrimSpace(partx(ctx, t, disk, "START", "-n", strconv.Itoa(n))), 10, 64)
	require.NoError(t, err)
	return sector * 512
}

func readAt(t *testing.T, file string, off int64, n int) []byte {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	b := make([]byte, n)
	_, err = f.ReadAt(b, off)
	require.NoError(t, err)
	return b
}
