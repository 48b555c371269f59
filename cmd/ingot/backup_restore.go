package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/internal/temporalchild"
	"github.com/ingotmetal/ingot/internal/temporalserver"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// restoreDir is where a backup is unpacked, below the data directory. While it
// is there no server starts: what lies beside it may be half a site.
const restoreDir = "restore.tmp"

// restoreBrokeOff refuses a data directory in which a restore has not ended.
func restoreBrokeOff(dataDir string) error {
	there, err := exists(filepath.Join(dataDir, restoreDir))
	if err != nil || !there {
		return err
	}
	return advice{fmt.Errorf("a restore into %s has not ended: %w", dataDir, inventory.ErrConflict), "ingot restore FILE, again"}
}

func restoreCmd(o *options) *cobra.Command {
	var yes bool
	var k keyFlags
	c := &cobra.Command{
		Use: "restore FILE", Short: "Make a server of a backup, in an empty data directory", Args: cobra.ExactArgs(1),
		Long: `Make a server of a backup, in an empty data directory of this host (images may
lie in it) while no ingot serve runs here. The backup is proven first; one that
is damaged, mixed of two, of a newer release, or was changed by someone without
the keys is refused, and whenever this refuses, nothing was changed.

The keys prove who made the backup: those that the passphrase opens, or the key
file of that server, if it lies on this host already. Without either, the
restore needs --without-key, and believes whatever is in the file.

Nothing of before the backup goes on by itself: no machine is armed, agents of
before are told to hold, and every run that was under way is held and asks a
person, who can only abort it. Make sure that the server of which this is the
backup is off: two would answer the same machines.

` + aboutKeys,
		Example: "  ingot restore /backup/ingot.tar\n  ingot restore /backup/ingot.tar --yes --passphrase-file /etc/ingot/passphrase && ingot serve",
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := config.Load(o.config, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			r := restoring{cfg: cfg, file: args[0]}
			m, err := r.look(cmd.Context())
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, fmt.Sprintf("makes %s the server of the backup of %s, made on %s; that one must be off", cfg.DataDir, when(m.Created), inert(m.Host)), "restore"); err != nil {
				return err
			}
			r.withoutKey = k.without
			if m.Key != nil && !k.without {
				if r.passphrase, err = k.passphrase(cmd, false); err != nil {
					return err
				}
			}
			done, err := r.do(cmd.Context())
			if err != nil {
				return fmt.Errorf("%w; nothing was changed", err)
			}
			return showValue(cmd, o, done, func(w io.Writer) error { return printRestored(w, done) })
		},
	}
	k.flags(c)
	yesFlag(c, &yes)
	return c
}

// restored is what became of a restore.
type restored struct {
	inventory.Restore
	DataDir   string   `json:"dataDir"`
	SiteEpoch int64    `json:"siteEpoch"`
	Lost      []string `json:"lost"`          // secrets that no key opens
	Missing   []string `json:"missingImages"` // whose files are not there
}

func printRestored(w io.Writer, r restored) error {
	fmt.Fprintf(w, "restored backup %s of %s into %s\n", inert(r.Backup), when(r.Taken), r.DataDir)
	for _, h := range r.Held {
		fmt.Fprintf(w, "held: run %s of %s was under way; look at the machine, then: ingot workflow decide %s --choice abort\n", inert(h.Run), inert(h.Machine), inert(h.Machine))
	}
	for _, x := range r.Lost {
		fmt.Fprintf(w, "cannot be read: %s\n", inert(x))
	}
	for _, x := range r.Missing {
		fmt.Fprintf(w, "image without its file: %s\n", inert(x))
	}
	next := "ingot doctor && ingot serve"
	if len(r.Lost) > 0 {
		next = "put the key file of that server back, or: ingot secret reset; then " + next
	}
	_, err := fmt.Fprintf(w, "next: %s\n", next)
	return err
}

// restoring is a restore under way.
type restoring struct {
	cfg        config.Config
	file       string
	passphrase inventory.Secret // zero: the keys are not taken from the backup
	withoutKey bool             // the operator restores although nothing may prove who made the backup

	undo []func() error // of what was made, in order
}

