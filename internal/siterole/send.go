package siterole

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

	"github.com/ingotmetal/ingot/internal/backup"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
	"github.com/ingotmetal/ingot/inventory"
)

// sender implements SourceSteps.
type sender struct {
	cfg     config.Config
	version string // version of this program
	file    *File
	tokens  *peerTokens
	leaving func() Instance // returns the site to hand over; nil if this server does not run it
}

// Copy implements SourceSteps: the archive holds both databases, their keys, and a manifest.
func (s sender) Copy(ctx context.Context, id string) (_ Copy, err error) {
	site := s.leaving()
	if site == nil {
		return Copy{}, errors.New("this server does not run the site that is to be copied")
	}

	dir := stagingDirOf(s.cfg)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return Copy{}, err
	}
	if err := backup.RequireRoom(s.cfg); err != nil {
		return Copy{}, err
	}

	d := backup.NewDraft(id, s.version)
	// Stopping Temporal takes a second. Do not wait for that here: until the hand-over ends, no server answers machines.
	ended, err := site.CopyDatabases(ctx, d, dir)
	defer func() { err = errors.Join(err, ended()) }()
	if err != nil {
		return Copy{}, err
	}
	if err := s.addKeys(d, filepath.Join(dir, backup.KeysName)); err != nil {
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
				_ = w.CloseWithError(err) // CloseWithError never fails
			}()
			return r, nil
		},
	}, err
}

// addKeys encrypts the keys with the digest of the peer token, which source and target know. TLS protects the keys only on the network;
// this encryption also protects them on the disk.
func (s sender) addKeys(d *backup.Draft, file string) error {
	token, ok := s.tokens.of(s.file.Site().HandOver.Peer)
	if !ok {
		return fmt.Errorf("the token of the peer is not in %s: %w", s.tokens.path, inventory.ErrNotFound)
	}

	b, err := durablefile.ReadPrivate(s.cfg.KeyFile)
	if err == nil {
		err = d.Authenticate(s.cfg.KeyFile)
	}
	if err != nil {
		return fmt.Errorf("reading the keys: %w", err)
	}

	return d.AddKeys(inventory.NewSecret(identity.Digest(token)), map[string][]byte{keysFile: b}, file)
}

// temporalFiles returns the paths of Temporal's database and of its WAL and shared-memory files.
func (s sender) temporalFiles() []string {
	file := backup.TemporalFile(s.cfg)
	return []string{file, file + "-wal", file + "-shm"}
}

// setAsideSuffix is the suffix that SetAside appends to the names of Temporal's files.
func setAsideSuffix(id string) string { return ".handed-over-" + id }

// SetAside renames Temporal's files. The database is the first one, because Temporal does not start without it.
func (s sender) SetAside(id string) error {
	for _, f := range s.temporalFiles() {
		if err := os.Rename(f, f+setAsideSuffix(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return s.syncTemporal()
}

func (s sender) syncTemporal() error {
	err := durablefile.SyncDir(filepath.Dir(backup.TemporalFile(s.cfg)))
	if errors.Is(err, fs.ErrNotExist) { // the cluster is external
		return nil
	}
	return err
}

// PutBack reverts SetAside. The database is the last file to get its name back, because Temporal can start only then.
func (s sender) PutBack(id string) error {
	for _, f := range slices.Backward(s.temporalFiles()) {
		if err := os.Rename(f+setAsideSuffix(id), f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(s.syncTemporal(), os.RemoveAll(stagingDirOf(s.cfg)))
}

// Retire destroys the keys. Without them, no secret that is stored encrypted in this host's databases can be read.
func (s sender) Retire(m Mark) error {
	return errors.Join(DestroyKeys(s.cfg.KeyFile, m), os.RemoveAll(stagingDirOf(s.cfg)))
}
