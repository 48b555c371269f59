package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/hostnet"
	"github.com/ingotmetal/ingot/internal/human"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/internal/keyring"
	"github.com/ingotmetal/ingot/internal/temporalchild"
	"github.com/ingotmetal/ingot/inventory"
)

// restoreDir is where an archive is unpacked, below the data directory. No server
// starts while it is there: the files beside it may be half a site.
const restoreDir = "restore.tmp"

// RefuseUnfinishedRestore refuses a data directory in which a restore has not
// ended.
func RefuseUnfinishedRestore(dataDir string) error {
	there, err := exists(filepath.Join(dataDir, restoreDir))
	if err != nil || !there {
		return err
	}
	err = fmt.Errorf("a restore into %s has not ended: %w", dataDir, inventory.ErrConflict)
	return human.Advise(err, "ingot restore FILE, again")
}

// SecretFiles are the files that a site needs to keep its identity, by their name
// in an archive.
func SecretFiles(cfg config.Config) map[string]string {
	beside := filepath.Dir(cfg.KeyFile)
	return map[string]string{
		keysFile:              cfg.KeyFile,
		"token":               cfg.TokenFile,
		identity.AgentFile:    filepath.Join(beside, identity.AgentFile),
		identity.OperatorFile: filepath.Join(beside, identity.OperatorFile),
	}
}

// keysFile is the name of the key file in an archive.
const keysFile = "keys.json"

// Restored is what became of a restore.
type Restored struct {
	inventory.Restore
	DataDir   string   `json:"dataDir"`
	SiteEpoch int64    `json:"siteEpoch"`
	Lost      []string `json:"lost"`          // secrets that no key opens
	Missing   []string `json:"missingImages"` // whose files are not there
}

// A Restore is one under way.
type Restore struct {
	Config     config.Config // of this host
	File       string
	Passphrase inventory.Secret // zero: the keys are not taken from the backup
	WithoutKey bool             // restore although no key may prove who made the backup

	undo []func() error // of what was made, in order
}

// Look refuses what can be refused before anybody is asked, and changes
// nothing.
func (r *Restore) Look(ctx context.Context) (Manifest, error) {
	if hostnet.ServerAnswers(ctx, r.Config) {
		return Manifest{}, fmt.Errorf("a server answers at %s: stop ingot serve first: %w", r.Config.Listen, inventory.ErrConflict)
	}
	if err := keyring.Outside(r.Config.KeyFile, r.Config.DataDir); err != nil {
		return Manifest{}, err
	}
	if err := r.empty(); err != nil {
		return Manifest{}, err
	}
	f, err := os.Open(r.File)
	if err != nil {
		return Manifest{}, err
	}
	defer func() { _ = f.Close() }() // only read
	m, _, err := Read(f, nil)
	if err == nil && (m.Temporal == nil) != (r.Config.Temporal.Address != "") {
		err = fmt.Errorf("the runs of the backup live in %s, and this host's configuration says otherwise (temporal.address): %w", cmp.Or(m.External, "an embedded Temporal"), inventory.ErrInvalid)
	}
	return m, err
}

// empty refuses a data directory in which something lies. What a restore that
// broke off has left counts as nothing.
func (r *Restore) empty() error {
	entries, err := os.ReadDir(r.Config.DataDir)
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
		case name == "lost+found", filepath.Join(r.Config.DataDir, name) == r.Config.ImageDir():
		case broken && slices.Contains([]string{restoreDir, "ingot.db", "temporal"}, name):
		default:
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%s is not empty, %s lies in it: move it away, or name another data_dir: %w", r.Config.DataDir, strings.Join(found, ", "), inventory.ErrConflict)
	}
	return nil
}

// Do restores. After an error everything is as it was.
func (r *Restore) Do(ctx context.Context) (out Restored, err error) {
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
	u, err := unpackFile(ctx, r.File, staging, true)
	if err != nil {
		return out, err
	}
	ring, files, err := r.keys(&u, staging)
	if err != nil {
		return out, err
	}
	// Its databases are not opened before this.
	if err := r.authenticate(&u, ring, files[keysFile] != nil); err != nil {
		return out, err
	}
	if err := u.CheckDatabases(ctx); err != nil {
		return out, err
	}
	out.DataDir = r.Config.DataDir
	if err := r.revive(ctx, &u, ring, &out); err != nil {
		return out, err
	}
	if err := r.putSecrets(files); err != nil {
		return out, err
	}
	if err := r.putImages(u.Manifest, staging, &out); err != nil {
		return out, err
	}
	return out, r.commit(u.Manifest, staging)
}

