package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// bootedSystem matches the root and the instance id in the line of a booted system.
var bootedSystem = regexp.MustCompile(`root=\S+ instance-id=\S+`)

// TestTwoSystems: two runs install a system each on one disk of a QEMU machine. Each system has an EFI system partition, a root, a seed and a
// boot entry of its own. The second run leaves the first system as it was, and its phone-home comes from the second system. The first run
// also writes an image to a second disk.
func TestTwoSystems(t *testing.T) {
	runInTurn(t, 120, 9)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	dir := t.TempDir()
	for n, name := range []string{"one", "two"} {
		esp, root := filepath.Join(dir, "esp-"+name), filepath.Join(dir, "root-"+name)
		cutPartition(ctx, t, image.Raw, 1, esp)
		cutPartition(ctx, t, image.Raw, 2, root)
		shell(t, `e2label "$1" "lab-$2"`, root, name)
		// Debian's GRUB reads its configuration on the partition from which it was started.
		shell(t, `mtype -i "$1" ::/EFI/debian/grub.cfg | sed "/^search/d; s/LABEL=labroot/LABEL=lab-$2/" >"$1.cfg" &&
			mcopy -D o -i "$1" "$1.cfg" ::/EFI/debian/grub.cfg`, esp, name)
		s.must(ctx, t, "image", "add", "esp-"+name, esp)
		s.must(ctx, t, "image", "add", "root-"+name, root)

		partition, more := "", ""
		boot := `BOOT_NEXT: "two"`
		if n == 0 {
			boot = `BOOT_ORDER: "one"`
			partition = "  - {name: partition, image: rootio, command: [partition], timeout: 120}\n"
			more = `  - {name: data, image: image2disk, timeout: 600, environment: {DEST_DISK: /dev/vdx, IMG_URL: "{{ .images_url }}/mini"}}` + "\n"
		}
		s.template(ctx, t, name, fmt.Sprintf(`version: "0.1"
name: %[1]s
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
%[2]s  - {name: esp, image: image2disk, timeout: 600, environment: {DEST_DISK: /dev/vda%[3]d, IMG_URL: "{{ .images_url }}/esp-%[1]s"}}
  - {name: root, image: image2disk, timeout: 600, environment: {DEST_DISK: /dev/vda, PARTITION: "%[4]d", IMG_URL: "{{ .images_url }}/root-%[1]s"}}
  - {name: seed, image: configdrive, timeout: 60, environment: {PARTITION: "%[4]d", USER_DATA: "#cloud-config\n# of %[1]s"}}
%[5]s  - name: entry
    image: efiboot
    timeout: 60
    environment: {CREATE_LABEL: "%[1]s", LOADER: /EFI/BOOT/BOOTX64.EFI, PARTITION: "%[3]d", REQUIRED: "true", %[6]s}
`, name, partition, 2*n+1, 2*n+2, more, boot))
	}

	partitions := []any{
		map[string]any{"label": "EFI", "size": 131072},
		map[string]any{"label": "ONE", "size": 131072},
		map[string]any{"label": "EFI", "size": 131072},
		map[string]any{"label": "TWO", "size": 131072},
	}
	m, err := s.Add(ctx, lab.Spec{Name: "guest", Firmware: lab.UEFI, DiskSize: 1 << 30, Decoys: []string{"SECOND"}}, func(doc map[string]any) {
		doc["diskSelector"] = map[string]any{"serial": "DISK-guest"}
		doc["disks"] = []any{map[string]any{"device": "/dev/vda"}, map[string]any{"device": "/dev/vdx", "serial": "SECOND"}}
		doc["storage"] = map[string]any{"disks": []any{map[string]any{"device": "/dev/vda", "wipe_table": true, "partitions": partitions}}}
	})
	require.NoError(t, err)

	booted := map[string]string{}
	install := func(name string) {
		_, err := s.Provision(ctx, contract.ProvisionInput{Machine: "guest", Template: name})
		require.NoError(t, err)
		s.ended(ctx, t, "guest", inventory.StateSuccess)
		booted[name] = bootOf(ctx, t, m, name)
	}
	install("one")
	second, err := DigestOf(m.DiskPathOf("SECOND"), image.Size)
	require.NoError(t, err)
	require.Equal(t, image.SHA256, second, "the second disk holds the image")

	ids := partx(ctx, t, m.DiskPath(), "NR,UUID,TYPE")
	system := func() string {
		sum, err := DigestOf(m.DiskPath(), startOf(ctx, t, m.DiskPath(), 3))
		require.NoError(t, err)
		return sum
	}
	before := system()
	m.MarkSerial()
	install("two")
	require.Equal(t, before, system(), "the first system is as it was")
	require.Equal(t, ids, partx(ctx, t, m.DiskPath(), "NR,UUID,TYPE"), "the partitions keep type and UUID")
	require.NotEqual(t, booted["one"], booted["two"])

	m.MarkSerial()
	require.NoError(t, m.PowerCycle(ctx))
	require.Equal(t, booted["one"], bootOf(ctx, t, m, "one"), "the first system boots by its entry, with its seed")
}

// cutPartition copies partition n of a disk image to a file.
func cutPartition(ctx context.Context, t *testing.T, image string, n int, to string) {
	t.Helper()
	start := startOf(ctx, t, image, n)
	out, err := exec.CommandContext(ctx, "sh", "-c", `dd if="$1" of="$2" bs=1M iflag=skip_bytes,count_bytes skip="$3" count="$(($(partx -bgo SIZE -n "$4" "$1")))" conv=sparse status=none`,
		"sh", image, to, fmt.Sprint(start), fmt.Sprint(n)).
		CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// bootOf waits until a system has booted with the seed in its root, and returns its root and instance id.
func bootOf(ctx context.Context, t *testing.T, m *lab.Machine, name string) string {
	t.Helper()
	line, err := m.WaitSerial(ctx, `LAB-MINI-BOOTED fw=efi .*seed=root`)
	require.NoError(t, err)
	_, err = m.WaitSerial(ctx, "LAB-MINI-USER-DATA # of "+name)
	require.NoError(t, err)
	return bootedSystem.FindString(line)
}
