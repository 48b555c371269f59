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

	"github.com/ingotmetal/ingot/internal/documents/machinefile"
	"github.com/ingotmetal/ingot/internal/documents/strictyaml"
	"github.com/ingotmetal/ingot/inventory"
)

// maxNamed limits the size of each file that a lab file names, in bytes.
const maxNamed = 1 << 20

// A file is the state of Load while Load reads and checks a lab file.
type file struct {
	name   string
	doc    strictyaml.Document
	read   func(string) ([]byte, error)
	lab    *Lab
	unread inventory.Problems // unknown fields and wrong types
	ps     inventory.Problems // other problems of the lab file
	docs   documents          // documents of the machines
	roles  map[string]role    // valid roles by machine
	owns   machinefile.Claims
	text   map[string][]byte // contents of the files that the lab file names
}

// Load reads the lab file called name, and the files that the lab file names, with the function read. systems checks the
// documents of the machines; nil: they are not checked. If these files have problems, the error is an inventory.Problems
// that lists all of them with file, line and field; the Lab then contains what could be read.
func Load(name string, read func(name string) ([]byte, error), systems Systems) (Lab, error) {
	l := Lab{systems: systems}
	b, err := read(name)
	if err != nil {
		return l, fmt.Errorf("reading lab file %q: %w", name, err)
	}
	docs, err := strictyaml.Documents(name, b)
	if err != nil {
		return l, err
	}
	if len(docs) != 1 {
		ps := inventory.Problems{{
			File: name, What: fmt.Sprintf("holds %d documents where one is expected", len(docs)),
			Remedy: "describe one lab per file",
		}}
		if len(docs) > 1 {
			ps[0].Line = docs[1].FirstLine()
		}
		return l, ps
	}
	owns := machinefile.Claims{}
	f := &file{
		name: name, doc: docs[0], read: read, lab: &l, docs: documents{lab: &l, owns: owns}, owns: owns, text: map[string][]byte{},
	}
	if err := f.doc.Decode(&l); err != nil && !errors.As(err, &f.unread) {
		return l, err
	}
	l.doc, l.unreadImages = f.doc, f.isUnreadable("images")
	f.check()
	all := machinefile.Undisputed(f.unread, f.ps)
	all = f.doc.Locate(all)
	machinefile.SortByLine(all)
	return l, append(all, f.docs.problems...).Err()
}

// Together returns the problems in wrong, which Load has found, and those in more, which were found later in the same
// Lab. It leaves out a problem in more that may be a consequence of one in wrong. The problems of the lab file come
// first, sorted by line.
func (l Lab) Together(wrong, more inventory.Problems) inventory.Problems {
	out := slices.Clone(wrong)
	for _, p := range more {
		if !slices.ContainsFunc(wrong, func(q inventory.Problem) bool { return q.File == p.File && mayCause(q.Field, p.Field) }) {
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

// roleFields matches the fields that determine the role of a machine, and so its default template.
var roleFields = regexp.MustCompile(`^(machines|router(\.machine)?|platform(\.machine)?|cluster(\.create|\.join.*)?)$`)

// mayCause reports whether a problem with field a may be the cause of a problem with field b. If the entry of an image
// or a machine has a problem, comparing the entry with the inventory may find another problem as a consequence.
func mayCause(a, b string) bool {
	entry := func(field string) string { return field[:strings.IndexByte(field, ']')+1] }
	switch {
	case machinefile.Touches(a, b):
		return true
	case strings.HasPrefix(b, "images["):
		return entry(a) == entry(b)
	case strings.HasPrefix(b, "machines[") && strings.HasSuffix(b, "].name"):
		return entry(a) == entry(b) || roleFields.MatchString(a)
	}
	return false
}

// isUnreadable reports whether a section, or the names of its entries, could not be read. If so, references to its
// entries cannot be checked.
func (f *file) isUnreadable(section string) bool {
	return slices.ContainsFunc(f.unread, func(p inventory.Problem) bool {
		rest, ok := strings.CutPrefix(p.Field, section)
		return p.Field == "" || ok && (rest == "" || rest[0] == '[' && (strings.HasSuffix(rest, "]") || strings.HasSuffix(rest, "].name")))
	})
}

// Locate returns ps with the place of each problem's field in the lab file: the name of the file and the line.
func (l Lab) Locate(ps inventory.Problems) inventory.Problems { return l.doc.Locate(ps) }

// Bundle reads the lab file called name, and the files that the lab file names, into a bundle. It also returns the Lab
// and the error of Load.
func Bundle(name string, read func(name string) ([]byte, error), systems Systems) (inventory.GenesisBundle, Lab, error) {
	b := inventory.GenesisBundle{File: name, Files: map[string]inventory.Secret{}}
	lab, err := Load(name, func(n string) ([]byte, error) {
		content, err := read(n)
		if err == nil {
			b.Files[n] = inventory.NewSecret(string(content))
		}
		return content, err
	}, systems)
	b.Name = lab.Name
	return b, lab, err
}

// at returns the place of a field in the lab file as "name:line".
func (f *file) at(field string) string { return fmt.Sprintf("%s:%d", f.name, f.doc.LineOf(field)) }

// add adds a problem with a field of the lab file.
func (f *file) add(field, remedy, format string, args ...any) {
	f.ps.Add(field, remedy, format, args...)
}

// claim records the value of a field whose value must be unique in the lab file, such as an address. It adds a problem if
// another field has the same value.
func (f *file) claim(field, what, value string) { f.owns.Add(&f.ps, field, what, value, f.at(field)) }

// open returns the content of the file called name; field is the field of the lab file that names it. If the file
// cannot be read or is too large, open adds a problem and returns "".
func (f *file) open(field, name string) string {
	if name == "" {
		return ""
	}
	if b, ok := f.text[name]; ok {
		return string(b)
	}
	clean := path.Clean(name)
	if clean != name || !filepath.IsLocal(name) || strings.ContainsAny(name, "\\\x00") {
		f.add(field, "put the file next to the lab file, or in a folder there", "%q is not inside the lab file's folder", name)
		return ""
	}
	if name == f.name {
		f.add(field, "name another file", "%q is the lab file itself", name)
		return ""
	}
	b, err := f.read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.add(field, "the path is relative to the lab file", "file %q does not exist", name)
	case err != nil:
		f.add(field, "", "%v", err)
	case len(b) > maxNamed:
		f.add(field, "", "%q has %d bytes; at most %d are allowed", name, len(b), maxNamed)
	case len(strings.TrimSpace(string(b))) == 0:
		f.add(field, "", "%q is empty", name)
	}
	if err != nil || len(b) > maxNamed {
		return ""
	}
	f.text[name] = b
	return string(b)
}

// line returns the content of a file with a single line, such as a password, without the line break. It adds a problem
// if there are more lines.
func (f *file) line(field, name string) inventory.Secret {
	s := strings.TrimRight(f.open(field, name), "\r\n")
	if strings.ContainsAny(s, "\r\n\x00") {
		f.add(field, "write one line only", "%q has more than one line", name)
		return inventory.Secret{}
	}
	return inventory.NewSecret(s)
}
