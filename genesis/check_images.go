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
			f.add(field+"sha256", "give the digest that sha256sum FILE prints", "is missing")
		case !inventory.IsDigest(d):
			f.add(field+"sha256", "give the 64 hexadecimal digits that sha256sum FILE prints", "invalid SHA-256 %q", i.SHA256)
		}
		if i.File != "" && i.URL != "" {
			f.add(field+"url", "give one of file and url", "must not be given together with file")
		}
		if i.URL != "" {
			if u, err := url.Parse(i.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
				f.add(field+"url", "give an http or https URL", "invalid URL %q", i.URL)
			} else if u.User != nil {
				f.add(field+"url", "download the image and give file instead", "a URL must not contain a password")
			}
		}
	}
}

// hasImage reports whether the lab file lists an image called name. It also returns true if the lab file's list of
// images cannot be read.
func (l Lab) hasImage(name string) bool {
	_, ok := l.Image(name)
	return ok || l.unreadImages
}

// A Digester returns the SHA-256 of the file of an image, in hex. If the file does not exist, the error is
// fs.ErrNotExist.
type Digester func(Image) (sha256 string, err error)

// CheckImages returns a problem for each image that is missing or has another digest than the lab file states. stored
// holds the images of the server, by name. An image that the server does not have may come from its File; the function
// file returns the digest of File. If file is nil, the server must have all images.
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
				ps.Add(field+"file", "put the file there, or store the image with: ingot image add "+i.Name+" FILE",
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
			ps.Add(field+"sha256", "remove the stored image: ingot image delete "+i.Name+"; or correct the digest",
				"the stored image %q has the digest %s", i.Name, have.Given().SHA256)
		default:
			ps.Add(field+"name", "ingot image add "+i.Name+" FILE", "the server does not have image %q", i.Name)
		}
	}
	return l.Locate(ps)
}

// askAtOnce limits how many URLs CheckSources checks in parallel.
const askAtOnce = 8

// CheckSources returns a problem for each image that has a URL, is missing on the server, and cannot be fetched. ask
// returns nil if the server can fetch from a URL; ask itself fetches nothing. CheckSources calls ask from several
// goroutines.
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
				"correct the URL, or store the image with: ingot image add "+name+" FILE",
				"image %q cannot be fetched: %v", name, err)
		}
	}
	return l.Locate(ps)
}
