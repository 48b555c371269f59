package host

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
)

// every calls do for each command of the operator.
func every(c *cobra.Command, do func(*cobra.Command)) {
	if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
		return
	}
	do(c)
	for _, sub := range c.Commands() {
		every(sub, do)
	}
}

func TestCommandsAreDocumented(t *testing.T) {
	n := 0
	every(cli.Root("test", AddCommands), func(c *cobra.Command) {
		n++
		require.NotEmpty(t, c.Short, c.CommandPath())
		require.Contains(t, c.Example, "ingot", "%s has no example", c.CommandPath())
		if strings.HasPrefix(c.Name(), "delete") || c.Name() == "prune" || c.CommandPath() == "ingot secret reset" {
			require.NotNil(t, c.Flags().Lookup("yes"), "%s destroys something and has no --yes", c.CommandPath())
		}
	})
	require.Greater(t, n, 50)
}

// TestClientOnlyAnswersForTheHost: the client-only program has no other command than the whole one, and says where the others are.
func TestClientOnlyAnswersForTheHost(t *testing.T) {
	paths := func(root *cobra.Command) (all []string) {
		every(root, func(c *cobra.Command) { all = append(all, c.CommandPath()) })
		return all
	}
	whole, client := paths(cli.Root("test", AddCommands)), paths(cli.Root("test", cli.ClientOnly))
	require.Subset(t, whole, client)
	require.Greater(t, len(whole), len(client)+15)
	for _, path := range whole {
		if slices.Contains(client, path) {
			continue
		}
		var out bytes.Buffer
		root := cli.Root("test", cli.ClientOnly)
		root.SetArgs(append(strings.Fields(path)[1:], "--yes"))
		require.Equal(t, 2, cli.Run(t.Context(), root, &out, &out), path)
		require.Contains(t, out.String(), "runs on the server's host: install the package ingot", path)
	}
}

// TestS25NoFlagTakesAPassword: every user of the host can read command lines.
func TestS25NoFlagTakesAPassword(t *testing.T) {
	n := 0
	every(cli.Root("test", AddCommands), func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			for _, word := range []string{"password", "passwd", "secret", "token", "user-data", "vendor-data", "key"} {
				if f.Name == "public-key" {
					continue // everyone may see it
				}
				if strings.Contains(f.Name, word) && !strings.HasSuffix(f.Name, "-file") && f.Value.Type() == "string" {
					t.Errorf("%s --%s takes a secret", c.CommandPath(), f.Name)
				}
			}
		})
	})
	require.Greater(t, n, 80)
	root := cli.Root("test", AddCommands)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs([]string{"machine", "add", "m1", "--mac", "52:54:00:00:00:01", "--bmc", "ipmi://admin:hunter2@10.0.9.1"})
	err := root.ExecuteContext(t.Context())
	require.Error(t, err)
	require.NotContains(t, err.Error()+out.String(), "hunter2", "it is not repeated, either")
}
