package backup

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

	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/host/hostnet"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/text/human"
	"github.com/ingotmetal/ingot/inventory"
)

// restoreDir is the directory, below the data directory, into which an archive is unpacked. As long as it exists, no server
// starts, because the files next to it may be incomplete.
const restoreDir = "restore.tmp"

// RefuseUnfinishedRestore returns inventory.ErrConflict if a restore into the data directory is unfinished.
func RefuseUnfinishedRestore(dataDir string) error {
	there, err := durablefile.Exists(filepath.Join(dataDir, restoreDir))
	if err != nil || !there {
		return err
	}
	err = fmt.Errorf("an earlier restore into %s was interrupted: %w", dataDir, inventory.ErrConflict)
	return human.Advise(err, "ingot restore FILE")
}

// SecretFiles returns the paths of the files that hold a site's keys, tokens and certificates, by their names in an archive.
func SecretFiles(cfg config.Config) map[string]string {
	folder := filepath.Dir(cfg.KeyFile)
	return map[string]string{
		keysFile:              cfg.KeyFile,
		"token":               cfg.TokenFile,
		identity.AgentFile:    filepath.Join(folder, identity.AgentFile),
		identity.OperatorFile: filepath.Join(folder, identity.OperatorFile),
	}
}

// keysFile is the name of the key file in an archive.
const keysFile = "keys.json"

// Restored is the result of a restore.
type Restored struct {
	inventory.Restore
	DataDir   string   `json:"dataDir"`
	SiteEpoch int64    `json:"siteEpoch"`
	Lost      []string `json:"lost"`          // names of secrets that no key opens
	Missing   []string `json:"missingImages"` // images whose files are missing
}

// A Restore restores a backup on this host.
type Restore struct {
	Config     config.Config // configuration of this host
	File       string
	Passphrase inventory.Secret // zero = do not use the keys in the backup
	WithoutKey bool             // restore even if no key proves who made the backup

	undo []func() error // functions that revert the completed steps, in the order in which the steps were made
}

// Look makes all checks that are possible before the operator is asked, and returns the manifest. It changes nothing.
func (r *Restore) Look(ctx context.Context) (Manifest, error) {
	cfg := r.Config
	if hostnet.ServerAnswers(ctx, cfg) {
		return Manifest{}, fmt.Errorf("a server answers at %s: stop ingot serve first: %w", cfg.Listen, inventory.ErrConflict)
	}
	if err := keyring.Outside(cfg.KeyFile, cfg.DataDir); err != nil {
		return Manifest{}, err
	}
	if err := r.requireEmpty(); err != nil {
		return Manifest{}, err
	}

	f, err := os.Open(r.File)
	if err != nil {
		return Manifest{}, err
	}
	defer func() { _ = f.Close() }() // only read
	m, _, err := Read(f, nil)
	if err == nil && (m.Temporal == nil) != (cfg.Temporal.Address != "") {
		err = fmt.Errorf("the runs of the backup are in %s: set temporal.address of this host to that cluster, or leave it out for an "+
			"embedded Temporal: %w",
			cmp.Or(m.External, "an embedded Temporal"), inventory.ErrInvalid)
	}

	return m, err
}

// requireEmpty returns inventory.ErrConflict if the data directory is not empty. It ignores images, and the files of an
// unfinished restore.
func (r *Restore) requireEmpty() error {
	entries, err := os.ReadDir(r.Config.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}

	unfinished := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == restoreDir })

	var found []string
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == "lost+found", filepath.Join(r.Config.DataDir, name) == r.Config.ImageDir():
		case unfinished && slices.Contains([]string{restoreDir, "ingot.db", "temporal"}, name):
		default:
			found = append(found, name)
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("%s is not empty (%s): move its content away, or configure another data_dir: %w",
			r.Config.DataDir, strings.Join(found, ", "), inventory.ErrConflict)
	}

	return nil
}

