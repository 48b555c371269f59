package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/ingotmetal/ingot/bootsvc/neighbours"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// programs is the directory in which the tests find ingot; empty: bin of the repository.
func programs() string { return os.Getenv("INGOT_E2E_PROGRAMS") }

// TestSeed installs from a host that is only on the home network: directly on that network, next to
// a home router whose DHCP answers every client; and through the relay, as an unprivileged process
// that answers only relays.
func TestSeed(t *testing.T) {
	runInTurn(t, 16, 6)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	for _, c := range []struct {
		name      string
		relayOnly bool
		vlans     []int
	}{
		{"step 0 and the relay, with an interface", false, []int{lab.HomeVLAN, lab.DirectVLAN}},
		{"relays alone", true, []int{lab.DirectVLAN}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := NewSite(ctx,
				Options{Root: "..", Dir: keepDir(t), Programs: programs(), Home: true, Namespace: lab.Seed, RelayOnly: c.relayOnly})
			require.NoError(t, err)
			s.keep(t)
			s.must(ctx, t, "image", "add", "sim", image.Zst)
			g, gctx := errgroup.WithContext(ctx)
			for i, vlan := range c.vlans {
				m, err := s.Add(ctx,
					lab.Spec{Name: []string{"one", "two"}[i], VLAN: vlan, Firmware: lab.Simulated, Agent: filepath.Join(s.root, "bin/worker-agent")},
					func(doc map[string]any) { doc["image"], doc["template"] = "sim", "image-metadata" })
				require.NoError(t, err)
				g.Go(func() error {
					if _, err := s.Provision(gctx, contract.ProvisionInput{Machine: m.Name()}); err != nil {
						return err
					}
					_, err := s.Follow(gctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
					return err
				})
			}
			require.NoError(t, g.Wait())
			why := s.must(ctx, t, "why", "one")
			if c.relayOnly {
				require.Contains(t, why, "only through a relay: "+lab.DirectGateway)
				require.Contains(t, s.must(ctx, t, "status"), "through the relays "+lab.DirectGateway)
				out, _ := s.CLI(ctx, "doctor") // it exits with 1 here: the lab's clock is not synchronized
				require.Contains(t, out, "replies to relay "+lab.DirectGateway+" have a route")
			} else {
				t.Logf("the home router gave %v", s.HomeLeases())
			}
		})
	}
}

// TestTwoSites: two installations in one lab, each in its own namespace and data directory, and a
// relay that is switched from one to the other.
func TestTwoSites(t *testing.T) {
	runInTurn(t, 14, 5)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	seed, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Programs: programs(), Home: true, Namespace: lab.Seed, RelayOnly: true})
	require.NoError(t, err)
	seed.keep(t)
	target, err := NewSite(ctx, Options{Root: "..", Programs: programs(), Lab: seed.Lab, Name: "target", NoStart: true})
	require.NoError(t, err)
	target.keep(t)
	require.Zero(t, target.Pid())
	require.NoError(t, seed.SetRelays(lab.SeedAddress, lab.TargetAddress))
	m, err := seed.Add(ctx, lab.Spec{Name: "one", Firmware: lab.Simulated, Agent: filepath.Join(seed.root, "bin/worker-agent")},
		func(doc map[string]any) { doc["image"], doc["template"] = "sim", "image-metadata" })
	require.NoError(t, err)
	require.NoError(t, target.Start(ctx)) // it knows no machines and does not answer
	seed.must(ctx, t, "image", "add", "sim", image.Zst)
	_, err = seed.Provision(ctx, contract.ProvisionInput{Machine: m.Name()})
	require.NoError(t, err)
	_, err = seed.Follow(ctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
	require.NoError(t, err)
	require.NotEqual(t, seed.Pid(), target.Pid())
	require.NotContains(t, target.must(ctx, t, "machine", "list"), "one")
	require.NoError(t, seed.SetRelays(lab.TargetAddress))
	require.Equal(t, []string{lab.TargetAddress}, seed.Relays())
}

// TestSeedFirmware is step 0 with real firmware: SeaBIOS with iPXE and OVMF get the offers of two
// servers and choose the one with a boot file.
func TestSeedFirmware(t *testing.T) {
	runInTurn(t, 300, 10)
	ctx := needLab(t)
	if !*full {
		t.Skip("two minutes: make e2e FULL=1")
	}
	image, err := lab.MiniImage(ctx, testWriter{t})
	require.NoError(t, err)
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Programs: programs(), Home: true, Namespace: lab.Seed})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	g, gctx := errgroup.WithContext(ctx)
	for name, firmware := range map[string]lab.Firmware{"bios": lab.BIOS, "uefi": lab.UEFI} {
		m, err := s.Add(ctx, lab.Spec{Name: name, VLAN: lab.HomeVLAN, Firmware: firmware, MemoryMB: 768}, func(doc map[string]any) {
			doc["image"], doc["template"] = "mini", "image-metadata"
		})
		require.NoError(t, err)
		g.Go(func() error {
			if _, err := s.Provision(gctx, contract.ProvisionInput{Machine: m.Name()}); err != nil {
				return err
			}
			_, err := s.Follow(gctx, m.Name(), func(w inventory.Workflow) bool { return w.State == inventory.StateSuccess })
			return err
		})
	}
	require.NoError(t, g.Wait())
	leases := s.HomeLeases()
	delete(leases, neighbours.CheckMAC) // the server looks for other DHCP servers
	require.Len(t, leases, 2, "the home router was not asked: nothing was shown")
}
