package host

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/cli"
	"github.com/ingotmetal/ingot/internal/client"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// keysHelp is the text about keys in the help of backup and restore.
const keysHelp = `A backup contains the server's keys: the keys of the stored secrets, the admin token and
the server's certificates. They are encrypted with a passphrase (Argon2id, AES-256-GCM),
which is read from --passphrase-file or asked for. Without the passphrase, no one can
decrypt the keys. A backup that is made with --without-key contains no keys: unless a
copy of the key file is kept elsewhere, the stored secrets (BMC passwords, user data)
are then lost.`

func backupCommand(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use: "backup", Short: "Back up a whole server while it runs", Args: cobra.NoArgs,
		Long: `Back up a whole server while it runs. The archive contains the databases (inventory and
Temporal) and the list of images. The databases are verified by row counts and hashes,
and the command reads the archive back before it reports success. The manifest in the
archive holds the digest of every part and is authenticated with the server's keys: a
restore refuses an archive that was changed later.

` + keysHelp + `

Image files are included only with --images.`,
		Example: `  ingot backup --to /backup/ingot.tar
  ingot backup --passphrase-file /etc/ingot/passphrase --to - | ssh nas 'cat > ingot.tar'
  ingot backup verify /backup/ingot.tar
  ingot backup run`,
	}

	to := cmd.Flags().String("to", "", "file to write, - for standard output (default: ingot-TIME.tar in the current directory)")
	images := cmd.Flags().Bool("images", false, "include the image files")
	var keys keyFlags
	keys.addFlags(cmd)
	cmd.AddCommand(backupVerifyCommand(o), cli.BackupRunCommand(o))

	return o.NewCommand(cmd, func(c *cli.Call) error {
		if *to == "" {
			*to = "ingot-" + time.Now().UTC().Format("20060102T150405Z") + ".tar"
		}
		if *to != "-" { // check this before asking for the passphrase
			if _, err := os.Lstat(*to); err == nil {
				return fmt.Errorf("%s exists and is not overwritten; name another file with --to: %w", *to, inventory.ErrConflict)
			}
		}

		body, err := requestBackup(c, keys, *images)
		if err != nil {
			return err
		}

		m, err := receiveBackup(c, *to, body)
		if err := errors.Join(err, body.Close()); err != nil {
			return err
		}

		for _, x := range m.Lost {
			c.Note("cannot be restored without the key file: %s", x)
		}
		if m.Key == nil {
			c.Note("warn: after a restore, %s can be read only with this server's key file; "+
				"keep a copy of that file, apart from the backup", human.Count(len(m.Lost), "secret"))
		}
		if *to == "-" {
			c.Note("backup %s: verified while it was written", m.ID)
			return nil
		}
		return showBackup(c, m, "wrote "+*to+", and read it back")
	})
}

// requestBackup requests a backup from the server and returns the archive, which the caller closes.
func requestBackup(c *cli.Call, keys keyFlags, images bool) (io.ReadCloser, error) {
	in := map[string]any{"withoutKey": keys.without, "images": images}
	if !keys.without {
		p, err := keys.passphrase(c, true)
		if err != nil {
			return nil, err
		}
		in["passphrase"] = action.EncodeBytes(p.Reveal())
	}

	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}

	resp, err := c.Request(http.MethodPost, client.Path("backup"), bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return nil, err
	}

	return resp.Body, nil
}

// receiveBackup writes the archive to a file, or to standard output for the name "-". The file has its name only after
// the archive is complete and verified.
func receiveBackup(c *cli.Call, to string, r io.Reader) (backup.Manifest, error) {
	if to == "-" {
		return streamBackup(c, r)
	}

	f, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*.part") // mode 0600
	if err != nil {
		return backup.Manifest{}, err
	}
	part := f.Name()

	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}

	var m backup.Manifest
	if err = errors.Join(err, f.Close()); err == nil {
		m, err = backup.Verify(c.Context(), part, "")
	}
	if err != nil {
		return m, errors.Join(err, os.Remove(part))
	}
	return m, nameBackup(part, to)
}

// nameBackup renames a complete backup from part to its final name, if no file has that name. After an error, the
// backup is still at part.
func nameBackup(part, to string) error {
	err := os.Link(part, to)
	if err == nil {
		return errors.Join(os.Remove(part), durablefile.SyncDir(filepath.Dir(to)))
	}
	if !errors.Is(err, fs.ErrExist) { // the file system has no hard links; if to existed, Link would have returned ErrExist even so
		err = os.Rename(part, to)
	}
	if err != nil {
		return fmt.Errorf("the backup is complete, but %s could not be renamed to %s: %w", part, to, err)
	}
	return durablefile.SyncDir(filepath.Dir(to))
}

