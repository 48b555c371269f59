package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/apitypes"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/text/human"
)

// BackupRunCommand returns "backup run", for the command group "backup".
func BackupRunCommand(o *Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "run", Short: "Store a backup on the server and delete old backups", Args: cobra.NoArgs,
		Long: `Back up the server into its directory backup.dir, read the backup back and verify it.
The backup contains the server's keys, encrypted with the passphrase in
backup.passphrase_file, but no image files. Then delete old backups: for each of the
last backup.keep_days days that have a backup, the newest backup is kept; all other
backups are deleted.

For scheduled backups, a token with the role backup is enough.`,
		Example: `  ingot backup run
  ingot backup run --token-file /etc/ingot/backup.token`,
	}, func(c *Call) error {
		return postAndShow(c, client.Path("backups"), nil, text(func(s apitypes.StoredBackup) string {
			text := fmt.Sprintf("stored %s (%s), and read it back", s.File, human.Size(s.SizeBytes))
			if n := len(s.Deleted); n > 0 {
				text += "; deleted " + human.Count(n, "older backup")
			}
			return text
		}))
	})
}
