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

// Verify checks an archive for completeness, in a temporary directory below scratch ("": the system's one). It needs no
// keys, and does not prove who made the archive.
func Verify(ctx context.Context, file, scratch string) (_ Manifest, err error) {
	dir, err := os.MkdirTemp(scratch, "ingot-verify-*")
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

// Unpacked is an archive whose parts are in Dir and have the digests in its manifest. Until Authenticate has returned nil, the
// archive may be a forgery; until CheckDatabases has returned nil, its databases may be damaged.
type Unpacked struct {
	Manifest
	Dir      string
	OpenRuns []temporalfile.OpenRun // set by CheckDatabases

	seal       Seal
	sealedKeys []byte
}

// maxKeys is the size limit, in bytes, for the encrypted keys: they are read into memory.
const maxKeys = 1 << 20

func unpackFile(ctx context.Context, file, dir string, images bool) (Unpacked, error) {
	f, err := os.Open(file)
	if err != nil {
		return Unpacked{}, err
	}
	defer func() { _ = f.Close() }() // only read
	return Unpack(ctx, f, dir, images)
}

// Unpack reads an archive into dir and checks every digest. If images is true, it also unpacks the image files. After
// an error, the files in dir must not be used.
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

// UnwrapKeys returns the key files of the archive, by name. The archive must contain keys.
func (u *Unpacked) UnwrapKeys(passphrase inventory.Secret) (map[string][]byte, error) {
	return u.Key.Unwrap(passphrase, u.ID, u.sealedKeys)
}

// Authenticate returns an error if the archive was not made by a holder of the keys in ring. origin describes ring in the error.
func (u *Unpacked) Authenticate(ring *keyring.Ring, origin string) error {
	if u.seal.MadeWith(ring.BackupKeys()) {
		return nil
	}
	return fmt.Errorf("authenticating the backup with %s: "+
		"the backup was changed after it was made, or was made with other keys: use an unchanged copy: %w",
		origin, inventory.ErrInvalid)
}

// CheckDatabases opens both databases, compares them with the manifest, and sets OpenRuns.
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

// OpenInventory prepares the unpacked databases for use by a server, and opens the inventory. It returns an error if ring does
// not open the inventory's secrets; with a nil ring, it does not try to open them. The caller must close the store.
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

// writeFile creates a file, and its directory if that is missing.
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
