package host

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
)

// init does not ask the operator to write what init has written.
func TestInitKnowsWhatItHasWritten(t *testing.T) {
	n := config.Netboot{Interfaces: []string{"eth1"}}
	require.True(t, initFlags{interfaces: []string{"eth1"}}.agree(n))
	require.True(t, initFlags{}.agree(n))
	require.False(t, initFlags{interfaces: []string{"eth2"}}.agree(n))

	f := initFlags{relayOnly: true, relays: []string{"10.0.20.1"}, address: "192.0.2.10"}
	require.False(t, f.agree(n))
	n = config.Netboot{RelayOnly: true, Relays: []string{"10.0.20.1"}, Address: "192.0.2.10"}
	require.True(t, f.agree(n))
	f.address = "192.0.2.11"
	require.False(t, f.agree(n))
}

// A key is set where it is or where its comment is, and nothing else changes. What cannot be changed line by line is refused.
func TestSetNetboot(t *testing.T) {
	set := []setting{{"interfaces", "[eth1]"}, {"loaders", `"/x"`}}
	for name, c := range map[string]struct{ text, want, changed string }{
		"comments": {
			"listen: x\nnetboot:\n  #interfaces: [eth9]  # where\n  tftp: 69 # port\n  #loaders: /usr\n\n#images:\n",
			"listen: x\nnetboot:\n  interfaces: [eth1]\n  tftp: 69 # port\n  loaders: \"/x\"\n\n#images:\n",
			"-  #interfaces: [eth9]  # where\n+  interfaces: [eth1]\n-  #loaders: /usr\n+  loaders: \"/x\"",
		},
		"values": {
			"netboot:   # of machines\n    interfaces: [eth0]\n    loaders: /y\nrecords:\n  interfaces: 3\n",
			"netboot:   # of machines\n    interfaces: [eth1]\n    loaders: \"/x\"\nrecords:\n  interfaces: 3\n",
			"-    interfaces: [eth0]\n+    interfaces: [eth1]\n-    loaders: /y\n+    loaders: \"/x\"",
		},
		"no netboot": {
			"listen: x", "listen: x\nnetboot:\n  loaders: \"/x\"\n  interfaces: [eth1]\n", "+netboot:\n+  interfaces: [eth1]\n+  loaders: \"/x\"",
		},
		"one line":      {"netboot: {tftp: 69}\n", "", "the value of netboot: is on the same line"},
		"several lines": {"netboot:\n  interfaces:\n  - eth0\n", "", "the value of interfaces: is on several lines"},
	} {
		t.Run(name, func(t *testing.T) {
			got, changed, err := setNetboot(c.text, set)
			if c.want == "" {
				require.EqualError(t, err, c.changed)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.changed, strings.Join(changed, "\n"))
		})
	}
}

// Enter takes the only interface that machines could be answered on, and chooses nothing if there are several.
func TestAskForInterfaces(t *testing.T) {
	for _, c := range []struct {
		typed  string
		usable []string
		want   []string
	}{
		{"\n", []string{"eth1"}, []string{"eth1"}},
		{"none\n", []string{"eth1"}, nil},
		{"eth2, eth3\n", []string{"eth1"}, []string{"eth2", "eth3"}},
		{"\n\neth2\n", []string{"eth1", "eth2"}, []string{"eth2"}},
		{"\nnone\n", nil, nil},
	} {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(c.typed))
		cmd.SetErr(io.Discard)
		got, err := askForInterfaces(&cli.Call{Command: cmd}, c.usable)
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.typed)
	}
	require.Equal(t, []string{"eth1"}, usable([]hostnet.Interface{
		{Name: "lo", Up: true, Addresses: []string{"127.0.0.1/8"}},
		{Name: "eth0", MAC: "x", Addresses: []string{"10.0.0.1/24"}},
		{Name: "eth1", MAC: "x", Up: true, Addresses: []string{"10.0.1.1/24"}},
		{Name: "eth2", MAC: "x", Up: true},
	}))
}

// init changes a configuration that exists when the operator agrees, and never to one that is invalid.
func TestInitEditsTheConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ingot.yaml")
	require.NoError(t, os.WriteFile(file, []byte("# mine\nnetboot:\n  #interfaces: [eth9]\n  tftp: 70\n"), 0o640))
	edit := func(f initFlags) (string, error) {
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(""))
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		before, err := config.Load(file, true)
		require.NoError(t, err)
		err = editConfig(&cli.Call{Command: cmd, Options: &cli.Options{Lookup: client.Lookup{ConfigFile: file}}}, f, before)
		return out.String(), err
	}
	read := func() string {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		return string(b)
	}

	before := read()
	out, err := edit(initFlags{interfaces: []string{"eth1"}})
	require.ErrorContains(t, err, "give --yes")
	require.Contains(t, out, "+  interfaces: [eth1]")
	require.Equal(t, before, read())
	_, err = edit(initFlags{interfaces: []string{"a]"}, yes: true})
	require.Error(t, err)
	require.Equal(t, before, read())

	out, err = edit(initFlags{interfaces: []string{"eth1"}, yes: true})
	require.NoError(t, err)
	require.Contains(t, out, "changed "+file)
	require.Contains(t, read(), "# mine\nnetboot:\n")
	require.Contains(t, read(), "\n  interfaces: [eth1]\n  tftp: 70\n")
	st, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), st.Mode().Perm())
	out, err = edit(initFlags{interfaces: []string{"eth1"}, yes: true})
	require.NoError(t, err)
	require.Contains(t, out, "kept ")
	left, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, left, 1)
}
