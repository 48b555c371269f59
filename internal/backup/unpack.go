package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// Verify proves that an archive is complete, in a temporary directory. It needs
// no keys, so it does not prove who made the archive.
func Verify(ctx context.Context, file string) (_ Manifest, err error) {
	dir, err := os.MkdirTemp("", "ingot-verify-*")
	if err != nil {
		return Manifest{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	u, err := unpackFile(ctx, file, dir, false)
	if err == nil {
		err = u.CheckDatabases(ctx)
	}

	return u.Manifest, err
}

// Unpacked is an archive whose parts are in Dir with the digests of its manifest.
// Before Authenticate anyone may have made it; before CheckDatabases no database
// is proven.
type Unpacked struct {
	Manifest
	Dir      string
	OpenRuns []temporalfile.OpenRun // set by CheckDatabases

	seal       Seal
	sealedKeys []byte
}

// maxKeys limits the part that is read into memory, bytes.
const maxKeys = 1 << 20

func unpackFile(ctx context.Context, file, dir string, images bool) (Unpacked, error) {
	f, err := os.Open(file)
	if err != nil {
		return Unpacked{}, err
	}
	defer func() { _ = f.Close() }() // only read
	return Unpack(ctx, f, dir, images)
}

// Unpack reads an archive into dir, with the files of images or without, and
// compares every digest. After an error the contents of dir mean nothing.
func Unpack(ctx context.Context, from io.Reader, dir string, images bool) (u Unpacked, err error) {
	u.Dir = dir
	u.Manifest, u.seal, err = Read(from, func(_ Manifest, p Part, r io.Reader) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case p.Name == KeysName:
			u.sealedKeys, err = io.ReadAll(io.LimitReader(r, maxKeys))
			return err
		case p.Name == InventoryName, p.Name == TemporalName, images && strings.HasPrefix(p.Name, ImagePrefix):
			return writeFile(filepath.Join(dir, p.Name), r)
		}
		return nil
	})
	return u, err
}

// UnwrapKeys returns the key files of the archive, by name.
func (u *Unpacked) UnwrapKeys(passphrase inventory.Secret) (map[string][]byte, error) {
	return u.Key.Unwrap(passphrase, u.ID, u.sealedKeys)
}

// Authenticate refuses an archive that no holder of the site's keys has made.
// Origin says where ring comes from.
func (u *Unpacked) Authenticate(ring *keyring.Ring, origin string) error {
	if u.seal.MadeWith(ring.BackupKeys()) {
		return nil
	}
	return fmt.Errorf("authenticating the backup with %s: "+
		"it was changed after it was made, or made with other keys: use an untouched copy of it: %w",
		origin, inventory.ErrInvalid)
}

// CheckDatabases opens both databases and compares them with the manifest.
func (u *Unpacked) CheckDatabases(ctx context.Context) error {
	inv, err := sqlite.ReadCopy(ctx, filepath.Join(u.Dir, InventoryName))
	if err != nil {
		return err
	}

	if u.Temporal == nil {
		return u.Judge(inv, nil)
	}

	c, err := temporalfile.ReadCopy(ctx, filepath.Join(u.Dir, TemporalName))
	if err != nil {
		return err
	}
	u.OpenRuns = c.Open
	return u.Judge(inv, &c.Copy)
}

// OpenInventory makes the copies the databases that a server runs on, and opens
// the inventory. A ring that does not open its secrets is an error; nil: no key.
// The caller closes the store.
func (u *Unpacked) OpenInventory(ctx context.Context, ring *keyring.Ring) (*sqlite.Store, error) {
	if u.Temporal != nil {
		if err := temporalfile.Adopt(ctx, filepath.Join(u.Dir, TemporalName)); err != nil {
			return nil, err
		}
	}

	s, err := sqlite.Open(ctx, filepath.Join(u.Dir, InventoryName), ring.Sealer())
	if err != nil {
		return nil, fmt.Errorf("opening the inventory: %w", err)
	}
	if ring == nil {
		return s, nil
	}
	if err := s.Keys.KeyCheck(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}

	return s, nil
}

// writeFile writes a new file, and its directory if that is missing.
func writeFile(to string, r io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}

	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}

	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Sync()
	}

	return errors.Join(err, f.Close())
}
