package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/inventory"
)

func TestBMCFlag(t *testing.T) {
	key := "sha256:" + strings.Repeat("0a", 32)
	for flag, want := range map[string]*inventory.BMC{
		"":                              nil,
		"manual":                        nil,
		"wol":                           {Driver: "wol"},
		"ipmi://root@10.0.9.1":          {Driver: "ipmi", Host: "10.0.9.1", User: "root"},
		"amt://admin@ms-02.lan:16993":   {Driver: "amt", Host: "ms-02.lan", User: "admin", Port: 16993, Fingerprint: key},
		"exec:plug":                     {Driver: "exec", Command: "plug"},
		"exec:plug@10.0.9.4":            {Driver: "exec", Command: "plug", Host: "10.0.9.4"},
		"exec:admin:hunter2@10.0.9.4":   nil,
		"amt://admin:hunter2@10.0.9.4":  {Driver: "amt", Host: "10.0.9.4", User: "admin"},
		"exec://admin:hunter2@10.0.9.4": nil,
	} {
		var ps inventory.Problems
		f := machineFlags{bmc: flag}
		if want != nil {
			f.fingerprint = want.Fingerprint
		}
		require.Equal(t, want, f.bmcOf(&ps), flag)
		require.Equal(t, strings.Contains(flag, "hunter2"), len(ps) > 0, flag)
		require.NotContains(t, ps.Error(), "hunter2", flag)
	}
}

func TestDoctorLooksAtPowerCommands(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plug")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	argv := []string{file, "x"}
	d := &doctor{cfg: config.Config{Power: config.Power{Commands: map[string]config.PowerCommand{
		"a": {On: argv, Off: argv, Status: argv}, "b": {On: []string{"/bin/sh"}, Off: []string{"/nonexistent"}, Status: argv}, "c": {On: []string{"/bin/sh"}, Off: []string{"/bin/sh"}, Status: []string{"/bin/sh"}},
	}}}}
	d.powerCommands()
	require.Len(t, d.findings, 3)
	require.Equal(t, isFail, d.findings[0].State)
	require.Contains(t, d.findings[0].Text, "cannot be run")
	require.Equal(t, isFail, d.findings[1].State)
	require.Equal(t, finding{State: isOK, What: "power command", Text: "c can be run"}, d.findings[2])
}
