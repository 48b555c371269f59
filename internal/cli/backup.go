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
		Use: "run", Short: "Make the server store a backup, and delete old ones", Args: cobra.NoArgs,
		Long: `Make the server store a backup in its directory backup.dir, read it back and verify
it. The keys in it are encrypted with the passphrase of backup.passphrase_file; the
files of images are not in it. Of each of the last backup.keep_days days with a
backup, the newest stays; all others are deleted.

For a timer: a token with the role backup can do this, and opens nothing else.`,
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
