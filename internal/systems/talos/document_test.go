package talos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// example reads the Talos document of the example lab.
func example(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../../deploy/genesis/talos.yaml"))
	require.NoError(t, err)
	return string(b)
}

// problems returns what Check finds in contents.
func problems(t *testing.T, contents string) inventory.Problems {
	t.Helper()
	found, _ := Document{}.Check("doc", []byte(contents))
	for _, p := range found {
		require.NotEmpty(t, p.What)
	}
	return found
}

// warningsOf returns the warnings about contents, which have no problems.
func warningsOf(t *testing.T, contents string) inventory.Problems {
	t.Helper()
	found, warnings := Document{}.Check("doc", []byte(contents))
	require.Empty(t, found)
	return warnings
}

func TestCheck(t *testing.T) {
	good := example(t)
	main, _, _ := strings.Cut(good, "---")
	replace := func(old, with string) string {
		require.Contains(t, good, old)
		return strings.Replace(good, old, with, 1)
	}
	line := func(s, part string) int { return strings.Count(s[:strings.Index(s, part)], "\n") + 1 }
	for name, c := range map[string]struct{ doc, field, what, at string }{
		"unknown key":       {replace("    install:\n", "    instal: {}\n    install:\n"), "machine.instal", "does not know", "    instal:"},
		"unknown key below": {replace("wipe: true", "wipee: true"), "machine.install.wipee", "does not know", "wipee"},
		"key in snake case": {replace("certSANs:", "cert_sans:"), "machine.cert_sans", "does not know", "cert_sans"},
		"unknown key in 2":  {replace("hostname: um760", "hostnam: um760"), "hostnam", "does not know", "hostnam:"},
		"unknown kind":      {replace("kind: HostnameConfig", "kind: HostConfig"), "", "HostConfig", "apiVersion: v1alpha1"},
		"no disk":           {replace("        disk: /dev/disk/by-id/nvme-EXAMPLE_UM760_SSD_0001\n", ""), "machine.install", "disk", "    install:"},
		"no install":        {strings.Replace(good, good[strings.Index(good, "    install:"):strings.Index(good, "    features:")], "", 1), "machine", "install instructions", "machine:"},
		"type":              {replace("type: controlplane", "type: boss"), "machine.type", "unknown machine type", "    type:"},
		"wrong type":        {replace("wipe: true", "wipe: [1]"), "", "wrong type", "wipe:"},
		"no machine":        {"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: x\n", "machine", "only other documents", ""},
		"not YAML":          {"machine: [", "", "not valid YAML", "machine"},
		"no mapping":        {"- a\n", "", "not a mapping", "- a"},
		"no endpoint":       {replace("endpoint: https://10.10.20.11:6443", "endpoint: \"\""), "cluster.controlPlane.endpoint", "endpoint", "endpoint:"},
		"authority":         {main[:strings.Index(main, "    ca:\n")] + main[strings.Index(main, "    certSANs"):], "machine.ca", "CA", ""},
		"two of a kind":     {good + "---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: y\n", "", "duplicate", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := problems(t, c.doc)
			found := false
			for _, x := range p {
				found = found ||
					x.Field == c.field && strings.Contains(x.What, c.what) &&
						(c.at == "" || x.Line == line(c.doc, c.at) || name == "unknown kind" && x.Line > 100)
			}
			require.True(t, found, "%+v in: %s", c.at, p)
		})
	}
	require.Len(
		t,
		problems(t, strings.NewReplacer("wipe:", "wipee:", "hostname: um760", "hostnam: um760", "certSANs:", "certs:").Replace(good)),
		3,
		"all at once, over documents",
	)
	require.Contains(t, warningsOf(t, replace("/dev/disk/by-id/nvme-EXAMPLE_UM760_SSD_0001", "/dev/nvme0n1")).Error(), "another disk")
	require.Empty(t, problems(t, replace("disk: /dev/disk/by-id/nvme-EXAMPLE_UM760_SSD_0001", "diskSelector: {type: nvme}")))
}
