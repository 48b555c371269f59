package machinefile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

func read(t *testing.T, src string) ([]inventory.Machine, []string, inventory.Problems) {
	t.Helper()
	docs, err := strictyaml.Documents("m.yaml", []byte(src))
	require.NoError(t, err)
	ms, notes, err := Read("m.yaml", docs)
	var ps inventory.Problems
	if err != nil {
		require.ErrorAs(t, err, &ps)
	}
	return ms, notes, ps
}

func TestRead(t *testing.T) {
	ms, notes, ps := read(
		t,
		"name: a\ninterfaces: [{mac: 02-00-00-00-00-01}]\nnetboot: {allowPXE: true}\n---\nname: b\ninterfaces: [{mac: '02:00:00:00:00:02'}]\nlastSeen: 2026-01-02T03:04:05Z\n",
	)
	require.Empty(t, ps)
	require.Equal(t, "02:00:00:00:00:01", ms[0].Interfaces[0].MAC)
	require.Equal(t, "b", ms[1].Name)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "m.yaml:3: netboot is not read from files")
}

func TestReadReportsEverything(t *testing.T) {
	_, _, ps := read(t, `name: a
interfaces:
  - {mac: "02:00:00:00:00:01", address: 192.0.2.1, netmask: 255.255.255.0}
  - {mac: "02:00:00:00:00:01"}
---
name: a
interfaces:
  - {mac: "02:00:00:00:00:02", address: 192.0.2.1, netmask: 255.255.255.0}
---
kind: Hardware
apiVersion: tinkerbell.org/v1alpha1
---
name: d
interfaces:
  - {mac: "02:00:00:00:00:04", address: 192.0.2.300, netmask: 255.255.255.0}
`)
	got := map[string]int{}
	for _, p := range ps {
		got[p.Field] = p.Line
	}
	require.Equal(t, map[string]int{
		"interfaces[1].mac": 4, "name": 6, "interfaces[0].address": 15, "kind": 10,
	}, got, "%v", ps)
	require.Len(t, ps, 5, "one address belongs to another machine and one is invalid; its netmask is not reported")

	_, _, err := Read("m.yaml", nil)
	require.ErrorIs(t, err, inventory.ErrInvalid)
}
