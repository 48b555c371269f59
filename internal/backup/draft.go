package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ingotmetal/ingot/internal/secrets/keyring"
	"github.com/ingotmetal/ingot/internal/temporal/temporalfile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// A Draft is an archive that is not written yet. Its parts are files on this host.
type Draft struct {
	Manifest

	paths map[string]string // paths of the parts by name
	key   []byte            // key that authenticates the manifest; nil = the site has no key file
}

// NewDraft returns a Draft without parts; version is the version of this program.
func NewDraft(id, version string) *Draft {
	return &Draft{
		Manifest: Manifest{
			Format: Format, ID: id, Version: version,
			Created: time.Now().UTC().Truncate(time.Second), Images: []Image{},
		},
		paths: map[string]string{},
	}
}

// WriteTo writes the archive.
func (d *Draft) WriteTo(w io.Writer) (int64, error) {
	c := &countingWriter{w: w}
	err := Write(c, d.Manifest, d.paths, d.key)
	return c.n, err
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// Add adds the file at path to the archive as the part with that name.
func (d *Draft) Add(name, path string) error {
	p, err := Describe(name, path)
	if err == nil {
		d.addPart(p, path)
	}
	return err
}

func (d *Draft) addPart(p Part, path string) {
	d.Parts = append(d.Parts, p)
	d.paths[p.Name] = path
}

// removeCopies removes the files of the databases.
func (d *Draft) removeCopies() (err error) {
	for _, name := range []string{InventoryName, TemporalName} {
		if path, ok := d.paths[name]; ok {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// AddTemporal verifies a copy of Temporal's database and adds it to the archive.
func (d *Draft) AddTemporal(ctx context.Context, path string) error {
	c, err := temporalfile.ReadCopy(ctx, path)
	if err != nil {
		return err
	}
	d.Temporal = &c.Database
	return d.Add(TemporalName, path)
}

// AddInventory verifies a copy of the inventory and adds it to the archive.
func (d *Draft) AddInventory(ctx context.Context, path string) error {
	c, err := sqlite.ReadCopy(ctx, path)
	if err != nil {
		return err
	}
	d.Inventory = c.Database
	return d.Add(InventoryName, path)
}

// Authenticate makes WriteTo authenticate the manifest with the current key in keyFile. A restore needs this key as
// well.
func (d *Draft) Authenticate(keyFile string) error {
	ring, err := keyring.Load(keyFile)
	if err != nil {
		return err
	}
	if keys := ring.BackupKeys(); len(keys) > 0 {
		d.key = keys[0]
	}
	return nil
}

// AddKeys encrypts files (key files by name) with the passphrase, writes the result to path, and adds it to the archive.
func (d *Draft) AddKeys(passphrase inventory.Secret, files map[string][]byte, path string) error {
	w, sealed, err := Wrapped(passphrase, d.ID, files)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, sealed, 0o600); err != nil {
		return err
	}
	d.Key = &w
	return d.Add(KeysName, path)
}

// AddImage lists an image in the manifest. If include is true, it also adds the image's file in dir, unless the server serves the
// file from its original place.
func (d *Draft) AddImage(i inventory.Image, dir string, include bool) error {
	x := Image{Name: i.Name, File: i.File, Size: i.Size, SHA256: i.SHA256, URL: i.URL}
	if i.InPlace != nil {
		x.InPlace = i.InPlace.Path
	}
	if include && i.File != "" && i.InPlace == nil {
		name, path := ImagePrefix+i.File, filepath.Join(dir, i.File)
		p, err := Describe(name, path)
		switch {
		case err != nil:
			return fmt.Errorf("image %q: %w", i.Name, err)
		case p.SHA256 != i.SHA256:
			return fmt.Errorf("image %q: the file has the SHA-256 %.12s instead of %.12s: check it with ingot image verify %s: %w",
				i.Name, p.SHA256, i.SHA256, i.Name, inventory.ErrConflict)
		}
		// Two images may share a file.
		if !slices.ContainsFunc(d.Parts, func(q Part) bool { return q.Name == name }) {
			d.addPart(p, path)
		}
		x.Included = true
	}
	d.Images = append(d.Images, x)
	return nil
}
