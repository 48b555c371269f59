package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/internal/images/imagefile"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/inventory/sqlite"
)

// images opens the image files that machines download.
type images struct {
	catalogue activities.Images
	files     *imagefile.Files
}

// OpenImage opens the file with the digest sha256 of an image, or the image's current file if sha256 is "".
func (i images) OpenImage(ctx context.Context, name, sha256 string) (io.ReadSeekCloser, inventory.Image, error) {
	if sha256 != "" {
		f, err := i.files.OpenDigest(ctx, name, sha256, i.catalogue.Images)
		return f, inventory.Image{Name: name, File: sha256, SHA256: sha256}, err
	}
	img, err := i.catalogue.Image(ctx, name)
	if err != nil {
		return nil, img, err
	}
	if img.File == "" {
		return nil, img, fmt.Errorf("image %q: this server has no copy of the file: %w", name, inventory.ErrNotFound)
	}

	f, err := i.files.Open(img)
	return f, img, err
}

// stored returns nil if there is a file with the digest of the planned image p.
func (i images) stored(ctx context.Context, p inventory.PlannedImage) error {
	f, err := i.files.OpenDigest(ctx, p.Name, p.SHA256, i.catalogue.Images)
	if err != nil {
		return err
	}
	return f.Close()
}

// adoptImages renames image files of an earlier version: the name of an image file is now the file's digest.
func adoptImages(ctx context.Context, store sqlite.Images, dir string) error {
	all, err := store.Images(ctx)
	if err != nil {
		return err
	}

	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, i := range all {
		if i.File == "" || i.File == i.SHA256 || i.SHA256 == "" {
			continue
		}
		// After a crash at this point, the next start finds the file under its new name.
		err := root.Rename(i.File, i.SHA256)
		if errors.Is(err, fs.ErrNotExist) {
			_, err = root.Stat(i.SHA256)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // the file is missing; ingot doctor reports it
		}
		if err == nil {
			err = store.SetImageFile(ctx, i.Name, i.SHA256)
		}
		if err != nil {
			return fmt.Errorf("renaming the file of image %q: %w", i.Name, err)
		}
	}

	return nil
}