// streamBackup writes the archive to standard output and verifies its digests.
func streamBackup(c *cli.Call, r io.Reader) (backup.Manifest, error) {
	out, err := c.BinaryOutput("a backup", "--to")
	if err != nil {
		return backup.Manifest{}, err
	}

	m, _, err := backup.Read(io.TeeReader(r, out), nil)
	if err == nil {
		_, err = io.Copy(out, r) // copy the padding at the end of the tar archive, too
	}

	return m, err
}

func backupVerifyCommand(o *cli.Options) *cobra.Command {
	return o.NewCommand(&cobra.Command{
		Use: "verify FILE", Short: "Check that a backup is complete", Args: cobra.ExactArgs(1),
		Long: `Check that a backup is complete: each part matches its digest, and each database is
intact, belongs to this backup, and has all rows and values that were written to it.
This needs no server and no passphrase. It does not detect deliberate changes: only
"ingot restore" does, with the keys.`,
		Example: "  ingot backup verify /backup/ingot.tar",
	}, func(c *cli.Call) error {
		m, err := backup.Verify(c.Context(), c.Args[0], "")
		if err != nil {
			return err
		}

		return showBackup(c, m, "complete: every digest, table and row is as it was written")
	})
}

// keyFlags are the flags that select whether a backup holds the keys, and with which passphrase the keys are
// encrypted.
type keyFlags struct {
	without bool
	file    string
}

func (k *keyFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&k.without, "without-key", false,
		"backup: omit the keys; restore: verify with this host's key file or, without one, accept a backup that was changed")
	cmd.Flags().StringVar(&k.file, "passphrase-file", "", "file whose first line is the passphrase")
	cmd.MarkFlagsMutuallyExclusive("without-key", "passphrase-file")
}

// passphrase reads the passphrase from the first line of --passphrase-file, or prompts for it. If isNew is true, it prompts
// twice.
func (k *keyFlags) passphrase(c *cli.Call, isNew bool) (inventory.Secret, error) {
	if k.file != "" {
		return backup.ReadPassphrase(k.file)
	}
	if !cli.Interactive(c.Command) {
		return inventory.Secret{}, cli.UsageError("the keys are wrapped with a passphrase: " +
			"give --passphrase-file, or --without-key to leave them out")
	}

	p, err := cli.PromptSecret(c.Command, "Passphrase for the keys: ")
	if err != nil {
		return p, err
	}
	if isNew {
		again, err := cli.PromptSecret(c.Command, "Repeat the passphrase: ")
		if err != nil {
			return again, err
		}
		if again.Reveal() != p.Reveal() {
			return p, cli.UsageError("the two passphrases differ; nothing was done")
		}
	}

	return p, backup.CheckPassphrase(p)
}

// backupSummary is the form of a manifest in JSON and YAML output.
type backupSummary struct {
	ID            string         `json:"id"`
	Created       time.Time      `json:"created"`
	Version       string         `json:"version"`
	Host          string         `json:"host,omitempty"`
	InventoryRows int64          `json:"inventoryRows"`
	TemporalRows  int64          `json:"temporalRows"`
	External      string         `json:"externalTemporal,omitempty"`
	Keys          bool           `json:"keys"`
	Lost          []string       `json:"lost,omitempty"`
	Images        []backup.Image `json:"images"`
}

// showBackup prints the contents of a backup. In table output, conclusion is the last line.
func showBackup(c *cli.Call, m backup.Manifest, conclusion string) error {
	s := backupSummary{
		ID: m.ID, Created: m.Created, Version: m.Version, Host: m.Host, InventoryRows: m.Inventory.Rows(),
		External: m.External, Keys: m.Key != nil, Lost: m.Lost, Images: m.Images,
	}
	if m.Temporal != nil {
		s.TemporalRows = m.Temporal.Rows()
	}

	return cli.ShowValue(c, s, func(w io.Writer) error {
		if err := printBackup(w, m); err != nil {
			return err
		}
		_, err := fmt.Fprintln(w, conclusion)
		return err
	})
}

func printBackup(w io.Writer, m backup.Manifest) error {
	t := cli.NewTable(w)
	t.Field("backup", m.ID)
	t.Field("made", fmt.Sprintf("%s by ingot %s on %s", human.Time(m.Created), m.Version, m.Host))
	t.Field("inventory", m.Inventory.String())
	if m.Temporal != nil {
		t.Field("Temporal", m.Temporal.String())
	} else {
		t.Field("Temporal", "not in the backup: the runs are in the cluster at "+m.External+", which needs its own backup")
	}
	if m.Key != nil {
		t.Field("keys", "in the backup, encrypted with the passphrase")
	} else {
		t.Field("keys", fmt.Sprintf("not in the backup; %s lost unless the key file is kept elsewhere",
			human.Count(len(m.Lost), "secret")))
	}

	included, size := 0, int64(0)
	for _, i := range m.Images {
		if i.Included {
			included++
			size += i.Size
		}
	}

	t.Field("images", fmt.Sprintf("%d listed, %d in the backup (%s)", len(m.Images), included, human.Size(size)))
	return t.Flush()
}
