package activities

import (
	"context"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

const smallLab = `name: small
seed: {address: 10.0.0.2, segment: 10.0.0.0/24}
network: {prefix: 10.0.0.0/24, gateway: 10.0.0.1}
machines:
  - name: n1
    interfaces: [{mac: "02:00:00:00:00:01", address: 10.0.0.11/24}]
    bmc: {driver: redfish, host: 10.0.9.1, user: admin}
    bmcPasswordFile: password
    config: user-data
`

// askedBMC records at which hosts and with which passwords the power state was asked.
type askedBMC struct {
	BMC
	asked []string
}

func (b *askedBMC) State(_ context.Context, c inventory.BMC, password inventory.Secret) (string, error) {
	b.asked = append(b.asked, c.Host+" "+password.Reveal())
	return "off", nil
}

// TestPreflightKeepsWhatTheFileDoesNotName: what the lab file leaves out stays; and what an operator
// changed after the machines were stored stays when the activity runs again or the Genesis resumes.
func TestPreflightKeepsWhatTheFileDoesNotName(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "inventory.db"), keyring.New())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	stored := inventory.Machine{
		Name: "n1", UserDataByAddress: true, VendorData: inventory.NewSecret("#cloud-config\n"), UserData: inventory.NewSecret("#!/bin/sh\n"),
		Interfaces: []inventory.Interface{{
			MAC: "02:00:00:00:00:01", Address: netip.MustParseAddr("10.0.0.11"), Netmask: "255.255.255.0", Loader: "snp.efi",
		}},
		BMC: &inventory.BMC{Driver: "redfish", Host: "10.0.9.1", User: "admin", Password: inventory.NewSecret("secret"), SystemName: "1"},
		Network: &inventory.SystemNetwork{Ethernets: []inventory.Ethernet{{
			SystemLink: inventory.SystemLink{Name: "e", DHCP4: true}, MAC: "02:00:00:00:00:01",
		}}},
	}
	require.NoError(t, store.Machines.PutMachines(t.Context(), []inventory.Machine{stored}, false, "test"))
	_, err = store.Genesis.PutGenesis(t.Context(), inventory.GenesisBundle{Name: "small", File: "lab.yaml", Files: map[string]inventory.Secret{
		"lab.yaml": inventory.NewSecret(smallLab), "password": inventory.NewSecret("secret\n"),
		"user-data": inventory.NewSecret("#!/bin/sh\n"),
	}}, "test")
	require.NoError(t, err)

	bmc := &askedBMC{}
	a := New(Config{
		Store: Store{
			Disks: store.Disks, Events: store.Events, Genesis: store.Genesis, Images: store.Images, Keys: store.Keys,
			Machines: store.Machines, Operations: store.Operations, Passwords: store.BMCPasswords, Templates: store.Templates,
			Workflows: store.Workflows,
		},
		Systems: Systems{Presence: taken{"10.0.0.99", ""}}, BMC: bmc, Clocks: Clocks{Now: time.Now},
		Site: Site{ImageURL: func() string { return "" }},
	})
	before, err := store.Machines.Machine(t.Context(), "n1")
	require.NoError(t, err)
	same := func() {
		t.Helper()
		now, err := store.Machines.Machine(t.Context(), "n1")
		require.NoError(t, err)
		now.Updated = before.Updated
		require.Equal(t, before, now)
	}
	require.NoError(t, a.Preflight(t.Context(), LabRequest{Name: "small", Run: "r1"}))
	same()

	changed := before
	b := *before.BMC
	b.Host, b.Password = "10.0.9.2", inventory.NewSecret("other")
	changed.BMC, changed.Labels = &b, map[string]string{"rack": "a1"}
	require.NoError(t, store.Machines.PutMachines(t.Context(), []inventory.Machine{changed}, true, "operator"))
	before, err = store.Machines.Machine(t.Context(), "n1")
	require.NoError(t, err)
	require.NoError(t, a.Preflight(t.Context(), LabRequest{Name: "small", Run: "r1"}), "the activity runs twice")
	same()
	require.NoError(t, a.Preflight(t.Context(), LabRequest{Name: "small", Run: "r2", Resume: true}))
	same()
	require.Equal(t, []string{"10.0.9.1 secret", "10.0.9.2 other", "10.0.9.2 other"}, bmc.asked, "as it is stored")
	require.ErrorContains(t, a.Preflight(t.Context(), LabRequest{Name: "small", Run: "r3"}),
		`lab.yaml:5: machines[0].name: the inventory has a machine "n1" that differs in bmc`)
}
