package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/archive"
	"github.com/ingotmetal/ingot/inventory"
)

// aboutKeys is said in the help of both directions.
const aboutKeys = `The keys of the stored secrets, the admin token and the server's certificates go
into the backup only wrapped with a passphrase (Argon2id, AES-256-GCM): it is
read from --passphrase-file or asked for. Without the passphrase nobody opens
them, you included. With --without-key they stay out, and what they seal (BMC
passwords, user data) is lost unless the key file is kept elsewhere.`

func backupCmd(o *options) *cobra.Command {
	var to string
	var k keyFlags
	var images bool
	c := &cobra.Command{
		Use: "backup", Short: "Back up a whole server while it runs", Args: cobra.NoArgs,
		Long: `Back up a whole server while it runs: both databases, each copied whole and
proven by counts and hashes, under one id, and the list of the images. The
archive is read back before this succeeds. Its manifest, which has the digest
of every part, is authenticated with the server's keys: a restore refuses what
was changed since.

` + aboutKeys + `

Images are listed by digest; --images takes their files along.`,
		Example: `  ingot backup --to /backup/ingot.tar
  ingot backup --passphrase-file /etc/ingot/passphrase --to - | ssh nas 'cat > ingot.tar'
  ingot backup verify /backup/ingot.tar`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := o.client()
			if err != nil {
				return err
			}
			if to == "" {
				to = "ingot-" + time.Now().UTC().Format("20060102T150405Z") + ".tar"
			}
			if to != "-" {
				// Before a passphrase is thought of.
				if _, err := os.Lstat(to); err == nil {
					return fmt.Errorf("%s exists and is not overwritten: %w", to, inventory.ErrConflict)
				}
			}
			q := map[string]any{"withoutKey": k.without, "images": images}
			if !k.without {
				p, err := k.passphrase(cmd, true)
				if err != nil {
					return err
				}
				q["passphrase"] = p.Reveal()
			}
			body, err := json.Marshal(q)
			if err != nil {
				return err
			}
			resp, err := c.request(cmd.Context(), http.MethodPost, path("backup"), bytes.NewReader(body), int64(len(body)))
			if err != nil {
				return err
			}
			m, err := take(cmd, to, resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil {
				return err
			}
			for _, x := range m.Lost {
				say(cmd, "not in it, because the keys are not: %s", x)
			}
			if m.Key == nil {
				say(cmd, "warn: without the key file of that server %s cannot be read after a restore; keep it, apart from the backup", count(len(m.Lost), "secret"))
			}
			if to == "-" {
				say(cmd, "backup %s: proven while it was written", m.ID)
				return nil
			}
			return showValue(cmd, o, summary(m), func(w io.Writer) error {
				if err := printBackup(w, m); err != nil {
					return err
				}
				_, err := fmt.Fprintf(w, "wrote %s, and read it back\n", to)
				return err
			})
		},
	}
	c.Flags().StringVar(&to, "to", "", "file to write, - for standard output (default: ingot-<time>.tar here)")
	c.Flags().BoolVar(&images, "images", false, "take the files of the images along")
	k.flags(c)
	c.AddCommand(backupVerifyCmd(o))
	return c
}

// keyFlags say how the keys travel.
type keyFlags struct {
	without bool
	file    string
}

func (k *keyFlags) flags(c *cobra.Command) {
	c.Flags().BoolVar(&k.without, "without-key", false, "leave the keys out")
	c.Flags().StringVar(&k.file, "passphrase-file", "", "file whose first line is the passphrase")
	c.MarkFlagsMutuallyExclusive("without-key", "passphrase-file")
}

// passphrase reads it from the file, or asks; a new one is asked for twice.
func (k *keyFlags) passphrase(cmd *cobra.Command, fresh bool) (inventory.Secret, error) {
	if k.file != "" {
		b, err := os.ReadFile(k.file)
		if err != nil {
			return inventory.Secret{}, fmt.Errorf("reading the passphrase: %w", err)
		}
		line, _, _ := strings.Cut(string(b), "\n")
		return checked(strings.TrimSuffix(line, "\r"))
	}
	if !interactive(cmd) {
		return inventory.Secret{}, usage("the keys are wrapped with a passphrase: give --passphrase-file, or --without-key to leave them out")
	}
	p, err := promptSecret(cmd, "Passphrase of the keys: ")
	if err != nil {
		return p, err
	}
	if fresh {
		again, err := promptSecret(cmd, "Once more: ")
		if err != nil {
			return again, err
		}
		if again.Reveal() != p.Reveal() {
			return p, usage("the two are not the same; nothing was done")
		}
	}
	return checked(p.Reveal())
}

