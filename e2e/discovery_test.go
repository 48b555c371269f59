package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// TestDiscovery: unknown machines boot the agent, which reports their hardware and writes nothing.
// One is accepted by a rule and one by an operator; nothing is installed before an operator orders it. The second
// has Secure Boot on.
func TestDiscovery(t *testing.T) {
	runInTurn(t, 120, 9)
	ctx := needLab(t)
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Netboot: `  loader: shim
  discovery:
    ranges: {` + lab.ServerInterface + `: 10.10.20.200-10.10.20.210}
    accept:
      - match: {manufacturer: Lab, serial: "SN-rule*"}
        name: "node-{serial}"
        addresses: 10.10.20.60-10.10.20.69
        gateway: ` + lab.DirectGateway + `
        labels: {rack: a1}
        image: mini`})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "mini", mini(ctx, t).Zst)

	// A disk with LVM on it.
	byHand, err := s.Machine(ctx, lab.Spec{
		Name: "hand", Firmware: lab.UEFISecure, Order: lab.NetworkFirst, Cards: []lab.Card{{VLAN: lab.DirectVLAN}},
		InsideBMC: true,
	})
	require.NoError(t, err)
	plantLVM(t, byHand.DiskPath())
	before, err := DigestOf(byHand.DiskPath(), size(byHand.DiskPath()))
	require.NoError(t, err)
	byRule, err := s.Machine(ctx, lab.Spec{Name: "rule", Order: lab.NetworkFirst})
	require.NoError(t, err)
	require.NoError(t, byHand.PowerOn(ctx))
	require.NoError(t, byRule.PowerOn(ctx))

	seen := func(mac string) (x inventory.Seen) {
		require.NoError(t, json.Unmarshal([]byte(s.must(ctx, t, "machine", "seen", mac, "-o", "json")), &x))
		return x
	}
	mac := byHand.Spec().MAC
	require.NoError(t, waitFor(ctx, "the report of the hardware and of the switch", func() (bool, error) {
		if err := byHand.SendFrame(lldpFrame()); err != nil {
			return false, err
		}
		out, err := s.CLI(ctx, "machine", "seen", "-o", "json")
		return strings.Contains(out, `"leaf-1"`), err
	}))
	x := seen(mac)
	require.Equal(t, "Lab", x.Facts.Manufacturer)
	require.Equal(t, "uefi", x.Facts.Firmware)
	require.Len(t, x.Facts.NICs, 2)
	require.NotEmpty(t, x.Facts.CPU)
	require.Equal(t, &action.InsideBMC{IPMI: "2.0", Maker: 674, Firmware: "7.10"}, x.Facts.BMC, "the controller itself was asked")
	require.Contains(t, x.Facts.BIOS, "OVMF")
	console, err := byHand.Serial()
	require.NoError(t, err)
	require.Contains(t, console, "secureboot: Secure boot enabled")
	require.Contains(t, s.must(ctx, t, "machine", "seen", mac), "LVM")
	require.Contains(t, s.must(ctx, t, "machine", "seen", mac), "connected to port port-7 of leaf-1")
	after, err := DigestOf(byHand.DiskPath(), size(byHand.DiskPath()))
	require.NoError(t, err)
	require.Equal(t, before, after, "a machine that was not accepted was written to")

	// The rule accepts the other one, whose agent then restarts it.
	var m inventory.Machine
	require.NoError(t, waitFor(ctx, "the machine of the rule", func() (bool, error) {
		return s.REST(ctx, http.MethodGet, "/v1/machines/node-sn-rule", nil, &m) == nil, nil
	}))
	require.Equal(t, "10.10.20.60", m.Interfaces[0].Address.String())
	require.Equal(t, "a1", m.Labels["rack"])
	var list struct{ Items []inventory.Workflow }
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows", nil, &list))
	require.Empty(t, list.Items, "acceptance installs nothing")

	s.must(ctx, t, "machine", "accept", mac, "--name", "hand", "--address", "10.10.20.70/24", "--gateway", lab.DirectGateway)
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/machines/hand", nil, &m))
	require.Len(t, m.Interfaces, 2, "all its network cards")

	require.NoError(t, byHand.PowerOff(ctx))

	s.must(ctx, t, "machine", "provision", "node-sn-rule")
	_, err = s.FollowUntilButton(ctx, "node-sn-rule")
	require.NoError(t, err)
	require.NoError(t, byRule.PowerCycle(ctx))
	_, err = byRule.WaitSerial(ctx, "LAB-MINI-BOOTED")
	require.NoError(t, err)
	s.ended(ctx, t, "node-sn-rule", inventory.StateSuccess)
}

// lldpFrame is an Ethernet frame with LLDP (IEEE 802.1AB): chassis, port, time to live, system name.
func lldpFrame() []byte {
	frame := append([]byte{0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc}, 2, 7, 4, 2, 0, 0, 0, 0, 1)
	frame = append(frame, 4, 7, 5, 'p', 'o', 'r', 't', '-', '7')
	frame = append(frame, 6, 2, 0, 120)
	return append(append(frame, 10, 6), "leaf-1\x00\x00"...)
}

// plantLVM makes a disk look like a physical volume of LVM.
func plantLVM(t *testing.T, disk string) {
	t.Helper()
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	require.NoError(t, err)
	label := append([]byte("LABELONE"), make([]byte, 24)...)
	copy(label[24:], "LVM2 001")
	_, err = f.WriteAt(label, 512)
	require.NoError(t, errors.Join(err, f.Close()))
}
