package action

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Smallest environments of actions that require some.
var required = map[string]map[string]string{
	WriteFile: {"DEST_PATH": "/x", "CONTENTS": ""},
	Inject:    {FilesVariable: `[{"path": "/x"}]`},
}

// Each row holds together: its names are found, and what it says of the disk and
// of the environment agrees.
func TestNativesHoldTogether(t *testing.T) {
	names := map[string]string{}
	for _, name := range Natives() {
		row := natives[name]
		for _, n := range append([]string{name}, row.aliases...) {
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

		require.Equal(t, row.writes, row.disk != "", "%s: an action that writes names its disk, and no other does", name)
		require.Equal(t, row.disk, DiskVariable(name), name)
		require.Equal(t, row.leaves, Leaves(name), name)
		require.Equal(t, row.writes, WritesAny(name), name)
		require.Equal(t, row.writes, Writes(name, nil), name)
		require.Equal(t, row.writes && !row.allDisks, Writes(name, map[string]string{AllDisksVariable: "true"}), name)

		require.NoError(t, Check(name, required[name]), name)
		for variable := range required[name] {
			require.ErrorContains(t, Check(name, nil), variable, name)
		}
		for variable := range row.variables {
			require.Equal(t, strings.ToUpper(variable), variable, name)
		}
	}
	require.ElementsMatch(t, Names(), func() (all []string) {
		for n := range names {
			all = append(all, n)
		}
		return all
	}())
}
