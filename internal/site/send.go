package site

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ingotmetal/ingot/internal/archive"
	"github.com/ingotmetal/ingot/internal/durable"
	"github.com/ingotmetal/ingot/internal/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// stagingDir is where a site is put together to be sent, or where a received one
// is kept, below the data directory.
const stagingDir = "handover.tmp"

func (h *Host) stagingDir() string { return filepath.Join(h.cfg.DataDir, stagingDir) }

// keysFile is the name of the key file in what is sent.
const keysFile = "keys.json"

// sender is the source's side of this host.
type sender struct{ *Host }

// Copy makes one archive of the site: both databases, the keys, and the list of
// the images.
func (h sender) Copy(ctx context.Context, id string) (_ Copy, err error) {
	h.mu.Lock()
	s := h.leaving
	h.mu.Unlock()
	if s == nil {
		return Copy{}, errors.New("no site runs here that could be copied")
	}

	dir := h.stagingDir()
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return Copy{}, err
	}
	if err := archive.RequireRoom(h.cfg); err != nil {
		return Copy{}, err
	}

	d := archive.NewDraft(id, h.version)
	// Temporal takes a second to end. Machines should not wait for that.
	ended, err := s.CopyDatabases(ctx, d, dir)
	defer func() { err = errors.Join(err, ended()) }()
	if err != nil {
		return Copy{}, err
	}
	if err := h.addKeys(d, filepath.Join(dir, archive.KeysName)); err != nil {
		return Copy{}, err
	}

	sum := sha256.New()
	size, err := d.WriteTo(sum)
	return Copy{
		Digest: hex.EncodeToString(sum.Sum(nil)), Size: size,
		Open: func() (io.ReadCloser, error) {
			r, w := io.Pipe()
			go func() {
				_, err := d.WriteTo(w)
				_ = w.CloseWithError(err) // never fails
			}()
			return r, nil
		},
	}, err
}

// addKeys wraps the keys with the digest of the token, which source and target
// both have. TLS protects them on the way; this protects them on the disk.
func (h sender) addKeys(d *archive.Draft, file string) error {
	token, ok := h.tokens.of(h.file.Site().HandOver.Peer)
	if !ok {
		return fmt.Errorf("the token of the peer is not in %s: %w", h.tokens.path, inventory.ErrNotFound)
	}

	b, err := os.ReadFile(h.cfg.KeyFile)
	if err == nil {
		err = d.Authenticate(h.cfg.KeyFile)
	}
	if err != nil {
		return fmt.Errorf("reading the keys: %w", err)
	}

	return d.AddKeys(inventory.NewSecret(identity.Digest(token)), map[string][]byte{keysFile: b}, file)
}

// temporalFiles are Temporal's database and the files beside it.
func (h sender) temporalFiles() []string {
	file := archive.TemporalFile(h.cfg)
	return []string{file, file + "-wal", file + "-shm"}
}

// setAsideSuffix ends the names of files that were handed over.
func setAsideSuffix(id string) string { return ".handed-over-" + id }

// SetAside renames Temporal's files, the database first: without it nothing starts
// on the rest.
func (h sender) SetAside(id string) error {
	for _, f := range h.temporalFiles() {
		if err := os.Rename(f, f+setAsideSuffix(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return h.syncTemporal()
}

func (h sender) syncTemporal() error {
	err := durable.SyncDir(filepath.Dir(archive.TemporalFile(h.cfg)))
	if errors.Is(err, fs.ErrNotExist) { // the cluster is elsewhere
		return nil
	}
	return err
}

// PutBack undoes SetAside, the database last.
func (h sender) PutBack(id string) error {
	for _, f := range slices.Backward(h.temporalFiles()) {
		if err := os.Rename(f+setAsideSuffix(id), f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(h.syncTemporal(), os.RemoveAll(h.stagingDir()))
}

// Retire destroys the keys. What the databases here still hold sealed is lost with
// them.
func (h sender) Retire(m Mark) error {
	return errors.Join(DestroyKeys(h.cfg.KeyFile, m), os.RemoveAll(h.stagingDir()))
}
