package importfile

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// TestSeveralFiles: documents refer to each other across files, in any order.
func TestSeveralFiles(t *testing.T) {
	machine := strings.Replace(hardwareText("n", mac1, ""), "spec:\n", "spec:\n  bmcRef: {name: b}\n", 1)
	files := []File{{"a", []byte(machine)}, {"b", []byte(head("Machine", "b") + bmcSpec)}, {"c", []byte(secretText)}}
	got, err := Read(files)
	require.NoError(t, err)
	require.Len(t, got.Machines, 1)
	require.Equal(t, Place{"a", 2}, got.Machines[0].Place)
	require.Equal(t, "10.0.9.1 u hush-hush", got.Machines[0].BMC.Host+" "+got.Machines[0].BMC.User+" "+got.Machines[0].BMC.Password.Reveal())

	// A Secret of another namespace is another Secret; one without a namespace goes into any.
	in := func(namespace, text string) string {
		return strings.ReplaceAll(text, "metadata: {", "metadata: {namespace: "+namespace+", ")
	}
	files[2].Content = []byte(in("other", secretText))
	_, err = Read(files)
	require.EqualError(t, err, "b:6: spec.connection.authSecretRef: the files hold no Secret s in this namespace "+
		"(import the file with that Secret as well)")
	files[0].Content, files[1].Content = []byte(in("site", machine)), []byte(in("site", string(files[1].Content)))
	files[2].Content = []byte(secretText)
	_, err = Read(files)
	require.NoError(t, err)

	// What is wrong in all files is reported by file.
	_, err = Read([]File{{"b", []byte("[")}, {"a", []byte(hardwareText("n", "x", ""))}, {"c", []byte{0}}})
	require.Error(t, err)
	var names []string
	for _, line := range strings.Split(err.Error(), "\n") {
		names = append(names, line[:2])
	}
	require.Equal(t, []string{"a:", "b:", "c:"}, names)
}

func TestKnown(t *testing.T) {
	for _, files := range samples {
		for _, f := range readSamples(t, files) {
			require.True(t, Known(f), f.Name)
		}
	}
	for _, text := range []string{"", "name: n\ninterfaces: [{mac: x}]\n", "[", "version: \"0.1\"\nname: x\ntasks: []\n", "kind: Hardware\n"} {
		require.False(t, Known(File{"f", []byte(text)}), text)
	}
}

// TestMerge: a document without a word for a field leaves what is stored; Ingot's own form, which
// has all of them, does not.
func TestMerge(t *testing.T) {
	stored := everything()
	got, err := Read([]File{{"f", []byte(hardwareText("node-1", mac1, ", vlan_id: 60"))}})
	require.NoError(t, err)
	next := got.Machines[0].Merge(stored)
	require.Equal(t, stored.BMC, next.BMC)
	require.Equal(t, stored.DiskSelector, next.DiskSelector)
	require.Equal(t, stored.ProtectedDisks, next.ProtectedDisks)
	require.Equal(t, stored.Template+stored.Image+stored.BootFromDisk, next.Template+next.Image+next.BootFromDisk)
	require.Equal(t, stored.SSHKeys, next.SSHKeys)
	require.Equal(t, stored.KernelArgs, next.KernelArgs)
	require.Equal(t, stored.Notes, next.Notes)
	require.True(t, next.HasUserData && next.HasVendorData)
	require.Nil(t, next.Labels, "labels are those of the document")
	require.Equal(t, stored.Network, next.Network)
	require.True(t, next.UserDataByAddress)
	require.Equal(t, stored.Interfaces[0].Loader, next.Interfaces[0].Loader, "the format has no word for it")
	require.Zero(t, next.Interfaces[0].TimeServers, "the format has a word for it")
	require.Len(t, next.Interfaces, 1)
	require.Equal(t, 60, next.Interfaces[0].VLAN)

	own, err := Read([]File{{"f", []byte("name: node-1\ninterfaces: [{mac: \"" + mac1 + "\"}]\n")}})
	require.NoError(t, err)
	require.Equal(t, own.Machines[0].Machine, own.Machines[0].Merge(stored))
}

func TestDifferences(t *testing.T) {
	old := everything()
	changes := func(change func(m *inventory.Machine)) (lines []string) {
		next := everything()
		change(&next)
		got, err := Differences(old, next)
		require.NoError(t, err)
		for _, c := range got {
			lines = append(lines, c.String())
		}
		return lines
	}

	require.Empty(t, changes(func(*inventory.Machine) {}))
	require.Empty(t, changes(func(m *inventory.Machine) { m.Standing = &inventory.Standing{State: inventory.StandingAvailable} }),
		"what storing does not change is no difference")
	require.Equal(
		t,
		[]string{"image: debian-12 → –", "interfaces[0].vlan: 50 → 60", "labels.rack: – → a1"},
		changes(func(m *inventory.Machine) {
			m.Image, m.Interfaces[0].VLAN, m.Labels["rack"] = "", 60, "a1"
		}),
	)
	require.Equal(
		t,
		[]string{"interfaces[1].mac: 02:00:00:00:00:02 → –"},
		changes(func(m *inventory.Machine) { m.Interfaces = m.Interfaces[:1] }),
	)

	// Secrets are named, and not shown.
	require.Empty(t, changes(func(m *inventory.Machine) { m.UserData = inventory.NewSecret("hush-hush") }))
	require.Equal(t, []string{"userData: (stored) → –"}, changes(func(m *inventory.Machine) { m.HasUserData = false }))
	fresh, err := Differences(inventory.Machine{}, inventory.Machine{
		Name: "n", VendorData: inventory.NewSecret("hush-hush"),
		BMC: &inventory.BMC{Driver: inventory.DriverIPMI, Password: inventory.NewSecret("hush-hush")},
	})
	require.NoError(t, err)
	text, err := json.Marshal(fresh)
	require.NoError(t, err)
	require.NotContains(t, string(text), "hush-hush")
	require.Contains(t, string(text), `{"field":"bmc.password","new":"(given)"}`)
	require.Contains(t, string(text), `{"field":"vendorData","new":"(given)"}`)
}
