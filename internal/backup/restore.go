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

// restoreDir is where an archive is unpacked, below the data directory. No server
// starts while it is there: the files next to it may be half a site.
const restoreDir = "restore.tmp"

// RefuseUnfinishedRestore refuses a data directory in which a restore has not
// ended.
func RefuseUnfinishedRestore(dataDir string) error {
	there, err := durablefile.Exists(filepath.Join(dataDir, restoreDir))
	if err != nil || !there {
		return err
	}
	err = fmt.Errorf("a restore into %s has not ended: %w", dataDir, inventory.ErrConflict)
	return human.Advise(err, "ingot restore FILE, again")
}

// SecretFiles are the files that a site needs to keep its identity, by their name
// in an archive.
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
	Lost      []string `json:"lost"`          // secrets that no key opens
	Missing   []string `json:"missingImages"` // whose files are not there
}

// A Restore makes a host the server of a backup.
type Restore struct {
	Config     config.Config // of this host
	File       string
	Passphrase inventory.Secret // zero: the keys are not taken from the backup
	WithoutKey bool             // restore although no key may prove who made the backup

	undo []func() error // removes what was made, in the order of making
}

// Look makes the checks that are possible before the operator is asked. It changes
// nothing.
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
		err = fmt.Errorf("the runs of the backup live in %s, and the configuration of this host differs (temporal.address): %w",
			cmp.Or(m.External, "an embedded Temporal"), inventory.ErrInvalid)
	}

	return m, err
}

// requireEmpty refuses a data directory that holds something. What an unfinished
// restore has left does not count.
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
		return fmt.Errorf("%s is not empty (%s): move that away, or name another data_dir: %w",
			r.Config.DataDir, strings.Join(found, ", "), inventory.ErrConflict)
	}

	return nil
}

// Do restores the backup. After an error the host is unchanged.
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

	// No database of the archive is opened before this.
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

// stage makes the directory in which the backup is unpacked.
func (r *Restore) stage() (string, error) {
	dir := r.Config.DataDir
	var made []string // directories that were missing, the innermost first
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
		// An unfinished restore. Its directory marks it, so it goes last.
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

// loadKeys returns the ring that opens the inventory, nil when there is none, and
// the key files of the archive by name. A key file of this host stays.
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
		// It is checked before it is put in its place.
		file = filepath.Join(u.Dir, keysFile)
		err = os.WriteFile(file, files[keysFile], 0o600)
	case err == nil && files[keysFile] != nil && !bytes.Equal(b, files[keysFile]):
		err = fmt.Errorf("%s exists, and differs from the key file of the backup: "+
			"move it away, or restore with --without-key if this one is correct: %w", file, inventory.ErrConflict)
	}
	if err != nil {
		return nil, nil, err
	}

	ring, err := keyring.Load(file)
	return ring, files, err
}

// authenticate refuses a backup that was not made with the site's own keys. When
// neither the passphrase nor this host gives a key, the operator has to accept that.
func (r *Restore) authenticate(u *Unpacked, ring *keyring.Ring, unwrapped bool) error {
	switch {
	case unwrapped:
		return u.Authenticate(ring, "the keys that the passphrase opens")
	case ring != nil:
		return u.Authenticate(ring, r.Config.KeyFile+" (move it away if it is not the key file of this backup)")
	case r.WithoutKey:
		return nil
	}

	return fmt.Errorf("no key proves who made this backup: put the key file of that server at %s, "+
		"or give --without-key if no one else can have read the file: %w", r.Config.KeyFile, inventory.ErrInvalid)
}

// holdRuns makes the copies databases that a server runs on. Runs that were under
// way wait for the operator, who can only abort them.
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
