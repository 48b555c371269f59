package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/internal/secrets/identity"
)

// placeSecrets writes the secret files that do not exist yet. If files contains no admin token, it makes one.
func (r *Restore) placeSecrets(files map[string][]byte) error {
	if files["token"] == nil {
		files["token"] = identity.NewToken()
	}

	for name, path := range SecretFiles(r.Config) {
		if files[name] == nil {
			continue
		}
		err := identity.CreateFile(path, files[name])
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

// placeImages moves the files of images to their places. If the file of an image is missing, it adds the image to
// out.Missing.
func (r *Restore) placeImages(m Manifest, staging string, out *Restored) error {
	out.Missing = []string{}
	shared := imagefile.New("", r.Config.Images.Shares)
	for _, i := range m.Images {
		if i.File == "" {
			continue
		}
		if i.InPlace != "" {
			f, err := shared.OpenShared(i.InPlace)
			if err != nil {
				out.Missing = append(out.Missing, fmt.Sprintf("%s (served in place: %v)", i.Name, err))
				continue
			}
			if err := f.Close(); err != nil {
				return err
			}
			continue
		}
		to := filepath.Join(r.Config.ImageDir(), i.File)
		there, err := durablefile.Exists(to)
		if err != nil {
			return err
		}
		switch {
		case there:
		case i.Included:
			if err := moveFile(filepath.Join(staging, ImagePrefix, i.File), to); err != nil {
				return err
			}
			r.undo = append(r.undo, func() error { return os.Remove(to) })
		default:
			out.Missing = append(out.Missing, fmt.Sprintf("%s (sha256:%s)", i.Name, i.SHA256))
		}
	}

	return nil
}

// moveFile renames a file, or copies it if to is on another file system.
func moveFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
		return err
	}

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

// commit moves the databases to their places, the inventory first: if the move is interrupted, the inventory accepts no Temporal
// database but its own. No server starts on this data directory until staging is removed.
func (r *Restore) commit(m Manifest, staging string) error {
	dir := r.Config.DataDir
	place := func(name, to string) error {
		if err := os.Rename(filepath.Join(staging, name), to); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(to) })
		return nil
	}

	if err := place(InventoryName, InventoryFile(r.Config)); err != nil {
		return err
	}
	if m.Temporal != nil {
		file := TemporalFile(r.Config)
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		r.undo = append(r.undo, func() error { return os.Remove(filepath.Dir(file)) })
		if err := place(TemporalName, file); err != nil {
			return err
		}
		if err := durablefile.SyncDir(filepath.Dir(file)); err != nil {
			return err
		}
	}

	if err := durablefile.SyncDir(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(staging); err != nil {
		return err
	}
	r.undo = nil // from here on, the data directory is complete and must not be reverted
	return durablefile.SyncDir(dir)
}
