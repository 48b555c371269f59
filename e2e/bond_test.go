package e2e

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// bonded returns the network of an installed system with a bond of both cards of m, and VLAN 40 on it. The address on
// the bond is left out if bond is "".
func bonded(m lab.Spec, mode, bond, tagged string) map[string]any {
	link := map[string]any{"name": "bond0", "interfaces": []string{"port1", "port2"}, "mode": mode}
	if mode == "802.3ad" {
		link["lacpRate"] = "fast"
	}
	vlan := map[string]any{"name": "storage", "id": lab.TaggedVLAN, "link": "bond0", "addresses": []string{tagged + "/24"}}
	if bond != "" {
		link["addresses"] = []string{bond + "/24"}
		link["routes"] = []any{map[string]any{"to": "0.0.0.0/0", "via": lab.DirectGateway}}
	} else {
		vlan["routes"] = []any{map[string]any{"to": "0.0.0.0/0", "via": lab.TaggedGateway}}
	}
	return map[string]any{
		"ethernets": []any{map[string]any{"name": "port1", "mac": m.MAC}, map[string]any{"name": "port2", "mac": m.Cards[0].MAC}},
		"bonds":     []any{link},
		"vlans":     []any{vlan},
	}
}

// TestBonds installs two Debian machines through a switch with VLAN tags: one gets an active-backup bond whose only address is in a
// tagged VLAN, and one an LACP bond with an address on the bond and one in the tagged VLAN. Each reports over its bond, and is still
// reached when the cable of its first card is pulled.
func TestBonds(t *testing.T) {
	runInTurn(t, 240, 14)
	ctx := needLab(t)
	image, err := lab.NetplanImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "debian-12", image.Zst)

	const backup, aggregated, direct = "10.10.40.11", "10.10.40.12", "10.10.20.99"
	machines := map[string]*lab.Machine{}
	for _, x := range []struct {
		name     string
		firmware lab.Firmware
		trunk    lab.Trunk
		network  func(lab.Spec) map[string]any
	}{
		{"backup", lab.BIOS, lab.TrunkPorts, func(m lab.Spec) map[string]any { return bonded(m, "active-backup", "", backup) }},
		{"lacp", lab.UEFI, lab.TrunkLACP, func(m lab.Spec) map[string]any { return bonded(m, "802.3ad", direct, aggregated) }},
	} {
		spec := lab.Spec{
			Name: x.name, Firmware: x.firmware, Trunk: x.trunk, Cards: []lab.Card{{MAC: "52:54:00:20:88:" + fmt.Sprintf("%02x", len(machines))}},
			MemoryMB: 1024,
		}
		machines[x.name], err = s.Add(ctx, spec, func(doc map[string]any) {
			spec.MAC = doc["interfaces"].([]any)[0].(map[string]any)["mac"].(string)
			doc["image"], doc["template"], doc["network"] = "debian-12", "image", x.network(spec)
		})
		require.NoError(t, err)
		s.must(ctx, t, "machine", "provision", x.name, "--yes")
	}
	for name, m := range machines {
		w := s.ended(ctx, t, name, inventory.StateSuccess)
		require.Equal(t, "phone-home", w.Evidence, name)
		require.Equal(t, 1, m.PowerOns(), name)
		s.closed(ctx, t, name)
	}

	lacp, err := machines["lacp"].LACP(ctx)
	require.NoError(t, err)
	require.Contains(t, lacp, "status: active negotiated")
	require.Len(t, regexp.MustCompile(`(?m)^member: .*: current attached$`).FindAllString(lacp, -1), 2, lacp)

	reached := map[string][]string{"backup": {backup}, "lacp": {aggregated, direct}}
	for _, plugged := range []bool{true, false} {
		for name, m := range machines {
			require.NoError(t, m.PlugCard(ctx, 0, plugged))
			for _, address := range reached[name] {
				s.greeted(ctx, t, address)
			}
		}
	}
}

// greeted requires that the SSH server at an address answers the router.
func (s *Site) greeted(ctx context.Context, t *testing.T, address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		c, err := s.DialContext(ctx, lab.Router, "tcp", net.JoinHostPort(address, "22"))
		if err != nil {
			return false
		}
		defer c.Close()
		var b [64]byte
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // a read without a deadline would only take longer to fail
		n, err := c.Read(b[:])
		return err == nil && strings.HasPrefix(string(b[:n]), "SSH-2.0-")
	}, 2*time.Minute, 100*time.Millisecond, "no SSH server at %s", address)
}
