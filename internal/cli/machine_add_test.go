package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
		f := bmcFlags{url: flag}
		if want != nil {
			f.fingerprint = want.Fingerprint
		}
		require.Equal(t, want, f.parse(&ps), flag)
		require.Equal(t, strings.Contains(flag, "hunter2"), len(ps) > 0, flag)
		require.NotContains(t, ps.Error(), "hunter2", flag)
	}
}
