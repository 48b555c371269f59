package cli

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/workflows/contract"
)

func migrateCommand(o *options) *cobra.Command {
	return group("migrate", "Move this site to another host", "  ingot migrate start um760\n  ingot migrate status um760",
		migrateStartCommand(o), migrateStatusCommand(o), migrateCancelCommand(o))
}

func migrateStartCommand(o *options) *cobra.Command {
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

	return o.command(cmd, func(c *call) error {
		in := contract.MigrateInput{Name: cmp.Or(*name, c.args[0]), Target: c.args[0]}
		a, err := postOnce(c, client.Path("migrate"), in)
		if err != nil {
			return err
		}
		return show(c, a, text(func(s apitypes.Started) string {
			return fmt.Sprintf("%s started as run %s\nnext: ingot migrate status %s", s.Workflow, s.Run, in.Name)
		}))
	})
}

func migrateStatusCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "status NAME", Short: "Show a migration: its steps and what it waits for", Args: cobra.ExactArgs(1),
		Example: "  ingot migrate status um760", ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeMigrate)),
	}, func(c *call) error {
		return getAndShow(c, operationPath(contract.MigrateID(c.args[0])), printOperation)
	})
}

func migrateCancelCommand(o *options) *cobra.Command {
	return o.command(&cobra.Command{
		Use: "cancel NAME", Short: "Cancel a migration and undo its steps", Args: cobra.ExactArgs(1),
		Example: "  ingot migrate cancel um760", ValidArgsFunction: firstArg(o.operationsOf(inventory.TypeMigrate)),
	}, func(c *call) error {
		return cancelOperation(c, contract.MigrateID(c.args[0]), "ingot migrate status "+c.args[0])
	})
}
