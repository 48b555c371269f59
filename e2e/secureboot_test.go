package e2e

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// addSecure adds a machine with Secure Boot on and Microsoft's keys, whose loader is shim.
func (s *Site) addSecure(ctx context.Context, t *testing.T) *lab.Machine {
	t.Helper()
	s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)
	m, err := s.Add(ctx, lab.Spec{Name: "secure", Firmware: lab.UEFISecure}, func(doc map[string]any) {
		doc["image"], doc["diskSelector"] = "mini", map[string]any{"serial": "DISK-secure"}
		doc["interfaces"].([]any)[0].(map[string]any)["loader"] = inventory.LoaderShim
	})
	require.NoError(t, err)
	return m
}

// TestSecureBoot installs a machine with Secure Boot through Debian's signed files, and boots it from its
// disk. The agent's kernel says that Secure Boot is on.
func TestSecureBoot(t *testing.T) {
	beside(t, 120, 9)
	ctx := needLab(t)
	s := site(ctx, t)
	m := s.addSecure(ctx, t)
	s.must(ctx, t, "machine", "provision", "secure", "--wait")
	s.ended(ctx, t, "secure", inventory.StateSuccess)
	s.closed(ctx, t, "secure")
	_, err := m.WaitSerial(ctx, "LAB-MINI-BOOTED fw=efi")
	require.NoError(t, err)
	console, err := m.Serial()
	require.NoError(t, err)
	require.Contains(t, console, "secureboot: Secure boot enabled")
	require.NoError(t, m.PowerOff(ctx))
}

// TestSecureBootRefusesAChangedKernel: one bit of the kernel is flipped. GRUB fetches it and does not start
// it, so the kernel is the last file of the boot.
func TestSecureBootRefusesAChangedKernel(t *testing.T) {
	beside(t, 60, 9)
	ctx := needLab(t)
	dir := t.TempDir()
	for _, name := range []string{"vmlinuz", "initramfs"} {
		b, err := os.ReadFile(filepath.Join("../bin/agentos", name))
		require.NoError(t, err)
		if name == "vmlinuz" {
			b[len(b)/2] ^= 1
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), AgentOS: dir})
	require.NoError(t, err)
	s.keep(t)
	m := s.addSecure(ctx, t)
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