func checked(passphrase string) (inventory.Secret, error) {
	if len(passphrase) < archive.MinPassphrase {
		return inventory.Secret{}, usage("the passphrase is shorter than %d characters", archive.MinPassphrase)
	}
	return inventory.NewSecret(passphrase), nil
}

// take writes the archive to a file that appears whole and proven or not at
// all, or to standard output.
func take(cmd *cobra.Command, to string, r io.Reader) (archive.Manifest, error) {
	if to == "-" {
		if _, ok := tty(cmd.OutOrStdout()); ok {
			return archive.Manifest{}, usage("a backup is not for the terminal: give --to FILE, or pipe it")
		}
		out := cmd.OutOrStdout()
		if t, ok := out.(*terminal); ok {
			out = t.file // which changes what is not text
		}
		m, _, err := archive.Read(io.TeeReader(r, out), nil)
		if err == nil {
			_, err = io.Copy(out, r) // the empty end of a tar file
		}
		return m, err
	}
	part := to + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return archive.Manifest{}, err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}
	var m archive.Manifest
	if err = errors.Join(err, f.Close()); err == nil {
		m, err = archive.Verify(cmd.Context(), part)
	}
	if err == nil {
		err = os.Link(part, to) // refuses an existing name
	}
	return m, errors.Join(err, os.Remove(part))
}

func backupVerifyCmd(o *options) *cobra.Command {
	return &cobra.Command{
		Use: "verify FILE", Short: "Prove that a backup is whole", Args: cobra.ExactArgs(1),
		Long: `Prove that a backup is whole: the digest of each part, and that each database
is sound, holds the rows and the content that were written, and belongs to the
same backup. Needs no server and no passphrase. That nobody changed the backup
on purpose is proven by ingot restore, which has the keys.`,
		Example: "  ingot backup verify /backup/ingot.tar",
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := archive.Verify(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return showValue(cmd, o, summary(m), func(w io.Writer) error {
				if err := printBackup(w, m); err != nil {
					return err
				}
				_, err := fmt.Fprintln(w, "whole: every digest, row and table is as it was written")
				return err
			})
		},
	}
}

// backupSummary is a manifest for programs.
type backupSummary struct {
	ID            string          `json:"id"`
	Created       time.Time       `json:"created"`
	Version       string          `json:"version"`
	Host          string          `json:"host,omitempty"`
	InventoryRows int64           `json:"inventoryRows"`
	TemporalRows  int64           `json:"temporalRows"`
	External      string          `json:"externalTemporal,omitempty"`
	Keys          bool            `json:"keys"`
	Lost          []string        `json:"lost,omitempty"`
	Images        []archive.Image `json:"images"`
}

func summary(m archive.Manifest) backupSummary {
	s := backupSummary{
		ID: m.ID, Created: m.Created, Version: m.Version, Host: m.Host, InventoryRows: m.Inventory.Rows(),
		External: m.External, Keys: m.Key != nil, Lost: m.Lost, Images: m.Images,
	}
	if m.Temporal != nil {
		s.TemporalRows = m.Temporal.Rows()
	}
	return s
}

func printBackup(w io.Writer, m archive.Manifest) error {
	t := newTable(w)
	t.field("backup", inert(m.ID))
	t.field("made", fmt.Sprintf("%s by ingot %s on %s", when(m.Created), inert(m.Version), inert(m.Host)))
	t.field("inventory", fmt.Sprintf("%d rows in %d tables, schema %d", m.Inventory.Rows(), len(m.Inventory.Tables), m.Inventory.Schema))
	if m.Temporal != nil {
		t.field("Temporal", fmt.Sprintf("%d rows in %d tables, schema %d", m.Temporal.Rows(), len(m.Temporal.Tables), m.Temporal.Schema))
	} else {
		t.field("Temporal", "not in it: the runs live at "+inert(m.External)+", which is backed up by itself")
	}
	if m.Key != nil {
		t.field("keys", "in it, wrapped with the passphrase")
	} else {
		t.field("keys", fmt.Sprintf("not in it; %s lost unless the key file is kept elsewhere", count(len(m.Lost), "secret")))
	}
	in, size64 := 0, int64(0)
	for _, i := range m.Images {
		if i.Included {
			in++
			size64 += i.Size
		}
	}
	t.field("images", fmt.Sprintf("%d listed, %d in it (%s)", len(m.Images), in, size(size64)))
	return t.flush()
}
