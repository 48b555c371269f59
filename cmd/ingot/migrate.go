package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/workflows"
)

func migrateCmd(o *options) *cobra.Command {
	return group("migrate", "Move this site to another host", "  ingot migrate start um760\n  ingot migrate status um760",
		migrateStartCmd(o), migrateStatusCmd(o), migrateCancelCmd(o))
}

func migrateStartCmd(o *options) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use: "start PEER", Short: "Begin to move this site to a peer", Args: cobra.ExactArgs(1),
		Long: `Begin to move this site to a peer that "ingot peer add" has paired with. Images go
first, while everything goes on; then new runs are refused, and when no run of a
machine is open, the site moves in one moment. Its runs, this migration among
them, go on there. Until that moment everything can be taken back.`,
		Example: "  ingot migrate start um760\n  ingot migrate status um760",
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				name = args[0]
			}
			return askAndShow(cmd, o, "POST", path("migrate"), workflows.MigrateInput{Name: name, Target: args[0]}, func(w io.Writer, s api.Started) error {
				_, err := fmt.Fprintf(w, "started %s as run %s\nnext: ingot migrate status %s\n", s.Workflow, s.Run, name)
				return err
			})
		},
	}
	c.Flags().StringVar(&name, "name", "", "of the migration (default: the peer's)")
	return c
}

func migrateStatusCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "status NAME", Short: "Show a migration: its steps, what it waits for", Args: cobra.ExactArgs(1), Example: "  ingot migrate status um760",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "GET", operationPath(workflows.MigrateID(args[0])), nil, printOperation)
		},
	}
}

func migrateCancelCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "cancel NAME", Short: "Ask a migration to end, and take back what it did", Args: cobra.ExactArgs(1), Example: "  ingot migrate cancel um760",
		RunE: func(cmd *cobra.Command, args []string) error {
			return askAndShow(cmd, o, "POST", operationPath(workflows.MigrateID(args[0]), "cancel"), nil, func(w io.Writer, s api.Started) error {
				_, err := fmt.Fprintf(w, "%s is asked to end\n", s.Workflow)
				return err
			})
		},
	}
}
