package e2e

import (
	"encoding/binary"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// TestSecureBootRefusesAChangedKernel: one bit of the kernel is flipped, or its signature is removed. GRUB fetches it and
// does not start it, so the kernel is the last file of the boot.
func TestSecureBootRefusesAChangedKernel(t *testing.T) {
	runInTurn(t, 60, 9)
	for name, change := range map[string]func(kernel []byte){
		"flipped bit": func(kernel []byte) { kernel[len(kernel)/2] ^= 1 },
		"unsigned":    removeSignature,
	} {
		t.Run(name, func(t *testing.T) { refusesKernel(t, change) })
	}
}

// TestSignedIPXE installs a machine with Secure Boot on through a signed iPXE, whose script starts Debian's signed kernel through
// Debian's shim. In place of the iPXE project's shim and iPXE there is Debian's iPXE, signed with a key that this firmware knows; as
// it knows no other, Debian's shim is signed with it, too.
func TestSignedIPXE(t *testing.T) {
	runInTurn(t, 60, 9)
	ctx := needLab(t)
	loaders := t.TempDir()
	key := filepath.Join(loaders, "key")
	run := func(name string, args ...string) {
		out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run("openssl", "pkey", "-in", lab.SnakeoilKey, "-passin", "pass:snakeoil", "-out", key)
	sign := func(from, to string) {
		run(filepath.Join(lab.PackageDir("signing"), "usr/bin/sbsign"), "--key", key, "--cert", lab.SnakeoilCertificate,
			"--output", filepath.Join(loaders, to), filepath.Join("../bin/ipxe", from))
	}
	sign("snponly.efi", "snponly-shim.efi")
	sign("snponly.efi", "snponly.efi")
	sign("shimx64.efi", "shimx64.efi")
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Loaders: loaders, Netboot: "  loader: " + inventory.LoaderIPXEShim})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)
	m, err := s.Add(ctx, lab.Spec{Name: "signed", Firmware: lab.UEFISecure, Snakeoil: true}, func(doc map[string]any) {
		doc["image"], doc["template"] = "mini", "image"
	})
	require.NoError(t, err)
	s.must(ctx, t, "machine", "provision", "signed", "--yes")
	_, err = m.WaitSerial(ctx, "secureboot: Secure boot enabled")
	require.NoError(t, err)
	eventually(ctx, t, "the image on the disk", func() bool {
		w, err := s.Workflow(ctx, "signed")
		require.NoError(t, err)
		return w.Disk != nil && w.Phase == inventory.PhaseReady
	})
	s.must(ctx, t, "workflow", "cancel", "signed") // this firmware does not know the signature of the installed system
	s.ended(ctx, t, "signed", inventory.StateCancelled)
	s.closed(ctx, t, "signed")
}

// removeSignature makes a PE32+ program one without signatures: it clears the certificate table, entry 4 of the data
// directories (PE format specification, Optional Header Data Directories).
func removeSignature(program []byte) {
	optional := int(binary.LittleEndian.Uint32(program[0x3c:])) + 4 + 20
	clear(program[optional+112+4*8:][:8])
}

func refusesKernel(t *testing.T, change func(kernel []byte)) {
	ctx := needLab(t)
	dir := t.TempDir()
	for _, name := range []string{"vmlinuz", "initramfs"} {
		b, err := os.ReadFile(filepath.Join("../bin/agentos", name))
		require.NoError(t, err)
		if name == "vmlinuz" {
			change(b)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), AgentOS: dir})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)
	m, err := dhcpSetups[0].addTo(ctx, s, lab.Spec{Name: "secure", Firmware: lab.UEFISecure})
	require.NoError(t, err)
	s.must(ctx, t, "machine", "provision", "secure", "--yes")
	_, err = m.WaitSerial(ctx, "bad shim signature")
	require.NoError(t, err)
	_, err = m.WaitSerial(ctx, "Ingot: giving up on the network")
	require.NoError(t, err)

	w, err := s.Workflow(ctx, "secure")
	require.NoError(t, err)
	var kinds []string
	eventually(ctx, t, "the event of the kernel", func() bool {
		var events struct{ Items []inventory.Event }
		require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows/"+w.Run+"/events", nil, &events))
		kinds = nil
		for _, e := range events.Items {
			kinds = append(kinds, e.Kind)
		}
		return slices.Contains(kinds, inventory.EventKernel)
	})
	require.NotContains(t, kinds, inventory.EventInitrd)
	require.NotContains(t, kinds, inventory.EventHello)
	console, err := m.Serial()
	require.NoError(t, err)
	require.NotContains(t, console, "Linux version")
	s.must(ctx, t, "workflow", "cancel", "secure")
	s.ended(ctx, t, "secure", inventory.StateCancelled)
	s.closed(ctx, t, "secure")
}
