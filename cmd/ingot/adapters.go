package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/inventory"
)

// images opens the files that the image server serves.
type images struct {
	catalogue activities.Catalogue
	dir       string
}

func (i images) OpenImage(ctx context.Context, name string) (io.ReadSeekCloser, inventory.Image, error) {
	img, err := i.catalogue.Image(ctx, name)
	if err != nil {
		return nil, img, err
	}
	if img.File == "" {
		return nil, img, fmt.Errorf("image %q: this server has no copy: %w", name, inventory.ErrNotFound)
	}
	root, err := os.OpenRoot(i.dir)
	if err != nil {
		return nil, img, err
	}
	defer root.Close()
	f, err := root.Open(img.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, img, fmt.Errorf("image %q: its file is gone: %w", name, inventory.ErrNotFound)
	}
	return f, img, err
}
