package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
)

// TestRedfish installs QEMU machines through Redfish: one by one-time PXE, and one by virtual media
// alone, whose network card cannot boot. Each boots its disk afterwards, and no session and no medium
// stays. In the short form, only virtual media.
func TestRedfish(t *testing.T) {
	runInTurn(t, 60, 12)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Raw, "--sha256", image.SHA256, "--as-is")

	specs := map[string]lab.Spec{
		"media": {Firmware: lab.UEFI, Redfish: lab.RedfishSupermicro},
	}
	if *full {
		specs["media-bios"] = lab.Spec{Firmware: lab.BIOS, Redfish: lab.RedfishHPE}
		specs["once"] = lab.Spec{Firmware: lab.BIOS, Redfish: lab.RedfishDell}
	}
	machines := map[string]*lab.Machine{}
	for name, spec := range specs {
		spec.Name, spec.Controller = name, lab.ControllerRedfish
		m, err := s.Add(ctx, spec, func(doc map[string]any) {
			doc["image"] = "mini"
			if strings.HasPrefix(name, "media") {
				doc["bmc"].(map[string]any)["bootPath"] = []string{"media"}
			}
		})
		require.NoError(t, err)
		machines[name] = m
	}
	require.Contains(t, s.must(ctx, t, "bmc", "check", "media"), "Secure Boot: enabled")
	for name := range machines {
		s.must(ctx, t, "machine", "provision", name, "--yes")
	}
	for name, m := range machines {
		s.ended(ctx, t, name, inventory.StateSuccess)
		s.closed(ctx, t, name)
		calls := strings.Join(m.Redfish().Calls(), "\n")
		require.Equal(t, strings.HasPrefix(name, "media"), strings.Contains(calls, "VirtualMedia.InsertMedia"), name)
		require.Eventually(t, func() bool { return m.Redfish().Media() == "" }, time.Minute, 100*time.Millisecond,
			"%s: the medium is ejected when the run has ended", name)
		_, most := m.Redfish().Sessions()
		require.Equal(t, 1, most, "%s: one session at a time", name)
		require.Eventually(t, func() bool { now, _ := m.Redfish().Sessions(); return now == 0 }, time.Minute, 100*time.Millisecond, name)

		s.must(ctx, t, "machine", "power", "cycle", name, "--yes")
		_, err := m.WaitSerial(ctx, "LAB-MINI-BOOTED")
		require.NoError(t, err, name)
	}
	out := s.must(ctx, t, "bmc", "job", "create", "media", "--yes", "--task", "media:http://"+lab.ServerAddress+":7080/media/ipxe.iso",
		"--task", "media:")
	require.Contains(t, out, "eject virtual media: "+inventory.StateSuccess)
	require.Empty(t, machines["media"].Redfish().Media())

	// The server makes a new password, and goes on with it.
	require.Contains(t, s.must(ctx, t, "bmc", "rotate", "media"), "new password: "+inventory.StateSuccess)
	require.Contains(t, strings.Join(machines["media"].Redfish().Calls(), "\n"), "PATCH /redfish/v1/AccountService/Accounts/")
	require.Contains(t, s.must(ctx, t, "bmc", "check", "media"), "logged in")
}

// TestRedfishShapes installs a simulated machine through each shape of a Redfish service that strays from the
// specification. Each is switched on for the agent, and for its disk afterwards, by one-time PXE.
func TestRedfishShapes(t *testing.T) {
	runInTurn(t, 20, 8)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)

	machines := map[string]*lab.Machine{}
	for _, shape := range lab.RedfishOddities() {
		name := string(shape)
		machines[name], err = s.Add(ctx, lab.Spec{
			Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent"),
			Controller: lab.ControllerRedfish, Redfish: shape,
		}, func(doc map[string]any) {
			doc["image"] = "sim"
			if shape == lab.RedfishPages {
				doc["bmc"].(map[string]any)["systemName"] = "1" // the service has two
			}
		})
		require.NoError(t, err, name)
		s.must(ctx, t, "machine", "provision", name, "--yes")
	}
	for name, m := range machines {
		s.ended(ctx, t, name, inventory.StateSuccess)
		s.closed(ctx, t, name)
		calls := strings.Join(m.Redfish().Calls(), "\n")
		require.Contains(t, calls, "PATCH /redfish/v1/Systems/1", name) // or its settings object
		require.Contains(t, calls, "POST /redfish/v1/Systems/1/Actions/ComputerSystem.Reset", name)
		require.Contains(t, s.must(ctx, t, "bmc", "check", name), "machine: Lab "+name)
		require.Eventually(t, func() bool { now, _ := m.Redfish().Sessions(); return now == 0 }, time.Minute, 100*time.Millisecond, name)
	}
	require.Contains(t, s.must(ctx, t, "bmc", "check", string(lab.RedfishTypes)), "odd: /redfish/v1/Systems/1: AssetTag")
}