// stage makes the directory in which the backup is unpacked.
func (r *Restore) stage() (string, error) {
	dir := r.Config.DataDir
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
func (r *Restore) keys(u *Unpacked, staging string) (*keyring.Ring, map[string][]byte, error) {
	files := map[string][]byte{}
	if u.Key != nil && !r.Passphrase.IsZero() {
		var err error
		if files, err = u.UnwrapKeys(r.Passphrase); err != nil {
			return nil, nil, err
		}
	}
	b, err := os.ReadFile(r.Config.KeyFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && files[keysFile] == nil:
		return nil, files, nil
	case errors.Is(err, fs.ErrNotExist):
		// It is judged before it is put in its place.
		file := filepath.Join(staging, keysFile)
		if err := os.WriteFile(file, files[keysFile], 0o600); err != nil {
			return nil, nil, err
		}
		ring, err := keyring.Load(file)
		return ring, files, err
	case err != nil:
		return nil, nil, err
	case files[keysFile] != nil && !bytes.Equal(b, files[keysFile]):
		return nil, nil, fmt.Errorf("%s is there, and is not the key file of the backup: move it away, or restore with --without-key if it is the right one: %w", r.Config.KeyFile, inventory.ErrConflict)
	}
	ring, err := keyring.Load(r.Config.KeyFile)
	return ring, files, err
}

// authenticate refuses a backup that the site's own keys do not vouch for. When
// neither the passphrase nor this host gives a key, the operator has to say so.
func (r *Restore) authenticate(u *Unpacked, ring *keyring.Ring, unwrapped bool) error {
	switch {
	case unwrapped:
		return u.Authenticate(ring, "the keys that the passphrase opens")
	case ring != nil:
		return u.Authenticate(ring, r.Config.KeyFile+" (move it away if it is not the key file of this backup)")
	case r.WithoutKey:
		return nil
	}
	return fmt.Errorf("no key proves who made this backup: put the key file of that server at %s, or give --without-key if you know that the file was never out of your hands: %w", r.Config.KeyFile, inventory.ErrInvalid)
}

// revive makes the copies databases that a server runs on.
func (r *Restore) revive(ctx context.Context, u *Unpacked, ring *keyring.Ring, out *Restored) (err error) {
	var there []inventory.HeldRun
	for _, x := range u.OpenRuns {
		h := inventory.HeldRun{Run: x.Run, Workflow: x.Workflow}
		if parts := strings.Split(x.Workflow, "/"); len(parts) > 1 && (parts[0] == "machine" || parts[0] == "bmc") {
			h.Machine = parts[1]
		}
		there = append(there, h)
	}
	s, err := u.OpenInventory(ctx, ring)
	if errors.Is(err, inventory.ErrSealed) {
		return fmt.Errorf("%s is not the key file of this backup: move it away: %w", r.Config.KeyFile, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if out.Lost, err = s.SecretsUnreadable(ctx); err != nil {
		return err
	}
	if out.Restore, err = s.Restored(ctx, u.ID, u.Created, there); err != nil {
		return err
	}
	out.SiteEpoch, err = s.SiteEpoch(ctx)
	return err
}

// putSecrets writes the files that are not there; a site needs a token.
func (r *Restore) putSecrets(files map[string][]byte) error {
	if files["token"] == nil {
		files["token"] = identity.NewToken()
	}
	for name, path := range SecretFiles(r.Config) {
		if files[name] == nil {
			continue
		}
		err := identity.WritePrivate(path, files[name])
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
func (r *Restore) putImages(m Manifest, staging string, out *Restored) error {
	out.Missing = []string{}
	for _, i := range m.Images {
		if i.File == "" {
			continue
		}
		to := filepath.Join(r.Config.ImageDir(), i.File)
		there, err := exists(to)
		if err != nil {
			return err
		}
		switch {
		case there:
		case i.Included:
			if err := os.MkdirAll(r.Config.ImageDir(), 0o750); err != nil {
				return err
			}
			if err := move(filepath.Join(staging, ImagePrefix, i.File), to); err != nil {
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
	return writeFile(to, f)
}

// commit puts the databases in their places. The inventory goes first: beside
// it, no other Temporal than its own is believed. Until the last step no server
// starts here.
func (r *Restore) commit(m Manifest, staging string) error {
	dir := r.Config.DataDir
	place := func(name, to string) error {
		if err := os.Rename(filepath.Join(staging, name), to); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(to) })
		return nil
	}
	if err := place(InventoryName, filepath.Join(dir, "ingot.db")); err != nil {
		return err
	}
	if m.Temporal != nil {
		at := filepath.Join(dir, "temporal")
		if err := os.Mkdir(at, 0o700); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(at) })
		if err := place(TemporalName, temporalchild.DefaultConfig(at).File); err != nil {
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
