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
)

// images opens the files that the image server serves.
type images struct {
	catalogue activities.Images
	files     *imagefile.Files
}

// OpenImage opens the file with that digest, or the image's current file if it is "".
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
		return nil, img, fmt.Errorf("image %q: this server has no copy: %w", name, inventory.ErrNotFound)
	}

	f, err := i.files.Open(img)
	return f, img, err
}

// stored requires that the file of a planned image is there, and unchanged.
func (i images) stored(ctx context.Context, p inventory.PlannedImage) error {
	f, err := i.files.OpenDigest(ctx, p.Name, p.SHA256, i.catalogue.Images)
	if err != nil {
		return err
	}
	return f.Close()
}

// adoptImages gives the files of images that an earlier version stored the
// names that they have now: their digests.
func adoptImages(ctx context.Context, store imageFiles, dir string) error {
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
		// A crash after this leaves the file under its new name, where the next start finds it.
		err := root.Rename(i.File, i.SHA256)
		if errors.Is(err, fs.ErrNotExist) {
			_, err = root.Stat(i.SHA256)
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // its file is gone: ingot doctor says so
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

// imageFiles is what adoptImages needs of the store.
type imageFiles interface {
	Images(ctx context.Context) ([]inventory.Image, error)
	SetImageFile(ctx context.Context, name, file string) error
}