// TestRedfishJudges: two clients that others have written switch a machine through the lab's Redfish
// service, so that the service is not only what Ingot expects. Long form: they are in Python.
func TestRedfishJudges(t *testing.T) {
	runInTurn(t, 20, 4)
	ctx := needLab(t)
	if !*full {
		t.Skip("long form: go test ./e2e -run TestRedfishJudges -args -lab -full")
	}
	redfishtool := filepath.Join(needClients(t), "usr/bin/redfishtool")
	s := site(ctx, t)
	for _, shape := range []lab.RedfishShape{lab.RedfishDell, lab.RedfishHPE, lab.RedfishSupermicro} {
		m, err := s.Add(ctx, lab.Spec{Name: string(shape), Controller: lab.ControllerRedfish, Redfish: shape}, nil)
		require.NoError(t, err)
		r := m.Redfish()
		for _, args := range []string{"Systems reset On", "Systems", "Systems setBootOverride Continuous Pxe", "Managers", "Systems reset ForceOff"} {
			out, err := s.python(ctx, t, append([]string{
				redfishtool, "-r", r.Address, "-u", r.User, "-p", r.Password, "-S", "Always", "-A", "Session",
			}, strings.Fields(args)...)...).CombinedOutput()
			require.NoError(t, err, "%s: redfishtool %s: %s", shape, args, out)
		}
		require.True(t, strings.HasPrefix(r.Override(), "Pxe Continuous"), r.Override())
		require.Equal(t, lab.Off, m.PowerState())

		script := t.TempDir() + "/judge.py"
		require.NoError(t, os.WriteFile(script, []byte(sushyJudge), 0o600))
		out, err := s.python(ctx, t, script, r.Address, r.User, r.Password).CombinedOutput()
		require.NoError(t, err, "%s: sushy: %s", shape, out)
		now, _ := r.Sessions()
		require.Zero(t, now)
		require.Equal(t, lab.Off, m.PowerState())
	}
}

// sushyJudge switches a machine on and off, sets its boot device and reads everything back, by
// OpenStack's client.
const sushyJudge = `
import os, sys, sushy, urllib3
for name in ('REQUESTS_CA_BUNDLE', 'CURL_CA_BUNDLE'): # requests prefers them to verify=False
    os.environ.pop(name, None)
urllib3.disable_warnings()
address, user, password = sys.argv[1:]
client = sushy.Sushy('https://' + address, verify=False, auth=sushy.auth.SessionAuth(username=user, password=password))
system = client.get_system_collection().get_members()[0]
assert system.power_state.value == 'Off', system.power_state
system.reset_system(sushy.RESET_ON)
system.refresh()
assert system.power_state.value == 'On', system.power_state
system.set_system_boot_options(sushy.BOOT_SOURCE_TARGET_PXE, enabled=sushy.BOOT_SOURCE_ENABLED_ONCE)
for _ in range(5):
    system.invalidate(force_refresh=True)
assert system.boot.target.value == 'Pxe' and system.boot.enabled.value == 'Once', system.boot
assert system.secure_boot.enabled
manager = client.get_manager_collection().get_members()[0]
drive = manager.virtual_media.get_members()[0]
assert not drive.inserted
system.reset_system(sushy.RESET_FORCE_OFF)
client._auth.close()
`