// Do restores the backup. After an error, it reverts its changes to the host.
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

	ring, files, err := r.loadKeys(&u)
	if err != nil {
		return out, err
	}

	// No database of the archive may be opened before the archive is authenticated.
	if err := r.authenticate(&u, ring, files[keysFile] != nil); err != nil {
		return out, err
	}
	if err := u.CheckDatabases(ctx); err != nil {
		return out, err
	}

	out.DataDir = r.Config.DataDir
	if err := r.holdRuns(ctx, &u, ring, &out); err != nil {
		return out, err
	}
	if err := r.placeSecrets(files); err != nil {
		return out, err
	}
	if err := r.placeImages(u.Manifest, staging, &out); err != nil {
		return out, err
	}

	return out, r.commit(u.Manifest, staging)
}

// stage creates the directory into which the backup is unpacked, and removes an unfinished restore first.
func (r *Restore) stage() (string, error) {
	dir := r.Config.DataDir
	var made []string // missing directories, the innermost first
	for d := dir; ; d = filepath.Dir(d) {
		there, err := durablefile.Exists(d)
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
	there, err := durablefile.Exists(staging)
	if err != nil {
		return "", err
	}
	if there {
		// Remove the directory of the unfinished restore last, because RefuseUnfinishedRestore looks for it.
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

// loadKeys returns the ring of keys that opens the inventory (nil if there is none), and the archive's key files by name. If this
// host has a key file, loadKeys uses that file, which must not differ from the archive's.
func (r *Restore) loadKeys(u *Unpacked) (*keyring.Ring, map[string][]byte, error) {
	files := map[string][]byte{}
	if u.Key != nil && !r.Passphrase.IsZero() {
		var err error
		if files, err = u.UnwrapKeys(r.Passphrase); err != nil {
			return nil, nil, err
		}
	}

	b, err := durablefile.ReadPrivate(r.Config.KeyFile)
	file := r.Config.KeyFile
	switch {
	case errors.Is(err, fs.ErrNotExist) && files[keysFile] == nil:
		return nil, files, nil
	case errors.Is(err, fs.ErrNotExist):
		// The archive's keys are checked before they are put in place.
		file = filepath.Join(u.Dir, keysFile)
		err = os.WriteFile(file, files[keysFile], 0o600)
	case err == nil && files[keysFile] != nil && !bytes.Equal(b, files[keysFile]):
		err = fmt.Errorf("%s exists, and differs from the key file in the backup: "+
			"move it away, or keep it and restore with --without-key: %w", file, inventory.ErrConflict)
	}
	if err != nil {
		return nil, nil, err
	}

	ring, err := keyring.Load(file)
	return ring, files, err
}

// authenticate returns an error if the backup was not made with the site's keys. If neither the archive nor this host
// has a key, it returns nil only if WithoutKey is true.
func (r *Restore) authenticate(u *Unpacked, ring *keyring.Ring, unwrapped bool) error {
	switch {
	case unwrapped:
		return u.Authenticate(ring, "the keys that the passphrase opens")
	case ring != nil:
		return u.Authenticate(ring, r.Config.KeyFile+" (move it away if it is not the key file of this backup)")
	case r.WithoutKey:
		return nil
	}

	return fmt.Errorf("no key proves who made this backup: put the key file of the server that made it at %s, "+
		"or give --without-key if no one else had access to the backup: %w", r.Config.KeyFile, inventory.ErrInvalid)
}

// holdRuns prepares the databases for a server: runs that were open are held, and an operator can only abort them.
func (r *Restore) holdRuns(ctx context.Context, u *Unpacked, ring *keyring.Ring, out *Restored) (err error) {
	var open []inventory.HeldRun
	for _, x := range u.OpenRuns {
		open = append(open, inventory.NewHeldRun(x.Run, x.Workflow))
	}

	s, err := u.OpenInventory(ctx, ring)
	if errors.Is(err, inventory.ErrSealed) {
		return fmt.Errorf("%s is not the key file of this backup: move it away: %w", r.Config.KeyFile, err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	if out.Lost, err = s.Keys.SecretsUnreadable(ctx); err != nil {
		return err
	}
	made := inventory.Restore{Backup: u.ID, Taken: u.Created, Held: open, AwaitsCluster: u.Temporal == nil}
	if out.Restore, err = s.Restores.Restored(ctx, made); err != nil {
		return err
	}
	out.SiteEpoch, err = s.HandOvers.SiteEpoch(ctx)
	return err
}