// look refuses what can be refused before anybody is asked, and changes
// nothing.
func (r *restoring) look(ctx context.Context) (backup.Manifest, error) {
	if answers(ctx, r.cfg) {
		return backup.Manifest{}, fmt.Errorf("a server answers at %s: stop ingot serve first: %w", r.cfg.Listen, inventory.ErrConflict)
	}
	if err := keyring.Outside(r.cfg.KeyFile, r.cfg.DataDir); err != nil {
		return backup.Manifest{}, err
	}
	if err := r.empty(); err != nil {
		return backup.Manifest{}, err
	}
	f, err := os.Open(r.file)
	if err != nil {
		return backup.Manifest{}, err
	}
	defer func() { _ = f.Close() }() // only read
	m, _, err := backup.Read(f, nil)
	if err == nil && (m.Temporal == nil) != (r.cfg.Temporal.Address != "") {
		err = fmt.Errorf("the runs of the backup live in %s, and this host's configuration says otherwise (temporal.address): %w", orText(m.External, "an embedded Temporal"), inventory.ErrInvalid)
	}
	return m, err
}

// empty refuses a data directory in which something lies. What a restore that
// broke off has left counts as nothing.
func (r *restoring) empty() error {
	entries, err := os.ReadDir(r.cfg.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var found []string
	broken := false
	for _, e := range entries {
		broken = broken || e.Name() == restoreDir
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == "lost+found", filepath.Join(r.cfg.DataDir, name) == r.cfg.ImageDir():
		case broken && slices.Contains([]string{restoreDir, "ingot.db", "temporal"}, name):
		default:
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%s is not empty, %s lies in it: move it away, or name another data_dir: %w", r.cfg.DataDir, strings.Join(found, ", "), inventory.ErrConflict)
	}
	return nil
}

// do restores. After an error everything is as it was.
func (r *restoring) do(ctx context.Context) (out restored, err error) {
	defer func() {
		if err == nil {
			return
		}
		for _, undo := range slices.Backward(r.undo) {
			err = errors.Join(err, undo())
		}
	}()
	staging, err := r.stage()
	if err != nil {
		return out, err
	}
	u, err := unpack(ctx, r.file, staging, true)
	if err != nil {
		return out, err
	}
	ring, files, err := r.keys(u, staging)
	if err != nil {
		return out, err
	}
	// Its databases are not opened before this.
	if err := r.authenticate(u, ring, files["keys.json"] != nil); err != nil {
		return out, err
	}
	if err := u.judge(ctx); err != nil {
		return out, err
	}
	out.DataDir = r.cfg.DataDir
	if err := r.revive(ctx, u, ring, staging, &out); err != nil {
		return out, err
	}
	if err := r.putSecrets(files); err != nil {
		return out, err
	}
	if err := r.putImages(u.m, staging, &out); err != nil {
		return out, err
	}
	return out, r.commit(u.m, staging)
}

// stage makes the directory in which the backup is unpacked.
func (r *restoring) stage() (string, error) {
	dir := r.cfg.DataDir
	var made []string // directories that were not there, the innermost first
	for d := dir; ; d = filepath.Dir(d) {
		there, err := exists(d)
		if err != nil {
			return "", err
		}
		if there {
			break
		}
		made = append(made, d)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	for _, d := range slices.Backward(made) {
		r.undo = append(r.undo, func() error { return os.Remove(d) })
	}
	staging := filepath.Join(dir, restoreDir)
	// The rest of one that broke off, which the directory itself marks: it goes
	// last.
	if there, err := exists(staging); err != nil {
		return "", err
	} else if there {
		for _, name := range []string{"ingot.db", "temporal", restoreDir} {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return "", err
			}
		}
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return "", err
	}
	r.undo = append(r.undo, func() error { return os.RemoveAll(staging) })
	return staging, nil
}

// keys returns the ring that opens the inventory, nil when there is none, and
// the files that belong beside it. A key file that is there stays.
func (r *restoring) keys(u unpacked, staging string) (*keyring.Ring, map[string][]byte, error) {
	files := map[string][]byte{}
	if u.m.Key != nil && !r.passphrase.IsZero() {
		var err error
		if files, err = u.m.Key.Unwrap(r.passphrase, u.m.ID, u.sealed); err != nil {
			return nil, nil, err
		}
	}
	b, err := os.ReadFile(r.cfg.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && files["keys.json"] == nil:
		return nil, files, nil
	case errors.Is(err, fs.ErrNotExist):
		// It is judged before it is put in its place.
		file := filepath.Join(staging, "keys.json")
		if err := os.WriteFile(file, files["keys.json"], 0o600); err != nil {
			return nil, nil, err
		}
		ring, err := keyring.Load(file)
		return ring, files, err
	case err != nil:
		return nil, nil, err
	case files["keys.json"] != nil && !bytes.Equal(b, files["keys.json"]):
		return nil, nil, fmt.Errorf("%s is there, and is not the key file of the backup: move it away, or restore with --without-key if it is the right one: %w", r.cfg.KeyFile, inventory.ErrConflict)
	}
	ring, err := keyring.Load(r.cfg.KeyFile)
	return ring, files, err
}

// authenticate refuses a backup that the site's own keys do not vouch for. When
// neither the passphrase nor this host gives a key, the operator has to say so.
func (r *restoring) authenticate(u unpacked, ring *keyring.Ring, unwrapped bool) error {
	switch {
	case unwrapped:
		return u.authenticate(ring, "the keys that the passphrase opens")
	case ring != nil:
		return u.authenticate(ring, r.cfg.KeyFile+" (move it away if it is not the key file of this backup)")
	case r.withoutKey:
		return nil
	}
	return fmt.Errorf("no key proves who made this backup: put the key file of that server at %s, or give --without-key if you know that the file was never out of your hands: %w", r.cfg.KeyFile, inventory.ErrInvalid)
}

// revive makes the copies databases that a server runs on.
func (r *restoring) revive(ctx context.Context, u unpacked, ring *keyring.Ring, staging string, out *restored) (err error) {
	var there []inventory.HeldRun
	for _, x := range u.open {
		h := inventory.HeldRun{Run: x.Run, Workflow: x.Workflow}
		if parts := strings.Split(x.Workflow, "/"); len(parts) > 1 && (parts[0] == "machine" || parts[0] == "bmc") {
			h.Machine = parts[1]
		}
		there = append(there, h)
	}
	if u.m.Temporal != nil {
		if err := temporalserver.Adopt(ctx, filepath.Join(staging, backup.TemporalName)); err != nil {
			return err
		}
	}
	s, err := sqlite.Open(ctx, filepath.Join(staging, backup.InventoryName), sealer(ring))
	if err != nil {
		return fmt.Errorf("opening the inventory: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if ring != nil {
		if err := s.KeyCheck(ctx); err != nil {
			return fmt.Errorf("%s is not the key file of this backup: move it away: %w", r.cfg.KeyFile, err)
		}
	}
	if out.Lost, err = s.SecretsUnreadable(ctx); err != nil {
		return err
	}
	if out.Restore, err = s.Restored(ctx, u.m.ID, u.m.Created, there); err != nil {
		return err
	}
	out.SiteEpoch, err = s.SiteEpoch(ctx)
	return err
}

// putSecrets writes the files that are not there; a site needs a token.
func (r *restoring) putSecrets(files map[string][]byte) error {
	if files["token"] == nil {
		var raw [32]byte
		_, _ = rand.Read(raw[:]) // never returns an error: it ends the program instead
		files["token"] = []byte(hex.EncodeToString(raw[:]) + "\n")
	}
	for name, path := range secretFiles(r.cfg.KeyFile, r.cfg.TokenFile) {
		if files[name] == nil {
			continue
		}
		err := writePrivate(path, files[name])
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(path) })
	}
	return nil
}

