package genesis

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/ingotmetal/ingot/internal/machinefile"
	"github.com/ingotmetal/ingot/internal/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// maxNamed bounds a file that a lab file names, in bytes.
const maxNamed = 1 << 20

// A file is the lab file while it is read: what it says, what is wrong with
// it, and who owns what.
type file struct {
	name   string
	doc    strictyaml.Document
	read   func(string) ([]byte, error)
	lab    *Lab
	unread inventory.Problems // of the lab file: what is no field or has no value of its kind
	ps     inventory.Problems // of the lab file as it was read
	named  inventory.Problems // of the files that it names
	owns   machinefile.Claims
	text   map[string][]byte // the named files
}

// Load reads the lab file called file and the files that it names, all by read.
// Everything that is wrong is told at once as inventory.Problems, with file,
// line and field; the Lab that comes with them holds what could be read.
func Load(name string, read func(name string) ([]byte, error)) (Lab, error) {
	var l Lab
	b, err := read(name)
	if err != nil {
		return l, fmt.Errorf("reading lab file %q: %w", name, err)
	}
	docs, err := strictyaml.Documents(name, b)
	if err != nil {
		return l, err
	}
	if len(docs) != 1 {
		ps := inventory.Problems{{File: name, What: fmt.Sprintf("holds %d documents where one is expected", len(docs)), Remedy: "describe one lab per file"}}
		if len(docs) > 1 {
			ps[0].Line = docs[1].Line()
		}
		return l, ps
	}
	f := &file{name: name, doc: docs[0], read: read, lab: &l, owns: machinefile.Claims{}, text: map[string][]byte{}}
	if err := f.doc.Decode(&l); err != nil && !errors.As(err, &f.unread) {
		return l, err
	}
	l.doc = f.doc
	f.check()
	all := machinefile.Undisputed(f.unread, f.ps)
	all = f.doc.Locate(all)
	machinefile.SortByLine(all)
	return l, append(all, f.named...).Err()
}

// Together returns wrong, what Load said of the lab, and what somebody found
// besides in the Lab that came with it: those of more that are no consequence
// of wrong. The problems of the lab file come first, by line.
func (l Lab) Together(wrong, more inventory.Problems) inventory.Problems {
	out := slices.Clone(wrong)
	for _, p := range more {
		if !slices.ContainsFunc(wrong, func(q inventory.Problem) bool { return q.File == p.File && explains(q.Field, p.Field) }) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b inventory.Problem) int {
		first := func(p inventory.Problem) bool { return p.File == l.doc.File }
		switch {
		case first(a) && first(b):
			return a.Line - b.Line
		case first(a):
			return -1
		case first(b):
			return 1
		}
		return 0
	})
	return out
}

// given are the fields by which a machine becomes something, and so gets a
// template.
var given = regexp.MustCompile(`^(machines|router(\.machine)?|platform(\.machine)?|cluster(\.create|\.join.*)?)$`)

// explains tells whether a problem with field a may be the cause of one with
// field b. Whether an image can be had is asked of one that is described
// rightly, and so is whether a machine is the one of the inventory.
func explains(a, b string) bool {
	entry := func(field string) string { return field[:strings.IndexByte(field, ']')+1] }
	switch {
	case machinefile.Touches(a, b):
		return true
	case strings.HasPrefix(b, "images["):
		return entry(a) == entry(b)
	case strings.HasPrefix(b, "machines[") && strings.HasSuffix(b, "].name"):
		return entry(a) == entry(b) || given.MatchString(a)
	}
	return false
}

// lost tells whether a section could not be read, or which entries it has: then
// what others say of it cannot be judged.
func (f *file) lost(section string) bool {
	return slices.ContainsFunc(f.unread, func(p inventory.Problem) bool {
		rest, ok := strings.CutPrefix(p.Field, section)
		return p.Field == "" || ok && (rest == "" || rest[0] == '[' && (strings.HasSuffix(rest, "]") || strings.HasSuffix(rest, "].name")))
	})
}

// Locate adds file and line to problems that somebody else found with fields of
// the lab file.
func (l Lab) Locate(ps inventory.Problems) inventory.Problems { return l.doc.Locate(ps) }

// Bundle reads the lab file called file and the files that it names into a
// bundle, and the lab that they describe. Everything wrong is told as Load
// tells it.
func Bundle(name string, read func(name string) ([]byte, error)) (inventory.GenesisBundle, Lab, error) {
	b := inventory.GenesisBundle{File: name, Files: map[string]inventory.Secret{}}
	lab, err := Load(name, func(n string) ([]byte, error) {
		content, err := read(n)
		if err == nil {
			b.Files[n] = inventory.NewSecret(string(content))
		}
		return content, err
	})
	b.Name = lab.Name
	return b, lab, err
}

// at tells where a field was written.
func (f *file) at(field string) string { return fmt.Sprintf("%s:%d", f.name, f.doc.LineOf(field)) }

// add is a problem with a field of the lab file.
func (f *file) add(field, remedy, format string, args ...any) {
	f.ps.Add(field, remedy, format, args...)
}

