package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// shell runs a command with $1 and $2.
func shell(t *testing.T, command, one, two string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command, "sh", one, two).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// TestImageFormats installs the same disk image from a file of each format, converted by the server and as it is: each
// disk holds the image, bit by bit.
func TestImageFormats(t *testing.T) {
	runInTurn(t, 30, 9)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.template(ctx, t, "write-only", `version: "0.1"
name: write-only
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 1200, environment: {IMG_URL: "{{.image.url}}", DEST_DISK: /dev/vda}}
  - {name: "off", image: poweroff, timeout: 60}
`)

	machines, dir := map[string]*lab.Machine{}, t.TempDir()
	add := func(name, file string, flags ...string) {
		s.must(ctx, t, append([]string{"image", "add", name, file}, flags...)...)
		m, err := s.Add(ctx, lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}, nil)
		require.NoError(t, err)
		_, err = s.Provision(ctx, contract.ProvisionInput{Machine: name, Template: "write-only", Image: name})
		require.NoError(t, err)
		machines[name] = m
	}
	add("raw", image.Raw)
	add("raw-as-is", image.Raw, "--as-is")
	for format, command := range map[string]string{
		"gz": `gzip -1 <"$1" >"$2"`, "bz2": `bzip2 -1 <"$1" >"$2"`, "xz": `xz -1 <"$1" >"$2"`, "zst": `zstd -q -1 <"$1" >"$2"`,
		"qcow2": `qemu-img convert -c -f raw -O qcow2 "$1" "$2"`,
	} {
		file := filepath.Join(dir, "disk."+format)
		shell(t, command, image.Raw, file)
		add(format, file)
		if format != "qcow2" {
			add(format+"-as-is", file, "--as-is")
			continue
		}
		_, err := s.CLI(ctx, "image", "add", "qcow2-as-is", file, "--as-is")
		require.ErrorContains(t, err, "agents cannot read a qcow2 image")
	}

	for name, m := range machines {
		s.ended(ctx, t, name, inventory.StateSuccess)
		require.NoError(t, m.WaitPower(ctx, lab.Off))
		got, err := DigestOf(m.DiskPath(), image.Size)
		require.NoError(t, err)
		require.Equal(t, image.SHA256, got, name)
	}
}

// TestDebianQcow2 installs Debian from its cloud-style image in the form in which distributions publish it, added by one
// command: a compressed qcow2 file, proven by a list of digests.
func TestDebianQcow2(t *testing.T) {
	runInTurn(t, 160, 9)
	ctx := needLab(t)
	image, err := lab.DebianImage(ctx, testWriter{t})
	require.NoError(t, err)
	dir := t.TempDir()
	shell(t, `qemu-img convert -c -f raw -O qcow2 "$1" "$2" && cd "${2%/*}" && sha512sum debian-12-generic-amd64.qcow2 >SHA512SUMS`,
		image.Raw, filepath.Join(dir, "debian-12-generic-amd64.qcow2"))
	s := site(ctx, t)
	t.Log(s.must(ctx, t, "image", "add", "debian-12", filepath.Join(dir, "debian-12-generic-amd64.qcow2"),
		"--sums", filepath.Join(dir, "SHA512SUMS")))
	require.NoError(t, os.RemoveAll(dir))

	m, err := s.Add(ctx, lab.Spec{Name: "uefi", Firmware: lab.UEFI, MemoryMB: 1024, DiskSize: 4 << 30}, func(doc map[string]any) {
		doc["image"], doc["template"] = "debian-12", "image"
	})
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "uefi"})
	require.NoError(t, err)
	s.ended(ctx, t, "uefi", inventory.StateSuccess)
	require.Equal(t, 1, m.PowerOns())
	s.closed(ctx, t, "uefi")
}
