package machinefile

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
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

func TestReadForms(t *testing.T) {
	ms, _, ps := read(t, `name: a
interfaces:
  - {mac: "02:00:00:00:00:01", address: 192.0.2.1/25, gateway: 192.0.2.2, vlan: 20}
  - {mac: "02:00:00:00:00:02", address: 192.0.3.1/24, netmask: 255.255.255.0}
diskSelector: {minSize: 500GB, maxSize: 1.5TiB}
installed: {run: r, at: 2026-01-02T03:04:05Z}
`)
	require.Empty(t, ps)
	require.Equal(t, "192.0.2.1", ms[0].Interfaces[0].Address.String())
	require.Equal(t, "255.255.255.128", ms[0].Interfaces[0].Netmask)
	require.Equal(t, 20, ms[0].Interfaces[0].VLAN)
	require.Equal(t, "255.255.255.0", ms[0].Interfaces[1].Netmask)
	require.Equal(t, inventory.DiskSelector{MinSize: 5e11, MaxSize: 3 << 39}, *ms[0].DiskSelector)
	b, err := json.Marshal(ms[0])
	require.NoError(t, err)
	require.Contains(t, string(b), `"address":"192.0.2.1","netmask":"255.255.255.128"`, "the API gets what it always got")
	require.Contains(t, string(b), `"minSize":500000000000,"maxSize":1649267441664`)

	_, _, ps = read(t, `name: a
interfaces:
  - mac: "02:00:00:00:00:01"
    address: 192.0.2.1/25
    netmask: 255.255.255.0
  - {mac: "02:00:00:00:00:02", address: 192.0.3.1/33}
  - {mac: "02:00:00:00:00:03", address: "2001:db8::1/64"}
  - {mac: "02:00:00:00:00:04", vlan: 4095}
  - {mac: "02:00:00:00:00:05", address: 192.0.4.0/24}
diskSelector: {minSize: 500G, maxSize: 1TB}
`)
	var got []string
	for _, p := range ps {
		got = append(got, p.String())
	}
	require.Equal(t, []string{
		`m.yaml:5: interfaces[0].netmask: is "255.255.255.0" here, but "255.255.255.128" on line 4 (leave it out, or correct one of the two)`,
		`m.yaml:6: interfaces[1].address: invalid IP address "192.0.3.1/33" (write it as 10.0.0.11)`,
		`m.yaml:7: interfaces[2].address: 2001:db8::1 is not IPv4, and only DHCPv4 is served (reserve an IPv4 address)`,
		`m.yaml:8: interfaces[3].vlan: invalid VLAN 4095 (use 1–4094, or leave it out for untagged)`,
		`m.yaml:9: interfaces[4].address: 192.0.4.0 is the network or broadcast address of 192.0.4.0/24 (reserve another address of that subnet)`,
		`m.yaml:10: diskSelector.minSize: invalid size "500G"; must be a number of bytes, or a size such as 500GB or 1.5TiB: invalid`,
	}, got)
}
