package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/ingotmetal/ingot/activities"
	"github.com/ingotmetal/ingot/api"
	"github.com/ingotmetal/ingot/bmc"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/template"
)

// power lets activities drive BMCs without knowing package bmc.
type power struct{ *bmc.Driver }

func (p power) State(ctx context.Context, b inventory.BMC, password inventory.Secret) (string, error) {
	s, err := p.PowerState(ctx, b, password)
	return string(s), err
}

func (p power) Set(ctx context.Context, b inventory.BMC, password inventory.Secret, to string, fence activities.Fence) error {
	return p.Power(ctx, b, password, to, bmc.Fence(fence))
}

func (p power) SetBootDevice(ctx context.Context, b inventory.BMC, password inventory.Secret, d inventory.BootDevice, fence activities.Fence) (string, error) {
	return p.Driver.SetBootDevice(ctx, b, password, d, bmc.Fence(fence))
}

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

// templates lets the API parse and render templates.
type templates struct{}

func (templates) Parse(source string) (string, error) {
	t, err := template.Parse("template", []byte(source))
	if err != nil {
		return "", err
	}
	return t.Name, nil
}

func (templates) Render(t inventory.Template, m inventory.Machine, i *inventory.Image, hardwareMap map[string]string) (api.Rendered, error) {
	d := template.Data{Machine: m, Image: i, HardwareMap: hardwareMap}
	if i != nil {
		if d.ImageURL = i.URL; i.File != "" {
			d.ImageURL = "http://ingot.invalid/images/" + i.Name
		}
	}
	r, err := template.Render(context.Background(), t.Name, t.Source, d)
	return api.Rendered{Actions: r.Actions, GlobalTimeout: r.GlobalTimeout}, err
}

func (templates) Builtin() []inventory.Template { return template.Builtins() }
