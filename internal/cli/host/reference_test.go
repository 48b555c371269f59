package host

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/internal/cli"
)

var writeDocs = flag.Bool("write", false, `write docs/commands.md ("make docs")`)

// TestCommandsAreListed holds docs/commands.md, which it also writes, against the commands.
func TestCommandsAreListed(t *testing.T) {
	const file = "../../../docs/commands.md"
	want := commandPage(cli.Root("test", AddCommands))
	if *writeDocs {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	if want != string(got) {
		t.Errorf("%s differs from the commands: run make docs", file)
	}
}

// commandPage returns docs/commands.md: a table of the commands without subcommands, and one for each group.
func commandPage(root *cobra.Command) string {
	var single, groups strings.Builder
	head := func(b *strings.Builder, title string) {
		fmt.Fprintf(b, "\n## %s\n\n| command | what | flags |\n|---|---|---|\n", title)
	}
	head(&single, "Single commands")
	for _, c := range root.Commands() {
		switch {
		case c.Hidden || c.Name() == "help" || c.Name() == "completion" || c.GroupID == "short": // a second name
		case c.HasAvailableSubCommands():
			head(&groups, "ingot "+c.Name())
			every(c, func(c *cobra.Command) { writeRow(&groups, c) })
		default:
			writeRow(&single, c)
		}
	}

	return `# Commands

` + "`make docs` writes this page from the commands. A command's `--help`, or its manual page, explains its flags and has\n" +
		`examples. Elsewhere: [second names](configuration.md#second-names-of-commands), [exit
codes](configuration.md#exit-codes).

Each command also has` + flagNames(root.PersistentFlags()) + ".\n" + single.String() + groups.String()
}

// writeRow writes the row of a command; a group that cannot be run by itself has none.
func writeRow(b *strings.Builder, c *cobra.Command) {
	if c.HasAvailableSubCommands() && !c.HasFlags() {
		return
	}
	_, path, _ := strings.Cut(c.UseLine(), " ") // without "ingot"
	path = strings.ReplaceAll(strings.TrimSuffix(path, " [flags]"), "|", `\|`)
	fmt.Fprintf(b, "| `%s` | %s |%s |\n", path, c.Short, flagNames(c.NonInheritedFlags()))
}

// flagNames lists flags as code.
func flagNames(flags *pflag.FlagSet) string {
	var names strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Name != "help" && f.Name != "version" {
			fmt.Fprintf(&names, " `--%s`", f.Name)
		}
	})
	return names.String()
}
