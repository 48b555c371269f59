package cli

import (
	"cmp"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func migrateCommand(o *Options) *cobra.Command {
	return Group("migrate", "Move this site to another host", "  ingot migrate start um760\n  ingot migrate status um760",
		migrateStartCommand(o), migrateStatusCommand(o), migrateCancelCommand(o))
}

func migrateStartCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "start PEER", Short: "Start to move this site to a peer", Args: cobra.ExactArgs(1),
		Long: `Start to move this site to a peer that "ingot peer add" has paired with. Images
are copied first, while the server works as usual. Then new runs are refused, and
when no run of a machine is open, the site moves in one step. Its runs, this
migration among them, continue on the peer. Until that step everything can be
taken back.`,
		Example: "  ingot migrate start um760\n  ingot migrate status um760",
	}

	name := cmd.Flags().String("name", "", "name of the migration (default: the peer's)")

	return o.NewCommand(cmd, func(c *Call) error {
		in := contract.MigrateInput{Name: cmp.Or(*name, c.Args[0]), Target: c.Args[0]}
		return startOperation(c, client.Path("migrate"), in, false, "\nnext: ingot migrate status "+in.Name)
	})
}

func migrateStatusCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "status NAME", Short: "Show a migration: its steps and what it waits for", Args: cobra.ExactArgs(1),
		Example: "  ingot migrate status um760", ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeMigrate)),
	}, func(c *Call) error {
		return getAndShow(c, operationPath(contract.MigrateID(c.Args[0])), printOperation)
	})
}

func migrateCancelCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "cancel NAME", Short: "Cancel a migration and undo its steps", Args: cobra.ExactArgs(1),
		Example: "  ingot migrate cancel um760", ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeMigrate)),
	}, func(c *Call) error {
		return cancelOperation(c, contract.MigrateID(c.Args[0]), "ingot migrate status "+c.Args[0])
	})
}