// open reads a file that field names. What cannot be read is a problem and "".
func (f *file) open(field, name string) string {
	if name == "" {
		return ""
	}
	if b, ok := f.text[name]; ok {
		return string(b)
	}
	clean := path.Clean(name)
	if clean != name || !filepath.IsLocal(name) || strings.ContainsAny(name, "\\\x00") {
		f.add(field, "put it beside the lab file, or in a folder there", "%q does not lie below the folder of the lab file", name)
		return ""
	}
	if name == f.name {
		f.add(field, "name another file", "%q is the lab file itself", name)
		return ""
	}
	b, err := f.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.add(field, "the path is relative to the lab file", "there is no file %q", name)
	case err != nil:
		f.add(field, "", "%v", err)
	case len(b) > maxNamed:
		f.add(field, "", "%q has %d bytes, more than %d", name, len(b), maxNamed)
	case len(strings.TrimSpace(string(b))) == 0:
		f.add(field, "", "%q is empty", name)
	}
	if err != nil || len(b) > maxNamed {
		return ""
	}
	f.text[name] = b
	return string(b)
}

// line is open for a file that holds one line, such as a password.
func (f *file) line(field, name string) inventory.Secret {
	s := strings.TrimRight(f.open(field, name), "\r\n")
	if strings.ContainsAny(s, "\r\n\x00") {
		f.add(field, "one line, and nothing else", "%q has more than one line", name)
		return inventory.Secret{}
	}
	return inventory.NewSecret(s)
}

// Digester tells the SHA-256 of the file of an image, in hex, and fs.ErrNotExist
// when there is none.
type Digester func(Image) (sha256 string, err error)

// CheckImages returns what is wrong with the images of the lab: those that
// neither the server nor the given files have, and those with another digest,
// each with file, line and field. stored says what the server has of a name: its
// digest, or "". Without file, what only a file or an address has is missing.
func (l Lab) CheckImages(stored func(name string) string, file Digester) inventory.Problems {
	var ps inventory.Problems
	for n, i := range l.Images {
		field := fmt.Sprintf("images[%d].", n)
		have := ""
		if stored != nil {
			have = stored(i.Name)
		}
		switch {
		case have != "" && have == i.SHA256:
			continue
		case i.File != "" && file != nil:
			sum, err := file(i)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				ps.Add(field+"file", "put it there, or store it with: ingot image add "+i.Name+" FILE", "there is no file %q", i.File)
			case err != nil:
				ps.Add(field+"file", "", "%v", err)
			case sum != i.SHA256:
				ps.Add(field+"sha256", "fetch the file again, or correct the digest", "%q has the digest %s", i.File, sum)
			}
			continue
		case i.URL != "" && have == "":
			if file == nil {
				ps.Add(field+"name", "ingot image add "+i.Name+" "+i.Source(), "the server has no image %q", i.Name)
			}
		case have != "":
			ps.Add(field+"sha256", "remove the stored one: ingot image delete "+i.Name+"; or correct the digest", "the stored image %q has the digest %s", i.Name, have)
		default:
			ps.Add(field+"name", "ingot image add "+i.Name+" FILE", "the server has no image %q", i.Name)
		}
	}
	return l.Locate(ps)
}

// askAtOnce is how many addresses are asked at a time.
const askAtOnce = 8

// CheckSources returns what keeps the images from being fetched that the server
// lacks and that have an address: ask is called with each, with a few at a
// time, and fetches nothing.
func (l Lab) CheckSources(stored func(name string) string, ask func(address string) error) inventory.Problems {
	errs := make([]error, len(l.Images))
	var asking sync.WaitGroup
	free := make(chan struct{}, askAtOnce)
	for n, i := range l.Images {
		if i.URL != "" && stored(i.Name) == "" {
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
			ps.Add(fmt.Sprintf("images[%d].url", n), "correct the address, or store the image with: ingot image add "+name+" FILE", "image %q cannot be fetched: %v", name, err)
		}
	}
	return l.Locate(ps)
}

// Differs returns the fields in which a stored machine differs from the one of
// the lab file, secrets aside, in order.
func Differs(stored, lab inventory.Machine) []string {
	stored, lab = inventory.Canonical(stored), inventory.Canonical(lab)
	var out []string
	for _, x := range []struct {
		field string
		same  bool
	}{
		{"labels", equal(stored.Labels, lab.Labels)},
		{"interfaces", equal(stored.Interfaces, lab.Interfaces)},
		{"disks", equal(stored.Disks, lab.Disks)},
		{"protectedDisks", equal(stored.ProtectedDisks, lab.ProtectedDisks)},
		{"diskSelector", equal(stored.DiskSelector, lab.DiskSelector)},
		{"bmc", equal(bare(stored.BMC), bare(lab.BMC))},
		{"template", stored.Template == lab.Template},
		{"image", stored.Image == lab.Image},
		{"sshKeys", slices.Equal(stored.SSHKeys, lab.SSHKeys)},
		{"bootFromDisk", stored.BootFromDisk == lab.BootFromDisk},
		{"kernelArgs", slices.Equal(stored.KernelArgs, lab.KernelArgs)},
	} {
		if !x.same {
			out = append(out, x.field)
		}
	}
	return out
}
