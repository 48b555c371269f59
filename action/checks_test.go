package action

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A task gives its environment to all of its actions, so the variables of EKS
// Anywhere's writefile may stand beside CONTENTS, which is what is written.
func TestWriteFileIgnoresOtherSourcesBesideContents(t *testing.T) {
	for _, name := range []string{"BOOTCONFIG_CONTENTS", "HEGEL_URLS", "STATIC_NETPLAN", "STATIC_BOTTLEROCKET"} {
		env := map[string]string{"DEST_PATH": "/x", "CONTENTS": "", name: "value"}
		require.NoError(t, Check(WriteFile, env), name)
		delete(env, "CONTENTS")
		require.EqualError(t, Check(WriteFile, env), "reading "+name+": it is not supported: give CONTENTS")
	}
	require.EqualError(t, Check(WriteFile, map[string]string{"DEST_PATH": "/x"}), "reading CONTENTS: it is missing")
}
