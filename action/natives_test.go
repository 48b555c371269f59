package action

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// required has minimal environments for the actions that have required variables.
var required = map[string]map[string]string{
	WriteFile:  {"DEST_PATH": "/x", "CONTENTS": ""},
	Inject:     {FilesVariable: `[{"path": "/x"}]`},
	OCI2Disk:   {"IMG_URL": "registry.example/lab/disk@sha256:" + strings.Repeat("0a", 32)},
	CExec:      {CommandVariable: "true"},
	Syslinux:   {SyslinuxPartitionVariable: "/dev/sda1"},
	Slurp:      {UploadURLVariable: "http://store.example/upload", UploadNameVariable: "disk.img"},
	WaitDaemon: {InnerImageVariable: "reboot:v1"},
}

// Each row is consistent: its names are found, and it agrees with itself about the disk and the
// environment.
func TestNativesAreConsistent(t *testing.T) {
	names := map[string]string{}
	for _, name := range Natives() {
		row := natives[name]
		for _, n := range append([]string{name}, row.Aliases...) {
			require.Empty(t, names[n], "%s: two actions have the name %s", name, n)
			names[n] = name
			for _, image := range []string{n, "quay.io/tinkerbell/actions/" + n + ":latest", "embedded/" + n} {
				got, ok := Native(image)
				require.True(t, ok, image)
				require.Equal(t, name, got, image)
			}
		}
		_, ok := Native("example.org/other/" + name)
		require.False(t, ok, name)

		uses := row.Writes || row.Reads || name == EFIBoot // efiboot only for a new entry
		require.Equal(t, uses, row.Disk != "", "%s: an action that needs a disk names it, and no other does", name)
		require.False(t, row.Writes && row.Reads, name)
		require.Equal(t, row.Writes || row.Reads, Action{Image: name}.NeedsDisk(), name)
		require.Equal(t, row.Writes, Action{Image: name}.WritesDisk(), name)
		require.Equal(t, row.Disk, DiskVariable(name, nil), name)
		require.Equal(t, required[name][row.Upload], Action{Image: name, Environment: required[name]}.Upload(), name)
		require.Equal(t, row.Leaves, Leaves(name), name)
		require.Equal(t, row.Writes, WritesAny(name), name)
		require.Equal(t, row.Writes, Writes(name, nil), name)
		require.Equal(t, row.Writes && !row.AllDisks, Writes(name, map[string]string{AllDisksVariable: "true"}), name)

		require.NoError(t, Check(name, required[name]), name)
		for variable := range required[name] {
			require.ErrorContains(t, Check(name, nil), variable, name)
		}
		seen := map[string]bool{}
		for _, v := range row.Variables {
			require.Equal(t, strings.ToUpper(v.Name), v.Name, name)
			require.NotEmpty(t, v.Text, "%s: %s", name, v.Name)
			require.False(t, seen[v.Name], "%s: two rows for %s", name, v.Name)
			seen[v.Name] = true
			_, needed := required[name][v.Name]
			require.Equal(t, needed, v.Required, "%s: %s", name, v.Name)
			require.False(t, v.Required && v.Default != "", "%s: %s", name, v.Name)
		}
		require.True(t, row.Disk == "" || seen[row.Disk], name)
		require.NotEmpty(t, row.Text, name)
		require.NotEmpty(t, Rule("quay.io/tinkerbell/actions/"+name+":v1"), name)
		require.Empty(t, Rule("example.org/other/"+name), name)
	}
	require.ElementsMatch(t, Names(), func() (all []string) {
		for n := range names {
			all = append(all, n)
		}
		return all
	}())
}
