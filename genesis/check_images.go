package genesis

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"

	"github.com/ingotmetal/ingot/inventory"
)

func (f *file) checkImages() {
	for n, i := range f.lab.Images {
		field := fmt.Sprintf("images[%d].", n)
		if len(inventory.ValidateImageName(i.Name)) > 0 {
			f.add(field+"name", "use lower-case letters, digits and . _ -", "invalid image name %q", i.Name)
		} else {
			f.claim(field+"name", "image name", i.Name)
		}
		f.lab.Images[n].SHA256 = strings.ToLower(strings.TrimPrefix(i.SHA256, "sha256:"))
		switch d := f.lab.Images[n].SHA256; {
		case d == "":
			f.add(field+"sha256", "give the output of: sha256sum FILE", "is missing")
		case !inventory.IsDigest(d):
			f.add(field+"sha256", "give 64 hexadecimal digits: sha256sum FILE", "invalid SHA-256 %q", i.SHA256)
		}
		if i.File != "" && i.URL != "" {
			f.add(field+"url", "give one of file and url", "contradicts file")
		}
		if i.URL != "" {
			if u, err := url.Parse(i.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				f.add(field+"url", "give an http or https address", "invalid address %q", i.URL)
			} else if u.User != nil {
				f.add(field+"url", "fetch it yourself and give file", "an address with a password is not stored")
			}
		}
	}
}

// hasImage reports whether the lab has an image. It returns true if the images could not be
// read.
func (l Lab) hasImage(name string) bool {
	_, ok := l.Image(name)
	return ok || l.unreadImages
}

// Digester returns the SHA-256 of an image's file, in hex, and fs.ErrNotExist
// where the file does not exist.
type Digester func(Image) (sha256 string, err error)

// CheckImages returns the images that neither the server nor a file has, and those with
// another digest, each with file, line and field. stored are the images of the server by name.
// If file is nil, only the server counts.
func (l Lab) CheckImages(stored map[string]inventory.Image, file Digester) inventory.Problems {
	var ps inventory.Problems
	for n, i := range l.Images {
		field := fmt.Sprintf("images[%d].", n)
		have, isStored := stored[i.Name]
		switch {
		case isStored && have.HasDigest(i.SHA256):
			continue
		case i.File != "" && file != nil:
			sum, err := file(i)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				ps.Add(field+"file", "put it there, or store it with: ingot image add "+i.Name+" FILE",
					"file %q does not exist", i.File)
			case err != nil:
				ps.Add(field+"file", "", "%v", err)
			case sum != i.SHA256:
				ps.Add(field+"sha256", "fetch the file again, or correct the digest", "%q has the digest %s", i.File, sum)
			}
			continue
		case i.URL != "" && !isStored:
			if file == nil {
				ps.Add(field+"name", "ingot image add "+i.Name+" "+i.Source(), "the server does not have image %q", i.Name)
			}
		case isStored:
			ps.Add(field+"sha256", "remove the stored one: ingot image delete "+i.Name+"; or correct the digest",
				"the stored image %q has the digest %s", i.Name, have.Given().SHA256)
		default:
			ps.Add(field+"name", "ingot image add "+i.Name+" FILE", "the server does not have image %q", i.Name)
		}
	}
	return l.Locate(ps)
}

// askAtOnce limits how many URLs are checked at a time.
const askAtOnce = 8

// CheckSources returns the images that the server neither has nor can fetch from their URLs.
// It calls ask with a few URLs at a time; ask fetches nothing.
func (l Lab) CheckSources(stored map[string]inventory.Image, ask func(address string) error) inventory.Problems {
	errs := make([]error, len(l.Images))
	var asking sync.WaitGroup
	free := make(chan struct{}, askAtOnce)
	for n, i := range l.Images {
		if _, isStored := stored[i.Name]; i.URL != "" && !isStored {
			free <- struct{}{}
			asking.Go(func() {
				defer func() { <-free }()
				errs[n] = ask(i.URL)
			})
		}
	}
	asking.Wait()
	var ps inventory.Problems
	for n, err := range errs {
		if err != nil {
			name := l.Images[n].Name
			ps.Add(fmt.Sprintf("images[%d].url", n),
				"correct the address, or store the image with: ingot image add "+name+" FILE",
				"image %q cannot be fetched: %v", name, err)
		}
	}
	return l.Locate(ps)
}