// putImages puts the files of images in their place and names those that are
// in none.
func (r *restoring) putImages(m backup.Manifest, staging string, out *restored) error {
	out.Missing = []string{}
	for _, i := range m.Images {
		if i.File == "" {
			continue
		}
		to := filepath.Join(r.cfg.ImageDir(), i.File)
		there, err := exists(to)
		if err != nil {
			return err
		}
		switch {
		case there:
		case i.Included:
			if err := os.MkdirAll(r.cfg.ImageDir(), 0o750); err != nil {
				return err
			}
			if err := move(filepath.Join(staging, backup.ImagePrefix, i.File), to); err != nil {
				return err
			}
			r.undo = append(r.undo, func() error { return os.Remove(to) })
		default:
			out.Missing = append(out.Missing, fmt.Sprintf("%s (sha256:%s)", i.Name, i.SHA256))
		}
	}
	return nil
}

// move renames, or copies to another file system.
func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, syscall.EXDEV) {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	return extract(to, f)
}

// commit puts the databases in their places. The inventory goes first: beside
// it, no other Temporal than its own is believed. Until the last step no server
// starts here.
func (r *restoring) commit(m backup.Manifest, staging string) error {
	dir := r.cfg.DataDir
	place := func(name, to string) error {
		if err := os.Rename(filepath.Join(staging, name), to); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(to) })
		return nil
	}
	if err := place(backup.InventoryName, filepath.Join(dir, "ingot.db")); err != nil {
		return err
	}
	if m.Temporal != nil {
		at := filepath.Join(dir, "temporal")
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(at) })
		if err := place(backup.TemporalName, temporalchild.DefaultConfig(at).File); err != nil {
			return err
		}
		if err := syncDir(at); err != nil {
			return err
		}
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(staging); err != nil {
		return err
	}
	r.undo = nil // from here on it is a site
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
