package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups of commands in the help of ingot.
const (
	groupMain  = "main"
	groupShort = "short"
)

// A kind is a kind of objects, with the constructors of the commands that list, show and delete them.
type kind struct {
	name              string
	list, show, erase func(o *Options) *cobra.Command
}

func kinds() []kind {
	return []kind{
		{"machine", machineListCommand, machineGetCommand, machineDeleteCommand},
		{"template", templateListCommand, templateGetCommand, templateDeleteCommand},
		{"image", imageListCommand, imageGetCommand, imageDeleteCommand},
		{"workflow", workflowListCommand, workflowGetCommand, workflowDeleteCommand},
		{"operation", operationListCommand, operationGetCommand, nil},
	}
}

// addShortCommands adds second names of often used commands to root.
func addShortCommands(root *cobra.Command, o *Options) {
	for _, c := range []*cobra.Command{
		getCommand(o), describeCommand(o), rmCommand(o), eventsCommand(o),
		secondName(workflowLogsCommand(o), "workflow"), secondName(machineProvisionCommand(o), "machine"),
	} {
		c.GroupID = groupShort
		root.AddCommand(c)
	}
}

// secondName adapts the texts of a command of group to its second name, which follows "ingot" at once.
func secondName(cmd *cobra.Command, group string) *cobra.Command {
	long := "ingot " + group + " " + cmd.Name()
	cmd.Short += " (" + long + ")"
	cmd.Example = strings.ReplaceAll(cmd.Example, long, "ingot "+cmd.Name())
	return cmd
}

// getCommand returns "get KIND [NAME]": without NAME it is the list command of the kind, with NAME its get command.
func getCommand(o *Options) *cobra.Command {
	c := Group("get", "List objects of a kind, or show one", "  ingot get machines\n  ingot get machine node-1")
	for _, k := range kinds() {
		c.AddCommand(getKindCommand(k.name, k.list(o), k.show(o)))
	}
	return c
}

func getKindCommand(name string, list, show *cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: name + " [NAME]", Aliases: []string{name + "s"}, Short: "List " + name + "s, or show one", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: show.ValidArgsFunction, Annotations: show.Annotations,
		Example: "  ingot get " + name + "s\n  ingot get " + name + " NAME --output yaml",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return list.RunE(cmd, args)
			}
			if set := setFlags(list); len(set) > 0 {
				return commandError{UsageError("--%s is for lists: leave out %s, or the flag", set[0], args[0])}
			}
			return show.RunE(cmd, args)
		},
	}

	// The flags of list keep what they were registered with: the values that list reads, their completion, and their other names.
	cmd.Flags().SetNormalizeFunc(list.Flags().GetNormalizeFunc())
	cmd.Flags().AddFlagSet(list.Flags())
	cmd.Flags().AddFlagSet(show.Flags())
	return cmd
}

// setFlags returns the names of the flags of cmd that were given.
func setFlags(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			names = append(names, f.Name)
		}
	})
	return names
}

// describeCommand returns "describe {NAME | KIND NAME}"; NAME alone is a machine.
func describeCommand(o *Options) *cobra.Command {
	c := Group("describe {NAME | KIND NAME}", "Show a machine, or an object of another kind",
		"  ingot describe node-1\n  ingot describe workflow node-1")
	c.Aliases = []string{"show"}
	for _, k := range kinds() {
		c.AddCommand(ofKind(k.show(o), k.name, "describe"))
	}

	machine := machineGetCommand(o)
	c.ValidArgsFunction = machine.ValidArgsFunction
	c.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 { // the first one should be a kind
			return runGroup(cmd, args)
		}
		return nil
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return machine.RunE(cmd, args)
	}
	return c
}

func rmCommand(o *Options) *cobra.Command {
	c := Group("rm", "Delete an object", "  ingot rm machine node-1\n  ingot rm image debian-11 --yes")
	c.Aliases = []string{"delete"}
	for _, k := range kinds() {
		if k.erase != nil {
			c.AddCommand(ofKind(k.erase(o), k.name, "rm"))
		}
	}
	return c
}

// ofKind renames a command to its kind, for a group of commands that is named after a verb: "image delete" becomes "rm image".
func ofKind(cmd *cobra.Command, kind, verb string) *cobra.Command {
	cmd.Example = strings.ReplaceAll(cmd.Example, "ingot "+kind+" "+cmd.Name(), "ingot "+verb+" "+kind)
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	cmd.Use, cmd.Aliases = kind+" "+arguments, []string{kind + "s"}
	return cmd
}

// eventsCommand returns "workflow events" under a second name.
func eventsCommand(o *Options) *cobra.Command {
	cmd := secondName(workflowEventsCommand(o), "workflow")
	exactlyOne := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return UsageError("events are those of a machine or run: ingot events NAME; to see all runs change: ingot workflow list --watch")
		}
		return exactlyOne(cmd, args)
	}
	return cmd
}
