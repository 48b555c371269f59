package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/text/human"
)

// A habit is a command that other tools have, and the command of ingot that does the same.
type habit struct {
	typed string // name that is typed after the command of the group; further words are aliases
	use   string // the command to use; "…" is what was typed after the name
}

// rootHabits lists commands of kubectl, talosctl, maas and tink.
func rootHabits() []habit {
	return []habit{
		{"machines nodes node", "ingot machine list"},
		{"images", "ingot image list"},
		{"templates", "ingot template list"},
		{"workflows runs", "ingot workflow list"},
		{"list ls", "ingot machine list"},
		{"create", "ingot machine add NAME --mac MAC"},
		{"edit", "ingot machine edit …"},
		{"set", "ingot machine set …"},
		{"label", "ingot machine label …"},
		{"tag tags", "ingot machine label NAME KEY=VALUE  # ingot machine list --output wide shows labels"},
		{"deploy install", "ingot machine provision …"},
		{"cancel", "ingot workflow cancel …"},
		{"retry", "ingot workflow retry …"},
		{"wait watch", "ingot workflow wait …"},
		{"audit", "ingot events NAME  # BY is who did it"},
		{"power", "ingot machine power …"},
		{"reboot", "ingot machine power cycle …"},
		{"reset", "ingot machine decommission …  # wipes it; ingot machine power reset … restarts it"},
		{"ssh console", "ingot machine get …  # shows the address; Ingot opens no shell"},
		{"disks", "ingot machine disks …"},
		{"dashboard ui web open page", "ingot login-link"},
		{"health ping", "ingot status"},
		{"top", "ingot workflow list --open --watch"},
		{"support", "ingot doctor"},
		{"upgrade", "ingot backup --to FILE  # then install the new package or container"},
		{"context use-context", "ingot login URL"},
		{"user users", "ingot token list"},
		{"network networks subnet subnets", "ingot status  # netboot: the interfaces; netboot.interfaces in the configuration sets them"},
		{"explain", "ingot schema …"},
		{"api-resources api-versions", "ingot get"},
	}
}

func machineHabits() []habit {
	return []habit{
		{"update", "ingot machine set NAME KEY=VALUE"},
		{"tag", "ingot machine label …"},
		{"create register", "ingot machine add …"},
		{"deploy install", "ingot machine provision …"},
		{"on", "ingot machine power on …"},
		{"off", "ingot machine power off …"},
		{"shutdown", "ingot machine power soft …"},
		{"reboot restart", "ingot machine power cycle …"},
		{"reset wipe", "ingot machine decommission …  # wipes it; ingot machine power reset … restarts it"},
		{"ssh", "ingot machine get …  # shows the address; Ingot opens no shell"},
		{"console", "ingot machine log …  # what it sends by syslog; Ingot opens no console"},
		{"wait watch", "ingot workflow wait …"},
		{"events", "ingot workflow events …"},
		{"hardware", "ingot machine disks …"},
	}
}

func imageHabits() []habit {
	return []habit{
		{"fetch", "ingot image add …"},
		{"import upload push create", "ingot image add NAME …"},
	}
}

func templateHabits() []habit {
	return []habit{
		{"apply push update", "ingot template create --file FILE  # the file: ingot template get NAME"},
		{"validate check", "ingot template lint FILE"},
	}
}

func workflowHabits() []habit {
	return []habit{
		{"start run", "ingot workflow create …"},
		{"stop abort", "ingot workflow cancel …"},
	}
}

// addHabits adds a hidden command to group for each habit. It answers, as a usage error, with the command to use.
func addHabits(group *cobra.Command, habits []habit) *cobra.Command {
	for _, h := range habits {
		group.AddCommand(Instead(h.typed, h.use))
	}
	return group
}

// InsteadOf is the key of a hidden command's annotation. The annotation holds the command to use in its place.
const InsteadOf = "instead"

// Instead returns a hidden command that answers with the command to use in its place. names are its name and its aliases.
func Instead(names, use string) *cobra.Command {
	words := strings.Fields(names)
	return &cobra.Command{
		Use: words[0], Aliases: words[1:], Hidden: true, DisableFlagParsing: true,
		Annotations: map[string]string{InsteadOf: use},
		RunE: func(cmd *cobra.Command, args []string) error {
			for i, a := range args {
				args[i] = ShellWord(a)
			}
			rest := strings.Join(args, " ")
			text := strings.Join(strings.Fields(strings.ReplaceAll(use, "…", rest)), " ")
			err := UsageError("unknown command %q for %q", cmd.CalledAs(), cmd.Parent().CommandPath())
			return commandError{human.Advise(err, text)}
		},
	}
}
