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

func TestDifferences(t *testing.T) {
	old := everything()
	changes := func(change func(m *inventory.Machine)) (lines []string) {
		next := everything()
		change(&next)
		got, err := inventory.Differences(old, next)
		require.NoError(t, err)
		for _, c := range got {
			lines = append(lines, Change(c).String())
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
	require.Equal(
		t,
		[]string{"userData: (stored) → (given)"},
		changes(func(m *inventory.Machine) { m.UserData = inventory.NewSecret("hush-hush") }),
	)
	require.Equal(t, []string{"userData: (stored) → –"}, changes(func(m *inventory.Machine) { m.HasUserData = false }))
	fresh, err := inventory.Differences(inventory.Machine{}, inventory.Machine{
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

// TestOwnDocuments: everything that Ingot writes or shows in its own form is read; what starts something becomes a command.
func TestOwnDocuments(t *testing.T) {
	const tasks = "tasks: [{name: a, worker: x, actions: [{name: b, image: reboot, timeout: {{.seconds}}}]}]\n"
	got, err := Read([]File{
		{"t.yaml", []byte("# ours\nversion: '0.1'\nname: own\n" + tasks)},
		{"all.yaml", []byte("name: n\ninterfaces: [{mac: \"" + mac1 + "\"}]\n---\ntype: Inspect\ninput: {machine: n}\n")},
		{"lab.yaml", []byte("name: home\nseed: {address: 192.0.2.1}\nmachines: []\n")},
		{Stdin, []byte("type: Provision\ninput: {machine: m}\n")},
	})
	require.NoError(t, err)
	require.Equal(t, "own", got.Templates[0].Name)
	require.Equal(t, "# ours\nversion: '0.1'\nname: own\n"+tasks, got.Templates[0].Source)
	require.Equal(t, "n", got.Machines[0].Name)
	require.Equal(t, "ingot apply --file all.yaml --start", got.Starts[0].Command, "workflow create reads no file with other documents")
	require.Equal(t, "workflow Inspect of n", got.Starts[0].Object)
	require.Equal(t, "type: Inspect\ninput: {machine: n}\n", string(got.Starts[0].Input), "what was read and shown is started")
	require.Equal(t, "ingot apply --file - --start", got.Starts[2].Command)
	require.Equal(t, "lab home", got.Starts[1].Object)
	require.Equal(t, []string{"ingot", "genesis", "start", "lab.yaml"}, got.Starts[1].Args)

	_, err = Read([]File{{"all.yaml", []byte("name: n\n---\nname: home\nseed: {address: 192.0.2.1}\nmachines: []\n")}})
	require.ErrorContains(t, err, "all.yaml:3: a lab of Genesis must be the only document of a file")

	_, err = Read([]File{{"all.yaml", []byte("name: n\ninterfaces: [{mac: \"" + mac1 + "\"}]\n---\nversion: '0.1'\nname: own\n" + tasks)}})
	require.Error(t, err, "no document is left out silently")

	_, err = Read([]File{{"t.yaml", []byte("version: '0.1'\nname: own\nbogus: 1\ntasks: []\n")}})
	require.ErrorContains(t, err, "t.yaml:3: bogus: unknown key")
	_, err = Read(
		[]File{
			{"t.yaml", []byte("version: '0.1'\nname: image\ntasks: [{name: a, worker: x, actions: [{name: b, image: reboot, timeout: 9}]}]\n")},
		},
	)
	require.ErrorContains(t, err, "t.yaml: name: the template image is built in")
}
