package workflows_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// TestMediaIsMissing: a machine that may have to boot by virtual media is not touched if the server has none.
func TestMediaIsMissing(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) {
		m.BMC.Driver, m.BMC.CipherSuite = inventory.DriverRedfish, ""
		m.BMC.BootPath = []string{inventory.PathPXE, inventory.PathMedia}
	})
	w.do.Site.MediaURL = func() (string, error) { return "", fmt.Errorf("no ipxe.iso: %w", inventory.ErrUnsupported) }
	require.ErrorContains(t, w.run(contract.ProvisionInput{Machine: machine}), "no ipxe.iso")
	require.Empty(t, w.starts())
	require.Zero(t, w.offs)
	w.closed()
}

// starts are the events that say how the machine was started.
func (w *world) starts() (out []string) {
	w.t.Helper()
	es, err := w.Store.Events.Events(w.t.Context(), inventory.EventFilter{Machine: machine, Limit: 10000})
	require.NoError(w.t, err)
	for _, e := range es {
		if e.Kind == inventory.EventPower && e.Key == "start" {
			out = append(out, e.Message)
		}
	}
	return out
}

// TestLadder: a silent machine is started again, rung by rung. Then an operator is asked,
// and a retry starts the ladder again.
func TestLadder(t *testing.T) {
	w := newWorld(t, nil)
	w.noPXEUntil = inventory.MaxBoots + 1
	w.answer = func(q inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Retry} }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, []string{
		"boot 1: off, network boot once, on",
		"boot 2: network boot once again, reset",
		"boot 3: BMC reset; boot path changed to UEFI; off, network boot once, on",
		"boot 4: off, network boot once, on",
		"boot 5: network boot once again, reset",
	}, w.starts())
	require.Equal(t, []bool{false, false, true, false, false}, w.efi())
	require.Equal(t, 3, w.cycles)
	require.Equal(t, 2, w.warm)
	require.Equal(t, 1, w.resets)
	require.Len(t, w.asked, 1)
	require.Contains(
		t,
		w.asked[0].Text,
		"used up its boots (3, the last one: BMC reset; boot path changed to UEFI; off, network boot once, on)",
	)
	require.True(t, w.recorded("boot 5: network boot once again, reset"), "the record says how")
	w.closed()
}

// TestLadderSkipsUnsupportedSteps: an unsupported step is skipped, and the record says so.
func TestLadderSkipsUnsupportedSteps(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) { m.Interfaces[0].UEFI = true })
	w.noPXEUntil = inventory.MaxBoots - 1
	w.noReset, w.noMC = inventory.ErrUnsupported, inventory.ErrUnsupported
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, []string{
		"boot 1: off, network boot once, on",
		"boot 2: no reset, because the BMC does not support it; off, network boot once, on",
		"boot 3: BMC not reset, because it does not support that; boot path not changed, because the inventory already says UEFI; off, network boot once, on",
	}, w.starts())
	require.NotContains(t, w.efi(), false)
	require.Empty(t, w.asked)
	w.closed()
}

// TestLadderKeepsAPathWithContact: the firmware was received on the path,
// although the agent was not.
func TestLadderKeepsAPathWithContact(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(boot int) bool { return boot < inventory.MaxBoots }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, "boot 3: BMC reset; off, network boot once, on", w.starts()[2])
	require.NotContains(t, w.efi(), true)
	w.closed()
}

// TestLadderOfAMachineThatIsOff: the machine has lost its power.
func TestLadderOfAMachineThatIsOff(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(boot int) bool {
		if boot == 1 {
			w.on = false
		}
		return boot == 1
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 2, w.cycles)
	require.Zero(t, w.warm)
	w.closed()
}

// TestAgentThatComesAsItsBootIsGivenUpIsLeftAlone: it claims its boot after the deadline has
// acted and before the BMC is written.
func TestAgentThatComesAsItsBootIsGivenUpIsLeftAlone(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(boot int) bool { return boot == 1 }
	w.atFence = func() {
		if w.cycles == 0 {
			return
		}
		w.atFence = nil
		w.says()
	}
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, 1, w.cycles)
	require.Zero(t, w.warm, "the machine was reset under its agent")
	w.closed()
}

// TestMachineThatIsBackBeforeItsBootIsAllowedIsLeftAlone: it claims the boot that was given up, after the
// reset and before the next boot is allowed.
func TestMachineThatIsBackBeforeItsBootIsAllowedIsLeftAlone(t *testing.T) {
	w := newWorld(t, nil)
	w.noAgent = func(int) bool { return true }
	w.fast = w.says
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, []int{1, 1}, []int{w.cycles, w.warm}, "the machine was started again under its agent")
	require.Empty(t, w.asked)
	w.closed()
}

func (w *world) efi() (out []bool) {
	for _, d := range w.boot {
		out = append(out, d.EFI)
	}
	return out
}

