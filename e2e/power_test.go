package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// ipmiScript is an operator's power command: another way to use a BMC that Ingot could also use
// directly.
const ipmiScript = `#!/bin/sh
set -e
read -r password
umask 077
file=$(mktemp)
trap 'rm -f "$file"' EXIT
printf '%s' "$password" >"$file"
out=$(ipmitool -I lanplus -C 3 -H "$2" -U admin -f "$file" chassis power "$1")
case $1 in status) echo "${out##* }" ;; esac
`

// TestEveryPower installs machines that are switched by Intel AMT, by AMT over TLS, by a command
// and by wake-on-LAN, all at the same time.
func TestEveryPower(t *testing.T) {
	runInTurn(t, 7, 9)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	script := filepath.Join(t.TempDir(), "power")
	require.NoError(t, os.WriteFile(script, []byte(ipmiScript), 0o755))
	s, err := NewSite(ctx, Options{Root: "..", Dir: keepDir(t), Top: `power:
  commands:
    script:
      on: [` + script + `, "on", "{host}"]
      off: [` + script + `, "off", "{host}"]
      status: [` + script + `, status, "{host}"]
`})
	require.NoError(t, err)
	s.keep(t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	const secret = "e2e-secret-of-amt"
	machines := map[string]*lab.Machine{}
	add := func(name string, spec lab.Spec, edit func(bmc map[string]any, address string)) {
		spec.Name, spec.Firmware, spec.Agent, spec.BMCPassword = name, lab.Simulated, filepath.Join(s.bin, "worker-agent"), secret
		spec.BMCAddress = fmt.Sprintf("10.10.10.%d", 50+len(machines))
		m, err := s.Add(ctx, spec, func(doc map[string]any) {
			doc["image"] = "sim"
			if edit != nil {
				edit(doc["bmc"].(map[string]any), spec.BMCAddress)
			}
		})
		require.NoError(t, err)
		machines[name] = m
	}
	add("amt", lab.Spec{Controller: lab.ControllerAMT}, nil)
	add("amt-tls", lab.Spec{Controller: lab.ControllerAMT, VLAN: lab.RelayedVLAN},
		func(b map[string]any, _ string) { b["port"], b["insecureTLS"] = lab.AMTTLSPort, true })
	add("amt16", lab.Spec{Controller: lab.ControllerAMT16}, nil)
	add("command", lab.Spec{Order: lab.NetworkFirst}, func(b map[string]any, address string) {
		clear(b)
		b["driver"], b["command"], b["host"], b["password"] = "exec", "script", address, secret
	})
	add("redfish", lab.Spec{Controller: lab.ControllerRedfish, Redfish: lab.RedfishSupermicro}, nil)
	add("wol", lab.Spec{NoBMC: true, WakeOnLAN: true, Order: lab.NetworkFirst}, nil)
	// AMT and the command first have to switch the machine off.
	for _, name := range []string{"amt", "command"} {
		require.NoError(t, machines[name].PowerOn(ctx))
	}
	for name := range machines {
		s.must(ctx, t, "machine", "provision", name)
	}
	for name, m := range machines {
		w := s.ended(ctx, t, name, inventory.StateSuccess)
		_, err := m.WaitSerial(ctx, "LAB-MINI-PHONED-HOME")
		require.NoError(t, err)
		require.Equal(t, 1, m.Writers(), name)
		require.Equal(t, inventory.StateSuccess, w.State)
		s.closed(ctx, t, name)
	}
	require.Positive(t, machines["wol"].Woken())
	require.Equal(t, 1, machines["wol"].PowerOns(), "no button was pressed")
	require.Equal(t, 2, machines["amt"].PowerOns(), "off, then on")

	// The features that each driver supports and reports.
	for _, name := range []string{"amt", "amt-tls", "amt16", "command", "redfish"} {
		require.Contains(t, s.must(ctx, t, "bmc", "check", name), "power is on")
		s.must(ctx, t, "machine", "power", "off", name)
		require.Equal(t, lab.Off, machines[name].PowerState(), name)
	}
	// With a refused password, the run asks after one log-in; it continues after the password is
	// corrected.
	amt := machines["amt"].AMT()
	amt.Pretend(lab.AMTFaults{OtherPassword: true})
	amt.Refused()
	s.must(ctx, t, "machine", "provision", "amt", "--yes")
	_, err = s.Follow(ctx, "amt", func(w inventory.Workflow) bool { return w.Question != nil })
	require.NoError(t, err)
	require.Contains(t, s.asks(ctx, t, "amt").Question.Text, "check user and password of AMT")
	require.Equal(t, 1, amt.Refused())
	amt.Pretend(lab.AMTFaults{})
	s.must(ctx, t, "workflow", "decide", "amt", "--choice", contract.Retry)
	s.ended(ctx, t, "amt", inventory.StateSuccess)

	_, err = s.CLI(ctx, "machine", "power", "off", "wol")
	require.ErrorContains(t, err, "wake-on-LAN")
	s.must(ctx, t, "machine", "boot-device", "amt", "disk")
	require.Contains(t, amt.Calls(), "ChangeBootOrder CIM_BootConfigSetting")
	log, err := os.ReadFile(s.log.Name())
	require.NoError(t, err)
	require.NotContains(t, string(log), secret)

	_, err = s.CLI(ctx, "machine", "add", "other", "--mac", "52:54:00:20:99:99", "--address", "10.10.20.99/24", "--bmc", "exec:nobody")
	require.ErrorContains(t, err, `--bmc: the server's configuration has no command "nobody"`)
}
