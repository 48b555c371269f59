package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"time"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/bootsvc"
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

// heardRelays is when relays were heard by a server that may hear nobody.
type heardRelays struct{ boot *bootsvc.Server }

func (h heardRelays) Relayed(giaddr netip.Addr) time.Time {
	if h.boot == nil {
		return time.Time{}
	}
	return h.boot.Relayed(giaddr)
}