func (w *world) recorded(text string) bool {
	for _, m := range w.messages {
		if strings.Contains(m, text) {
			return true
		}
	}
	return false
}

// TestLadderOfBootPaths: a silent machine is started by the next of its boot paths. The record of what
// is inserted is written first, so that the server ejects it. A reset by Redfish is off and on, so the boot is
// allowed before on.
func TestLadderOfBootPaths(t *testing.T) {
	w := newWorld(t, func(m *inventory.Machine) {
		m.BMC.Driver, m.BMC.CipherSuite = inventory.DriverRedfish, ""
		m.BMC.BootPath = []string{inventory.PathPXE, inventory.PathHTTP, inventory.PathMedia}
	})
	w.noPXEUntil = inventory.MaxBoots - 1
	w.answer = func(q inventory.Question) *contract.Decision { t.Error(q.Text); return nil }
	require.NoError(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Equal(t, []string{
		"boot 1: off, network boot once, on",
		"boot 2: off, UEFI HTTP boot once, on",
		"boot 3: BMC reset; off, virtual media once, on",
	}, w.starts())
	var devices []string
	for _, b := range w.boot {
		devices = append(devices, b.Device)
	}
	require.Zero(t, w.warm)
	require.Equal(t, []string{"pxe", "http", "cdrom"}, devices[:3])
	require.Equal(t, []string{"http://10.0.0.1/media/ipxe.iso"}, w.media)
	m, err := w.Store.Machines.Machine(t.Context(), machine)
	require.NoError(t, err)
	address := m.BMC.KeyAddress()
	all, err := w.Store.Media.Media(t.Context())
	require.NoError(t, err)
	require.Equal(t, []inventory.Media{{Machine: machine, Run: w.record().Run, URL: "http://10.0.0.1/media/ipxe.iso", BMC: address}}, all)
	w.closed()
}

// TestQuestionNamesShimOfAnInstaller: with the site's loader shim, UEFI does not boot another installer, and the question says so.
func TestQuestionNamesShimOfAnInstaller(t *testing.T) {
	w := newForeign(t, foreign, nil)
	w.do.Site.Loader = inventory.LoaderShim
	w.noPXEUntil = inventory.MaxBoots
	w.answer = func(q inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Abort} }
	require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
	require.Contains(
		t,
		w.asked[0].Text,
		"with shim, UEFI boots only the agent, and this boot is for another installer; set another loader",
	)
	w.closed()
}

// TestQuestionNamesSecureBoot: the agent of a machine does not come. With loader shim, the question says what was
// delivered last.
func TestQuestionNamesSecureBoot(t *testing.T) {
	const refuse = "; with Secure Boot, the firmware, shim and GRUB each refuse unsigned files: "
	loader := []string{inventory.EventDHCP, inventory.EventLoader}
	script := append(slices.Clone(loader), inventory.EventScript)
	kernel := append(slices.Clone(script), inventory.EventKernel)
	initrd := append(slices.Clone(kernel), inventory.EventInitrd)
	for name, c := range map[string]struct {
		loader   string
		received []string
		want     string // "": the question does not speak of Secure Boot
	}{
		"nothing":    {inventory.LoaderShim, nil, "no file was delivered: with shim, firmware must boot by PXE (IPv4), not by HTTP"},
		"an address": {inventory.LoaderShim, loader[:1], "no file was delivered"},
		"loader":     {inventory.LoaderShim, loader, "the file delivered last is a loader, shimx64.efi or grubx64.efi: the firmware refuses"},
		"config":     {inventory.LoaderShim, script, "the file delivered last is GRUB's configuration"},
		"kernel":     {inventory.LoaderShim, kernel, "the file delivered last is vmlinuz: GRUB refuses a kernel"},
		"initramfs":  {inventory.LoaderShim, initrd, "the file delivered last is initramfs, so the kernel was accepted"},
		"iPXE":       {"", initrd, ""},
		"ipxe.efi":   {"ipxe.efi", loader, ""},
		"the site's": {"", kernel, "the file delivered last is vmlinuz: GRUB refuses a kernel"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(m *inventory.Machine) { m.Interfaces[0].Loader = c.loader })
			if name == "the site's" {
				w.do.Site.Loader = inventory.LoaderShim
			}
			w.stray = func(g inventory.Grant) bool {
				for _, kind := range c.received {
					w.signal(kind, g.Epoch, g.Boot, nil)
				}
				return true
			}
			w.answer = func(q inventory.Question) *contract.Decision { return &contract.Decision{Choice: contract.Abort} }
			require.Error(t, w.run(contract.ProvisionInput{Machine: machine}))
			if c.want == "" {
				require.NotContains(t, w.asked[0].Text, "Secure Boot")
			} else {
				require.Contains(t, w.asked[0].Text, refuse+c.want)
			}
			w.closed()
		})
	}
}
