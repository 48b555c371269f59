package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// TestEKSAnywhere installs two systems with what the generator of EKS Anywhere writes, to the character: Debian in the place of
// Ubuntu, whose cloud-init asks for its user-data by the Ec2 data source in the same run, and a system with Bottlerocket's layout, whose
// files of partition 12 are read from the disk.
func TestEKSAnywhere(t *testing.T) {
	if !*full {
		t.Skip("the long form: make e2e FULL=1")
	}
	runInTurn(t, 240, 14)
	ctx := needLab(t)
	debian, err := lab.NetplanImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := eksAnywhere(ctx, t, map[string]string{
		"/ubuntu-2204-kube-v1.29.gz":       gzipped(ctx, t, debian.Raw),
		"/bottlerocket-v1.29-amd64.img.gz": gzipped(ctx, t, bottlerocketLayout(ctx, t)),
	})

	const cloudConfig, settings = "#cloud-config\nruncmd: ['echo LAB-USER-DATA-RAN > /dev/ttyS0']\n", "[settings.kubernetes]\nstandalone-mode = true\n"
	machines := map[string]*lab.Machine{}
	hardware := ""
	for name, x := range map[string]struct {
		firmware        lab.Firmware
		label, userData string
	}{"cp": {lab.UEFI, "cp", cloudConfig}, "bottlerocket": {lab.BIOS, "worker", settings}} {
		machines[name], err = s.Machine(ctx, lab.Spec{Name: name, Firmware: x.firmware})
		require.NoError(t, err)
		hardware += tinkerbellMachine(t, machines[name], x.label, x.userData)
	}
	file := filepath.Join(t.TempDir(), "hardware.yaml")
	require.NoError(t, os.WriteFile(file, []byte(hardware), 0o600))
	s.must(ctx, t, "import", "--user-data-by-address", file, "testdata/eks-anywhere.yaml")

	s.must(ctx, t, "machine", "provision", "cp")
	s.must(ctx, t, "machine", "provision", "bottlerocket", "--template", "mgmt-bottlerocket")
	cp := s.ended(ctx, t, "cp", inventory.StateSuccess)
	require.Equal(t, "phone-home", cp.Evidence)
	booted, err := machines["cp"].WaitSerial(ctx, "LAB-DEBIAN-BOOTED")
	require.NoError(t, err)
	require.Contains(t, booted, "ds=ec2")
	_, err = machines["cp"].WaitSerial(ctx, "LAB-USER-DATA-RAN")
	require.NoError(t, err)

	s.ended(ctx, t, "bottlerocket", inventory.StateSuccess)
	m := machines["bottlerocket"]
	require.NoError(t, m.PowerOff(ctx))
	read := func(file string) string {
		out, err := exec.CommandContext(ctx, "debugfs", "-R", "cat "+file,
			fmt.Sprintf("%s?offset=%d", m.DiskPath(), startOf(ctx, t, m.DiskPath(), 12))).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Equal(t, settings+"\n[settings.dns]\nname-servers = [\""+lab.DirectGateway+"\"]\n", read("/user-data.toml"))
	require.Contains(t, read("/net.toml"), fmt.Sprintf("version = 3\n\n[%q]\nprimary = true\n", m.Spec().MAC))
	require.Contains(t, read("/bootconfig.data"), "kernel {}\x00")
}

// bottlerocketLayout returns the path of a copy of the lab's small system that has, as Bottlerocket has, an empty ext4 as partition 12.
func bottlerocketLayout(ctx context.Context, t *testing.T) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "bottlerocket.img")
	const script = `set -e
cp "$1" "$2"
truncate -s +40M "$2"
sgdisk -e -n 12:0:+36M -c 12:BOTTLEROCKET-PRIVATE "$2" >/dev/null
mke2fs -q -t ext4 -E offset=$(($(sgdisk -i 12 "$2" | awk '/First sector/ {print $3}') * 512)) "$2" 36M`
	out, err := exec.CommandContext(ctx, "sh", "-c", script, "layout", mini(ctx, t).Raw, raw).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return raw
}

// gzipped returns the path of the file, compressed.
func gzipped(ctx context.Context, t *testing.T, raw string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.gz")
	out, err := exec.CommandContext(ctx, "sh", "-c", `gzip -1 < "$1" > "$2"`, "gzipped", raw, file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return file
}
