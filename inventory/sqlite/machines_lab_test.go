package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestLabMachines: a lab file changes what it names, asks before it changes anything that is stored
// otherwise, and is stored once for each run of its Genesis and those that resume it. A secret that differs is
// named without its value (security S25).
func TestLabMachines(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	stored := machine("m1", 1)
	stored.UserDataByAddress, stored.VendorData = true, inventory.NewSecret("vendor")
	stored.UserData = inventory.NewSecret("user")
	stored.Network = &inventory.SystemNetwork{Ethernets: []inventory.Ethernet{
		{SystemLink: inventory.SystemLink{Name: "e"}, MAC: stored.Interfaces[0].MAC},
	}}
	stored.BMC = &inventory.BMC{
		Driver: inventory.DriverRedfish, Host: "10.0.9.1", User: "u", Password: inventory.NewSecret("password"),
		BootPath: []string{inventory.PathMedia},
	}
	require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{stored}, true, "test"))
	before, err := w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)

	file := machine("m1", 1)
	file.UserData = inventory.NewSecret("user")
	file.BMC = &inventory.BMC{Driver: "Redfish", Host: "10.0.9.1", User: "u", Password: inventory.NewSecret("password")}
	stated := ""
	lab := func(run string, change func(l *inventory.LabMachines)) inventory.LabMachines {
		l := inventory.LabMachines{
			Operation: "genesis/home", Run: run, SHA256: "abc",
			Machines: []inventory.LabMachine{{Machine: file, Says: func(field string) bool { return field == stated }}},
		}
		if change != nil {
			change(&l)
		}
		return l
	}
	differs := func(l inventory.LabMachines) []string {
		t.Helper()
		merged, err := w.Genesis.MergeLabMachines(ctx, l)
		require.NoError(t, err)
		require.False(t, merged[0].HasSecrets() && len(merged[0].Differs) == 0, "a known secret is not stored again")
		return merged[0].Differs
	}
	same := func() {
		t.Helper()
		now, err := w.Machines.Machine(ctx, "m1")
		require.NoError(t, err)
		now.Updated = before.Updated
		require.Equal(t, before, now)
		user, vendor, err := w.Machines.UserData(ctx, "m1")
		require.NoError(t, err)
		require.Equal(t, "user vendor", user.Reveal()+" "+vendor.Reveal())
	}

	// What the file does not name stays. A secret that equals the stored one is not reported.
	require.Empty(t, differs(lab("", nil)))
	require.NoError(t, w.Genesis.PutLabMachines(ctx, lab("r1", nil), "genesis home"))
	same()

	// What it names is not changed without a word. A secret is named only.
	file.UserData, file.BMC.Password = inventory.NewSecret("canary"), inventory.NewSecret("canary")
	stated = "userDataByAddress"
	require.Equal(t, []string{"bmc.password", "userData", "userDataByAddress"}, differs(lab("r2", nil)))
	err = w.Genesis.PutLabMachines(ctx, lab("r2", nil), "genesis home")
	require.ErrorIs(t, err, inventory.ErrInvalid)
	require.ErrorContains(
		t,
		err,
		`machines[0].name: the inventory has a machine "m1" that differs in bmc.password, userData, userDataByAddress`,
	)
	require.NotContains(t, err.Error(), "canary")
	same()

	// An activity that runs twice, and a Genesis that resumes, keep what is stored.
	require.NoError(t, w.Genesis.PutLabMachines(ctx, lab("r1", nil), "genesis home"))
	resumed := func(l *inventory.LabMachines) { l.Resume, l.Replace = true, true }
	require.NoError(t, w.Genesis.PutLabMachines(ctx, lab("r3", resumed), "genesis home"))
	same()
	require.NoError(t, w.Machines.DeleteMachine(ctx, "m1", "test"))
	require.NoError(t, w.Genesis.PutLabMachines(ctx, lab("r3", nil), "genesis home"), "a machine that was deleted is added again")
	user, _, err := w.Machines.UserData(ctx, "m1")
	require.NoError(t, err)
	require.Equal(t, "canary", user.Reveal())

	// One that resumes with another file does ask; with --replace the file is all of the machine.
	file = machine("m1", 1)
	file.Labels = map[string]string{"rack": "a1"}
	other := func(l *inventory.LabMachines) { l.Resume, l.SHA256 = true, "def" }
	require.ErrorContains(t, w.Genesis.PutLabMachines(ctx, lab("r4", other), "genesis home"), "labels")
	require.NoError(t, w.Genesis.PutLabMachines(ctx, lab("r4", func(l *inventory.LabMachines) { l.Replace = true }), "genesis home"))
	now, err := w.Machines.Machine(ctx, "m1")
	require.NoError(t, err)
	require.Nil(t, now.BMC)
	require.False(t, now.HasUserData)
	require.Equal(t, file.Labels, now.Labels)
}

// A secret that is given again changes nothing: neither what is sealed nor the candidate of a rotation.
func TestKnownSecretIsNotStoredAgain(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	m := machine("m1", 1)
	m.UserData = inventory.NewSecret("user")
	m.BMC = &inventory.BMC{Driver: inventory.DriverIPMI, Host: "10.0.9.1", Password: inventory.NewSecret("password")}
	put := func() string {
		t.Helper()
		require.NoError(t, w.Machines.PutMachines(ctx, []inventory.Machine{m}, true, "test"))
		var all []string
		rows, err := w.secrets(ctx)
		require.NoError(t, err)
		for _, r := range rows {
			all = append(all, string(r.UserData), string(r.BMCPassword), string(r.BMCCandidate))
		}
		return strings.Join(all, "|")
	}
	before := put()
	require.NoError(t, w.BMCPasswords.PutBMCCandidate(ctx, w.take("run-1"), inventory.NewSecret("next")))
	with := put()
	require.NotEqual(t, before, with, "the candidate is there")
	require.Equal(t, with, put())
	m.BMC.Password = inventory.NewSecret("other")
	require.NotEqual(t, with, put())
	require.Contains(t, fmt.Sprint(w.Events.Events(ctx, inventory.EventFilter{Machine: "m1"})), "machine stored again, unchanged")
}
